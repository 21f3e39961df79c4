"""`energylm study invite`, `serve`, `report`, `export`, `simulate`: links, the pages behind them, what was answered.

A token exists in its link alone; the study keeps its hash. A link is shown once, and whoever loses it is invited anew
by another name, so no answer comes to stand under the wrong one. A panel of simulated raters (`simulate`) is for trying
a study out and for proving its report.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from energylm.apps import needs_extra
from energylm.apps.study.design import DATABASE_FILE, StudyFolder, read_study
from energylm.apps.study.new import named
from energylm.errors import ConfigError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import to_markdown
from energylm.verbs.verb import Flag, Metavar, Short, Verb

if TYPE_CHECKING:
    from energylm.apps.study.panel import Panel
    from energylm.apps.study.report import ExportedAnswers, StudyResult
    from energylm.apps.study.store import StudyStore
    from energylm.jobs.costs import Counted, Surroundings

PORT = 8321
STDOUT = "-"
LONGEST_LABEL = 80


@dataclass(frozen=True)
class Invitation(Record):
    """A rater's name and personal link; or "owner" and the token that opens the owner's view."""

    label: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Invitations(Record):
    invitations: tuple[Invitation, ...]


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
        """What would be done, in words; everything that can be checked without writing is."""
        needs_extra("fastapi", "sqlalchemy")
        from energylm.apps.study.store import StudyStore

        study, address, taken = read_study(self.study), self._address(), []
        if (study.folder / DATABASE_FILE).exists():
            with StudyStore.open(self.study) as store:
                taken = _labels(store)
        names = self._names(taken)
        also = " and make a new owner's token" if self.owner else ""
        return (
            f"would invite {len(names):,} raters ({', '.join(names[:3])}{' …' if len(names) > 3 else ''}) to "
            f"{len(study.pairs):,} pairs at {address}{also}; {len(taken):,} are invited already"
        )

    def run(self, job: Job = DEFAULT_JOB) -> Invitations:
        """New raters by label, and more by number; with `owner` a new owner's token, which ends any other.

        Either all names are good and free, or nobody is invited.
        """
        needs_extra("fastapi", "sqlalchemy")
        from energylm.apps.security import hash_token, new_token
        from energylm.apps.study.store import StudyStore

        address, invitations = self._address(), []
        with StudyStore.open(self.study) as store:
            store.refuse_people()
            for name in self._names(_labels(store)):
                token = new_token()
                store.add_rater(name, hash_token(token))
                invitations.append(Invitation(name, f"{address}/r/{token}"))
            if self.owner:
                token = new_token()
                store.set_owner_hash(hash_token(token))
                invitations.append(Invitation("owner", token))
        return Invitations(tuple(invitations))

    def _names(self, taken: Sequence[str]) -> list[str]:
        """Of those to invite, beside the names that are taken."""
        if not self.labels and not self.raters and not self.owner:
            raise ConfigError("nobody to invite; give --raters 10, --label NAME or --owner")
        known = set(taken)
        for label in self.labels:
            if not label.strip() or label != label.strip() or len(label) > LONGEST_LABEL or not label.isprintable():
                raise ConfigError(
                    f"label {label[:LONGEST_LABEL]!r} is no name: 1 to {LONGEST_LABEL} printable characters are, "
                    "without spaces around them"
                )
            if label in known:
                raise ConfigError(f"a rater called {label!r} is invited already; a lost link needs another name")
            known.add(label)
        numbers = [int(match.group(1)) for name in known if (match := re.fullmatch(r"rater-(\d{1,9})", name))]
        first = max(numbers, default=0) + 1
        return [*self.labels, *(f"rater-{number:03}" for number in range(first, first + self.raters))]

    def _address(self) -> str:
        parts = urlsplit(self.url)
        more = (parts.path.strip("/"), parts.query, parts.fragment)
        if parts.scheme not in ("http", "https") or not parts.netloc or any(more):
            raise ConfigError(f"--url {self.url!r} is no address of a study; expected e.g. https://study.example.org")
        return self.url.rstrip("/")

    def shown(self, result: Invitations) -> str:
        return "".join(f"{invitation.label}\t{invitation.secret}\n" for invitation in result.invitations)


def _labels(store: "StudyStore") -> list[str]:
    return [standing.rater.label for standing in store.progress().raters]


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
        from energylm.apps import hosting
        from energylm.apps.study.app import create_study_app
        from energylm.apps.study.store import StudyStore
        from energylm.progress import say

        with StudyStore.open(self.study) as store, hosting.listen(self.host, self.port) as listening:
            store.refuse_people()
            quoted, address = shlex.quote(self.study), hosting.address_of(listening)
            say(f"{self.study}: {address} (Ctrl-C stops)")
            if not store.progress().raters:
                say(f"nobody is invited yet: energylm study invite {quoted} --raters 10")
            if store.owner_hash() is None:
                say(f"the owner's view /owner is closed until there is a token: energylm study invite {quoted} --owner")
            hosting.run(create_study_app(store), listening, grace_seconds=10)
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

    def cost(self, around: "Surroundings") -> "Counted":
        """Nothing that a plan would notice: answers are drawn, no network runs."""
        from energylm.jobs.costs import Counted

        return Counted()
