"""What is looked at in text that a joint model writes: n-grams, densities, next tokens (deng2020 §4.3, app. A.1).

Steps of recipes; the command line does not offer them. `joint_windows` loads what they have in common.
"""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.data.source_windows import SourceWindows
    from energylm.verbs.joint.repetitions import RepetitionsResult
    from energylm.verbs.joint.sampled_text import SampledTextResult


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
    def windows(self) -> "SourceWindows":
        """The same that `energylm perplexity` measures with this seed."""
        from energylm.data.source_windows import SourceWindows

        return SourceWindows(self.source, self.length, self.contexts, self.seed, self.split)

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate

        for model in (self.language_model, self.energy):
            locate(model)
        return (
            f"would continue {self.prefix_tokens} tokens of {self.windows.check()} by {self.language_model}, and by "
            f"its joint model with {self.energy} from {self.n:,} samples each"
        )


class SampledText(JointAnalysis):
    """Compare base and joint continuations with real ones: unique n-grams (fig. 2 right), densities (fig. 3)."""

    def run(self, job: Job = DEFAULT_JOB) -> "SampledTextResult":
        from energylm.verbs.joint.sampled_text import compare_sampled_text

        return compare_sampled_text(self)


class Repetitions(JointAnalysis):
    """Tabulate next tokens where the base model has just repeated itself (app. A.1, table 3)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")
    repetitions: int = Field(3, ge=1, description="Repetitions that are looked at, the first in the samples.")
    within: int = Field(8, ge=1, description="A word repeats itself if it stood among so many tokens before.")
    letters: int = Field(4, ge=1, description="Shorter words repeat themselves in all good text; they do not count.")
    show: int = Field(5, ge=1, description="Rows of each table.")

    def run(self, job: Job = DEFAULT_JOB) -> "RepetitionsResult":
        from energylm.verbs.joint.repetitions import tabulate_repetitions

        return tabulate_repetitions(self)
