"""`energylm study invite`, `serve`, `report`, `export`: personal links, the pages behind them, what was answered."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from energylm.apps import needs_extra
from energylm.apps.study.design import StudyFolder, read_study
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.verb import Flag, Short, Verb

if TYPE_CHECKING:
    from energylm.apps.study.links import Invitations
    from energylm.apps.study.report import ExportedAnswers, StudyResult

PORT = 8321
STDOUT = "-"


class StudyInvite(Verb):
    """Print personal links, one a line: a name, a tab, the link (or the owner's token).

    They are shown this once, and the study keeps hashes. It may be served meanwhile. Whoever loses a link is invited
    anew, by another name.
    """

    examples = (
        "energylm study invite studies/news --raters 60 --url https://study.example.org > links.tsv",
        "energylm study invite studies/news --label ada --label grace",
        "energylm study invite studies/news --owner",
    )

    study: StudyFolder
    raters: int = Field(0, ge=0, description="Invite so many, called rater-001, rater-002 …")
    labels: Annotated[tuple[str, ...], Flag("--label")] = Field((), description="Invite a rater by this name.")
    owner: bool = Field(False, description="Make the owner's token; an earlier one is no longer valid.")
    url: str = Field(f"http://127.0.0.1:{PORT}", description="Where raters reach the study.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        needs_extra("fastapi", "sqlalchemy")
        from energylm.apps.study.links import describe_invitations

        return describe_invitations(self)

    def run(self, job: Job = DEFAULT_JOB) -> "Invitations":
        needs_extra("fastapi", "sqlalchemy")
        from energylm.apps.study.links import invite

        return invite(self)

    def shown(self, result: "Invitations") -> str:
        return "".join(f"{invitation.label}\t{invitation.secret}\n" for invitation in result.invitations)


@dataclass(frozen=True)
class ServedStudy(Record):
    """A study whose server has been stopped."""

    address: str
    votes: int  # by then


class StudyServe(Verb):
    """Serve a study to its raters, and the owner's view at /owner, until Ctrl-C.

    A vote is on the disk before it is acknowledged; a server that was killed goes on where it stood. Put a proxy with
    TLS in front where raters come over the internet: links hold their tokens.
    """

    examples = (
        "energylm study serve studies/news",
        "energylm study serve studies/news --host 0.0.0.0 --port 8080",
    )

    study: StudyFolder
    host: str = Field("127.0.0.1", description="The address to listen on; 0.0.0.0 for all.")
    port: int = Field(PORT, ge=0, le=65535, description="The port; 0 takes a free one.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        study = read_study(self.study)
        return (
            f"would serve {len(study.pairs):,} pairs for {study.votes_wanted:,} votes on {self.host} port {self.port}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> ServedStudy:
        needs_extra("fastapi", "jinja2", "krippendorff", "sqlalchemy", "uvicorn")
        from energylm.apps import running
        from energylm.apps.study.app import create_study_app
        from energylm.apps.study.store import StudyStore
        from energylm.progress import say

        with StudyStore.open(self.study) as store, running.listen(self.host, self.port) as listening:
            store.refuse_people()
            quoted, address = shlex.quote(self.study), running.address_of(listening)
            say(f"{self.study}: {address} (Ctrl-C stops)")
            if not store.progress().raters:
                say(f"nobody is invited yet: energylm study invite {quoted} --raters 10")
            if store.owner_hash() is None:
                say(f"the owner's view /owner is closed until there is a token: energylm study invite {quoted} --owner")
            running.run(create_study_app(store), listening, grace_seconds=10)
            return ServedStudy(address, store.progress().votes)

    def shown(self, result: ServedStudy) -> str:
        return ""


class StudyReport(Verb):
    """Judge the answers so far: the table of preferences on stdout, everything else in the report.

    Raters and answers that fail the checks are dropped by the rules of the study, which the report states; stored
    answers stay as they are.
    """

    examples = (
        "energylm study report studies/news -o out/news-study",
        "energylm study report studies/news --json outcome.json",
    )
    writes = "optional"

    study: StudyFolder

    def check(self, job: Job = DEFAULT_JOB) -> str:
        study = read_study(self.study)
        return f"would judge the answers to {len(study.pairs):,} pairs of {', '.join(study.models)}"

    def run(self, job: Job = DEFAULT_JOB) -> "StudyResult":
        needs_extra("sqlalchemy", "krippendorff")
        from energylm.apps.study.report import report_study

        return report_study(self.study, output=job.output)


class StudyExport(Verb):
    """Write every answer as a line of JSON: rater, item, order, side, choice, who wrote what, seconds."""

    examples = (
        "energylm study export studies/news > answers.jsonl",
        "energylm study export studies/news -o answers.jsonl",
    )
    apart_from = frozenset({"output"})

    study: StudyFolder
    output: Annotated[str, Short("-o")] = Field(STDOUT, description="A file to write to; - is stdout.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would write the answers to {len(read_study(self.study).pairs):,} pairs to {self.output}"

    def run(self, job: Job = DEFAULT_JOB) -> "ExportedAnswers":
        needs_extra("sqlalchemy")
        from energylm.apps.study.report import exported_answers
        from energylm.files import write_text

        result = exported_answers(self.study)
        if self.output != STDOUT:
            write_text(Path(self.output), "".join(result.lines))
        return result

    def shown(self, result: "ExportedAnswers") -> str:
        return "".join(result.lines) if self.output == STDOUT else ""
