"""What raters said: table 2's layout with strict and tie-inclusive rates, agreement, raters, and the odds.

Answers are read, never altered.
"""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from energylm.apps.study.design import DATABASE_FILE, Study, StudyDesign, read_study
from energylm.apps.study.store import StudyStore
from energylm.apps.study.turns import StudyAnswer
from energylm.apps.study.votes import ComparisonOutcome, RaterVerdict, StudyOutcome, study_outcome
from energylm.errors import DataError
from energylm.estimators.pairwise_preference import Rate, one_side_passes, pass_probability
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table

COIN = 0.5
RATES = {"strict": "<", "inclusive": "≤", "decided": "< decided"}

SIMULATED_NOTE = (
    "The raters of this study are simulated: nobody has read these texts, and the preferences below were planted."
)


@dataclass(frozen=True)
class StudyResult(Record):
    study: str  # its digest
    outcome: StudyOutcome
    report: Path | None = field(default=None, metadata=LOCAL)

    @property
    def table(self) -> Table:
        return preference_table(self.outcome)

    def summary(self) -> str:
        outcome = self.outcome
        alpha = "undefined" if outcome.alpha is None else f"{outcome.alpha:.3f}"
        dropped = sum(rater.dropped for rater in outcome.raters)
        return (
            f"{outcome.votes.kept:,} of {outcome.votes.given:,} votes count ({outcome.votes.wanted:,} wanted); "
            f"{dropped} of {len(outcome.raters)} raters dropped by their checks; Krippendorff's alpha {alpha}"
        )


@dataclass(frozen=True)
class ExportedAnswers(Record):
    answers: tuple[StudyAnswer, ...]  # in the order in which they came; names of raters, no tokens

    @property
    def lines(self) -> Iterator[str]:
        for answer in self.answers:
            yield json.dumps(answer.to_json(), ensure_ascii=False) + "\n"


def study_sections(study: Study, outcome: StudyOutcome, *, simulated: bool) -> list[Section]:
    """Everything that is told, the table first; that raters are simulated is said before it."""
    note = SIMULATED_NOTE if simulated else ""
    sections: list[Section] = [
        Text("What this is", "\n\n".join(filter(None, [note, _about(study, outcome)]))),
        Numbers("Preferences", preference_table(outcome)),
    ]
    if any(compared.preference for compared in outcome.comparisons.values()):
        sections.append(_rates_plot(outcome))
    if len(study.models) > 2:
        sections.append(_strengths(outcome))
    sections += [
        Numbers("Agreement", _agreement_table(outcome)),
        Numbers("Votes", _votes_table(study, outcome)),
        Numbers("Odds of passing without reading", odds_table(study.design)),
    ]
    if any(rater.checks_answered for rater in outcome.raters):
        sections.append(_checks_plot(study, outcome.raters))
    columns = [name.replace("_", " ") for name in asdict(outcome.raters[0])] if outcome.raters else ["rater"]
    return [*sections, Numbers("Raters", Table(columns, [list(asdict(rater).values()) for rater in outcome.raters]))]


def preference_table(outcome: StudyOutcome) -> Table:
    """Baseline, compared model, rate, p and n: a strict row, and with ties an inclusive one and the decided pairs."""
    rows: list[list[Cell]] = []
    for compared in outcome.comparisons.values():
        if compared.preference is None:
            rows.append([compared.first, "<", compared.second, None, "no votes", None, 0, 0, 0, 0])
            continue
        shown = RATES if compared.preference.ties else {"strict": "<"}
        for name, sign in shown.items():
            rate: Rate | None = getattr(compared.preference, name)
            if rate is not None:
                rows.append(_rate_row(compared, sign, rate))
    return Table(
        ["model 1 (baseline)", "", "model 2 (compared)", "rate %", "95 %", "p", "wins", "ties", "losses", "n"],
        rows,
        convention="rate: share of the n pairs that model 2 wins by majority vote (<: more votes than model 1; ≤: at "
        "least as many; decided: of pairs that are no tie); Wilson intervals; p: single-sided binomial test of a rate "
        f"of a half or less; pairs with at least one vote that counts, {outcome.raters_per_pair} raters a pair",
    )


def odds_table(design: StudyDesign) -> Table:
    """What a rater who does not read can hope for, exactly."""
    items, needed = design.qualification.items, design.qualification.needed
    chance = 1 / 3 if design.ties else COIN
    rows: list[list[Cell]] = [
        ["qualification", items, needed, pass_probability(items, needed, COIN), float(one_side_passes(items, needed))]
    ]
    for checks in (3, 6, 9, 12):
        enough = design.exclusion.needed_checks(checks)
        rows.append(
            ["checks", checks, enough, pass_probability(checks, enough, chance), pass_probability(checks, enough, COIN)]
        )
    return Table(
        ["of", "items", "right answers needed", "coin-tosser passes", "one side passes"],
        rows,
        convention="exact binomial probabilities; in the qualification real text stands left in half of the items, in "
        "checks its side is drawn" + ("; a coin-tosser answers left, right or tie alike" if design.ties else ""),
    )


def rules(design: StudyDesign) -> str:
    """The rules by which answers are dropped, in words."""
    out = design.exclusion
    items, needed = design.qualification.items, design.qualification.needed
    sentences = [
        f"raters qualify with {needed} of {items} comparisons of real text with a sample" if items else "",
        f"raters who passed less than {out.check_mark:.0%} of their checks are dropped with all answers",
        f"one comparison in {design.checks.every} is a check",
        "answers that share a block with a failed check are dropped" if out.failed_blocks else "",
        f"answers in a block whose check was not answered are {'dropped' if out.unchecked == 'drop' else 'kept'}",
    ]
    return "; ".join(filter(None, sentences))


def _about(study: Study, outcome: StudyOutcome) -> str:
    qualified = sum(rater.qualified for rater in outcome.raters)
    dropped = sum(rater.dropped for rater in outcome.raters)
    return (
        f"{study.design.title} {len(study.pairs):,} pairs of completions by {', '.join(study.models)}.\n\n"
        f"{len(outcome.raters)} raters, {qualified} qualified, {dropped} dropped by their checks; "
        f"{outcome.votes.given:,} votes of {outcome.votes.wanted:,} wanted, {outcome.votes.kept:,} count.\n\n"
        f"Rules: {rules(study.design)}. Answers themselves are never altered; `energylm study export` writes them all."
    )


def _rate_row(compared: ComparisonOutcome, sign: str, rate: Rate) -> list[Cell]:
    preference = compared.preference
    assert preference is not None
    value, interval = rate.interval.percent, f"{100 * rate.interval.lower:.1f} … {100 * rate.interval.upper:.1f}"
    counts: list[Cell] = [preference.wins, preference.ties, preference.losses, rate.n]
    return [compared.first, sign, compared.second, value, interval, rate.p_value, *counts]


def _rates_plot(outcome: StudyOutcome) -> Plot:
    comparisons = outcome.comparisons.values()
    shown = [(compared, compared.preference.strict) for compared in comparisons if compared.preference]
    x = [float(number) for number in range(1, len(shown) + 1)]
    lines = [
        Series(name, x, [100 * getattr(rate.interval, end) for _, rate in shown])
        for end, name in (("value", "strict rate"), ("lower", "lower end"), ("upper", "upper end"))
    ]
    lines.append(Series("as often as not", x, [50.0] * len(x)))
    names = "; ".join(f"{n}: {of.second} against {of.first}" for n, (of, _) in enumerate(shown, start=1))
    alt = f"How often the compared model wins, with its 95 % interval. {names}."
    return Plot("Preference rates", LinePlot(lines, x_label="comparison", y_label="pairs won (%)"), alt=alt)


def _checks_plot(study: Study, raters: Sequence[RaterVerdict]) -> Plot:
    shares = sorted(rater.checks_right / rater.checks_answered for rater in raters if rater.checks_answered)
    x = [float(number) for number in range(1, len(shares) + 1)]
    mark = study.design.exclusion.check_mark
    lines = [Series("checks passed", x, shares), Series("mark", x, [mark] * len(x))]
    alt = f"The share of checks that each rater passed, in ascending order; {sum(s < mark for s in shares)} lie below."
    return Plot("Checks passed", LinePlot(lines, x_label="rater", y_label="share of checks passed"), alt=alt)


def _strengths(outcome: StudyOutcome) -> Section:
    if outcome.strengths is None:
        reason = "Some models won, or lost, every pair against the others: strengths have no finite estimate."
        return Text("Strengths", reason)
    base = outcome.models[0]
    rows: list[list[Cell]] = []
    for model, strength in outcome.strengths.items():
        against = 100 / (1 + math.exp(outcome.strengths[base].value - strength.value))
        interval = f"{strength.lower:.3f} … {strength.upper:.3f}"
        rows.append([model, strength.value, interval, None if model == base else against])
    rows.sort(key=lambda row: -float(row[1] or 0.0))
    table = Table(
        ["model", "log-strength", "95 %", f"% preferred to {base}"],
        rows,
        convention="Bradley–Terry fit to the majorities of all comparisons, ties half a win each; strengths sum to 0; "
        "Wald intervals",
    )
    return Numbers("Strengths", table)


def _agreement_table(outcome: StudyOutcome) -> Table:
    rows: list[list[Cell]] = [
        [f"{compared.first} – {compared.second}", compared.votes, compared.alpha]
        for compared in outcome.comparisons.values()
    ]
    if len(rows) > 1:
        rows.append(["all", outcome.votes.kept, outcome.alpha])
    sides = "" if outcome.left_share is None else f"; the left text was taken in {outcome.left_share:.1%} of all votes"
    seconds = "" if outcome.median_seconds is None else f"; median {outcome.median_seconds:.1f} s a vote"
    return Table(
        ["comparison", "votes", "Krippendorff's alpha"],
        rows,
        convention=f"alpha of votes that count: 1 perfect agreement, 0 as by chance{sides}{seconds}",
    )


def _votes_table(study: Study, outcome: StudyOutcome) -> Table:
    rows: list[list[Cell]] = [["wanted", outcome.votes.wanted], ["given", outcome.votes.given]]
    rows += [[f"dropped: {reason}", count] for reason, count in outcome.votes.dropped.items()]
    return Table(["votes", "count"], [*rows, ["that count", outcome.votes.kept]], convention=rules(study.design))


def report_study(folder: Path | str, *, output: Path | None = None) -> StudyResult:
    """Judge the answers so far; write the report into `output` where one is given."""
    with _opened(folder) as store:
        study = store.study
        outcome = study_outcome(study, store.answers())
        sections = study_sections(study, outcome, simulated=store.is_simulated())
    page = None if output is None else write_report(output, title=study.design.title, sections=sections)
    return StudyResult(study.digest, outcome, page)


def exported_answers(folder: Path | str) -> ExportedAnswers:
    """Every answer, as it was stored."""
    with _opened(folder) as store:
        return ExportedAnswers(tuple(store.answers()))


def _opened(folder: Path | str) -> StudyStore:
    """The store of a study that was served; reading one must not make it."""
    study = read_study(folder)
    if not (study.folder / DATABASE_FILE).is_file():
        raise DataError(
            f"{folder} has no answers yet: serve it first (energylm study serve {shlex.quote(str(folder))})"
        )
    return StudyStore.open(folder)
