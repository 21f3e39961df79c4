"""Train a detector, calibrate it on texts held out, report it: `energylm detect train`. Resumable; run twice, no-op.

OUTPUT/model/           the detector, for `Detector.from_pretrained` (an energy's folder with its calibration)
OUTPUT/detector.json    how well it does on texts that neither training nor the choice of the best step has seen
OUTPUT/report.html      the same for people, with the loss over steps
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Texts are split by a hash of their first words: most for training, some choose the best step, some calibrate.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import span_lengths
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.detect import DetectTrainConfig
from energylm.data.detection import HUMAN, MACHINE, Label, LabelledText
from energylm.data.text_blocks import EncodedText
from energylm.data.text_overlap import SeenTexts
from energylm.errors import DataError
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.evaluation.detector_report import training_sections
from energylm.files import read_json, write_json
from energylm.pipelines.detect_calibrate import fit_detector, scored
from energylm.pipelines.detect_train_data import TrainingTexts, is_energy, open_training
from energylm.progress import say
from energylm.report.report import PAGE, write_report
from energylm.training.detector_task import DetectorTask
from energylm.training.engine import MODEL_FOLDER, is_begun, state_of_run, train
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.journal import read_journal
from energylm.training.linear_probe import fit_projection

OUTCOME_FILE = "detector.json"


@dataclass(frozen=True)
class DetectTrainRun:
    """`held_out` are the measures on the calibration texts, by the raw scores (JSON of `Discrimination`)."""

    folder: Path
    model: Path
    report: Path
    steps: int
    best_step: int
    seconds: float
    was_finished: bool
    texts: dict[str, int]  # by part and class
    held_out: dict[str, Any]
    calibration: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        paths = {"folder": self.folder, "model": self.model, "report": self.report}
        return asdict(self) | {name: str(path) for name, path in paths.items()}

    def summary(self) -> str:
        auroc, at_1 = self.held_out["auroc"], self.held_out["tpr_at_1"]
        finds = "" if at_1 is None else f", finds {at_1['value']:.1%} of machine text at 1 % false positives"
        return (
            f"AUROC {auroc['value']:.3f} [{auroc['lower']:.3f}, {auroc['upper']:.3f}]{finds} on "
            f"{self.held_out['real']:,} human and {self.held_out['machine']:,} machine texts held out"
            + ("" if finds else f" ({texts_needed(0.01)} human ones would show what is found at 1 % false positives)")
            + f"; step {self.best_step:,} of {self.steps:,}; {self.report}"
        )


def train_detector(config: DetectTrainConfig, *, output: Path | str) -> DetectTrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    detector, parts = open_training(config)
    task = _task(config, detector, parts)
    if config.probe_pairs and not is_energy(config.init) and not is_begun(output):
        steps = range(1, 1 + -(-config.probe_pairs // config.training.global_batch))
        batches = (task.batch(step, range(config.training.global_batch)) for step in steps)
        fit_projection(task.model, ((batch["tokens_ST"], batch["lengths_S"]) for batch in batches))
    result = train(task, config.training, folder=output)
    outcome = read_json(output / OUTCOME_FILE)
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        sections = training_sections(
            outcome,
            Detector.from_pretrained(output / MODEL_FOLDER).calibration,
            read_journal(output / JOURNAL),
            about=_about(config, parts),
        )
        write_report(output, title=f"Detector {output.name}", sections=sections)
    return DetectTrainRun(
        folder=output,
        model=output / MODEL_FOLDER,
        report=output / PAGE,
        steps=result.steps,
        best_step=result.best_step,
        seconds=result.seconds,
        was_finished=result.was_finished,
        **outcome,
    )


def plan_detector(config: DetectTrainConfig, *, output: Path | str) -> str:
    """Check all inputs and say what `train_detector` would do. Writes nothing."""
    detector, parts = open_training(config)
    parameters = sum(parameter.numel() for parameter in detector.energy.network.parameters())
    steps = config.training.steps
    until = "until validation stops improving" if steps is None else f"at most {steps:,} steps"
    sizes = ", ".join(f"{count:,} {name}" for name, count in parts.sizes.items())
    return (
        f"{output}: {state_of_run(Path(output))}: detector from {config.init}, {parameters:,} parameters, blocks of "
        f"{config.blocks.tokens} tokens by {config.blocks.stride}, {until} of 2 × {config.training.global_batch} "
        f"blocks; texts: {sizes}"
    )


def _task(config: DetectTrainConfig, detector: Detector, parts: TrainingTexts) -> DetectorTask:
    return DetectorTask(
        detector.energy.network,
        parts.tokens["train"][HUMAN],
        parts.tokens["train"][MACHINE],
        valid_human=parts.tokens["valid"][HUMAN],
        valid_machine=parts.tokens["valid"][MACHINE],
        reader=detector.reader,
        shorter_blocks=config.shorter_blocks,
        seed=config.training.seed,
        global_batch=config.training.global_batch,
        fingerprint={
            "data": parts.identity(),
            "init_sha256": weights_sha256(config.init),
            "pooling": config.pooling,
            "depth": config.depth,
            "dropout": config.dropout,
            "probe_pairs": config.probe_pairs,
            "validation_texts": config.validation_texts,
            "calibration_texts": config.calibration_texts,
            "false_positive_rate": config.false_positive_rate,
        },
        save_model=lambda network, folder: _finish(config, detector, parts, folder),
    )


def _finish(config: DetectTrainConfig, detector: Detector, parts: TrainingTexts, folder: Path) -> None:
    """Calibrate the trained network, measure it, and write the detector as `folder`. The best weights are in place."""
    held_out = parts.tokens["calibration"]
    human, machine = (scored(detector, held_out[label]) for label in (HUMAN, MACHINE))
    measured = discrimination(human.scores, machine.scores)
    calibration = None
    try:
        calibration = fit_detector(
            human,
            machine,
            block_tokens=detector.blocks.tokens,
            rate=_possible_rate(config, held_out[HUMAN]),
            sources=sorted({text.source for text in parts.data["calibration"].texts}),
        )
    except DataError as error:  # the weights are worth keeping: it abstains until it is calibrated
        say(f"not calibrated: {error}")
    energy = detector.energy
    energy.name, energy.provenance = folder.parent.name, energy.provenance | _provenance(config, parts, measured)
    seen = SeenTexts.of(text.text for part in parts.data.values() for text in part.texts)
    Detector(energy, blocks=detector.blocks, calibration=calibration, seen=seen).save_pretrained(folder)
    outcome = {
        "texts": parts.sizes,
        "held_out": measured.to_json(),
        "calibration": calibration.to_json() if calibration is not None else {},
    }
    write_json(folder.parent / OUTCOME_FILE, outcome)


def _possible_rate(config: DetectTrainConfig, human: list[EncodedText]) -> float:
    """The asked false-positive rate, or the lowest that the held-out texts allow."""
    shortest = span_lengths(config.blocks.tokens)[0]
    texts = sum(len(text) >= shortest for text in human)
    if texts >= texts_needed(config.false_positive_rate):
        return config.false_positive_rate
    lowest = 1 / (texts + 1) if texts else config.false_positive_rate
    say(
        f"a false-positive rate of {config.false_positive_rate:.3g} needs {texts_needed(config.false_positive_rate):,} "
        f"human texts of {shortest} tokens or more, {texts:,} were held out: the threshold is for {lowest:.2g} "
        "instead; `energylm detect calibrate` sets another on more texts"
    )
    return lowest


def _provenance(config: DetectTrainConfig, parts: TrainingTexts, measured: Discrimination) -> dict[str, Any]:
    return {
        "loss": "binary cross-entropy of blocks",
        "sources": sorted({text.source for text in parts.data["train"].texts}),
        "texts": parts.sizes,
        "config": config.model_dump(mode="json", exclude={"data", "init"}),
        "held_out": measured.to_json(),
    }


def _about(config: DetectTrainConfig, parts: TrainingTexts) -> str:
    def named(label: Label) -> str:
        texts: list[LabelledText] = parts.data["train"].of(label)
        return ", ".join(sorted({text.source for text in texts}))

    return (
        f"A detector that starts from {config.init} and reads blocks of {config.blocks.tokens} tokens, one beginning "
        f"every {config.blocks.stride}, was trained to tell human text ({named(HUMAN)}) from machine text "
        f"({named(MACHINE)}). A text's score is the mean over its blocks; higher means machine."
    )
