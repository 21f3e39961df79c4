"""Train a detector, calibrate it on texts held out, report it: the work of `energylm detect train`. Resumable; a
second run is a no-op.

OUTPUT/model/           the detector, for `Detector.from_pretrained` (an energy's folder with its calibration)
OUTPUT/detector.json    how well it does on texts that neither training nor the choice of the best step has seen
OUTPUT/report.html      the same for people, with the loss over steps
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Texts are split by a hash of their first words: most for training, some choose the best step, some calibrate. What the
detector starts as is an energy with its own weights, or the body of any other model.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, span_lengths
from energylm.bundles.energy_model import KIND, EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import MANIFEST, read_manifest, weights_sha256
from energylm.config.models import TEXT
from energylm.data.detection import (
    HUMAN,
    MACHINE,
    DetectionData,
    Label,
    LabelledText,
    normalised,
    read_detection,
    spread,
)
from energylm.data.overlap import SeenTexts
from energylm.data.text_blocks import EncodedText
from energylm.energies.encoder_bodies import keep_first_layers
from energylm.errors import ConfigError, DataError
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.files import read_json, sha256_of_json, write_json
from energylm.progress import say
from energylm.records import Record
from energylm.report.plots import loss_plot
from energylm.report.report import PAGE, Numbers, Plot, Section, Text, write_report
from energylm.training.detector_task import DetectorTask, fit_projection
from energylm.training.engine import is_begun, state_of_run, train
from energylm.training.journal import read_journal
from energylm.training.state import TrainedRun
from energylm.verbs.detect.calibrating import ScoredTexts, calibration_table, encoded, fit_detector
from energylm.verbs.detect.detect import TrainDetector
from energylm.verbs.detect.evaluating import CONVENTION, measures_table

OUTCOME_FILE = "detector.json"
FEWEST_TEXTS = 10  # of each class for training


@dataclass(frozen=True)
class TrainingTexts:
    """Texts and their tokens by purpose: train, valid, calibration."""

    data: dict[str, DetectionData]
    tokens: dict[str, dict[Label, list[EncodedText]]]

    @property
    def sizes(self) -> dict[str, int]:
        return {f"{part} {label}": len(texts) for part, of in self.tokens.items() for label, texts in of.items()}

    def identity(self) -> str:
        """A hash of all texts with their labels and parts, whatever their files are called."""
        return sha256_of_json(
            {
                name: sorted([text.label, normalised(text.text)] for text in part.texts)
                for name, part in self.data.items()
            }
        )


@dataclass(frozen=True)
class DetectorOutcome(Record):
    """What is kept of a finished run beside its weights."""

    texts: dict[str, int]  # by part and class
    held_out: Discrimination  # of the calibration texts, by the raw scores
    calibration: DetectorCalibration | None


@dataclass(frozen=True, kw_only=True, repr=False)
class DetectorRun(TrainedRun, DetectorOutcome):
    report: Path

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
    if verb.probe_pairs and not _is_energy(verb.init) and not is_begun(output):
        steps = range(1, 1 + -(-verb.probe_pairs // verb.training.global_batch))
        batches = (task.batch(step, range(verb.training.global_batch)) for step in steps)
        fit_projection(task.model, ((batch["tokens_ST"], batch["lengths_S"]) for batch in batches))
    run = TrainedRun.of(train(task, verb.training, folder=output), output)
    outcome = DetectorOutcome.from_json(read_json(output / OUTCOME_FILE))
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        calibration = Detector.from_pretrained(run.model).calibration
        sections = _sections(outcome.held_out, calibration, read_journal(run.journal), about=_about(verb, parts))
        write_report(output, title=f"Detector {output.name}", sections=sections)
    return DetectorRun(**vars(run), report=output / PAGE, **vars(outcome))


def describe_training(verb: TrainDetector, output: Path) -> str:
    """Check all inputs and say what `train_detector` would do. Writes nothing."""
    detector, parts = open_training(verb)
    parameters = sum(parameter.numel() for parameter in _trained(detector).network.parameters())
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
        _trained(detector).network,
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
    human, machine = (ScoredTexts.of(detector, held_out[label]) for label in (HUMAN, MACHINE))
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
    energy = _trained(detector)
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


def _sections(
    held_out: Discrimination,
    calibration: DetectorCalibration | None,
    journal: Sequence[Mapping[str, Any]],
    *,
    about: str,
) -> list[Section]:
    """What the report shows: texts held out, the calibration, and the loss over steps."""
    unseen = f"texts that neither training nor the choice of the best step has seen, uncalibrated; {CONVENTION}"
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Texts held out", measures_table({"held out": held_out}, convention=unseen)),
    ]
    if calibration is not None:
        sections.append(Numbers("Calibration by length", calibration_table(calibration)))
    curve = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    if curve:
        plot = loss_plot(curve, validation, unit="nats per pair of blocks")
        alt = f"Loss over training steps, from {curve[0][1]:.3f} to {curve[-1][1]:.3f}; 1.386 is chance."
        sections.append(Plot("Loss", plot, alt=alt))
    return sections


def open_training(verb: TrainDetector) -> tuple[Detector, TrainingTexts]:
    """The detector before training and the texts, all checked."""
    data = read_detection(verb.data)
    data.require_both("training")
    say(data.describe())
    split = data.split(valid_fraction=verb.validation_fraction, test_fraction=verb.calibration_fraction, purpose=1)
    named = {"train": split["train"], "valid": split["valid"], "calibration": split["test"]}
    for part, texts in named.items():
        fewest = FEWEST_TEXTS if part == "train" else 2
        for label in (HUMAN, MACHINE):
            if len(texts.of(label)) < fewest:
                raise DataError(
                    f"too few texts: {len(texts.of(label))} {label} texts fell into the part for {part}, at least "
                    f"{fewest} are needed; give more than {len(data.of(label)):,} {label} texts"
                )
    detector = Detector(_start(verb), blocks=verb.text_blocks)
    _set_dropout(_trained(detector).network, verb.dropout)
    return detector, TrainingTexts(named, {part: _tokens(verb, detector, part, texts) for part, texts in named.items()})


def _tokens(verb: TrainDetector, detector: Detector, part: str, texts: DetectionData) -> dict[Label, list[EncodedText]]:
    most = {"train": None, "valid": verb.validation_texts, "calibration": verb.calibration_texts}[part]
    tokens = {label: encoded(detector, spread(texts.of(label), most)) for label in (HUMAN, MACHINE)}
    if part != "valid":
        return tokens
    two_blocks = verb.text_blocks.tokens + verb.text_blocks.stride
    return {label: [text.cut(0, two_blocks) for text in of_label] for label, of_label in tokens.items()}


def _start(verb: TrainDetector) -> EnergyModel:
    """An energy goes on from its own weights; any other model lends its body."""
    if _is_energy(verb.init):
        energy = EnergyModel.from_pretrained(verb.init, device="cpu", calibrated=False)
        if energy.network.pooling != verb.pooling:
            raise ConfigError(
                f"{verb.init} pools by {energy.network.pooling!r}, not {verb.pooling!r}; set pooling accordingly"
            )
        return energy
    energy = EnergyModel.from_encoder(
        verb.init, pooling=verb.pooling, reads=TEXT, seed=verb.training.seed, device="cpu"
    )
    keep_first_layers(energy.network.encoder, share=verb.depth)
    return energy


def _trained(detector: Detector) -> EnergyModel:
    """The energy that learns."""
    assert isinstance(detector.energy, EnergyModel)  # `_start` made it
    return detector.energy


def _set_dropout(network: nn.Module, probability: float) -> None:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def _is_energy(init: str) -> bool:
    """Whether `init` names an energy with a trained projection."""
    location = locate(init)
    return isinstance(location, Path) and (location / MANIFEST).is_file() and read_manifest(location)["kind"] == KIND
