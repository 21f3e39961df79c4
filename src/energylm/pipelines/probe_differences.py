"""Differences of energy between real and generated texts of the same contexts: `energylm probe differences`.

Relations  `data.negatives_contrast` puts the texts side by side; `evaluation.probe_differences` counts (bakhtin2019
           appendix E, fig. 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energylm.bundles.energy_model import bind
from energylm.bundles.known_models import locate
from energylm.bundles.log_likelihood_energy import load_energy
from energylm.config.probe import DifferencesConfig
from energylm.contracts import Energy
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, pad
from energylm.errors import ConfigError, DataError
from energylm.evaluation.probe_differences import Differences, DifferenceStudy, difference_sections, differences
from energylm.progress import progress
from energylm.randomness import derive_seed, shuffled
from energylm.report.report import write_report

CONTEXTS_AT_ONCE = 256
SIDES = {"suffix": "left to right", "prefix": "right to left"}


@dataclass(frozen=True)
class DifferencesRun:
    found: DifferenceStudy
    report: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return self.found.to_json()


def run_differences(config: DifferencesConfig, *, output: Path | None = None) -> DifferencesRun:
    """Measure; with `output` also write a report there."""
    plan_differences(config)
    energy, corpus = load_energy(config.energy), Corpus.open(config.corpus)
    bound = bind(energy, corpus)
    names = _names(config.negatives)
    generators = tuple(_of_folder(config, folder, name, corpus, bound) for folder, name in names.items())
    study = DifferenceStudy(
        generators,
        convention=f"E(generated) − E(real) of the same context by {energy.name}, at most {config.contexts:,} contexts "
        f"of {Path(config.corpus).name} with {generators[0].per_context} generated texts each; errors over contexts",
    )
    if output is None:
        return DifferencesRun(study)
    about = f"How far apart the energy {energy.name} puts real and generated endings. {study.convention}."
    page = write_report(
        output, title=f"Score differences of {energy.name}", sections=difference_sections(study, about=about)
    )
    return DifferencesRun(study, page)


def plan_differences(config: DifferencesConfig) -> str:
    """Find every input without loading a model; what would be done, in words."""
    locate(config.energy)
    corpus = Corpus.open(config.corpus)
    for folder in config.negatives:
        negatives = Negatives.open(folder)
        negatives.check(corpus=corpus)
        if config.per_context > negatives.k:
            raise ConfigError(
                f"per_context is {config.per_context}, but {folder} holds {negatives.k} texts of each context; ask for "
                "fewer, or generate more (-k)"
            )
    if len(set(config.negatives)) < len(config.negatives):
        raise ConfigError(f"negatives: a folder came twice ({', '.join(config.negatives)}); give each once")
    return (
        f"would compare real and generated texts of at most {config.contexts:,} contexts of each of "
        f"{', '.join(config.negatives)} by the energy {config.energy}"
    )


def _of_folder(config: DifferencesConfig, folder: str, name: str, corpus: Corpus, energy: Energy) -> Differences:
    negatives = Negatives.open(folder)
    contrast = Contrast(negatives, corpus, rows=_rows(config, negatives))
    copies_K, parts = np.arange(config.per_context), []
    with progress(f"scoring {name}", total=len(contrast), unit="context") as bar:
        for start in range(0, len(contrast), CONTEXTS_AT_ONCE):
            chosen = np.arange(start, min(start + CONTEXTS_AT_ONCE, len(contrast)))
            sequences = contrast.sequences(chosen, np.tile(copies_K, (len(chosen), 1)))
            parts.append(energy.energies(*pad(sequences)).double().cpu().view(len(chosen), -1))
            bar.advance(len(chosen))
    energy_BJ: Tensor = torch.cat(parts)
    return differences(name, energy_BJ[:, 0], energy_BJ[:, 1:], margins=config.margins)


def _rows(config: DifferencesConfig, negatives: Negatives) -> NDArray[np.int64]:
    """Contexts at random; only those continued by `new_tokens`, if so many are asked for."""
    order = shuffled(np.arange(len(negatives)), len(negatives), seed=derive_seed(config.seed, "compared contexts"))
    if config.new_tokens is not None:
        order = order[negatives.config.length - negatives.rows(order).context_length_B == config.new_tokens]
    if len(order) < 2:
        raise DataError(
            f"{negatives.folder} has {len(order)} contexts that are continued by {config.new_tokens} tokens, two are "
            "needed; ask for another length, or none"
        )
    return order[: config.contexts]


def _names(folders: Sequence[str]) -> dict[str, str]:
    """What each folder holds, in words; the folder itself beside it where that does not tell them apart."""
    opened = {folder: Negatives.open(folder) for folder in folders}
    names = {folder: f"{of.manifest.generator.name}, {SIDES[of.config.side]}" for folder, of in opened.items()}
    told_apart = len(set(names.values())) == len(names)
    return names if told_apart else {folder: f"{name} ({folder})" for folder, name in names.items()}
