"""`energylm study simulate`: a panel of simulated raters, for trying a study out and for proving its report."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.apps import needs_extra
from energylm.apps.study.design import StudyFolder
from energylm.apps.study.new import named
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.tables import to_markdown
from energylm.verbs.verb import Flag, Metavar, Verb

if TYPE_CHECKING:
    from energylm.apps.study.panel import Panel


def _strengths(values: Any) -> dict[str, Any]:
    if isinstance(values, dict):
        return values
    strengths = dict(named(values, "MODEL=NUMBER", "joint=0.5"))
    for text in strengths.values():
        try:
            float(text)
        except ValueError:
            raise ValueError(f"a strength is a number, came {text!r}; e.g. joint=0.5") from None
    return strengths


class StudySimulate(Verb):
    """Let a simulated panel answer a study that has no raters, and judge it: a trial before people are paid.

    Prints expected and found exclusions; expected ones are binomial tails, known before the first answer. Give the
    study max_pairs_per_rater, or the first raters do everything. A study answered so cannot be served to people.
    """

    examples = (
        "energylm study simulate studies/trial --strength joint=0.5 -o out/trial",
        "energylm study simulate studies/trial --good 40 --random 10 --lazy 10 --set accuracy=0.85",
    )
    writes = "optional"

    study: StudyFolder
    good: int = Field(30, ge=0, description="Raters who read: right in `accuracy` of known answers, who have a taste.")
    random: int = Field(15, ge=0, description="Raters who toss a coin throughout.")
    lazy: int = Field(15, ge=0, description="Raters who read in the qualification and then always take the left text.")
    accuracy: float = Field(0.9, ge=0.5, le=1, description="A reader's chance to be right where the answer is known.")
    strengths: Annotated[dict[str, float], Flag("--strength"), Metavar("MODEL=NUMBER"), BeforeValidator(_strengths)] = (
        Field(
            {},
            description="Planted log-strength of a model: a reader takes the second of a pair in "
            "1 / (1 + exp(s_first − s_second)) of cases; 0 where none is given.",
        )
    )
    spread: float = Field(
        1.0, ge=0, description="Standard deviation of that log-odds over pairs: what readers see alike in a pair."
    )
    tie_rate: float = Field(0.1, ge=0, le=1, description="How often a reader says that neither is better, if allowed.")
    seed: int = Field(0, ge=0, description="Of arrivals and answers.")

    @property
    def raters(self) -> int:
        return self.good + self.random + self.lazy

    @model_validator(mode="after")
    def _has_somebody(self) -> Self:
        if not self.raters:
            raise ValueError("a panel of no raters; give good, random or lazy ones")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        needs_extra("sqlalchemy", "krippendorff")
        from energylm.apps.study.panel import describe_panel

        return describe_panel(self)

    def run(self, job: Job = DEFAULT_JOB) -> "Panel":
        needs_extra("sqlalchemy", "krippendorff")
        from energylm.apps.study.panel import run_panel

        return run_panel(self, output=job.output)

    def shown(self, result: "Panel") -> str:
        from energylm.apps.study.panel import exclusions_table

        return to_markdown(exclusions_table(list(result.exclusions.values())))


class StudyPanel(StudySimulate):
    """Let a simulated panel answer a copy of a study, and judge it; the study itself stays unanswered."""

    def run(self, job: Job = DEFAULT_JOB) -> "Panel":
        needs_extra("sqlalchemy", "krippendorff")
        from energylm.apps.study.panel import run_panel

        copy: Path = job.folder / "study"
        shutil.rmtree(copy, ignore_errors=True)  # of a run that was interrupted
        shutil.copytree(self.study, copy)
        return run_panel(self.model_copy(update={"study": str(copy)}), output=job.folder / "report")
