"""What is told of an energy's training: in its folder (provenance), in its report, and on the terminal."""

from dataclasses import asdict
from typing import Any

from energylm.bundles.energy_model import EnergyModel
from energylm.config.energy import KIND_WORDS, RANKING
from energylm.config.train_energy import TrainEnergyConfig
from energylm.evaluation.energy_report import EnergyOutcome
from energylm.pipelines.train_energy_data import EnergyData, Source
from energylm.progress import say


def provenance(config: TrainEnergyConfig, data: EnergyData, outcome: EnergyOutcome) -> dict[str, Any]:
    """What the energy was trained against, and how well it did: every source with its generator."""
    return {
        "loss": config.objective,
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
        "config": config.model_dump(mode="json", exclude={"negatives", "corpus", "init", "lm", "validation"}),
        "validation": {"contexts": outcome.contexts, **asdict(outcome.after)},
        "calibration": {"contexts": outcome.calibration_contexts, "scale": outcome.scale, "shift": outcome.shift},
    }


def warn_of_proposal(data: EnergyData) -> None:
    """Say what negatives of a narrowed proposal cannot be used for."""
    if not all(source.negatives.config.truncation.is_identity for source in data.sources):
        say(
            "these negatives come from a narrowed proposal, so this energy corrects that proposal and not the language "
            "model; its perplexity means nothing (make negatives without top-k, top-p and temperature)"
        )


def loss_words(config: TrainEnergyConfig) -> str:
    """The loss by name, with its margin where it has one."""
    return f"ranking with margin {config.margin:g}" if config.objective == RANKING else config.objective


def about(config: TrainEnergyConfig, data: EnergyData, energy: EnergyModel) -> str:
    """What was trained on what, for the report."""
    return (
        f"A {KIND_WORDS[energy.network.kind]} energy ({energy.network.pooling} pooling) that reads {config.reads}, "
        f"started from {energy.name}, was trained by the loss {loss_words(config)} with "
        f"{config.negatives_per_context} negatives at a time to tell real from generated text in {len(data.train):,} "
        f"contexts: {'; '.join(map(_about_source, data.sources, map(len, data.train.parts)))}."
    )


def _about_source(source: Source, contexts: int) -> str:
    settings, generator = source.negatives.config, source.negatives.manifest.generator
    lengths = " or ".join(map(str, settings.context_lengths))
    return (
        f"{contexts:,} of {source.corpus.folder.name} with {lengths} tokens of context and a {settings.side} up to "
        f"{settings.length} in all by {generator.name} (weights {generator.sha256[:12]}), {settings.k} negatives each"
    )
