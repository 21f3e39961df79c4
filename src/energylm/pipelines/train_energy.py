"""Train an energy on negatives, calibrate it, report it: `energylm energy train`. Resumable; a second run is a no-op.

OUTPUT/model/          the calibrated energy, for `EnergyModel.from_pretrained`, there once training is finished
OUTPUT/energies.json   loss, accuracy and histograms of real and generated text on held-out contexts
OUTPUT/report.html     the same for people (with results.md, results.json and PNG plots)
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Validation contexts come from negatives of another split or are held out by a hash of their windows. Half of them choose
the best step and are reported; the other half serves calibration alone (`train_energy_data`).
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.meeting import calibration_caution
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.train_energy import TrainEnergyConfig
from energylm.data.contrast_union import ContrastUnion
from energylm.evaluation.energy_report import EnergyOutcome, energy_outcome, energy_sections
from energylm.evaluation.report import PAGE, write_report
from energylm.files import read_json, write_json
from energylm.pipelines.train_energy_data import EnergyData, open_data
from energylm.pipelines.train_energy_start import encoding_for, is_preset, start_energy
from energylm.pipelines.train_energy_story import about, loss_words, provenance, warn_of_proposal
from energylm.progress import say
from energylm.training.calibration import Calibration, fit_calibration
from energylm.training.energy_task import ContrastEnergies, EnergyTask, contrast_energies
from energylm.training.engine import MODEL_FOLDER, state_of_run, train
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.journal import read_journal

__all__ = ["EnergyPlan", "EnergyRun", "TrainEnergyConfig", "plan_energy", "train_energy"]

OUTCOME_FILE = "energies.json"


@dataclass(frozen=True)
class EnergyRun:
    """What came of it, on held-out contexts that neither training nor calibration has seen."""

    folder: Path  # the run
    model: Path  # the energy, for `EnergyModel.from_pretrained`
    report: Path
    steps: int
    best_step: int  # whose weights were saved
    contexts: int  # that the numbers below come from
    accuracy: float  # calibrated; 0.5 at chance
    precision_at_1: float  # real text lowest of itself and its negatives
    loss_before_calibration: float  # nats per context; 1.386 at chance
    loss_after_calibration: float
    scale: float
    shift: float
    seconds: float
    was_finished: bool

    def to_json(self) -> dict[str, Any]:
        paths = {"folder": self.folder, "model": self.model, "report": self.report}
        return asdict(self) | {name: str(path) for name, path in paths.items()}


@dataclass(frozen=True)
class EnergyPlan:
    """What a run would do, and what it finds in the output folder."""

    kind: str
    parameters: int
    sources: int
    contexts: int
    validation_contexts: int
    calibration_contexts: int
    epochs: float | None  # None where only validation ends the run
    state: str

    def describe(self, config: TrainEnergyConfig, output: Path) -> str:
        training = config.training
        steps = "until validation stops improving" if training.steps is None else f"{training.steps:,} steps"
        epochs = "" if self.epochs is None else f", {self.epochs:.3g} epochs"
        of_sources = "" if self.sources == 1 else f" of {self.sources} sources"
        return (
            f"{output}: {self.state}: {self.kind} energy from {config.init}, {self.parameters:,} parameters, reads "
            f"{config.reads}, {loss_words(config)}, {steps} of {training.global_batch} contexts with "
            f"{config.negatives_per_context} negatives each ({self.contexts:,} contexts{of_sources}{epochs}); "
            f"{self.validation_contexts:,} for validation, {self.calibration_contexts:,} for calibration"
        )


def train_energy(config: TrainEnergyConfig, *, output: Path | str) -> EnergyRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    data = open_data(config)
    energy = start_energy(config, data.corpus, length=data.length)
    warn_of_proposal(data)
    task = _task(config, data, energy)
    result = train(task, config.training, folder=output)
    outcome = EnergyOutcome.from_json(read_json(output / OUTCOME_FILE))
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        sections = energy_sections(outcome, read_journal(output / JOURNAL), about=about(config, data, energy))
        write_report(output, title=f"Energy {output.name}", sections=sections)
    return EnergyRun(
        folder=output,
        model=output / MODEL_FOLDER,
        report=output / PAGE,
        steps=result.steps,
        best_step=result.best_step,
        contexts=outcome.contexts,
        accuracy=outcome.after.accuracy,
        precision_at_1=outcome.after.precision_at_1,
        loss_before_calibration=outcome.before.loss,
        loss_after_calibration=outcome.after.loss,
        scale=outcome.scale,
        shift=outcome.shift,
        seconds=result.seconds,
        was_finished=result.was_finished,
    )


def plan_energy(config: TrainEnergyConfig, *, output: Path | str) -> EnergyPlan:
    """Check all inputs and say what `train_energy` would do. Writes nothing."""
    output = Path(output)
    data = open_data(config)
    energy = start_energy(config, data.corpus, length=data.length)
    steps = config.training.steps
    return EnergyPlan(
        kind=energy.network.kind,
        parameters=sum(parameter.numel() for parameter in energy.network.parameters()),
        sources=len(data.sources),
        contexts=len(data.train),
        validation_contexts=len(data.report),
        calibration_contexts=len(data.calibration) if config.calibrate else 0,
        epochs=None if steps is None else steps * config.training.global_batch / len(data.train),
        state=state_of_run(output),
    )


def _task(config: TrainEnergyConfig, data: EnergyData, energy: EnergyModel) -> EnergyTask:
    training = config.training
    validated = min(config.validation_negatives, data.report.k)
    sequences = (training.micro_batch or training.global_batch) * (1 + config.negatives_per_context)
    task = EnergyTask(
        energy.network,
        data.train,
        data.report,
        encode=encoding_for(energy, data.corpus),
        seed=training.seed,
        global_batch=training.global_batch,
        objective=config.objective,
        margin=config.margin,
        negatives_per_context=config.negatives_per_context,
        valid_negatives=validated,
        valid_batch=max(1, sequences // (1 + validated)),
        fingerprint=_fingerprint(config, data, energy),
        save_model=lambda network, folder: _finish(config, data, energy, task, folder),
    )
    return task


def _finish(config: TrainEnergyConfig, data: EnergyData, energy: EnergyModel, task: EnergyTask, folder: Path) -> None:
    """Calibrate the trained network, measure it, and write the energy as `folder`. The best weights are in place."""
    calibration = Calibration()
    if config.calibrate:
        held_out = _energies(task, data.calibration)
        calibration = fit_calibration(held_out.real_B, held_out.noise_BK)
        if not calibration.is_informative:
            say(
                "the energy does not tell real from generated text on the calibration contexts: it is all but switched "
                "off; train longer, from a better start, or with more negatives"
            )
    reported = _energies(task, data.report)
    outcome = energy_outcome(
        reported.real_B,
        reported.noise_BK,
        calibrate=calibration,
        scale=calibration.scale,
        shift=calibration.shift,
        calibration_contexts=len(data.calibration) if config.calibrate else 0,
    )
    write_json(folder.parent / OUTCOME_FILE, outcome.to_json())
    calibrated = EnergyModel(
        energy.network,
        energy.tokenizer,
        reads=energy.reads,
        long_texts=energy.long_texts,
        scale=calibration.scale,
        shift=calibration.shift,
        name=folder.parent.name,
        provenance=energy.provenance | provenance(config, data, outcome),
    )
    if caution := calibration_caution(calibrated):
        say(f"energylm: {caution}")
    calibrated.save_pretrained(folder)


def _energies(task: EnergyTask, source: ContrastUnion) -> ContrastEnergies:
    return contrast_energies(
        task.model,
        source,
        task.encode,
        contexts=np.arange(len(source), dtype=np.int64),
        negatives=task.valid_negatives,
        batch=task.valid_batch,
    )


def _fingerprint(config: TrainEnergyConfig, data: EnergyData, energy: EnergyModel) -> dict[str, Any]:
    start = {"preset": config.init, "network": config.network}
    return {
        "negatives": [source.negatives.manifest.identity for source in data.sources],
        "validation": [source.negatives.manifest.identity for source in data.validation] or config.validation_fraction,
        "validation_contexts": config.validation_contexts,
        "validation_negatives": config.validation_negatives,
        "calibrate": config.calibrate,
        "pooling": energy.network.pooling,
        "reads": config.reads,
        "long_texts": config.long_texts,
        **(start if is_preset(config.init) else {"init_sha256": weights_sha256(config.init)}),
    }
