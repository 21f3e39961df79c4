"""Train an energy on negatives, calibrate it, report it: the work of `energylm energy train`. Resumable; a second run
is a no-op.

OUTPUT/model/          the calibrated energy, for `EnergyModel.from_pretrained`, there once training is finished
OUTPUT/energies.json   loss, accuracy and histograms of real and generated text on held-out contexts
OUTPUT/report.html     the same for people (with results.md, results.json and PNG plots)
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Validation contexts come from negatives of another split or are held out by a hash of their windows. Half of them choose
the best step and are reported; the other half serves calibration alone (`energy_data`).
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energylm.bundles.compatibility import calibration_caution
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.model_folder import weights_sha256
from energylm.config.models import KIND_WORDS
from energylm.data.contrast import ContrastUnion
from energylm.data.negatives import NegativesSource
from energylm.files import read_json, write_json
from energylm.progress import say
from energylm.report.report import PAGE, write_report
from energylm.training.calibration import Calibration, fit_calibration
from energylm.training.energy_task import ContrastEnergies, EnergyTask, contrast_energies
from energylm.training.engine import state_of_run, train
from energylm.training.journal import read_journal
from energylm.training.state import TrainedRun
from energylm.verbs.joint.energy_data import EnergyData, open_data
from energylm.verbs.joint.energy_report import EnergyOutcome, energy_outcome, energy_sections
from energylm.verbs.joint.energy_start import encoding_for, is_preset, start_energy
from energylm.verbs.joint.train_energy import TrainEnergy

OUTCOME_FILE = "energies.json"


@dataclass(frozen=True, kw_only=True, repr=False)
class EnergyRun(TrainedRun):
    """What came of it, on held-out contexts that neither training nor calibration has seen."""

    report: Path
    contexts: int  # that the numbers below come from
    accuracy: float  # calibrated; 0.5 at chance
    precision_at_1: float  # real text lowest of itself and its negatives
    loss_before_calibration: float  # nats per context; 1.386 at chance
    loss_after_calibration: float
    scale: float
    shift: float


def train_energy(verb: TrainEnergy, output: Path) -> EnergyRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    data = open_data(verb)
    energy = start_energy(verb, data.corpus, length=data.length)
    _warn_of_proposal(data)
    run = TrainedRun.of(train(_task(verb, data, energy), verb.training, folder=output), output)
    outcome = EnergyOutcome.from_json(read_json(output / OUTCOME_FILE))
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        sections = energy_sections(outcome, read_journal(run.journal), about=_about(verb, data, energy))
        write_report(output, title=f"Energy {output.name}", sections=sections)
    return EnergyRun(
        **vars(run),
        report=output / PAGE,
        contexts=outcome.contexts,
        accuracy=outcome.after.accuracy,
        precision_at_1=outcome.after.precision_at_1,
        loss_before_calibration=outcome.before.loss,
        loss_after_calibration=outcome.after.loss,
        scale=outcome.scale,
        shift=outcome.shift,
    )


def describe_training(verb: TrainEnergy, output: Path) -> str:
    """Check all inputs and say what `train_energy` would do. Writes nothing."""
    data = open_data(verb)
    energy, training = start_energy(verb, data.corpus, length=data.length), verb.training
    parameters = sum(parameter.numel() for parameter in energy.network.parameters())
    steps, epochs = "until validation stops improving", ""
    if training.steps is not None:
        steps = f"{training.steps:,} steps"
        epochs = f", {training.steps * training.global_batch / len(data.train):.3g} epochs"
    of_sources = "" if len(data.sources) == 1 else f" of {len(data.sources)} sources"
    calibration = len(data.calibration) if verb.calibrate else 0
    return (
        f"{output}: {state_of_run(output)}: {energy.network.kind} energy from {verb.init}, {parameters:,} parameters, "
        f"reads {verb.reads}, {verb.loss_words}, {steps} of {training.global_batch} contexts with "
        f"{verb.negatives_per_context} negatives each ({len(data.train):,} contexts{of_sources}{epochs}); "
        f"{len(data.report):,} for validation, {calibration:,} for calibration"
    )


def _task(verb: TrainEnergy, data: EnergyData, energy: EnergyModel) -> EnergyTask:
    training = verb.training
    validated = min(verb.validation_negatives, data.report.k)
    sequences = (training.micro_batch or training.global_batch) * (1 + verb.negatives_per_context)
    task = EnergyTask(
        energy.network,
        data.train,
        data.report,
        encode=encoding_for(energy, data.corpus),
        seed=training.seed,
        global_batch=training.global_batch,
        objective=verb.objective,
        margin=verb.margin,
        negatives_per_context=verb.negatives_per_context,
        valid_negatives=validated,
        valid_batch=max(1, sequences // (1 + validated)),
        fingerprint=_fingerprint(verb, data, energy),
        save_model=lambda network, folder: _finish(verb, data, energy, task, folder),
    )
    return task


def _finish(verb: TrainEnergy, data: EnergyData, energy: EnergyModel, task: EnergyTask, folder: Path) -> None:
    """Calibrate the trained network, measure it, and write the energy as `folder`. The best weights are in place."""
    calibration = Calibration()
    if verb.calibrate:
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
        calibration_contexts=calibration.contexts,
        scale_standard_error=calibration.scale_standard_error,
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
        provenance=energy.provenance | _provenance(verb, data, outcome),
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


def _fingerprint(verb: TrainEnergy, data: EnergyData, energy: EnergyModel) -> dict[str, Any]:
    start = {"preset": verb.init, "network": verb.network}
    return {
        "negatives": [source.negatives.manifest.identity for source in data.sources],
        "validation": [source.negatives.manifest.identity for source in data.validation] or verb.validation_fraction,
        "validation_contexts": verb.validation_contexts,
        "validation_negatives": verb.validation_negatives,
        "calibrate": verb.calibrate,
        "pooling": energy.network.pooling,
        "reads": verb.reads,
        "long_texts": verb.long_texts,
        **(start if is_preset(verb.init) else {"init_sha256": weights_sha256(verb.init)}),
    }


def _provenance(verb: TrainEnergy, data: EnergyData, outcome: EnergyOutcome) -> dict[str, Any]:
    """What the energy was trained against, and how well it did: every source with its generator."""
    return {
        "loss": verb.objective,
        "sources": [
            {
                "generator": negatives.manifest.generator.model_dump(),
                "corpus": negatives.manifest.corpus.name,
                "corpus_identity": negatives.manifest.corpus.identity,
                "licence": corpus.manifest.licence,
                "contexts": len(part),
                "negatives": negatives.manifest.settings,
            }
            for (negatives, corpus), part in zip(data.sources, data.train.parts, strict=True)
        ],
        "config": verb.model_dump(mode="json", exclude={"negatives", "corpus", "init", "language_model", "validation"}),
        "validation": {"contexts": outcome.contexts, **asdict(outcome.after)},
        "calibration": {
            "contexts": outcome.calibration_contexts,
            "scale": outcome.scale,
            "scale_standard_error": outcome.scale_standard_error,
            "shift": outcome.shift,
        },
    }


def _warn_of_proposal(data: EnergyData) -> None:
    """Say what negatives of a narrowed proposal cannot be used for."""
    if not all(source.negatives.config.truncation.is_identity for source in data.sources):
        say(
            "these negatives come from a narrowed proposal, so this energy corrects that proposal and not the language "
            "model; its perplexity means nothing (make negatives without top-k, top-p and temperature)"
        )


def _about(verb: TrainEnergy, data: EnergyData, energy: EnergyModel) -> str:
    """What was trained on what, for the report."""
    return (
        f"A {KIND_WORDS[energy.network.kind]} energy ({energy.network.pooling} pooling) that reads {verb.reads}, "
        f"started from {energy.name}, was trained by the loss {verb.loss_words} with "
        f"{verb.negatives_per_context} negatives at a time to tell real from generated text in {len(data.train):,} "
        f"contexts: {'; '.join(map(_about_source, data.sources, map(len, data.train.parts)))}."
    )


def _about_source(source: NegativesSource, contexts: int) -> str:
    settings, generator = source.negatives.config, source.negatives.manifest.generator
    lengths = " or ".join(map(str, settings.prefix_tokens))
    return (
        f"{contexts:,} of {source.corpus.folder.name} with {lengths} tokens of context and a {settings.side} up to "
        f"{settings.length} in all by {generator.name} (weights {generator.sha256[:12]}), {settings.k} negatives each"
    )
