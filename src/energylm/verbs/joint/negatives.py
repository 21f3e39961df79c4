"""Continuations of a corpus's contexts, k of each, written by a language model: `energylm negatives`."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from energylm.config.texts import NegativesSettings
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.joint.writing_negatives import NegativesResult


class MakeNegatives(Verb, NegativesSettings):
    """Let a language model continue contexts of a corpus, k times each: what an energy learns to tell from real text.

    Parquet shards with the log-probability of every continuation. Killed runs go on where they stopped when run again;
    finished ones are not repeated. With --engine ray many machines write, and the shards are the same.
    """

    examples = (
        "energylm negatives runs/tiny/model corpora/sotu --output negatives/sotu --contexts 2000",
        "energylm negatives runs/tiny/model corpora/sotu --output negatives/valid --split valid -k 4",
        "energylm negatives runs/r2l/model corpora/news --side prefix --prefix-tokens 120 -o negatives/r2l",
        "energylm negatives runs/big/model corpora/news -o negatives/news --engine ray --address head:6379",
    )
    shortcuts = {  # noqa: RUF012  a class variable of Verb
        "top_k": "truncation.top_k",
        "top_p": "truncation.top_p",
        "temperature": "truncation.temperature",
    }
    writes = "required"
    overwrites = True
    blocks = True
    version = 2  # since 2, models that continue windows within documents write no special tokens

    language_model: Annotated[str, Positional("LM")] = Field(
        description="The model that writes: a folder, a GGUF file, a known model or a hub name."
    )
    corpus: Annotated[str, Positional("CORPUS")] = Field(
        description="The corpus folder that contexts come from, made by `energylm corpus build`."
    )

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.joint.writing_negatives import plan_negatives

        return plan_negatives(self, job.folder).describe(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "NegativesResult":
        from energylm.verbs.joint.writing_negatives import write_negatives

        return write_negatives(self, job)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.joint.costs import count_negatives

        return count_negatives(self, around)

    def shown(self, result: "NegativesResult") -> str:
        speed = "" if result.tokens_per_second is None else f", {result.tokens_per_second:,.0f} tokens/s"
        return (
            f"{result.folder}: {result.contexts:,} contexts × {self.k} continuations, {result.tokens:,} tokens{speed}\n"
        )
