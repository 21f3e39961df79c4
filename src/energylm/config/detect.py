"""What `energylm detect` works on: labelled texts, blocks, how a detector is trained, calibrated and judged."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.energy import MEAN, Pooling
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig

TextFormat = Literal["auto", "text", "lines", "jsonl"]  # auto = by the ending of the file
Part = Literal["all", "train", "test"]


class DetectionSources(Config):
    """Texts by people and by machines: JSON Lines, `{original: […], sampled: […]}`, plain text, folders of them."""

    human: tuple[str, ...] = Field((), description="Files and folders of human text; of pairs, the originals.")
    machine: tuple[str, ...] = Field((), description="Files and folders of machine text; of pairs, the samples.")
    pairs: tuple[str, ...] = Field((), description="JSON files {original: […], sampled: […]}, taken as both.")
    format: TextFormat = Field(
        "auto", description="auto (by ending), text (a file is a text), lines (a line is a text), jsonl."
    )
    field: str = Field("text", description="The JSON field that holds the text.")
    part: Part = Field("all", description="all texts, or the train or test part of them by a hash of their beginning.")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="The share of texts in the test part.")
    limit: int | None = Field(None, ge=1, description="At most so many texts of each file and class, evenly spread.")

    @property
    def is_empty(self) -> bool:
        return not (self.human or self.machine or self.pairs)


class BlockConfig(Config):
    """Long texts are read in intersecting blocks (bakhtin2019 §5.4); the text's score is the mean over them."""

    tokens: int = Field(160, ge=8, description="Tokens of a block, special tokens not counted (bakhtin2019: 160).")
    stride: int = Field(120, ge=1, description="Tokens from one block's beginning to the next; the last ends the text.")

    @model_validator(mode="after")
    def _leaves_no_gap(self) -> Self:
        if self.stride > self.tokens:
            raise ValueError(
                f"stride {self.stride} exceeds the block of {self.tokens} tokens and leaves gaps; lower it"
            )
        return self


class DetectorOptimizer(OptimizerConfig):
    """AdamW from pretrained weights."""

    learning_rate: float = Field(5e-5, gt=0, description="The highest learning rate.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay of matrices.")


class DetectorValidation(ValidationConfig):
    every_steps: int | None = Field(50, ge=1, description="Validate this often, and after the last step.")
    patience_evaluations: int | None = Field(
        4, ge=1, description="Stop after this many validations without a lower loss; none = go on."
    )


class DetectorCheckpoints(CheckpointConfig):
    every_steps: int = Field(100, ge=1, description="Write a checkpoint this often, and after the last step.")
    keep: int = Field(1, ge=1, description="How many of the newest checkpoints stay on disk (the best weights too).")


class DetectorTraining(TrainingConfig):
    """As for any model; a sequence of `global_batch` is a block of human text with a block of machine text."""

    steps: int | None = Field(600, ge=1, description="Updates; none = until validation stops improving.")
    global_batch: int = Field(8, ge=1, description="Pairs of a human and a machine block per update.")
    optimizer: DetectorOptimizer = DetectorOptimizer()
    validation: DetectorValidation = DetectorValidation()
    checkpoint: DetectorCheckpoints = DetectorCheckpoints()


class DetectTrainConfig(Config):
    """A detector trained to tell machine text from human, and calibrated on texts held out."""

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
    blocks: BlockConfig = BlockConfig()
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
    false_positive_rate: float = Field(
        0.01, gt=0, lt=1, description="Share of human texts that may be called machine, for the threshold."
    )
    training: DetectorTraining = DetectorTraining()


class DetectCalibrateConfig(Config):
    """The threshold of a trained detector on the user's own texts; with machine text also its probabilities."""

    detector: str = Field(description="A detector's folder, or an energy's that reads text.")
    data: DetectionSources = Field(DetectionSources(), description="Human text, and machine text if there is any.")
    false_positive_rate: float = Field(
        0.01, gt=0, lt=1, description="Share of human texts like these that may be called machine."
    )
    blocks: BlockConfig | None = Field(None, description="For an energy that is no detector yet; none = 160 by 120.")
    max_tokens: int | None = Field(
        None, ge=1, description="Read no more than so many tokens of each text, as the detector then will; none = all."
    )


class DetectEvalConfig(Config):
    """How well a detector does on texts it has not seen, and how well word counts do."""

    detector: str = Field(description="A detector's folder.")
    data: DetectionSources = Field(DetectionSources(), description="The texts to judge.")
    train: DetectionSources = Field(
        DetectionSources(), description="What the TF-IDF baseline learns from: the detector's training texts."
    )
    drop_overlap: bool = Field(False, description="Leave out texts that the detector was trained on.")
    lengths: tuple[int, ...] = Field(
        (20, 40, 80, 160, 320, 640), description="Tokens at which accuracy is measured on cut texts; none = no curve."
    )
    lengths_texts: int = Field(150, ge=10, description="At most so many texts of each class for the curve by length.")
    resamples: int = Field(1000, ge=1, description="Bootstrap resamples, by text.")
    seed: int = Field(0, ge=0, description="Of the bootstrap and the cuts.")
