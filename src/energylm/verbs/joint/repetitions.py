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
from typing import Any

from energylm.bundles.residual_results import NextToken
from energylm.errors import DataError
from energylm.records import Record
from energylm.verbs.joint.analyses import Repetitions
from energylm.verbs.joint.joint_windows import JointWindows


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


def tabulate_repetitions(verb: Repetitions) -> RepetitionsResult:
    loaded = JointWindows.load(verb)
    samples = loaded.base_samples.continuations.tokens[:, 0].tolist()
    texts = [[*context, *sample] for context, sample in zip(loaded.contexts, samples, strict=True)]
    repetitions: list[Repetition] = []
    rows: list[dict[str, Any]] = []
    for text, index in _first_repetitions(loaded, texts, verb):
        table = loaded.joint.next_token_table(
            text[:index],
            max_new_tokens=verb.length - index,
            candidates=verb.candidates,
            n=verb.n,
            keep=verb.keep,
            stop_at_eos=False,
            seed=verb.seed,
        )
        base, joint = (_probability(entries, text[index]) for entries in (table.base, table.joint))
        if base == 0.0:  # the base itself does not keep the token: nothing to compare
            continue
        ending = "…" + loaded.lm.decode(text[max(verb.prefix_tokens, index - 2 * verb.within) : index])
        repetitions.append(Repetition(ending, loaded.lm.decode([text[index]]), base, joint))
        rows += [
            {"context": ending, **row, "repeats": "yes" if row["token"] == text[index] else ""}
            for row in table.rows(show=verb.show)
        ]
        if len(repetitions) == verb.repetitions:
            break
    if not repetitions:
        raise DataError(
            f"the base model repeats no word of {verb.letters} letters in {len(texts)} samples; give more contexts"
        )
    return RepetitionsResult(
        tuple(repetitions),
        tuple(rows),
        convention=f"probabilities among the {verb.keep} tokens kept of {verb.candidates} candidates, {verb.n:,} "
        f"completions each; a word repeats itself if it stood among the {verb.within} tokens before",
        warning=loaded.joint.caution(verb.length),
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


def _probability(entries: Sequence[NextToken], token: int) -> float:
    return next((entry.probability for entry in entries if entry.token == token), 0.0)
