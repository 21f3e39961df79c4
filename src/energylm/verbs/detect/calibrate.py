"""The threshold of a detector for a false-positive rate, on the user's own texts: `energylm detect calibrate`."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from energylm.config.detect import BlockConfig, DetectionSources
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.detect.calibrating import CalibrationResult


class CalibrateDetector(Verb):
    """Choose the threshold for a false-positive rate on your own human text; with machine text also the probabilities.

    The calibration is kept in the detector's folder. A rate of 1 % needs at least 99 human texts, one of 5 % needs 19;
    as many of one length promise it for texts of that length. An energy that reads text becomes a detector this way.
    """

    examples = (
        "energylm detect calibrate runs/detector/model --human my_essays/ --fpr 0.01",
        "energylm detect calibrate runs/energy/model --human human.jsonl --machine machine.jsonl --fpr 0.05",
    )
    shortcuts: ClassVar = {
        "human": "data.human",
        "machine": "data.machine",
        "pairs": "data.pairs",
        "format": "data.format",
        "field": "data.field",
        "part": "data.part",
    }

    detector: Annotated[str, Positional("DETECTOR")] = Field(
        description="A detector's folder (OUTPUT/model of `energylm detect train`), or an energy's that reads text."
    )
    data: DetectionSources = Field(DetectionSources(), description="Human text, and machine text if there is any.")
    fpr: float = Field(0.01, gt=0, lt=1, description="Share of human texts like these that may be called machine.")
    text_blocks: BlockConfig | None = Field(
        None, description="For an energy that is no detector yet; none = the usual."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Read no more than so many tokens of each text, as the detector then will; none = all."
    )

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.calibrating import open_inputs

        _, data = open_inputs(self)
        return f"would calibrate {self.detector} for {self.fpr:.3g} on {data.describe()}"

    def run(self, job: Job = DEFAULT_JOB) -> "CalibrationResult":
        from energylm.verbs.detect.calibrating import calibrate

        return calibrate(self)

    def shown(self, result: "CalibrationResult") -> str:
        return f"{self.detector}: {result.summary()}\n\n{super().shown(result)}"

    def remarks(self, result: "CalibrationResult") -> list[str]:
        return []
