"""What is looked at in text that a joint model writes (deng2020 §4.3, app. A.1): options and windows of all analyses.

Relations  `sampled_text` and `repetitions` are steps of recipes; the command line does not offer them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from energylm.bundles.known_models import locate
from energylm.data.windows import SourceWindows
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.randomness import derive_seed
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.bundles.language_model import LanguageModel, SampledTexts
    from energylm.bundles.residual_model import ResidualModel


class JointAnalysis(Verb):
    """A joint model and the windows of a corpus whose beginnings it continues."""

    version = 2  # since 2, models that continue windows within documents write no special tokens

    language_model: str = Field(description="The base model: a folder or a name.")
    energy: str = Field(description="An energy folder (`energylm energy train`).")
    source: str = Field(description="A corpus folder.")
    split: Literal["train", "valid", "test"] = Field("test", description="Split of the corpus.")
    length: int = Field(160, ge=2, description="Tokens of a window, which lies within one document.")
    prefix_tokens: int = Field(120, ge=1, description="Tokens of a window that are given.")
    contexts: int = Field(100, ge=2, description="Windows, chosen at random.")
    n: int = Field(1000, ge=2, description="Samples of the base for each text of the joint model (the paper: 10,000).")
    seed: int = Field(0, ge=0, description="Of the windows and all samples.")

    @model_validator(mode="after")
    def _leaves_something_to_write(self) -> Self:
        if self.prefix_tokens >= self.length:
            raise ValueError(
                f"prefix_tokens {self.prefix_tokens} leaves nothing of length {self.length} to write; lower it"
            )
        return self

    @property
    def windows(self) -> SourceWindows:
        """The same that `energylm perplexity` measures with this seed."""
        return SourceWindows(self.source, self.length, self.contexts, self.seed, self.split)

    def check(self, job: Job = DEFAULT_JOB) -> str:
        for model in (self.language_model, self.energy):
            locate(model)
        return (
            f"would continue {self.prefix_tokens} tokens of {self.windows.check()} by {self.language_model}, and by "
            f"its joint model with {self.energy} from {self.n:,} samples each"
        )


@dataclass(frozen=True)
class JointWindows:
    """Windows of a corpus and the joint model that continues their beginnings."""

    verb: JointAnalysis
    lm: "LanguageModel"
    joint: "ResidualModel"
    windows: list[list[int]]

    @classmethod
    def load(cls, verb: JointAnalysis) -> "JointWindows":
        from energylm.bundles.energy_model import EnergyModel
        from energylm.bundles.language_model import LanguageModel
        from energylm.bundles.residual_model import ResidualModel

        lm = LanguageModel.from_pretrained(verb.language_model)
        windows = verb.windows.load(lm.tokenizer, model=verb.language_model)
        lm = lm.without_special_tokens()  # the windows lie within documents
        return cls(verb, lm, ResidualModel(lm, EnergyModel.from_pretrained(verb.energy)), windows)

    @property
    def new_tokens(self) -> int:
        return self.verb.length - self.verb.prefix_tokens

    @property
    def contexts(self) -> list[list[int]]:
        return [window[: self.verb.prefix_tokens] for window in self.windows]

    @property
    def continuations(self) -> list[list[int]]:
        """The real ones."""
        return [window[self.verb.prefix_tokens :] for window in self.windows]

    @cached_property
    def base_samples(self) -> "SampledTexts":
        """One untruncated continuation of each context by the base model."""
        seed = derive_seed(self.verb.seed, "base samples")
        return self.lm.sample(self.contexts, n=1, max_new_tokens=self.new_tokens, stop_at_eos=False, seed=seed)
