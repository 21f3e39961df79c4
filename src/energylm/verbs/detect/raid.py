"""Judge the texts of RAID and write its predictions file: `energylm detect raid` (Dugan et al. 2024).

CSV in                     a row a text: id, generation; where labels are published also model (`human` is a person),
                           domain, attack, decoding
OUTPUT/predictions.json    [{id, score}, …], higher = machine: what the leaderboard takes
OUTPUT/blocks/             finished portions: a killed run goes on where it stopped

Measured is what the leaderboard measures: a threshold for each domain at which the asked share of its human texts
without an attack lies above, and the share of machine texts above it, by model, domain, attack and decoding. Beside it
stand the detector's own verdicts, which know no threshold of anybody's. The file is read twice: once for mistakes,
labels and the choice of rows, so that hours of work do not end at a bad row, once for the texts.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from energylm.config.models import DEFAULT_DETECTOR
from energylm.errors import DataError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import Progress, progress, say
from energylm.records import LOCAL, Record
from energylm.tables import Cell, Table
from energylm.verbs.detect.detect import DetectorFolder
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.bundles.detector import Detection, Detector

ID, TEXT = "id", "generation"
LABELS = ("model", "domain", "attack", "decoding")
HUMAN, NO_ATTACK = "human", "none"
PREDICTIONS = "predictions.json"
PORTION_TEXTS = 64
LONGEST_CELL = 1 << 24  # characters; the usual limit of the reader of CSV files is 131,072


@dataclass(frozen=True)
class RaidShare(Record):
    """Texts of one kind, how many of them lie above their domain's threshold (with the exact 95 % interval of that
    share), and what the detector's own verdicts are."""

    by: str  # model, domain, attack, decoding; or all
    name: str
    texts: int
    flagged: int
    lower: float
    upper: float
    machine: float  # share of its verdicts
    abstains: float

    @property
    def share(self) -> float:
        return self.flagged / self.texts


@dataclass(frozen=True)
class RaidResult(Record):
    texts: int
    unread: int  # texts without a token, scored 0
    false_positive_rate: float
    thresholds: dict[str, float]  # of the score, by domain; empty: no labels
    shares: tuple[RaidShare, ...]
    predictions: Path = field(metadata=LOCAL)

    def summary(self) -> str:
        unread = f"; {self.unread:,} have no token and score 0" if self.unread else ""
        unlabelled = "" if self.shares else "; the file has no labels, so nothing is measured"
        return f"{self.texts:,} texts judged{unread}{unlabelled}: {self.predictions}"

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [
                share.by,
                share.name,
                share.texts,
                f"{share.share:.3f} [{share.lower:.3f}, {share.upper:.3f}]",
                share.machine,
                share.abstains,
            ]
            for share in self.shares
        ]
        rate = f"{self.false_positive_rate:.3g}"
        return Table(
            ["by", "texts of", "texts", f"found at {rate}", "called machine", "abstains"],
            rows,
            convention=f"found at {rate}: share above a threshold for each domain that {rate} of its human texts "
            "without attack exceed, with an exact 95 % interval; rows other than model human are machine texts; the "
            "last two columns are the detector's own verdicts",
        )


class JudgeRaid(Verb):
    """Judge the texts of RAID, or of any CSV file in its form, and write the predictions file of its leaderboard.

    Where the file names models, domains and attacks, what is found at a false-positive rate is told by each of them. A
    killed run goes on where it stopped.
    """

    examples = (
        "energylm detect raid default test.csv --output runs/raid",
        "energylm detect raid runs/detector/model train_none.csv --limit 20 --output runs/raid-train",
    )
    writes = "required"
    blocks = True

    detector: DetectorFolder
    file: Annotated[Path, Positional("CSV")] = Field(
        description="RAID's train.csv, test.csv or extra.csv, or a file with columns id and generation."
    )
    limit: int | None = Field(
        None,
        ge=1,
        description="At most so many texts of each model, domain, attack and decoding, the first; none = all.",
    )
    fpr: float = Field(0.05, gt=0, lt=1, description="Share of human texts above the threshold of each domain.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        rows = chosen_rows(self.file, limit=self.limit)
        labels = "with labels" if rows.is_labelled else "without labels"
        return f"would judge {len(rows.ids):,} texts of {self.file} ({labels}) with {self.detector}"

    def run(self, job: Job = DEFAULT_JOB) -> RaidResult:
        return judge_raid(self, job)


@dataclass(frozen=True)
class RaidRows:
    """The rows that are judged, without their texts."""

    numbers: list[int]  # of all rows of the file
    ids: list[str]
    labels: list[tuple[str, ...]]  # in the order of `LABELS`; empty ones where the file has none
    is_labelled: bool


def chosen_rows(path: Path, *, limit: int | None) -> RaidRows:
    """Read the whole file once: columns, ids and labels are checked, and a `limit` is applied."""
    rows, seen, cells = RaidRows([], [], [], _is_labelled(path)), dict[str, int](), Counter[tuple[str, ...]]()
    for number, row in enumerate(_rows(path), start=1):
        if None in row.values() or None in row:
            raise DataError(f"{path} row {number} has not as many cells as the first line has columns; mend the file")
        if (earlier := seen.setdefault(row[ID], number)) != number:
            raise DataError(f"{path} row {number} has the id {row[ID]!r} of row {earlier}; ids must be different")
        labels = tuple(row.get(name) or "" for name in LABELS)
        cells[labels] += 1
        if limit is None or cells[labels] <= limit:
            rows.numbers.append(number)
            rows.ids.append(row[ID])
            rows.labels.append(labels)
    if not rows.ids:
        raise DataError(f"{path} has no rows; expected a text a row below the names of the columns")
    return rows


def _is_labelled(path: Path) -> bool:
    first = next(iter(_rows(path)), {})
    return {"model", "domain", "attack"} <= first.keys()


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a CSV file of RAID")
    usual = csv.field_size_limit(LONGEST_CELL)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in (ID, TEXT) if name not in (reader.fieldnames or ())]:
                columns = ", ".join(reader.fieldnames or ())[:200] or "none"
                raise DataError(
                    f"{path} has no column {missing[0]!r}; RAID's files have id and generation, it: {columns}"
                )
            yield from reader
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason}); give the CSV file itself, unpacked") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV file ({error}); give RAID's file as it was published") from None
    finally:
        csv.field_size_limit(usual)


class RaidWorker:
    """(probability of machine, verdict) of each text; of a text without tokens there is no probability."""

    def __init__(self, detector: "Detector") -> None:
        self._detector = detector

    @classmethod
    def loaded(cls, path: str) -> "RaidWorker":
        from energylm.bundles.detector import Detector

        return cls(Detector.from_pretrained(path))

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._detector.name}

    def __call__(self, block: list[str], *, progress: Progress) -> list[list[Any]]:
        detections = self._detector.predict(block)
        progress.advance(len(block))
        return [[_probability(detection), detection.verdict] for detection in detections]


def _probability(detection: "Detection") -> float | None:
    from energylm.bundles.detector import logistic

    return None if detection.log_odds is None else logistic(detection.log_odds)


def judge_raid(verb: JudgeRaid, job: Job) -> RaidResult:
    from energylm.bundles.detector import DEFAULT_FOLDER
    from energylm.bundles.known_models import absolute_place
    from energylm.bundles.model_folder import model_identity
    from energylm.files import folder_lock, write_json
    from energylm.jobs.engine import open_engine
    from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
    from energylm.registry import DETECTORS

    rows = chosen_rows(verb.file, limit=verb.limit)
    is_named = DETECTORS.named(verb.detector) is not None
    place = DEFAULT_FOLDER if verb.detector == DEFAULT_DETECTOR else verb.detector
    path = verb.detector if is_named else absolute_place(place)
    identity = {"task": "raid", "model": path if is_named else model_identity(path)}
    form = BlockForm(block=lambda texts: texts, to_json=list, from_json=list, size=len)
    kept, judged = KeptBlocks(job.folder, identity, form), []
    with (
        folder_lock(job.folder),
        open_engine(job.engine) as opened,
        opened.pool(partial(RaidWorker.loaded, path), models=[path]) as pool,
        progress("judging", total=len(rows.ids), unit="text") as bar,
    ):
        for portion in kept.run(pool, _portions(verb.file, set(rows.numbers)), progress=bar):
            judged += portion
        scores = [0.0 if score is None else float(score) for score, _ in judged]
        records = [{ID: identifier, "score": score} for identifier, score in zip(rows.ids, scores, strict=True)]
        write_json(job.folder / PREDICTIONS, records)
    labels = rows.labels if rows.is_labelled else []
    thresholds, shares = measured(labels, scores[: len(labels)], [v for _, v in judged][: len(labels)], rate=verb.fpr)
    unread = sum(score is None for score, _ in judged)
    return RaidResult(len(scores), unread, verb.fpr, thresholds, shares, job.folder / PREDICTIONS)


def _portions(path: Path, chosen: set[int]) -> Iterator[list[str]]:
    portion = []
    for number, row in enumerate(_rows(path), start=1):
        if number in chosen:
            portion.append(row[TEXT])
        if len(portion) == PORTION_TEXTS:
            yield portion
            portion = []
    if portion:
        yield portion


def measured(
    labels: Sequence[tuple[str, ...]], scores: Sequence[float], verdicts: Sequence[str], *, rate: float
) -> tuple[dict[str, float], tuple[RaidShare, ...]]:
    """Thresholds by domain, and what is above them: of human texts without attack, then of machine texts by label."""
    human: dict[str, list[float]] = {}
    for (model, domain, attack, _), score in zip(labels, scores, strict=True):
        if model == HUMAN and attack == NO_ATTACK:
            human.setdefault(domain, []).append(score)
    thresholds = {domain: _above(of_domain, rate) for domain, of_domain in sorted(human.items())}
    if unknown := sorted({label[1] for label in labels} - thresholds.keys()):
        say(f"no human text without attack in {', '.join(unknown)}: what is found there is not measured")
    kinds: dict[tuple[str, str], list[tuple[bool, str]]] = {}
    for label, score, verdict in zip(labels, scores, verdicts, strict=True):
        model, domain, attack, _ = label
        if domain not in thresholds or (model == HUMAN and attack != NO_ATTACK):
            continue
        names = [("model", HUMAN)] if model == HUMAN else [("all", "machine"), *zip(LABELS, label, strict=True)]
        for kind in names:
            kinds.setdefault(kind, []).append((score > thresholds[domain], verdict))
    order = ("all", *LABELS)
    return thresholds, tuple(
        _share(by, name, kinds[by, name])
        for by, name in sorted(kinds, key=lambda kind: (order.index(kind[0]), kind[1]))
        if name
    )


def _above(scores: Sequence[float], rate: float) -> float:
    """The lowest score that at most a share `rate` of the scores exceed."""
    ordered = sorted(scores)
    return ordered[max(0, math.ceil(len(ordered) * (1 - rate) - 1e-9) - 1)]


def _share(by: str, name: str, judged: Sequence[tuple[bool, str]]) -> RaidShare:
    from energylm.estimators.false_positive_threshold import GroupRate

    rate, verdicts = GroupRate.of(name, sum(flagged for flagged, _ in judged), len(judged)), [v for _, v in judged]
    machine, abstains = (verdicts.count(verdict) / len(verdicts) for verdict in ("machine", "abstains"))
    return RaidShare(by, name, rate.texts, rate.flagged, rate.lower, rate.upper, machine, abstains)
