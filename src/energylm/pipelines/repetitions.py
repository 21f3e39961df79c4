"""Next-token tables where the base model has just repeated itself: does the joint model do it less?

The base model continues contexts; where it repeats a word, the text before that word is the context of a table
(`ResidualModel.next_token_table`): the likeliest next tokens of base and joint model side by side. The remaining
horizon is that of the window, as in training.

Relations  Deng et al. 2020, appendix A.1 and table 3, where places were picked by hand; here the rule is written down.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from energylm.bundles.residual_results import NextToken
from energylm.config.analysis import RepetitionsConfig
from energylm.errors import DataError
from energylm.pipelines.joint_windows import JointWindows


@dataclass(frozen=True)
class Repetition:
    """One place: what the base said there again, and what both models think of it."""

    context_end: str  # the last words before it that the base wrote; nothing of the corpus
    repeated: str
    base_probability: float
    joint_probability: float  # 0 where the joint model does not keep the token
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Repetitions:
    found: list[Repetition]
    convention: str
    warning: str | None  # what is known against the joint model

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [{"context": place.context_end, **row} for place in self.found for row in place.rows],
            "base_mean": statistics.mean(place.base_probability for place in self.found),
            "joint_mean": statistics.mean(place.joint_probability for place in self.found),
            "places": len(self.found),
            "convention": self.convention,
            "warning": self.warning,
        }


def repetition_tables(config: RepetitionsConfig) -> Repetitions:
    work = JointWindows.load(config)
    samples = work.base_samples.continuations.tokens[:, 0].tolist()
    texts = [[*context, *sample] for context, sample in zip(work.contexts, samples, strict=True)]
    found = []
    for text, place in _first_places(work, texts, config):
        table = work.joint.next_token_table(
            text[:place],
            max_new_tokens=config.length - place,
            candidates=config.candidates,
            n=config.n,
            keep=config.keep,
            stop_at_eos=False,
            seed=config.seed,
        )
        base, joint = (_probability(entries, text[place]) for entries in (table.base, table.joint))
        if base == 0.0:  # the base itself does not keep the token: nothing to compare
            continue
        rows = [
            {**row, "repeats": "yes" if row["token"] == text[place] else ""} for row in table.rows(show=config.show)
        ]
        ending = "…" + work.lm.decode(text[max(config.prefix, place - 2 * config.within) : place])
        found.append(Repetition(ending, work.lm.decode([text[place]]), base, joint, rows))
        if len(found) == config.examples:
            break
    if not found:
        raise DataError(
            f"the base model repeats no word of {config.letters} letters in {len(texts)} samples; give more contexts"
        )
    return Repetitions(
        found,
        convention=f"probabilities among the {config.keep} tokens kept of {config.candidates} candidates, {config.n:,} "
        f"completions each; a word repeats itself if it stood among the {config.within} tokens before",
        warning=work.joint.caution(config.length),
    )


def _first_places(
    work: JointWindows, texts: Sequence[Sequence[int]], config: RepetitionsConfig
) -> Iterator[tuple[list[int], int]]:
    """The first repetition in the generated part of each text that has one."""
    for text in texts:
        for place in range(config.prefix + 1, len(text)):
            if text[place] in text[max(0, place - config.within) : place] and _is_word(work, text[place], config):
                yield list(text), place
                break


def _is_word(work: JointWindows, token: int, config: RepetitionsConfig) -> bool:
    """A token that begins a word and has letters enough."""
    written = work.lm.decode([token])
    return written.startswith(" ") and written.strip().isalpha() and len(written.strip()) >= config.letters


def _probability(entries: Sequence[NextToken], token: int) -> float:
    return next((entry.probability for entry in entries if entry.token == token), 0.0)
