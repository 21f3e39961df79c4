"""A detector that tells machine text from human text: `energylm detect train`."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from energylm.config.detect import BlockConfig, DetectionSources
from energylm.config.energy import MEAN, Pooling
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.verbs.detect.training import DetectorRun


class TrainDetector(Verb):
    """Train a detector on human and machine texts, calibrate it on texts held out, and report it.

    An update reads --batch pairs of a human and a machine block. Training stops early when texts held out are no longer
    told apart better. Killed runs go on where they stopped when
    run again; finished ones are not repeated.
    """

    examples = (
        "energylm detect train --human webtext.jsonl --machine small-117M.jsonl --output runs/detector",
        "energylm detect train --pairs xsum_gpt2-xl.json --pairs writing_gpt2-xl.json --fpr 0.05 -o runs/gpt2",
        "energylm detect train --human essays/ --machine generated/ --init bert-base-uncased -o runs/bert --dry-run",
    )
    shortcuts: ClassVar = {
        "human": "data.human",
        "machine": "data.machine",
        "pairs": "data.pairs",
        "format": "data.format",
        "field": "data.field",
        "part": "data.part",
        "block": "text_blocks.tokens",
        "preset": "training.preset",
        "steps": "training.steps",
        "batch": "training.global_batch",
        "learning_rate": "training.optimizer.learning_rate",
        "seed": "training.seed",
    }
    writes = "required"
    product = "model"
    version = 2

    data: DetectionSources = Field(DetectionSources(), description="What it learns from.")
    init: str = Field(
        "minilm-l6",
        description="What it starts from: a folder of an encoder, language model or energy; a known model; the hub.",
    )
    pooling: Pooling = Field(MEAN, description="mean over all tokens, or the first position (bakhtin2019's BiTransf).")
    depth: float = Field(
        0.5, gt=0, le=1, description="The share of the encoder's layers that is kept, from the first on; 1 = all."
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Of the encoder in training; a few hundred updates learn faster without any."
    )
    probe_pairs: int = Field(
        512, ge=0, description="Pairs of blocks that the projection is fitted on before training; 0 = starts near zero."
    )
    text_blocks: BlockConfig = BlockConfig()
    shorter_blocks: float = Field(
        0.25, ge=0, le=1, description="The share of training blocks that are cut to a random shorter length."
    )
    validation_fraction: float = Field(0.1, gt=0, lt=0.5, description="Share of texts that choose the best step.")
    validation_texts: int | None = Field(
        100, ge=2, description="At most so many validation texts of each class, two blocks of each; none = all."
    )
    calibration_fraction: float = Field(0.2, gt=0, lt=0.5, description="Share of texts held out for the calibration.")
    calibration_texts: int | None = Field(
        200, ge=2, description="At most so many texts of each class for the calibration; none = all held out."
    )
    fpr: float = Field(
        0.01, gt=0, lt=1, description="Share of human texts that may be called machine, for the threshold."
    )
    training: TrainingConfig = TrainingConfig(
        steps=600,
        global_batch=8,
        optimizer=OptimizerConfig(learning_rate=5e-5, weight_decay=0.01),
        validation=ValidationConfig(every_steps=50, patience_evaluations=4),
        checkpoint=CheckpointConfig(every_steps=100, keep=1),
    )

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.training import describe_training

        return describe_training(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "DetectorRun":
        from energylm.verbs.detect.training import train_detector

        return train_detector(self, job.folder)

    def shown(self, result: "DetectorRun") -> str:
        return f"{result.model}: {result.summary()}\n"

    def remarks(self, result: "DetectorRun") -> list[str]:
        return []  # what is shown names the report
