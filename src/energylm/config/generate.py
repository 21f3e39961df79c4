"""How text is drawn from a joint model of language model and energy: `energylm generate`, `ResidualModel.sample`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.sampling import Truncation


class JointSampling(Config):
    """Algorithm 1 of Deng et al. 2020: draw candidates from the language model, keep one by its energy."""

    n: int = Field(256, ge=2, description="Candidates drawn for each text; the paper draws 10,000.")
    max_new_tokens: int = Field(40, ge=1, description="Tokens of a continuation (of each chunk) at most.")
    truncation: Truncation = Field(Truncation(), description="How the proposal is narrowed; the paper: top-k 10.")
    weights: Literal["paper", "corrected"] = Field(
        "paper",
        description="paper: exp(−E) over the truncated proposal; corrected: also divides the truncation out again, "
        "which costs more candidates the longer the text.",
    )
    draws: int = Field(
        1, ge=1, description="Different candidates kept of one pool; only the first has the law of algorithm 1."
    )
    chunks: int = Field(1, ge=1, description="Draw this many times in a row; each kept chunk becomes context.")
    context_tokens: int | None = Field(
        None, ge=1, description="Last tokens of the context that are read; none = all. Long texts need it."
    )
    stop_at_eos: bool = Field(True, description="Stop at the end-of-sequence token, where the model has one.")

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.draws > self.n:
            raise ValueError(f"draws {self.draws} of n {self.n} candidates: keep fewer or draw more candidates")
        if self.draws > 1 and self.chunks > 1:
            raise ValueError(
                f"draws {self.draws} with chunks {self.chunks}: a long text goes on from one choice; take draws 1 and "
                "several seeds instead"
            )
        return self


class NextTokens(Config):
    """Next-token probabilities of the joint model among the likeliest of the base (Deng et al. 2020, app. A.1)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    n: int = Field(1000, ge=2, description="Completions drawn for each candidate; the paper draws 10,000.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")
