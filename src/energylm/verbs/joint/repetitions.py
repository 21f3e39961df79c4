"""Next-token tables where the base model has just repeated itself: does the joint model do it less?

The base model continues contexts; where it repeats a word, the text before that word is the context of a table
(`ResidualModel.next_token_table`): the likeliest next tokens of base and joint model side by side. The remaining
horizon is that of the window, as in training.

Relations  Deng et al. 2020, appendix A.1 and table 3, where repetitions were picked by hand; here the rule is written
           down.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from energylm.errors import DataError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.joint.analyses import JointAnalysis, JointWindows

if TYPE_CHECKING:
    from energylm.bundles.next_tokens import NextToken


@dataclass(frozen=True, repr=False)
class Repetition(Record):
    """What the base said again, and what both models think of it."""

    context_end: str  # the last words before it that the base wrote; nothing of the corpus
    repeated: str
    base_probability: float
    joint_probability: float  # 0 where the joint model does not keep the token


@dataclass(frozen=True, repr=False)
class RepetitionsResult(Record):
    repetitions: tuple[Repetition, ...]
    rows: tuple[dict[str, Any], ...]  # the tables of all, each row with the end of its context
    convention: str
    warning: str | None  # what is known against the joint model

    computed = ("base_mean", "joint_mean")

    @property
    def base_mean(self) -> float:
        return statistics.mean(repetition.base_probability for repetition in self.repetitions)

    @property
    def joint_mean(self) -> float:
        return statistics.mean(repetition.joint_probability for repetition in self.repetitions)


class Repetitions(JointAnalysis):
    """Tabulate next tokens where the base model has just repeated itself (app. A.1, table 3)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")
    repetitions: int = Field(3, ge=1, description="Repetitions that are looked at, the first in the samples.")
    within: int = Field(8, ge=1, description="A word repeats itself if it stood among so many tokens before.")
    letters: int = Field(4, ge=1, description="Shorter words repeat themselves in all good text; they do not count.")
    show: int = Field(5, ge=1, description="Rows of each table.")

    def run(self, job: Job = DEFAULT_JOB) -> RepetitionsResult:
        loaded = JointWindows.load(self)
        samples = loaded.base_samples.continuations.tokens[:, 0].tolist()
        texts = [[*context, *sample] for context, sample in zip(loaded.contexts, samples, strict=True)]
        repetitions: list[Repetition] = []
        rows: list[dict[str, Any]] = []
        for text, index in _first_repetitions(loaded, texts, self):
            table = loaded.joint.next_token_table(
                text[:index],
                max_new_tokens=self.length - index,
                candidates=self.candidates,
                n=self.n,
                keep=self.keep,
                stop_at_eos=False,
                seed=self.seed,
            )
            base, joint = (_probability(entries, text[index]) for entries in (table.base, table.joint))
            if base == 0.0:  # the base itself does not keep the token: nothing to compare
                continue
            ending = "…" + loaded.lm.decode(text[max(self.prefix_tokens, index - 2 * self.within) : index])
            repetitions.append(Repetition(ending, loaded.lm.decode([text[index]]), base, joint))
            rows += [
                {"context": ending, **row, "repeats": "yes" if row["token"] == text[index] else ""}
                for row in table.rows(show=self.show)
            ]
            if len(repetitions) == self.repetitions:
                break
        if not repetitions:
            raise DataError(
                f"the base model repeats no word of {self.letters} letters in {len(texts)} samples; give more contexts"
            )
        return RepetitionsResult(
            tuple(repetitions),
            tuple(rows),
            convention=f"probabilities among the {self.keep} tokens kept of {self.candidates} candidates, {self.n:,} "
            f"completions each; a word repeats itself if it stood among the {self.within} tokens before",
            warning=loaded.joint.caution(self.length),
        )


def _first_repetitions(
    loaded: JointWindows, texts: Sequence[Sequence[int]], verb: Repetitions
) -> Iterator[tuple[list[int], int]]:
    """The first repetition in the generated part of each text that has one: the text, and the token's index."""
    for text in texts:
        for index in range(verb.prefix_tokens + 1, len(text)):
            if text[index] in text[max(0, index - verb.within) : index] and _is_word(loaded, text[index], verb):
                yield list(text), index
                break


def _is_word(loaded: JointWindows, token: int, verb: Repetitions) -> bool:
    """A token that begins a word and has letters enough."""
    written = loaded.lm.decode([token])
    return written.startswith(" ") and written.strip().isalpha() and len(written.strip()) >= verb.letters


def _probability(entries: Sequence["NextToken"], token: int) -> float:
    return next((entry.probability for entry in entries if entry.token == token), 0.0)
