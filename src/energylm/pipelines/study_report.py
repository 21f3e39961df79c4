"""What raters said: `energylm study report` and `energylm study export`. Answers are read, never altered."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.study_items import DATABASE_FILE, Study, read_study
from energylm.data.study_store import StudyStore
from energylm.errors import DataError
from energylm.evaluation.study_outcome import StudyOutcome, study_outcome
from energylm.evaluation.study_report import preference_table, study_sections
from energylm.report.report import write_report
from energylm.tables import Table

ANSWERS_FILE = "answers.jsonl"


@dataclass(frozen=True)
class StudyReport:
    study: Study
    outcome: StudyOutcome
    page: Path | None

    @property
    def table(self) -> Table:
        return preference_table(self.study, self.outcome)

    def summary(self) -> str:
        outcome = self.outcome
        alpha = "undefined" if outcome.alpha is None else f"{outcome.alpha:.3f}"
        dropped = sum(rater.dropped for rater in outcome.raters)
        return (
            f"{outcome.kept:,} of {outcome.votes:,} votes count ({self.study.votes_wanted:,} wanted); {dropped} of "
            f"{len(outcome.raters)} raters dropped by their checks; Krippendorff's alpha {alpha}"
        )

    def to_json(self) -> dict[str, Any]:
        return {"study": self.study.digest, **self.outcome.to_json()}


def report_study(folder: Path | str, *, output: Path | None = None) -> StudyReport:
    """Judge the answers so far; write the report into `output` where one is given."""
    with _opened(folder) as store:
        study = store.study
        outcome = study_outcome(study, store.answers())
        sections = study_sections(study, outcome, simulated=store.is_simulated())
    page = None
    if output is not None:
        page = write_report(output, title=study.design.title, sections=sections)
    return StudyReport(study, outcome, page)


def answer_lines(folder: Path | str) -> Iterator[str]:
    """Every answer as a line of JSON, in the order in which they came; names of raters, no tokens."""
    with _opened(folder) as store:
        for answer in store.answers():
            yield json.dumps(answer.to_json(), ensure_ascii=False) + "\n"


def _opened(folder: Path | str) -> StudyStore:
    """The store of a study that was served; reading one must not make it."""
    study = read_study(folder)
    if not (study.folder / DATABASE_FILE).is_file():
        raise DataError(
            f"{folder} has no answers yet: serve it first (energylm study serve {shlex.quote(str(folder))})"
        )
    return StudyStore.open(folder)
