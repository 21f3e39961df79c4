"""A simulated panel: readers with a planted taste, coin-tossers, and raters who stop reading once they have qualified.

    reader    right in `accuracy` of known answers; takes the second of a pair with log-odds
              s_second − s_first + spread · z_pair,  z_pair ~ N(0, 1) the same for all readers
    random    any answer that is allowed, with equal chances
    lazy      a reader in the qualification, the left text ever after

Raters come in random order and work until nothing is left for them. Expected exclusions are binomial tails, known
before the first answer: of the qualification, and of the checks of a rater who does as many pairs as one may.

Use it     to try a design out before paying people, and to prove that the report finds what was planted.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import binomtest

from energylm.apps.study.design import Known, Study, read_study
from energylm.apps.study.report import preference_table, study_sections
from energylm.apps.study.store import StudyStore
from energylm.apps.study.turns import Item, RaterChoice
from energylm.apps.study.verbs import StudySimulate
from energylm.apps.study.votes import RaterVerdict, StudyOutcome, study_outcome
from energylm.errors import ConfigError, DataError
from energylm.estimators.pairwise_preference import pass_probability
from energylm.progress import progress
from energylm.randomness import derive_seed, shuffled
from energylm.records import LOCAL, Record
from energylm.report.report import Numbers, write_report
from energylm.tables import Table

RaterKind = Literal["good", "random", "lazy"]
KINDS: tuple[RaterKind, ...] = ("good", "random", "lazy")
_NODES = 64  # of the quadrature over pairs


@dataclass(frozen=True)
class Expected:
    """What binomial tails say of a kind of rater, before anybody answers."""

    kind: RaterKind
    raters: int
    not_qualified: float
    checks: int  # of a rater who does as many pairs as one may
    dropped: float  # of those who qualified


@dataclass(frozen=True)
class Exclusions(Record):
    """Beside it, what the report did."""

    kind: RaterKind
    raters: int
    expected_not_qualified: float
    not_qualified: int
    p_not_qualified: float  # of a count as far off as this one
    checked: int  # who answered checks
    expected_dropped: float
    dropped: int
    p_dropped: float


@dataclass(frozen=True)
class Panel(Record):
    computed = ("rows", "convention")

    outcome: StudyOutcome
    exclusions: dict[RaterKind, Exclusions]
    planted: dict[str, float]  # "base < joint" -> chance that three readers prefer the second
    report: Path | None = field(default=None, metadata=LOCAL)

    @property
    def table(self) -> Table:
        return preference_table(self.outcome)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of the table of preferences, for the reports of recipes."""
        return self.table.records()

    @property
    def convention(self) -> str | None:
        return self.table.convention


def expected_exclusions(study: Study, config: StudySimulate) -> list[Expected]:
    """Rates for each kind of rater, from the design alone."""
    design = study.design
    checks = min(len(study.checks), design.checks_needed(len(study.pairs)))
    needed = design.exclusion.needed_checks(checks)
    chances = {  # of one right answer, in the qualification and in a check
        "good": (config.accuracy, config.accuracy),
        "random": (0.5, 1 / 3 if design.ties else 0.5),
        "lazy": (config.accuracy, 0.5),
    }
    expected = []
    for kind in KINDS:
        qualifying, checking = chances[kind]
        passes = pass_probability(len(study.qualification), design.qualification.needed, qualifying)
        dropped = 1 - pass_probability(checks, needed, checking)
        expected.append(Expected(kind, getattr(config, kind), 1 - passes, checks, dropped))
    return expected


def planted_rates(study: Study, config: StudySimulate) -> dict[str, float]:
    """How often three readers, who may not say tie, prefer the second model: E[p²(3 − 2p)] over pairs."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    rates = {}
    for first, second in study.comparisons:
        log_odds = config.strengths.get(second, 0.0) - config.strengths.get(first, 0.0) + config.spread * nodes
        chance = 1 / (1 + np.exp(-log_odds))
        rates[f"{first} < {second}"] = float((chance**2 * (3 - 2 * chance)) @ weights / weights.sum())
    return rates


def run_panel(config: StudySimulate, *, output: Path | None = None) -> Panel:
    """Let the panel answer a study that nobody has answered, and judge it; the report goes into `output`."""
    with StudyStore.open(config.study, durable=False) as store:
        study = store.study
        _refuse_unknown(study, config)
        if store.progress().raters:
            raise DataError(f"{config.study} has raters already; a panel must not mix with people, make a new study")
        store.mark_simulated()
        expected = expected_exclusions(study, config)
        planted = planted_rates(study, config)
        kinds = [kind for kind in KINDS for _ in range(getattr(config, kind))]
        arrivals = shuffled(np.arange(len(kinds)), len(kinds), seed=derive_seed(config.seed, "arrivals")).tolist()
        of_label: dict[str, RaterKind] = {}
        with progress("simulated raters", total=len(kinds), unit="rater") as bar:
            for number, index in enumerate(arrivals):
                kind = kinds[index]
                label = f"{kind} {number:03}"
                of_label[label] = kind
                rater = store.add_rater(label, hashlib.sha256(f"{config.seed} {label}".encode()).hexdigest())
                _answer_all(store, rater, _SimulatedRater(study, config, kind, label).choose)
                bar.advance()
        outcome = study_outcome(study, store.answers())
    exclusions = [_compare(of_kind, outcome.raters, of_label) for of_kind in expected]
    page = None
    if output is not None:
        told = Numbers("Exclusions, expected and found", exclusions_table(exclusions))
        sections = [*study_sections(study, outcome, simulated=True), told]
        page = write_report(output, title=f"{study.design.title} (simulated raters)", sections=sections)
    return Panel(outcome, {of_kind.kind: of_kind for of_kind in exclusions}, planted, page)


def describe_panel(config: StudySimulate) -> str:
    """What would be done, and the odds; nothing is answered."""
    study = read_study(config.study)
    _refuse_unknown(study, config)
    odds = "; ".join(
        f"{of.raters} {of.kind}: {of.not_qualified:.1%} fail the qualification, {of.dropped:.1%} of the others are "
        f"dropped by {of.checks} checks"
        for of in expected_exclusions(study, config)
    )
    return f"would let {config.raters} simulated raters answer {len(study.pairs):,} pairs; expected: {odds}"


def exclusions_table(exclusions: Sequence[Exclusions]) -> Table:
    rows = [
        [
            of.kind,
            of.raters,
            of.raters * of.expected_not_qualified,
            of.not_qualified,
            of.p_not_qualified,
            of.checked,
            of.checked * of.expected_dropped,
            of.dropped,
            of.p_dropped,
        ]
        for of in exclusions
    ]
    return Table(
        ["kind", "raters", "fail expected", "fail", "p", "with checks", "dropped expected", "dropped", "p of that"],
        rows,
        convention="expected counts are binomial tails computed before the first answer: of the qualification, and of "
        "the checks of a rater who does as many pairs as one may; p: two-sided, exact",
    )


class _SimulatedRater:
    """Answers as a rater of some kind would; every answer has random numbers of its own."""

    def __init__(self, study: Study, config: StudySimulate, kind: RaterKind, label: str) -> None:
        self.study, self.config, self.kind, self.label = study, config, kind, label

    def choose(self, item: Item) -> RaterChoice:
        random = np.random.default_rng(derive_seed(self.config.seed, "answer", self.label, item.id))
        if self.kind == "random":
            options: list[RaterChoice] = ["left", "right", "tie"] if item.ties else ["left", "right"]
            return options[int(random.integers(len(options)))]
        if self.kind == "lazy" and item.stage == "study":
            return "left"
        known = self.study.items[item.id]
        if isinstance(known, Known):
            wanted, other = (known.real, known.wrong)
            takes_wanted = random.random() < self.config.accuracy
        else:
            if item.ties and random.random() < self.config.tie_rate:
                return "tie"
            wanted, other = known.second, known.first
            takes_wanted = random.random() < self._chance(item.id, known.first_model, known.second_model)
        return "left" if item.left == (wanted if takes_wanted else other) else "right"

    def _chance(self, pair: str, first: str, second: str) -> float:
        taste = np.random.default_rng(derive_seed(self.config.seed, "pair", pair)).standard_normal()
        strengths = self.config.strengths
        log_odds = strengths.get(second, 0.0) - strengths.get(first, 0.0) + self.config.spread * taste
        return 1 / (1 + math.exp(-log_odds))


def _refuse_unknown(study: Study, config: StudySimulate) -> None:
    if unknown := sorted(set(config.strengths) - set(study.models)):
        raise ConfigError(f"strengths name {unknown[0]!r}; models of the study: {', '.join(study.models)}")


def _answer_all(store: StudyStore, rater: int, choose: Callable[[Item], RaterChoice]) -> None:
    while (item := store.next_item(rater)) is not None:
        store.answer(rater, item.id, choose(item), seconds=0.0)


def _compare(expected: Expected, raters: tuple[RaterVerdict, ...], of_label: dict[str, RaterKind]) -> Exclusions:
    mine = [rater for rater in raters if of_label[rater.rater] == expected.kind]
    failed = sum(not rater.qualified for rater in mine)
    checked = [rater for rater in mine if rater.checks_answered]
    dropped = sum(rater.dropped for rater in checked)
    return Exclusions(
        kind=expected.kind,
        raters=len(mine),
        expected_not_qualified=expected.not_qualified,
        not_qualified=failed,
        p_not_qualified=_two_sided(failed, len(mine), expected.not_qualified),
        checked=len(checked),
        expected_dropped=expected.dropped,
        dropped=dropped,
        p_dropped=_two_sided(dropped, len(checked), expected.dropped),
    )


def _two_sided(count: int, n: int, chance: float) -> float:
    return float(binomtest(count, n, min(max(chance, 0.0), 1.0)).pvalue) if n else 1.0
