"""The words that say what an energy is, apart from its weights: its network, its pooling, what it reads, its loss."""

from typing import Annotated, Literal

from energylm.registry import LOSSES, Named

# Causal or bidirectional transformers (deng2020 §4.1), one weight a token, bidirectional LSTMs (bakhtin2019 §4.3).
EnergyKind = Literal["unit", "bit", "linear", "bilstm"]
UNIT: EnergyKind = "unit"
BIT: EnergyKind = "bit"
LINEAR: EnergyKind = "linear"
BILSTM: EnergyKind = "bilstm"
KIND_WORDS: dict[EnergyKind, str] = {
    UNIT: "causal",
    BIT: "bidirectional",
    LINEAR: "bag-of-tokens",
    BILSTM: "bidirectional LSTM",
}

# Over all tokens (deng2020), the first position (bakhtin2019's BiTransf), or the sum of bakhtin2019's Linear.
Pooling = Literal["mean", "first", "sum"]
MEAN: Pooling = "mean"
FIRST: Pooling = "first"
SUM: Pooling = "sum"
POOLINGS: dict[EnergyKind, tuple[Pooling, ...]] = {  # what each kind can do; the first is its default
    UNIT: (MEAN,),
    BIT: (MEAN, FIRST),
    LINEAR: (SUM,),
    BILSTM: (MEAN,),
}

Reads = Literal["tokens", "text"]  # the language model's own ids, or decoded text: any encoder over any model
TOKENS: Reads = "tokens"
TEXT: Reads = "text"

LongTexts = Literal["refuse", "cut-left"]  # what becomes of text that is longer than the encoder
REFUSE: LongTexts = "refuse"
CUT_LEFT: LongTexts = "cut-left"

# The losses, by name (`registry.LOSSES`). At the minimum of `nce` alone −E = log P_data − log P_LM.
Objective = Annotated[str, Named(LOSSES)]
NCE = "nce"
RANKING = "ranking"
