"""How n-best lists are reranked: f + Σ λ·score, with λ given or tuned on a grid over dev lists."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

NBestFormat = Literal["espnet", "jsonl", "tsv", "moses"]
MetricName = Literal["wer", "bleu"]
LengthNormalisation = Literal["none", "word", "character"]

STDIN = "-"
MOST_VALUES = 100_000  # of λ in a grid


class WeightGrid(Config):
    """λ from `step` to `highest` in steps; clark2020: 0.05, 0.1, … 1.0."""

    step: float = Field(0.05, gt=0, allow_inf_nan=False, description="The lowest λ, and the distance to the next.")
    highest: float = Field(1.0, gt=0, allow_inf_nan=False, description="The highest λ.")

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.highest < self.step:
            raise ValueError(f"the highest λ, {self.highest}, lies below the step, {self.step}; no λ is left to try")
        if self.highest / self.step > MOST_VALUES:
            raise ValueError(
                f"a step of {self.step} up to {self.highest} makes more than {MOST_VALUES:,} values of λ; take a "
                "larger step"
            )
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        count = int(self.highest / self.step + 1e-9)
        return tuple(round(self.step * number, 10) for number in range(1, count + 1))
