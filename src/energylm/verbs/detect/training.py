"""Train a detector, calibrate it on texts held out, report it: the work of `energylm detect train`. Resumable; a
second run is a no-op.

OUTPUT/model/           the detector, for `Detector.from_pretrained` (an energy's folder with its calibration)
OUTPUT/detector.json    how well it does on texts that neither training nor the choice of the best step has seen
OUTPUT/report.html      the same for people, with the loss over steps
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Texts are split by a hash of their first words: most for training, some choose the best step, some calibrate.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, span_lengths
from energylm.bundles.weights_identity import weights_sha256
from energylm.data.detection import HUMAN, MACHINE, Label, LabelledText
from energylm.data.text_blocks import EncodedText
from energylm.data.text_overlap import SeenTexts
from energylm.errors import DataError
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.files import read_json, write_json
from energylm.progress import say
from energylm.records import Record
from energylm.report.report import PAGE, write_report
from energylm.training.detector_task import DetectorTask
from energylm.training.engine import is_begun, state_of_run, train
from energylm.training.journal import read_journal
from energylm.training.linear_probe import fit_projection
from energylm.training.trained_run import TrainedRun
from energylm.verbs.detect.calibrating import fit_detector, scored
from energylm.verbs.detect.report import training_sections
from energylm.verbs.detect.train import TrainDetector
from energylm.verbs.detect.training_texts import TrainingTexts, is_energy, open_training

OUTCOME_FILE = "detector.json"


@dataclass(frozen=True)
class DetectorOutcome(Record):
    """What is kept of a finished run beside its weights."""

    texts: dict[str, int]  # by part and class
    held_out: Discrimination  # of the calibration texts, by the raw scores
    calibration: DetectorCalibration | None


@dataclass(frozen=True, kw_only=True, repr=False)
class DetectorRun(TrainedRun):
    report: Path
    texts: dict[str, int]  # by part and class
    held_out: Discrimination  # of the calibration texts, by the raw scores
    calibration: DetectorCalibration | None

    def summary(self) -> str:
        held_out, at_1 = self.held_out, self.held_out.tpr_at_1
        finds = "" if at_1 is None else f", finds {at_1.value:.1%} of machine text at 1 % false positives"
        return (
            f"AUROC {held_out.auroc}{finds} on "
            f"{held_out.real:,} human and {held_out.machine:,} machine texts held out"
            + ("" if finds else f" ({texts_needed(0.01)} human ones would show what is found at 1 % false positives)")
            + f"; step {self.best_step:,} of {self.steps:,}; {self.report}"
        )


def train_detector(verb: TrainDetector, output: Path) -> DetectorRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    detector, parts = open_training(verb)
    task = _task(verb, detector, parts)
    if verb.probe_pairs and not is_energy(verb.init) and not is_begun(output):
        steps = range(1, 1 + -(-verb.probe_pairs // verb.training.global_batch))
        batches = (task.batch(step, range(verb.training.global_batch)) for step in steps)
        fit_projection(task.model, ((batch["tokens_ST"], batch["lengths_S"]) for batch in batches))
    run = TrainedRun.of(train(task, verb.training, folder=output), output)
    outcome = DetectorOutcome.from_json(read_json(output / OUTCOME_FILE))
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        calibration = Detector.from_pretrained(run.model).calibration
        about, journal = _about(verb, parts), read_journal(run.journal)
        sections = training_sections(outcome.held_out, calibration, journal, about=about)
        write_report(output, title=f"Detector {output.name}", sections=sections)
    return DetectorRun(**vars(run), report=output / PAGE, **vars(outcome))


def describe_training(verb: TrainDetector, output: Path) -> str:
    """Check all inputs and say what `train_detector` would do. Writes nothing."""
    detector, parts = open_training(verb)
    parameters = sum(parameter.numel() for parameter in detector.energy.network.parameters())
    steps = verb.training.steps
    until = "until validation stops improving" if steps is None else f"at most {steps:,} steps"
    sizes = ", ".join(f"{count:,} {name}" for name, count in parts.sizes.items())
    return (
        f"{output}: {state_of_run(output)}: detector from {verb.init}, {parameters:,} parameters, blocks of "
        f"{verb.text_blocks.tokens} tokens by {verb.text_blocks.stride}, {until} of 2 × {verb.training.global_batch} "
        f"blocks; texts: {sizes}"
    )


def _task(verb: TrainDetector, detector: Detector, parts: TrainingTexts) -> DetectorTask:
    return DetectorTask(
        detector.energy.network,
        parts.tokens["train"][HUMAN],
        parts.tokens["train"][MACHINE],
        valid_human=parts.tokens["valid"][HUMAN],
        valid_machine=parts.tokens["valid"][MACHINE],
        reader=detector.reader,
        shorter_blocks=verb.shorter_blocks,
        seed=verb.training.seed,
        global_batch=verb.training.global_batch,
        fingerprint={
            "data": parts.identity(),
            "init_sha256": weights_sha256(verb.init),
            "pooling": verb.pooling,
            "depth": verb.depth,
            "dropout": verb.dropout,
            "probe_pairs": verb.probe_pairs,
            "validation_texts": verb.validation_texts,
            "calibration_texts": verb.calibration_texts,
            "false_positive_rate": verb.fpr,
        },
        save_model=lambda network, folder: _finish(verb, detector, parts, folder),
    )


def _finish(verb: TrainDetector, detector: Detector, parts: TrainingTexts, folder: Path) -> None:
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
            rate=_possible_rate(verb, held_out[HUMAN]),
            sources=sorted({text.source for text in parts.data["calibration"].texts}),
        )
    except DataError as error:  # the weights are worth keeping: it abstains until it is calibrated
        say(f"not calibrated: {error}")
    energy = detector.energy
    energy.name, energy.provenance = folder.parent.name, energy.provenance | _provenance(verb, parts, measured)
    seen = SeenTexts.of(text.text for part in parts.data.values() for text in part.texts)
    Detector(energy, blocks=detector.blocks, calibration=calibration, seen=seen).save_pretrained(folder)
    write_json(folder.parent / OUTCOME_FILE, DetectorOutcome(parts.sizes, measured, calibration).to_json())


def _possible_rate(verb: TrainDetector, human: list[EncodedText]) -> float:
    """The asked false-positive rate, or the lowest that the held-out texts allow."""
    shortest = span_lengths(verb.text_blocks.tokens)[0]
    texts = sum(len(text) >= shortest for text in human)
    if texts >= texts_needed(verb.fpr):
        return verb.fpr
    lowest = 1 / (texts + 1) if texts else verb.fpr
    say(
        f"a false-positive rate of {verb.fpr:.3g} needs {texts_needed(verb.fpr):,} "
        f"human texts of {shortest} tokens or more, {texts:,} were held out: the threshold is for {lowest:.2g} "
        "instead; `energylm detect calibrate` sets another on more texts"
    )
    return lowest


def _provenance(verb: TrainDetector, parts: TrainingTexts, measured: Discrimination) -> dict[str, Any]:
    return {
        "loss": "binary cross-entropy of blocks",
        "sources": sorted({text.source for text in parts.data["train"].texts}),
        "texts": parts.sizes,
        "config": verb.model_dump(mode="json", exclude={"data", "init"}),
        "held_out": measured.to_json(),
    }


def _about(verb: TrainDetector, parts: TrainingTexts) -> str:
    def named(label: Label) -> str:
        texts: list[LabelledText] = parts.data["train"].of(label)
        return ", ".join(sorted({text.source for text in texts}))

    return (
        f"A detector that starts from {verb.init} and reads blocks of {verb.text_blocks.tokens} tokens, one beginning "
        f"every {verb.text_blocks.stride}, was trained to tell human text ({named(HUMAN)}) from machine text "
        f"({named(MACHINE)}). A text's score is the mean over its blocks; higher means machine."
    )
