"""The words that say what an energy is, apart from its weights: its attention, its pooling, what it reads."""

from typing import Literal

EnergyKind = Literal["unit", "bit"]  # causal or bidirectional attention (deng2020 §4.1)
UNIT: EnergyKind = "unit"
BIT: EnergyKind = "bit"

Pooling = Literal["mean", "first"]  # over all tokens (deng2020), or the first position (bakhtin2019's BiTransf)
MEAN: Pooling = "mean"
FIRST: Pooling = "first"

Reads = Literal["tokens", "text"]  # the language model's own ids, or decoded text: any encoder over any model
TOKENS: Reads = "tokens"
TEXT: Reads = "text"

LongTexts = Literal["refuse", "cut-left"]  # what becomes of text that is longer than the encoder
REFUSE: LongTexts = "refuse"
CUT_LEFT: LongTexts = "cut-left"

NCE: Literal["nce"] = "nce"  # the loss at whose minimum −E = log P_data − log P_LM (`objectives.residual_nce`)
