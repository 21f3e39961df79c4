"""How far apart an energy puts a real text and texts generated from the same context.

    difference = score(real) − score(generated) = E(generated) − E(real)              score = −E

A difference above the margin has no ranking loss; above 0 the pair is ordered rightly. Bakhtin et al. 2019 use a margin
of 1 in eq. 2 and draw 0.1 in figure 3, so margins are a parameter, told with every number. Errors are over contexts,
since the generated texts of a context share its real one.

Relations  `objectives.ranking` trains differences; `estimators.discrimination` asks for one threshold for all contexts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from energylm.tables import Table
from energylm.report.plots import LinePlot, histogram_plot
from energylm.report.report import Numbers, Plot, Section, Text

BINS = 40


@dataclass(frozen=True)
class MarginShare:
    margin: float
    above: float  # fraction of pairs
    standard_error: float  # over contexts
    ranking_loss: float  # mean of max(0, margin − difference)


@dataclass(frozen=True)
class Differences:
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
class DifferenceStudy:
    generators: tuple[Differences, ...]
    convention: str

    @property
    def table(self) -> Table:
        columns = ["generated", "pairs", "mean", "± mean", "median"]
        columns += [
            name for share in self.generators[0].margins for name in (f"> {share.margin:g}", f"± {share.margin:g}")
        ]
        rows = [
            [one.name, len(one.values), one.mean, one.standard_error, one.median]
            + [cell for share in one.margins for cell in (share.above, share.standard_error)]
            for one in self.generators
        ]
        return Table(columns, rows, convention=self.convention)

    @property
    def edges(self) -> list[float]:
        return np.histogram_bin_edges([value for one in self.generators for value in one.values], bins=BINS).tolist()

    def to_json(self) -> dict[str, Any]:
        """For recipes: the folders as `g1`, `g2`, … as they came, each with its `curve`; `rows` is the table."""
        outlines = {line.name: {"x": list(line.x), "y": list(line.y)} for line in _histogram(self).series}
        found = {
            f"g{place}": {
                "name": one.name,
                "contexts": one.contexts,
                "pairs": len(one.values),
                "mean": one.mean,
                "standard_error": one.standard_error,
                "median": one.median,
                "margins": [share.margin for share in one.margins],
                "above": [share.above for share in one.margins],
                "above_error": [share.standard_error for share in one.margins],
                "ranking_loss": [share.ranking_loss for share in one.margins],
                "curve": outlines[one.name],
            }
            for place, one in enumerate(self.generators, start=1)
        }
        return {**found, "rows": self.table.records(), "convention": self.convention}


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


def difference_sections(study: DifferenceStudy, *, about: str) -> list[Section]:
    means = "; ".join(
        f"{one.name}: mean {one.mean:.3g}, {one.margins[0].above:.1%} above {one.margins[0].margin:g}"
        for one in study.generators
    )
    return [
        Text("What this is", about),
        Numbers("Differences", study.table),
        Plot("Distribution", _histogram(study), alt=f"Densities of E(generated) − E(real). {means}."),
    ]


def _histogram(study: DifferenceStudy) -> LinePlot:
    edges = study.edges
    counts = {one.name: np.histogram(one.values, bins=edges)[0].tolist() for one in study.generators}
    return histogram_plot(edges, counts, x_label="E(generated) − E(real)")


def _error(values_B: Tensor) -> float:
    return float(values_B.std()) / math.sqrt(len(values_B))
