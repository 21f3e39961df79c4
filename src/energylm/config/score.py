"""How texts are scored: `energylm score`, and the scorers of `energylm rerank` and `energylm evaluate`."""

from typing import Literal

from pydantic import Field

from energylm.config.base import Config

Method = Literal["auto", "log-likelihood", "pseudo-log-likelihood"]
AUTO: Method = "auto"
LOG_LIKELIHOOD: Method = "log-likelihood"
PSEUDO_LOG_LIKELIHOOD: Method = "pseudo-log-likelihood"

Masking = Literal["token", "within-word"]
TOKEN: Masking = "token"
WITHIN_WORD: Masking = "within-word"

Casing = Literal["keep", "lower", "upper", "sentence"]
LongInputs = Literal["windows", "refuse"]
WINDOWS: LongInputs = "windows"
Normalise = Literal["none", "token", "word"]
Per = Literal["sentence", "word", "token"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
FLOAT32: Dtype = "float32"


class ScorerConfig(Config):
    """What a score is made of. Higher = better."""

    method: Method = Field(
        AUTO,
        description="log-likelihood (causal models), pseudo-log-likelihood (masked models, Electric, two-tower, "
        "ELECTRA-TT), or auto: what the model has.",
    )
    masking: Masking = Field(
        TOKEN,
        description="What a masked model does not see of a word while it scores one of its tokens: that token, or also "
        "the later ones (within-word: left to right within a word).",
    )
    casing: Casing = Field(
        "keep",
        description="Turn texts to lower or upper case before scoring, or to lower case with a capital at the start "
        "and for the word I (sentence); what is printed stays as it was.",
    )
    eos: bool = Field(False, description="Score the end-of-sequence token too (causal models).")
    long_texts: LongInputs = Field(
        WINDOWS,
        description="Texts longer than the model: scored in overlapping windows, every token once, or refused.",
    )
    # Left out of what identifies a finished result where nothing was asked for: older ones are found again.
    device: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Where the model runs: cpu, cuda, cuda:1 or mps; none: a GPU where there is one, else the CPU.",
    )
    dtype: Dtype | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Type of a causal model's weights; none: float32 on a CPU, the saved one elsewhere. Others are "
        "read in float32.",
    )
