"""Make a study: pairs of completions, a qualification and attention checks, all in seeded random order.

Prefixes are shuffled once. The first that have a real ending make the qualification and the checks, the others the
pairs, so that nobody sees the real ending of a prefix that comes back. Of each comparison the first prefixes are taken
on which the two models differ: two equal texts would measure the coin. Sides are drawn later, for each rater.

Relations  `new` declares the verb; `completions` reads or draws the texts; `design` writes the folder.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energylm.apps.study.completions import Completed, check_models, draw_completions, read_completions
from energylm.apps.study.design import Kind, Known, Pair, Study, item_id, read_study, refuse_existing, write_study
from energylm.apps.study.new import StudyNew
from energylm.errors import DataError
from energylm.estimators.rater_odds import pass_probability
from energylm.files import folder_lock
from energylm.randomness import derive_seed, shuffled
from energylm.records import Record

ORIGIN = {"completions", "real", "models", "candidates", "source", "split", "length", "prefix_tokens", "pairs"}
SPARE = 1.2  # prefixes drawn for each that is needed: some windows are cut inside a character, some models agree


@dataclass(frozen=True)
class NewStudy(Record):
    folder: Path
    digest: str
    models: tuple[str, ...]
    comparisons: tuple[tuple[str, str], ...]
    pairs: int
    identical: int  # pairs left out because both models wrote the same
    votes_wanted: int
    qualification: int  # items of it
    qualification_needed: int
    coin_tosser_passes: float  # a chance
    checks: int

    @property
    def study(self) -> Study:
        return read_study(self.folder)

    def summary(self) -> str:
        """Counts and odds, in one line."""
        left_out = f"; {self.identical} left out whose two texts are the same" if self.identical else ""
        odds = (
            f"qualification {self.qualification_needed} of {self.qualification}, which a coin-tosser passes in "
            f"{self.coin_tosser_passes:.1%} of cases"
        )
        return (
            f"{self.pairs:,} pairs in {_comparisons(len(self.comparisons))} of {', '.join(self.models)}, "
            f"{self.votes_wanted:,} votes wanted{left_out}; {self.checks} checks; "
            f"{odds if self.qualification else 'no qualification'}"
        )


def new_study(config: StudyNew, *, output: Path | str, salt: str | None = None) -> NewStudy:
    """Make the study's folder. `salt` hides what items are: leave it to chance wherever people will answer."""
    design, salt = config.design, salt or secrets.token_hex()
    output = Path(output)
    refuse_existing(output)  # before models draw for hours
    drafts = output.with_name(f".{output.name}.drawing")
    if config.models:
        check_models(config)
        with folder_lock(drafts):
            completed = draw_completions(config, prefixes=_prefixes_needed(config), drafts=drafts)
    else:
        completed = read_completions(config)
    order = shuffled(np.arange(len(completed)), len(completed), seed=derive_seed(design.seed, "prefixes")).tolist()
    ordered = [completed[index] for index in order]
    known, rest = _known_and_rest(config, ordered)
    pairs, identical = _pairs(config, rest, salt)
    checks_needed = design.checks.items or design.checks_needed(len(pairs))
    qualification = _make_known(config, "qualification", known[: design.qualification.items], salt)
    checks = _make_known(config, "check", known[design.qualification.items :][:checks_needed], salt)
    study = write_study(
        output,
        design=design,
        models=config.names,
        comparisons=config.compared,
        pairs=pairs,
        qualification=qualification,
        checks=checks,
        origin=config.model_dump(mode="json", include=ORIGIN),
    )
    shutil.rmtree(drafts, ignore_errors=True)
    return NewStudy(
        folder=output,
        digest=study.digest,
        models=study.models,
        comparisons=study.comparisons,
        pairs=len(study.pairs),
        identical=identical,
        votes_wanted=study.votes_wanted,
        qualification=len(study.qualification),
        qualification_needed=design.qualification.needed,
        coin_tosser_passes=pass_probability(len(study.qualification), design.qualification.needed, 0.5),
        checks=len(study.checks),
    )


def describe_study(config: StudyNew) -> str:
    """What would be made, after a look at every input; models are found and not loaded."""
    design = config.design
    if config.models:
        check_models(config)
        have = f"{_prefixes_needed(config):,} windows of {config.source} completed by {len(config.models)} models"
    else:
        completed = read_completions(config)
        _known_and_rest(config, completed)
        have = f"{len(completed):,} prefixes completed by {len(config.completions)} models"
    odds = pass_probability(design.qualification.items, design.qualification.needed, 0.5)
    return (
        f"would make a study of {_comparisons(len(config.compared))} from {have}; qualification "
        f"{design.qualification.needed} of {design.qualification.items}, passed by a coin-tosser in {odds:.1%} of cases"
    )


def _comparisons(count: int) -> str:
    return "1 comparison" if count == 1 else f"{count} comparisons"


def _prefixes_needed(config: StudyNew) -> int:
    pairs = config.pairs
    if pairs is None:
        raise DataError("how many pairs? with models, give pairs a number: windows can be cut without end")
    return int(SPARE * (pairs + _known_needed(config, pairs * len(config.compared)))) + 1


def _known_needed(config: StudyNew, pairs: int) -> int:
    design = config.design
    return design.qualification.items + (design.checks.items or design.checks_needed(pairs))


def _known_and_rest(config: StudyNew, completed: Sequence[Completed]) -> tuple[list[Completed], list[Completed]]:
    """Prefixes for known answers, and the others."""
    comparisons, design = len(config.compared), config.design
    usable = [text for text in completed if text.real is not None and text.real not in text.by_model.values()]
    if config.pairs is None:
        # Every prefix that is not known is a pair of each comparison: take as few as leave enough checks for the rest.
        needed = 0
        while needed < len(completed) and needed < _known_needed(config, (len(completed) - needed) * comparisons):
            needed += 1
    else:
        needed = _known_needed(config, config.pairs * comparisons)
    if len(usable) < needed:
        raise DataError(
            f"{needed} prefixes with a real ending are needed ({design.qualification.items} for the qualification, the "
            f"others for checks) but {len(usable)} have one that no model wrote; give real endings of more prefixes, "
            "or lower max_pairs_per_rater, checks.items or qualification.items"
        )
    known = usable[:needed]
    taken = {text.prefix for text in known}
    rest = [text for text in completed if text.prefix not in taken]
    if not rest or len(rest) < (config.pairs or 1):
        raise DataError(
            f"{config.pairs or 1} prefixes are wanted for pairs but {len(rest)} of {len(completed)} are left beside "
            f"{needed} with known answers; give more completions, or lower --pairs"
        )
    return known, rest


def _pairs(config: StudyNew, rest: Sequence[Completed], salt: str) -> tuple[list[Pair], int]:
    """Pairs of all comparisons in one random order, and how many were left out."""
    chosen: list[tuple[Completed, str, str]] = []
    identical = 0
    for first, second in config.compared:
        wanted = config.pairs or len(rest)
        of_comparison: list[tuple[Completed, str, str]] = []
        for text in rest:
            if len(of_comparison) == wanted:
                break
            if text.by_model[first].strip() == text.by_model[second].strip():
                identical += 1
            else:
                of_comparison.append((text, first, second))
        if not of_comparison or len(of_comparison) < (config.pairs or 1):
            raise DataError(
                f"{first!r} and {second!r} differ on {len(of_comparison)} prefixes but {config.pairs or 1} are wanted; "
                "give more completions, or lower --pairs"
            )
        chosen += of_comparison
    order = shuffled(np.arange(len(chosen)), len(chosen), seed=derive_seed(config.design.seed, "pairs")).tolist()
    pairs = [
        Pair(item_id(salt, "pair", number), text.prefix, text.by_model[first], text.by_model[second], first, second)
        for number, (text, first, second) in enumerate(chosen[index] for index in order)
    ]
    return pairs, identical


def _make_known(config: StudyNew, kind: Kind, chosen: Sequence[Completed], salt: str) -> list[Known]:
    """Real endings against samples of the models in turn, or against their own words in random order."""
    made = []
    seed = config.design.seed
    wrong_text = _WRONG["sample" if kind == "qualification" else config.design.checks.wrong]
    for number, text in enumerate(chosen):
        wrong, source = wrong_text(text, number, seed)
        assert text.real is not None
        made.append(Known(item_id(salt, kind, number), text.prefix, text.real, wrong, source))
    return made


def _sample(text: Completed, number: int, seed: int) -> tuple[str, str]:
    names = list(text.by_model)
    name = names[number % len(names)]
    return text.by_model[name], name


def _shuffled_words(text: Completed, number: int, seed: int) -> tuple[str, str]:
    """The real ending's words in another order than their own."""
    words = (text.real or "").split()
    if len(set(words)) < 2:
        raise DataError(f"the real ending {text.real!r:.40} has no other order; take checks.wrong=sample")
    for attempt in range(1000):
        stream = derive_seed(seed, "shuffled words", number, attempt)
        order = shuffled(np.arange(len(words)), len(words), seed=stream).tolist()
        mixed = [words[index] for index in order]
        if mixed != words:
            break
    return " " + " ".join(mixed), "shuffled"


_WRONG: dict[str, Callable[[Completed, int, int], tuple[str, str]]] = {
    "sample": _sample,
    "shuffled": _shuffled_words,
}
