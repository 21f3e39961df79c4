"""A detector that tells machine text from human text: `energylm detect train | calibrate | eval | run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.base import Strings, listed
from energylm.config.models import DEFAULT_DETECTOR, MEAN, Pooling
from energylm.config.texts import BlockConfig, DetectionSources, TextFormat
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.config.vocabulary import ENCODER, LANGUAGE_MODEL
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.registry import DETECTORS
from energylm.verbs.verb import Flag, Positional, TrainingVerb, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.detect.calibrating import CalibrationResult
    from energylm.verbs.detect.combining import CombinedRun
    from energylm.verbs.detect.evaluating import DetectorEvaluation
    from energylm.verbs.detect.judging import Detections
    from energylm.verbs.detect.training import DetectorRun

STDIN = "-"
SOURCES = {name: f"data.{name}" for name in ("human", "machine", "pairs", "format", "field", "group", "part")}
DetectorFolder = Annotated[
    str,
    Positional("DETECTOR"),
    Field(
        description="A detector's folder (OUTPUT/model of `energylm detect train`), `default`, the one that comes with "
        "the package, or NAME or NAME:TEXT of one that was registered."
    ),
]


class TrainDetector(TrainingVerb):
    """Train a detector on human and machine texts, calibrate it on texts held out, and report it.

    An update reads --batch pairs of a human and a machine block. Training stops early when texts held out are no longer
    told apart better. Killed runs go on where they stopped when run again; finished ones are not repeated.
    """

    examples = (
        "energylm detect train --human webtext.jsonl --machine small-117M.jsonl --output runs/detector",
        "energylm detect train --pairs xsum_gpt2-xl.json --pairs writing_gpt2-xl.json --fpr 0.05 -o runs/gpt2",
        "energylm detect train --human essays/ --machine generated/ --init bert-base-uncased -o runs/bert --dry-run",
    )
    shortcuts: ClassVar = {
        **SOURCES,
        "block": "text_blocks.tokens",
        "preset": "training.preset",
        "steps": "training.steps",
        "batch": "training.global_batch",
        "learning_rate": "training.optimizer.learning_rate",
        "seed": "training.seed",
    }
    version = 2

    data: DetectionSources = Field(DetectionSources(), description="What it learns from.")
    init: str = Field(
        ENCODER,
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

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.detect.costs import count_detector_training

        return count_detector_training(self, around)


class CombineFeatures(Verb):
    """Weigh features of a language model's surprise into a detector that carries to generators and domains not seen.

    A few numbers a text (of log-likelihood, rank, entropy, curvature: means, quantiles, order; by default level and
    spread of the later tokens' surprise) and a logistic regression that is fitted across generators and domains. Every
    generator and every domain is left out in turn, and told is how well its texts are judged without it. Texts held out
    calibrate the detector.
    """

    examples = (
        "energylm detect combine --pairs xsum_gpt2-xl.json --pairs writing_opt.json --pairs xsum_opt.json -o runs/all",
        "energylm detect combine --pairs 'news_a.json' --human essays.jsonl --machine essays_gpt.jsonl "
        "--domain news=news* --domain essays=essays* -o runs/two",
        "energylm detect combine --pairs xsum_gpt2-xl.json --features curvature --fpr 0.05 --output runs/curvature",
    )
    shortcuts: ClassVar = SOURCES
    writes = "required"
    product = "model"
    blocks = True

    data: DetectionSources = Field(DetectionSources(), description="What it learns from.")
    language_model: Annotated[str, Flag("--lm")] = Field(
        LANGUAGE_MODEL, description="Whose surprise is measured: a model folder, a known model or a hub name."
    )
    encoder: str | None = Field(
        None, description="A detector (`energylm detect train`) whose score is a feature, too; none = no encoder."
    )
    features: Strings = Field(
        ("later",),
        min_length=1,
        description="Groups of features (zero-shot, distribution, order, later), or features by name, e.g. curvature "
        "alone for a calibrated zero-shot score.",
    )
    domain: Strings = Field((), description="NAME=PATTERN: files whose texts are of a domain, e.g. news=xsum*.")
    generator: Strings = Field((), description="NAME=PATTERN: files of a generator and of the human texts beside it.")
    max_tokens: int = Field(256, ge=16, description="Tokens of each text that are read, from its beginning.")
    calibration_fraction: float = Field(0.2, gt=0, lt=0.5, description="Share of texts held out for the calibration.")
    fpr: float = Field(0.05, gt=0, lt=1, description="Share of human texts that may be called machine.")
    resamples: int = Field(1000, ge=1, description="Bootstrap resamples, by text.")
    seed: int = Field(0, ge=0, description="Of the bootstrap.")

    @model_validator(mode="after")
    def _has_patterns(self) -> Self:
        if bad := [each for each in (*self.domain, *self.generator) if not all(each.partition("="))]:
            raise ValueError(f"{bad[0]!r} is no NAME=PATTERN; write e.g. news=xsum*")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.combining import describe_combination

        return describe_combination(self)

    def run(self, job: Job = DEFAULT_JOB) -> "CombinedRun":
        from energylm.verbs.detect.combining import combine

        return combine(self, job)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.detect.costs import count_combination

        return count_combination(self, around)


class CalibrateDetector(Verb):
    """Choose the threshold for a false-positive rate on your own human text; with machine text also the probabilities.

    The calibration is kept in the detector's folder, or with --output in that of a copy, OUTPUT/model. A rate of 1 %
    needs at least 99 human texts, one of 5 % needs 19; as many of one length promise it for texts of that length, and
    as many of one group (--group) for that group. Texts without labels from another place (--like) move the promise
    there, if the human texts reach so far. An energy that reads text becomes a detector this way.
    """

    examples = (
        "energylm detect calibrate runs/detector/model --human my_essays/ --fpr 0.01",
        "energylm detect calibrate runs/energy/model --human human.jsonl --machine machine.jsonl --fpr 0.05",
        "energylm detect calibrate runs/detector/model --human essays.jsonl --group first_language --fpr 0.05",
        "energylm detect calibrate runs/detector/model --human essays/ --like submissions/ --fpr 0.05 -o runs/here",
    )
    shortcuts: ClassVar = SOURCES
    writes = "optional"
    product = "model"

    detector: Annotated[str, Positional("DETECTOR")] = Field(
        description="A detector's folder (OUTPUT/model of `energylm detect train`), an energy's that reads text, or "
        "`default`, of which --output gets a copy."
    )
    data: DetectionSources = Field(DetectionSources(), description="Human text, and machine text if there is any.")
    like: Strings = Field(
        (), description="Texts without labels from the place where the detector will be used, if it is another."
    )
    fpr: float = Field(0.01, gt=0, lt=1, description="Share of human texts like these that may be called machine.")
    text_blocks: BlockConfig | None = Field(
        None, description="For an energy that is no detector yet; none = the usual."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Read no more than so many tokens of each text, as the detector then will; none = all."
    )

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.calibrating import open_inputs

        _, data, new = open_inputs(self, output=job.output)
        elsewhere = f", for texts like {len(new):,} unlabelled ones" if new else ""
        return f"would calibrate {self.detector} for {self.fpr:.3g} on {data.describe()}{elsewhere}"

    def run(self, job: Job = DEFAULT_JOB) -> "CalibrationResult":
        from energylm.verbs.detect.calibrating import calibrate

        return calibrate(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.detect.costs import count_calibration

        return count_calibration(self, around)

    def shown(self, result: "CalibrationResult") -> str:
        return f"{result.folder}: {result.summary()}\n\n{super().shown(result)}"

    def remarks(self, result: "CalibrationResult") -> list[str]:
        return []


class EvaluateDetector(Verb):
    """Measure a detector on texts whose writers are known: generators and domains that it has or has not seen.

    AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, each with a bootstrap interval by text; by source
    and by length; TF-IDF with logistic regression beside it where training texts are given.
    """

    examples = (
        "energylm detect eval runs/detector/model --human webtext.test.jsonl --machine xl-1542M.test.jsonl",
        "energylm detect eval runs/gpt2/model --pairs xsum_opt.json --train-pairs xsum_gpt2-xl.json --output out/opt",
    )
    shortcuts: ClassVar = {
        **SOURCES,
        "train_human": "train.human",
        "train_machine": "train.machine",
        "train_pairs": "train.pairs",
    }
    writes = "optional"

    detector: DetectorFolder
    data: DetectionSources = Field(DetectionSources(), description="The texts to judge.")
    train: DetectionSources = Field(
        DetectionSources(),
        description="What the TF-IDF baseline learns from: the detector's training texts. Format and field are those "
        "of the texts to judge where none is given.",
    )
    columns: Strings = Field(
        (),
        description="Features of a language model's surprise that stand beside TF-IDF's words, as for `combine`: "
        "zero-shot, curvature …",
    )
    language_model: Annotated[str | None, Flag("--lm")] = Field(
        None, description=f"Whose surprise, for the columns; none = {LANGUAGE_MODEL}."
    )
    drop_overlap: bool = Field(False, description="Leave out texts that the detector was trained on.")
    lengths: tuple[int, ...] = Field(
        (20, 40, 80, 160, 320, 640), description="Tokens at which accuracy is measured on cut texts; none = no curve."
    )
    lengths_texts: int = Field(150, ge=10, description="At most so many texts of each class for the curve by length.")
    resamples: int = Field(1000, ge=1, description="Bootstrap resamples, by text.")
    seed: int = Field(0, ge=0, description="Of the bootstrap and the cuts.")

    @property
    def baseline_texts(self) -> DetectionSources | None:
        """What the baseline learns from; none where there is none."""
        if self.train.is_empty:
            return None
        same = {"format": self.data.format, "field": self.data.field}
        return self.train.model_copy(update={k: v for k, v in same.items() if k not in self.train.model_fields_set})

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.evaluating import open_inputs

        _, data, training = open_inputs(self)
        beside = "" if training is None else f", TF-IDF beside it on {training.describe()}"
        return f"would judge {data.describe()} with {self.detector}{beside}"

    def run(self, job: Job = DEFAULT_JOB) -> "DetectorEvaluation":
        from energylm.verbs.detect.evaluating import evaluate

        return evaluate(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.detect.costs import count_evaluation

        return count_evaluation(self, around)


class RunDetector(Verb):
    """Human, machine, or an abstention with its reason: a JSON line a text, with the scores of its blocks.

    Without a detector the package's own judges, by the surprise of SmolLM2 (fetched on first use); it says which texts
    it was calibrated on. Standard input is one text, unless --format says lines or jsonl. With --output finished
    portions of 64 texts are kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm detect run essay.txt --table",
        "energylm detect run runs/detector/model essay.txt --table",
        "energylm detect run runs/detector/model submissions/ --html submissions.html > verdicts.jsonl",
        "cat article.txt | energylm detect run runs/detector/model -",
    )
    writes = "optional"
    blocks = True
    apart_from: ClassVar[frozenset[str]] = frozenset({"table", "html"})

    detector: DetectorFolder = DEFAULT_DETECTOR
    files: Annotated[Strings, Positional("FILE|FOLDER|-")] = Field(
        (), description="Texts: .txt, .jsonl, .json, folders; - is standard input."
    )
    text: Strings = Field((), description="A text itself.")
    format: TextFormat = Field(
        "auto", description="auto (by ending), text (a file is a text), lines (a line is a text), jsonl."
    )
    field: str = Field("text", description="The JSON field that holds the text.")
    max_tokens: int | None = Field(
        None, ge=1, description="Read no more than so many tokens of each text, from its beginning."
    )
    table: bool = Field(False, description="Print a table for people, not JSON lines.")
    html: Path | None = Field(None, description="Write a page on which the blocks of each text are coloured.")

    @model_validator(mode="before")
    @classmethod
    def _may_begin_with_a_text(cls, values: Any) -> Any:
        """Where the first path is no model, or there is no other, it is a text; the detector is the package's own."""
        if not isinstance(values, Mapping) or not (first := str(values.get("detector") or "")):
            return values
        from energylm.bundles.known_models import is_model

        files = listed(values.get("files") or ())
        is_alone = not files and not values.get("text") and DETECTORS.named(first) is None and first != DEFAULT_DETECTOR
        is_text = first == STDIN or ((is_alone or Path(first).expanduser().exists()) and not is_model(first))
        return {**values, "detector": DEFAULT_DETECTOR, "files": (first, *files)} if is_text else values

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if not self.files and not self.text:
            raise ValueError("no text came; give a file, a folder, --text, or - for standard input")
        return self

    @property
    def paths(self) -> list[str]:
        return ["/dev/stdin" if file == STDIN else file for file in self.files]

    @property
    def text_format(self) -> TextFormat:
        """Standard input is one text, unless something else is said."""
        return "text" if STDIN in self.files and self.format == "auto" else self.format

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate
        from energylm.errors import ConfigError

        missing = next((path for path in self.paths if not Path(path).expanduser().exists()), None)
        if missing is not None:
            raise ConfigError(f"{missing} does not exist; give a file or a folder")
        is_named = self.detector == DEFAULT_DETECTOR or DETECTORS.named(self.detector)
        detector = self.detector if is_named else locate(self.detector)
        return f"would judge {len(self.text)} texts and {len(self.files)} files or folders with {detector}"

    def run(self, job: Job = DEFAULT_JOB) -> "Detections":
        from energylm.verbs.detect.judging import judge

        return judge(self, job)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.detect.costs import count_detections

        return count_detections(self, around)

    def shown(self, result: "Detections") -> str:
        from energylm.verbs.detect.judging import json_lines, rich_table

        return rich_table(result) if self.table else json_lines(result)
