"""How far apart an energy puts a real text and texts generated from the same context: `energylm probe differences`.

    difference = score(real) − score(generated) = E(generated) − E(real)              score = −E

A difference above the margin has no ranking loss; above 0 the pair is ordered rightly. Bakhtin et al. 2019 use a margin
of 1 in eq. 2 and draw 0.1 in figure 3, so margins are a parameter, told with every number. Errors are over contexts,
since the generated texts of a context share its real one.

Relations  `data.contrast` puts the texts side by side; `objectives.residual_energy` trains differences;
           `estimators.discrimination` asks for one threshold for all contexts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from energylm.bundles.energy_model import bind
from energylm.bundles.known_models import locate
from energylm.bundles.log_likelihood_energy import load_energy
from energylm.contracts import SequenceEnergy
from energylm.data.contrast import Contrast, pad
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.errors import ConfigError, DataError
from energylm.randomness import derive_seed, shuffled
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, histogram_plot
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.verbs.detect.discriminating import side_by_side
from energylm.verbs.detect.probe import CompareEnergies

CONTEXTS_AT_ONCE = 256
SIDES = {"suffix": "left to right", "prefix": "right to left"}
BINS = 40


@dataclass(frozen=True)
class MarginShare(Record):
    margin: float
    above: float  # fraction of pairs
    standard_error: float  # over contexts
    ranking_loss: float  # mean of max(0, margin − difference)


@dataclass(frozen=True)
class Differences(Record):
    """Of one generator."""

    name: str
    contexts: int
    per_context: int
    mean: float
    standard_error: float
    median: float
    margins: tuple[MarginShare, ...]
    values: tuple[float, ...]  # of all pairs


@dataclass(frozen=True)
class DifferencesResult(Record):
    """The folders as `g1`, `g2`, … as they came, each with the outline of its histogram in `curves`."""

    generators: dict[str, Differences]
    convention: str
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("curves", "rows")

    @property
    def table(self) -> Table:
        columns = ["generated", "pairs", "mean", "± mean", "median"]
        for share in next(iter(self.generators.values())).margins:
            columns += [f"> {share.margin:g}", f"± {share.margin:g}"]
        rows: list[list[Cell]] = [
            [
                *(of.name, len(of.values), of.mean, of.standard_error, of.median),
                *(cell for share in of.margins for cell in (share.above, share.standard_error)),
            ]
            for of in self.generators.values()
        ]
        return Table(columns, rows, convention=self.convention)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.records()

    @property
    def histogram(self) -> LinePlot:
        """All generators in the same bins."""
        edges = np.histogram_bin_edges([value for of in self.generators.values() for value in of.values], bins=BINS)
        counts = {of.name: np.histogram(of.values, bins=edges)[0].tolist() for of in self.generators.values()}
        return histogram_plot(edges.tolist(), counts, x_label="E(generated) − E(real)")

    @property
    def curves(self) -> dict[str, dict[str, list[float]]]:
        lines = zip(self.generators, self.histogram.series, strict=True)
        return {name: {"x": list(line.x), "y": list(line.y)} for name, line in lines}

    def sections(self, *, about: str) -> list[Section]:
        means = "; ".join(
            f"{of.name}: mean {of.mean:.3g}, {of.margins[0].above:.1%} above {of.margins[0].margin:g}"
            for of in self.generators.values()
        )
        return [
            Text("What this is", about),
            Numbers("Differences", self.table),
            Plot("Distribution", self.histogram, alt=f"Densities of E(generated) − E(real). {means}."),
        ]


def compare(verb: CompareEnergies, *, output: Path | None = None) -> DifferencesResult:
    """Measure; with `output` also write a report there."""
    energy, corpus = load_energy(verb.energy), Corpus.open(verb.corpus)
    bound = bind(energy, corpus)
    generators = {
        f"g{number}": _of_folder(verb, folder, name, corpus, bound)
        for number, (folder, name) in enumerate(_names(verb.negatives).items(), start=1)
    }
    result = DifferencesResult(
        generators,
        convention=f"E(generated) − E(real) of the same context by {energy.name}, at most {verb.contexts:,} contexts "
        f"of {Path(verb.corpus).name} with {verb.per_context} generated texts each; errors over contexts",
    )
    if output is None:
        return result
    about = f"How far apart the energy {energy.name} puts real and generated endings. {result.convention}."
    page = write_report(output, title=f"Score differences of {energy.name}", sections=result.sections(about=about))
    return replace(result, report=page)


def check_folders(verb: CompareEnergies) -> None:
    """Find every input without loading a model."""
    locate(verb.energy)
    corpus = Corpus.open(verb.corpus)
    for folder in verb.negatives:
        negatives = Negatives.open(folder)
        negatives.check(corpus=corpus)
        if verb.per_context > negatives.k:
            raise ConfigError(
                f"per_context is {verb.per_context}, but {folder} holds {negatives.k} texts of each context; ask for "
                "fewer, or generate more (-k)"
            )
    if len(set(verb.negatives)) < len(verb.negatives):
        raise ConfigError(f"negatives: a folder came twice ({', '.join(verb.negatives)}); give each once")


def differences(name: str, real_B: Tensor, generated_BK: Tensor, *, margins: Sequence[float]) -> Differences:
    """From energies of B real texts and of K generated ones beside each."""
    difference_BK = (generated_BK - real_B[:, None]).double()
    mean_B = difference_BK.mean(1)
    shares = []
    for margin in margins:
        above_B = (difference_BK > margin).double().mean(1)
        loss = (margin - difference_BK).clamp(min=0).mean()
        shares.append(MarginShare(margin, float(above_B.mean()), _error(above_B), float(loss)))
    return Differences(
        name=name,
        contexts=len(real_B),
        per_context=generated_BK.shape[1],
        mean=float(mean_B.mean()),
        standard_error=_error(mean_B),
        median=float(np.median(difference_BK.numpy(force=True))),
        margins=tuple(shares),
        values=tuple(difference_BK.flatten().tolist()),
    )


def _of_folder(verb: CompareEnergies, folder: str, name: str, corpus: Corpus, energy: SequenceEnergy) -> Differences:
    negatives = Negatives.open(folder)
    contrast = Contrast(negatives, corpus, rows=_rows(verb, negatives))
    what = f"scoring {name}"
    energy_BJ = side_by_side(
        lambda texts: energy.energies(*pad(texts)), contrast, verb.per_context, what=what, at_once=CONTEXTS_AT_ONCE
    )
    return differences(name, energy_BJ[:, 0], energy_BJ[:, 1:], margins=verb.margin)


def _rows(verb: CompareEnergies, negatives: Negatives) -> NDArray[np.int64]:
    """Contexts at random; only those continued by `new_tokens`, if so many are asked for."""
    order = shuffled(np.arange(len(negatives)), len(negatives), seed=derive_seed(verb.seed, "compared contexts"))
    if verb.new_tokens is not None:
        order = order[negatives.config.length - negatives.rows(order).context_length_B == verb.new_tokens]
    if len(order) < 2:
        raise DataError(
            f"{negatives.folder} has {len(order)} contexts that are continued by {verb.new_tokens} tokens, two are "
            "needed; ask for another length, or none"
        )
    return order[: verb.contexts]


def _names(folders: Sequence[str]) -> dict[str, str]:
    """What each folder holds, in words; the folder itself beside it where that does not tell them apart."""
    opened = {folder: Negatives.open(folder) for folder in folders}
    names = {folder: f"{of.manifest.generator.name}, {SIDES[of.config.side]}" for folder, of in opened.items()}
    are_different = len(set(names.values())) == len(names)
    return names if are_different else {folder: f"{name} ({folder})" for folder, name in names.items()}


def _error(values_B: Tensor) -> float:
    return float(values_B.std()) / math.sqrt(len(values_B))
