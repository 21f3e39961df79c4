"""How a detector bears attacks that leave a text readable: `energylm detect robustness`.

Each attack of `data.text_disguises` is applied to every text, by rule and repeatably. Told are, for each attack

    AUROC              attacked machine texts against human texts as they are, which nobody attacks to look human
    as it came         the same where nothing is undone before reading: what the reading is worth
    machine found      share of attacked machine texts that the detector calls machine, and of those it abstains on
    human called       share of attacked human texts that it calls machine: odd characters that came along with a copied
    machine            page must not cost a person anything

Intervals of AUROC are by text (bootstrap).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from energylm.config.base import Strings
from energylm.config.texts import DetectionSources
from energylm.errors import ConfigError
from energylm.estimators.discrimination import Interval
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import Table
from energylm.verbs.detect.detect import SOURCES, DetectorFolder
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.bundles.detector import Detection, Detector

NOTHING = "none"


@dataclass(frozen=True)
class AttackRow(Record):
    attack: str
    auroc: Interval
    auroc_as_it_came: Interval  # nothing is undone before reading
    undone: float  # share of machine texts in which something was undone
    machine_found: float  # shares of verdicts
    machine_abstains: float
    human_called_machine: float
    human_abstains: float


@dataclass(frozen=True)
class RobustnessResult(Record):
    attacks: tuple[AttackRow, ...]  # the first is no attack
    human: int  # texts
    machine: int

    def summary(self) -> str:
        worst = min(self.attacks, key=lambda row: row.auroc.value)
        return (
            f"{self.human:,} human and {self.machine:,} machine texts; {worst.attack} is the worst: AUROC {worst.auroc}"
        )

    @property
    def table(self) -> Table:
        return Table(
            [
                "attack",
                "AUROC",
                "as it came",
                "undone in",
                "machine found",
                "abstains",
                "human called machine",
                "abstains",
            ],
            [
                [
                    row.attack,
                    str(row.auroc),
                    str(row.auroc_as_it_came),
                    row.undone,
                    row.machine_found,
                    row.machine_abstains,
                    row.human_called_machine,
                    row.human_abstains,
                ]
                for row in self.attacks
            ],
            convention="attacked machine texts against human texts as they are, 95 % bootstrap intervals by text; as "
            "it came: nothing is undone before reading; verdicts with the detector's own threshold, of attacked texts",
        )


class MeasureRobustness(Verb):
    """Attack texts by rule (look-alike letters, invisible characters, blanks, spelling, case, order) and judge them.

    The same texts and seed give the same attacks. Before a detector reads a text it undoes what can be undone; the
    table tells what that is worth.
    """

    examples = (
        "energylm detect robustness runs/detector/model --human human.jsonl --machine machine.jsonl",
        "energylm detect robustness default --pairs xsum_gpt2-xl.json --attack homoglyphs --attack misspellings",
    )
    shortcuts: ClassVar = SOURCES

    detector: DetectorFolder
    data: DetectionSources = Field(DetectionSources(), description="Texts whose writers are known.")
    attack: Strings = Field(
        (), description="homoglyphs, zero-width, whitespace, misspellings, case, swaps; none = all."
    )
    share: float | None = Field(
        None, gt=0, le=1, description="Of the places of an attack that are hit; none = what is usual for each."
    )
    texts: int = Field(200, ge=2, description="At most so many texts of each class, evenly spread.")
    resamples: int = Field(1000, ge=1, description="Bootstrap resamples, by text.")
    seed: int = Field(0, ge=0, description="Of the attacks and the bootstrap.")

    @model_validator(mode="after")
    def _knows_the_attacks(self) -> "MeasureRobustness":
        from energylm.data.text_disguises import ATTACKS

        if unknown := [name for name in self.attack if name not in ATTACKS]:
            raise ConfigError(f"there is no attack {unknown[0]!r}; there are: {', '.join(ATTACKS)}")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        human, machine = labelled_texts(self)
        return (
            f"would attack {len(human):,} human and {len(machine):,} machine texts and judge them with {self.detector}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> RobustnessResult:
        return measure_robustness(self)


def labelled_texts(verb: MeasureRobustness) -> tuple[list[str], list[str]]:
    """Human and machine texts, as many as are asked for."""
    from energylm.data.detection import read_detection, spread

    data = read_detection(verb.data)
    data.require_both("a table of attacks")
    human, machine = ([text.text for text in spread(part, verb.texts)] for part in (data.human, data.machine))
    return human, machine


def measure_robustness(verb: MeasureRobustness) -> RobustnessResult:
    from energylm.data.text_disguises import ATTACKS
    from energylm.verbs.detect.calibrating import open_detector
    from energylm.verbs.detect.judging import detect

    human, machine = labelled_texts(verb)
    detector = open_detector(verb.detector)
    honest = detect(detector, human)
    rows = [_row(verb, NOTHING, honest, honest, found := detect(detector, machine), found, undone=0.0)]
    for attack in verb.attack or ATTACKS:
        rows.append(_attacked(verb, detector, attack, honest, human, machine))
    return RobustnessResult(tuple(rows), len(human), len(machine))


def _attacked(
    verb: MeasureRobustness,
    detector: "Detector",
    attack: str,
    honest: "Sequence[Detection]",
    human: list[str],
    machine: list[str],
) -> AttackRow:
    from energylm.data.text_disguises import disguise, plain
    from energylm.verbs.detect.judging import detect

    human, machine = (
        [disguise(text, attack, share=verb.share, seed=verb.seed) for text in texts] for texts in (human, machine)
    )
    undone = [bool(plain(text).changes) for text in machine]
    found = detect(detector, machine)
    credulous = copy(detector)
    credulous.reader = copy(detector.reader)
    credulous.reader.undoes = False
    as_it_came = detect(credulous, machine) if any(undone) else found
    return _row(verb, attack, honest, detect(detector, human), found, as_it_came, undone=sum(undone) / len(undone))


def _row(
    verb: MeasureRobustness,
    attack: str,
    honest: "Sequence[Detection]",
    human: "Sequence[Detection]",
    machine: "Sequence[Detection]",
    as_it_came: "Sequence[Detection]",
    *,
    undone: float,
) -> AttackRow:
    from energylm.estimators.discrimination import discrimination
    from energylm.verbs.detect.evaluating import VerdictShares

    def log_odds(detections: "Sequence[Detection]") -> list[float]:
        return [detection.log_odds for detection in detections if detection.log_odds is not None]

    def auroc(detections: "Sequence[Detection]") -> Interval:
        return discrimination(log_odds(honest), log_odds(detections), resamples=verb.resamples, seed=verb.seed).auroc

    of_human, of_machine = VerdictShares.of(human), VerdictShares.of(machine)
    return AttackRow(
        attack,
        auroc(machine),
        auroc(as_it_came),
        undone,
        machine_found=of_machine.machine,
        machine_abstains=of_machine.abstains,
        human_called_machine=of_human.machine,
        human_abstains=of_human.abstains,
    )
