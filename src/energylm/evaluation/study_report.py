"""The report of a study: table 2's layout with strict and tie-inclusive rates, agreement, raters, and the odds."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from energylm.config.study import StudyDesign
from energylm.data.study_items import Study
from energylm.estimators.pairwise_preference import Rate
from energylm.estimators.rater_odds import one_side_passes, pass_probability
from energylm.evaluation.study_outcome import ComparisonOutcome, StudyOutcome
from energylm.evaluation.study_votes import RaterVerdict
from energylm.tables import Cell, Table
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text

COIN = 0.5
RATES = {"strict": "<", "inclusive": "≤", "decided": "< decided"}

SIMULATED_NOTE = (
    "The raters of this study are simulated: nobody has read these texts, and the preferences below were planted."
)


def study_sections(study: Study, outcome: StudyOutcome, *, simulated: bool) -> list[Section]:
    """Everything that is told, the table first; that raters are simulated is said before it."""
    note = SIMULATED_NOTE if simulated else ""
    sections: list[Section] = [
        Text("What this is", "\n\n".join(filter(None, [note, _about(study, outcome)]))),
        Numbers("Preferences", preference_table(study, outcome)),
    ]
    if any(one.preference for one in outcome.comparisons):
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


def preference_table(study: Study, outcome: StudyOutcome) -> Table:
    """Baseline, compared model, rate, p and n: a strict row, and with ties an inclusive one and the decided pairs."""
    rows: list[list[Cell]] = []
    for one in outcome.comparisons:
        if one.preference is None:
            rows.append([one.first, "<", one.second, None, "no votes", None, 0, 0, 0, 0])
            continue
        shown = RATES if one.preference.ties else {"strict": "<"}
        for name, sign in shown.items():
            rate: Rate | None = getattr(one.preference, name)
            if rate is not None:
                rows.append(_rate_row(one, sign, rate))
    return Table(
        ["model 1 (baseline)", "", "model 2 (compared)", "rate %", "95 %", "p", "wins", "ties", "losses", "n"],
        rows,
        convention="rate: share of the n pairs that model 2 wins by majority vote (<: more votes than model 1; ≤: at "
        "least as many; decided: of pairs that are no tie); Wilson intervals; p: single-sided binomial test of a rate "
        f"of a half or less; pairs with at least one vote that counts, {study.design.raters_per_pair} raters a pair",
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
    said = [
        f"raters who passed less than {out.check_mark:.0%} of their checks are dropped with all answers",
        f"one comparison in {design.checks.every} is a check",
    ]
    if out.failed_blocks:
        said.append("answers that share a block with a failed check are dropped")
    said.append(
        f"answers in a block whose check was not answered are {'dropped' if out.unchecked == 'drop' else 'kept'}"
    )
    if design.qualification.items:
        said.insert(
            0,
            f"raters qualify with {design.qualification.needed} of {design.qualification.items} comparisons of real "
            "text with a sample",
        )
    return "; ".join(said)


def _about(study: Study, outcome: StudyOutcome) -> str:
    qualified = sum(rater.qualified for rater in outcome.raters)
    dropped = sum(rater.dropped for rater in outcome.raters)
    return (
        f"{study.design.title} {len(study.pairs):,} pairs of completions by {', '.join(study.models)}.\n\n"
        f"{len(outcome.raters)} raters, {qualified} qualified, {dropped} dropped by their checks; {outcome.votes:,} "
        f"votes of {study.votes_wanted:,} wanted, {outcome.kept:,} count.\n\n"
        f"Rules: {rules(study.design)}. Answers themselves are never altered; `energylm study export` writes them all."
    )


def _rate_row(one: ComparisonOutcome, sign: str, rate: Rate) -> list[Cell]:
    found = one.preference
    assert found is not None
    value, lower, upper = (100 * end for end in rate.interval)
    interval = f"{lower:.1f} … {upper:.1f}"
    return [one.first, sign, one.second, value, interval, rate.p_value, found.wins, found.ties, found.losses, rate.n]


def _rates_plot(outcome: StudyOutcome) -> Plot:
    shown = [(one, one.preference.strict) for one in outcome.comparisons if one.preference]
    x = [float(number) for number in range(1, len(shown) + 1)]
    lines = [
        Series(name, x, [100 * rate.interval[end] for _, rate in shown])
        for end, name in ((0, "strict rate"), (1, "lower end"), (2, "upper end"))
    ]
    lines.append(Series("as often as not", x, [50.0] * len(x)))
    names = "; ".join(f"{n}: {one.second} against {one.first}" for n, (one, _) in enumerate(shown, start=1))
    alt = f"How often the compared model wins, with its 95 % interval. {names}."
    return Plot("Preference rates", LinePlot(lines, x_label="comparison", y_label="pairs won (%)"), alt=alt)


def _checks_plot(study: Study, raters: Sequence[RaterVerdict]) -> Plot:
    shares = sorted(one.checks_right / one.checks_answered for one in raters if one.checks_answered)
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
    for place, model in enumerate(outcome.models):
        value, lower, upper = outcome.strengths.interval(place)
        against = 100 / (1 + math.exp(-outcome.strengths.difference(0, place).value))
        rows.append([model, value, f"{lower:.3f} … {upper:.3f}", against if place else None])
    rows.sort(key=lambda row: -float(row[1] or 0.0))
    table = Table(
        ["model", "log-strength", "95 %", f"% preferred to {base}"],
        rows,
        convention="Bradley–Terry fit to the majorities of all comparisons, ties half a win each; strengths sum to 0; "
        "Wald intervals",
    )
    return Numbers("Strengths", table)


def _agreement_table(outcome: StudyOutcome) -> Table:
    rows: list[list[Cell]] = [[f"{one.first} – {one.second}", one.votes, one.alpha] for one in outcome.comparisons]
    if len(rows) > 1:
        rows.append(["all", outcome.kept, outcome.alpha])
    sides = "" if outcome.left_share is None else f"; the left text was taken in {outcome.left_share:.1%} of all votes"
    seconds = "" if outcome.median_seconds is None else f"; median {outcome.median_seconds:.1f} s a vote"
    return Table(
        ["comparison", "votes", "Krippendorff's alpha"],
        rows,
        convention=f"alpha of votes that count: 1 perfect agreement, 0 as by chance{sides}{seconds}",
    )


def _votes_table(study: Study, outcome: StudyOutcome) -> Table:
    rows: list[list[Cell]] = [["wanted", study.votes_wanted], ["given", outcome.votes]]
    rows += [[f"dropped: {reason}", count] for reason, count in outcome.dropped.items()]
    return Table(["votes", "count"], [*rows, ["that count", outcome.kept]], convention=rules(study.design))
