"""How n-best lists are reranked: f + Σ λ·score, with λ given or tuned on a grid over dev lists."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from energylm.config.base import Config
from energylm.config.score import ScorerConfig

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


class NamedScorer(ScorerConfig):
    """One of the models whose scores are added to the recogniser's."""

    model: str = Field(description="A model folder, a GGUF file, a known model or a hub name.")


class RerankSet(Config):
    """Lists to rerank, and the lists on which their λ is tuned."""

    lists: str = Field(description="A file of n-best lists; - is standard input.")
    dev: str | None = Field(None, description="A file of n-best lists with references on which λ is tuned.")
    references: str | None = Field(None, description="References of `lists`, a line each, where it has none inside.")
    dev_references: str | None = Field(None, description="References of `dev`, likewise.")


class RerankConfig(Config):
    """Reranking with one or several scorers (Clark et al. 2020, §3.2)."""

    scorers: tuple[NamedScorer, ...] = Field(min_length=1, description="The models, each with its own settings.")
    sets: tuple[RerankSet, ...] = Field(min_length=1, description="Sets of lists; λ is chosen for each by itself.")
    format: NBestFormat | None = Field(None, description="Format of the lists; none: by the file's name or content.")
    weights: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] | None = Field(
        None, description="Fixed λ, one for each scorer, in place of tuning on dev."
    )
    grid: WeightGrid = Field(WeightGrid(), description="The λ that are tried; with several scorers also 0.")
    length_normalisation: LengthNormalisation = Field(
        "none", description="Divide the whole score, f + λ·score, by the words or characters of the hypothesis."
    )
    metric: MetricName = Field("wer", description="Word error rate (jiwer) or BLEU (sacrebleu).")
    limit: int | None = Field(None, ge=1, description="Use this many lists of each file, chosen at random.")
    resamples: int = Field(2000, ge=1, description="Of the paired bootstrap against the 1-best.")
    seed: int = Field(0, ge=0, description="Of the choice of lists and of the bootstrap.")
    shown: int = Field(20, ge=0, description="Changed hypotheses of each set that the report shows.")

    @field_validator("scorers", mode="before")
    @classmethod
    def _a_path_is_a_scorer(cls, value: Any) -> Any:
        several = [value] if isinstance(value, str) else value
        return [{"model": one} if isinstance(one, str) else one for one in several]

    @model_validator(mode="after")
    def _every_set_gets_its_weight(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.scorers):
            raise ValueError(
                f"{len(self.weights)} weights came for {len(self.scorers)} scorers; give one for each, or none to tune"
            )
        for one in self.sets:
            if (one.dev is None) == (self.weights is None):
                cure = "give it a dev set, or fixed weights" if one.dev is None else "drop the dev set, or the weights"
                raise ValueError(
                    f"{one.lists} has {'neither dev nor' if one.dev is None else 'both dev and'} weights; {cure}"
                )
        return self

    @model_validator(mode="after")
    def _standard_input_is_read_once(self) -> Self:
        read = {pair for one in self.sets for pair in ((one.lists, one.references), (one.dev, one.dev_references))}
        if sum(name == STDIN for pair in read for name in pair) > 1:
            raise ValueError("- names standard input, which can be read once only; write one of the two to a file")
        return self
