"""Train an energy on negatives, calibrate it, report it: the work of `energylm energy train`. Resumable; a second run
is a no-op.

OUTPUT/model/          the calibrated energy, for `EnergyModel.from_pretrained`, there once training is finished
OUTPUT/energies.json   loss, accuracy, gain and histograms of real and generated text on held-out contexts
OUTPUT/report.html     the same for people (with results.md, results.json and PNG plots)
OUTPUT/journal.jsonl, checkpoints/, training.json   as for every training run

Validation contexts come from negatives of another split or are held out by a hash of their windows. Half of them choose
the best step and are reported; the other half serves calibration alone (`energy_inputs`).

Loss       deng2020's eq. 3 in nats a context, whatever the energy was trained with; 2 log 2 = 1.386 at chance
Accuracy   the mean of two rates: real text with E < 0, generated text with E > 0
P@1        the share of contexts whose real text lies lowest (bakhtin2019 app. C); no calibration changes it
Gain       nats by which a continuation is likelier under "draw K from the language model, keep one by exp(−E)" than
           under the language model itself, from the K negatives of its context: at least this much in expectation
           (`estimators.sampler_certificate`), for every K; more candidates gain more, up to the joint model
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from energylm.bundles.compatibility import calibration_caution
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.model_folder import weights_sha256
from energylm.data.contrast import ContrastUnion
from energylm.data.negatives import NegativesSource
from energylm.estimators.sampler_certificate import sampler_log_normalizer
from energylm.files import read_json, write_json
from energylm.progress import say
from energylm.records import Record
from energylm.report.plots import histogram_plot, loss_plot
from energylm.report.report import PAGE, Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.training.calibration import Calibration, fit_calibration
from energylm.training.energy_task import ContrastEnergies, EnergyTask, contrast_energies, measures
from energylm.training.engine import state_of_run, train
from energylm.training.journal import read_journal
from energylm.training.state import TrainedRun
from energylm.verbs.joint.energy_inputs import EnergyData, encoding_for, is_preset, open_data, start_energy
from energylm.verbs.joint.train_energy import TrainEnergy

OUTCOME_FILE = "energies.json"
BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Judgement:
    """How well energies tell real text from generated."""

    loss: float
    accuracy: float
    real_accuracy: float
    generated_accuracy: float
    precision_at_1: float


@dataclass(frozen=True)
class Spread:
    """How energies are spread: `quantiles` at `QUANTILES`, `counts` in the bins of the outcome's `edges`."""

    mean: float
    deviation: float
    quantiles: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Gain:
    """Nats a continuation, at least, in expectation; the error is over contexts, None for a single one."""

    nats: float
    standard_error: float | None
    candidates: int

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"{self.nats:.3g}{error}"


@dataclass(frozen=True, repr=False)
class EnergyOutcome(Record):
    """On held-out contexts that neither training nor calibration has seen. `real` and `generated` are calibrated."""

    contexts: int
    negatives: int  # of each context
    calibration_contexts: int
    scale: float
    shift: float
    before: Judgement
    after: Judgement
    edges: tuple[float, ...]
    real: Spread
    generated: Spread
    scale_standard_error: float | None = None  # over the calibration's contexts; None: not calibrated
    gain: Gain | None = None  # None: negatives of a narrowed proposal, or a run of before this was measured


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
    scale_standard_error: float | None = None  # over the calibration's contexts; None: not calibrated
    gain: Gain | None = None  # None: negatives of a narrowed proposal

    def summary(self) -> str:
        error = "" if self.scale_standard_error is None else f" ± {self.scale_standard_error:.2g}"
        gain = (
            ""
            if self.gain is None
            else f"; gains {self.gain} nats a continuation with {self.gain.candidates} candidates"
        )
        return (
            f"accuracy {self.accuracy:.1%}, P@1 {self.precision_at_1:.1%}, "
            f"loss {self.loss_after_calibration:.4f} ({self.loss_before_calibration:.4f} before calibration, "
            f"1.3863 at chance) on {self.contexts:,} held-out contexts{gain}; scale {self.scale:.3g}{error}, "
            f"shift {self.shift:.3g}; step {self.best_step:,} of {self.steps:,}; {self.report}"
        )


def train_energy(verb: TrainEnergy, output: Path) -> EnergyRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    data = open_data(verb)
    energy = start_energy(verb, data.corpus, length=data.length)
    if not data.is_untruncated:
        say(
            "these negatives come from a narrowed proposal, so this energy corrects that proposal and not the language "
            "model; its perplexity means nothing (make negatives without top-k, top-p and temperature)"
        )
    run = TrainedRun.of(train(_task(verb, data, energy), verb.training, folder=output), output)
    outcome = EnergyOutcome.from_json(read_json(output / OUTCOME_FILE))
    if os.environ.get("RANK", "0") == "0" and not (output / PAGE).exists():
        about = f"A {_described(verb, data, energy, start=energy.name)}. It learnt from "
        about += f"{'; '.join(map(_about_source, data.sources, map(len, data.train.parts)))}."
        sections = energy_sections(outcome, read_journal(run.journal), about=about)
        write_report(output, title=f"Energy {output.name}", sections=sections)
    return EnergyRun(
        **vars(run),
        report=output / PAGE,
        accuracy=outcome.after.accuracy,
        precision_at_1=outcome.after.precision_at_1,
        loss_before_calibration=outcome.before.loss,
        loss_after_calibration=outcome.after.loss,
        **{name: getattr(outcome, name) for name in ("contexts", "scale", "shift", "scale_standard_error", "gain")},
    )


def describe_training(verb: TrainEnergy, output: Path) -> str:
    """Check all inputs and say what `train_energy` would do. Writes nothing."""
    data = open_data(verb)
    energy = start_energy(verb, data.corpus, length=data.length)
    return f"{output}: {state_of_run(output)}: {_described(verb, data, energy, start=verb.init)}"


def _described(verb: TrainEnergy, data: EnergyData, energy: EnergyModel, *, start: str) -> str:
    """What is trained on what, in words."""
    network, training = energy.network, verb.training
    parameters = sum(parameter.numel() for parameter in network.parameters())
    of_sources = "" if len(data.sources) == 1 else f" of {len(data.sources)} sources"
    calibration = len(data.calibration) if verb.calibrate else 0
    return (
        f"{network.kind} energy from {start}, {parameters:,} parameters, {network.pooling} pooling, "
        f"reads {verb.reads}, {verb.loss_words}, {training.length_words(len(data.train))} of {training.global_batch} "
        f"contexts with {verb.negatives_per_context} negatives each ({len(data.train):,} contexts{of_sources}); "
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
    outcome = energy_outcome(_energies(task, data.report), calibration, is_untruncated=data.is_untruncated)
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


def energy_outcome(raw: ContrastEnergies, calibration: Calibration, *, is_untruncated: bool = True) -> EnergyOutcome:
    """The outcome of raw energies of real text and of its negatives, drawn from the language model itself or not."""
    calibrated = ContrastEnergies(calibration(raw.real_B), calibration(raw.noise_BK))
    real, generated = calibrated.real_B.numpy(), calibrated.noise_BK.flatten().numpy()
    edges = np.histogram_bin_edges(np.concatenate([real, generated]), bins=BINS)
    return EnergyOutcome(
        contexts=len(raw.real_B),
        negatives=raw.noise_BK.shape[1],
        calibration_contexts=calibration.contexts,
        scale_standard_error=calibration.scale_standard_error,
        scale=calibration.scale,
        shift=calibration.shift,
        before=judge(raw),
        after=judge(calibrated),
        edges=tuple(edges.tolist()),
        real=_spread(real, edges),
        generated=_spread(generated, edges),
        gain=certified_gain(calibrated.real_B, calibrated.noise_BK) if is_untruncated else None,
    )


def judge(energies: ContrastEnergies) -> Judgement:
    mean = {name: float(value_B.mean()) for name, value_B in measures(energies).items()}
    return Judgement(
        loss=mean["real_loss"] + mean["generated_loss"],
        **{name: mean[name] for name in ("accuracy", "real_accuracy", "generated_accuracy", "precision_at_1")},
    )


def certified_gain(real_B: Tensor, noise_BK: Tensor) -> Gain:
    """log q_K(x) − log P_LM(x) ≥ −E(x) − E[log Y], averaged over contexts; K fresh draws each."""
    contexts, candidates = noise_BK.shape
    gain_B = -real_B.double() - sampler_log_normalizer(-real_B, -noise_BK)
    error = float(gain_B.std()) / math.sqrt(contexts) if contexts > 1 else None
    return Gain(float(gain_B.mean()), error, candidates)


def _spread(energies: NDArray[Any], edges: NDArray[Any]) -> Spread:
    return Spread(
        mean=float(energies.mean()),
        deviation=float(energies.std()),
        quantiles=tuple(np.quantile(energies, QUANTILES).tolist()),
        counts=tuple(np.histogram(energies, bins=edges)[0].tolist()),
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


def energy_sections(outcome: EnergyOutcome, journal: Sequence[Mapping[str, Any]], *, about: str) -> list[Section]:
    """The report of a training run; `journal` are its lines, `about` says what was trained on what."""
    curve = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    sections: list[Section] = [
        Text("What this is", f"{about}\n\n{_calibration_words(outcome)}"),
        Numbers("Real against generated", _judgement_table(outcome)),
        Numbers("Energies", _energy_table(outcome)),
        Plot(
            "Energies of real and generated text",
            histogram_plot(
                outcome.edges,
                {"real": outcome.real.counts, "generated": outcome.generated.counts},
                x_label="calibrated energy (lower = likelier)",
            ),
            alt=f"Densities of calibrated energies. Real text has a mean of {outcome.real.mean:.2f}, generated text of "
            f"{outcome.generated.mean:.2f}, with standard deviations of {outcome.real.deviation:.2f} and "
            f"{outcome.generated.deviation:.2f}.",
        ),
    ]
    if curve:
        goes = f"Training loss goes from {curve[0][1]:.3f} to {curve[-1][1]:.3f}"
        valid = f"; validation loss ends at {validation[-1][1]:.3f}" if validation else ""
        plot = loss_plot(curve, validation, unit="nats per context")
        sections.append(Plot("Loss", plot, alt=f"Loss over training steps. {goes}{valid}."))
    return sections


def _calibration_words(outcome: EnergyOutcome) -> str:
    if not outcome.calibration_contexts:
        return "The energy is not calibrated: it is used as it was trained."
    error = outcome.scale_standard_error
    known = "" if error is None else f" (scale ± {error:.2g}, a standard error over contexts)"
    return (
        f"After training, the energy was calibrated: E = {outcome.scale:.4g} · raw + {outcome.shift:.4g}, fitted by "
        f"the loss below on {outcome.calibration_contexts:,} validation contexts that nothing else uses{known}. The "
        f"numbers below come from the other {outcome.contexts:,}, which chose the best step. A scale below 1 means "
        "that the network was overconfident. The scale matters to perplexity and sampling; the shift cancels there."
    )


def _judgement_table(outcome: EnergyOutcome) -> Table:
    rows: list[list[Cell]] = [
        [name, judged.loss, judged.accuracy, judged.real_accuracy, judged.generated_accuracy, judged.precision_at_1]
        for name, judged in (("as trained", outcome.before), ("calibrated", outcome.after))
    ]
    gain = ""
    if outcome.gain is not None:
        gain = (
            f"; kept one of {outcome.gain.candidates} by the calibrated energy, a continuation gains at least "
            f"{outcome.gain} nats on the language model, in expectation"
        )
    return Table(
        ["energy", "loss", "accuracy", "real text right", "generated text right", "P@1"],
        rows,
        convention=f"{outcome.contexts:,} held-out contexts with {outcome.negatives} negatives each; loss in nats per "
        "context (eq. 3), 1.386 for an energy that knows nothing; accuracy is the mean of two rates, 0.5 at chance; "
        f"P@1: real text lowest of {outcome.negatives + 1}, {1 / (outcome.negatives + 1):.3g} at chance{gain}",
    )


def _energy_table(outcome: EnergyOutcome) -> Table:
    rows: list[list[Cell]] = [
        [name, spread.mean, spread.deviation, *spread.quantiles]
        for name, spread in (("real", outcome.real), ("generated", outcome.generated))
    ]
    columns = ["text", "mean", "standard deviation", *(f"{quantile:.0%} quantile" for quantile in QUANTILES)]
    return Table(columns, rows, convention="calibrated energies; lower = likelier to be real")


def _about_source(source: NegativesSource, contexts: int) -> str:
    settings, generator = source.negatives.config, source.negatives.manifest.generator
    lengths = " or ".join(map(str, settings.prefix_tokens))
    return (
        f"{contexts:,} of {source.corpus.folder.name} with {lengths} tokens of context and a {settings.side} up to "
        f"{settings.length} in all by {generator.name} (weights {generator.sha256[:12]}), {settings.k} negatives each"
    )
