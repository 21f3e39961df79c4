"""The objective of scheduled sampling along a line in weight space: goyal2021 figure 3.1, a step of recipes.

From the weights θ of a trained model towards θ + r·d, d a random direction of each tensor's own size (or the weights of
another model): the hard objective jumps where a fed-back prediction changes, the relaxed ones pass through smoothly,
the closer to the hard one the larger α. Predictions are always fed back, as in the figure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import LOCAL, Record
from energylm.tables import Cell, Table
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from torch import Tensor

    from energylm.bundles.seq2seq_model import Seq2SeqModel
    from energylm.jobs.costs import Counted, Surroundings


@dataclass(frozen=True)
class Curve(Record):
    """Nats per symbol (y) over positions on the line (x)."""

    name: str
    x: list[float]
    y: list[float]
    distance: float  # mean distance from the hard objective

    computed = ("jump", "jump_twice_as_far")

    @property
    def jump(self) -> float:
        return largest_jump(self.y)

    @property
    def jump_twice_as_far(self) -> float:
        """Between points twice as far apart: a smooth curve's is twice as large, a discontinuity's is the same."""
        return largest_jump(self.y[::2])


@dataclass(frozen=True)
class ObjectiveLines(Record):
    curves: dict[str, Curve]  # hard, relaxed_1, relaxed_2, …
    report: Path | None = field(default=None, metadata=LOCAL)

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [curve.name, curve.jump, curve.jump_twice_as_far, curve.distance] for curve in self.curves.values()
        ]
        columns = ["objective", "largest step", "of points twice as far apart", "mean distance from the hard one"]
        return Table(columns, rows, "nats per symbol; predictions are always fed back")


class LineSeq2Seq(Verb):
    """Draw scheduled sampling's objective, hard and relaxed, along a line of weights."""

    writes = "optional"

    model: str = Field(description="The folder of a trained model: where the line begins.")
    data: tuple[str, ...] = Field(description="The labelled file whose loss is drawn; two to translate.")
    other: str | None = Field(None, description="The model the line leads to, at position 1; none = at random.")
    limit: int = Field(8, ge=1, description="The first so many sequences: few, so that single jumps are seen.")
    alphas: tuple[float, ...] = Field((1.0, 5.0), min_length=1, description="α of each relaxed line.")
    points: int = Field(200, ge=2, description="Positions on the line.")
    reach: float = Field(0.5, gt=0, description="The last position; 1 is a step as long as the weights themselves.")
    seed: int = Field(0, ge=0, description="Of a random direction.")

    @model_validator(mode="after")
    def _alphas_are_positive(self) -> Self:
        if bad := [alpha for alpha in self.alphas if not 0 < alpha < math.inf]:
            raise ValueError(f"α came as {bad[0]}; a relaxation needs a finite α above 0")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        model, batch = self._open()
        lines, sequences = 1 + len(self.alphas), len(batch["target_BT"])
        return f"would draw {lines} lines of {self.points:,} points from {model.name}, on {sequences:,} sequences"

    def run(self, job: Job = DEFAULT_JOB) -> ObjectiveLines:
        import torch

        model, batch = self._open()
        start = [parameter.detach().clone() for parameter in model.network.parameters()]
        directions = self._directions(start)
        positions = torch.linspace(0.0, self.reach, self.points, dtype=torch.float64).tolist()
        alphas = {"hard": None, **{f"relaxed_{n}": alpha for n, alpha in enumerate(self.alphas, start=1)}}
        losses: dict[str, list[float]] = {name: [] for name in alphas}
        with torch.no_grad():
            for t in positions:
                for parameter, origin, direction in zip(model.network.parameters(), start, directions, strict=True):
                    parameter.copy_(origin + t * direction)
                for name, alpha in alphas.items():
                    losses[name].append(_nats(model, batch, alpha=alpha))
        curves = {
            name: Curve(
                "hard" if alpha is None else f"α = {alpha:g}",
                positions,
                losses[name],
                sum(abs(a - b) for a, b in zip(losses[name], losses["hard"], strict=True)) / len(positions),
            )
            for name, alpha in alphas.items()
        }
        return ObjectiveLines(curves, None if job.output is None else _write_report(curves, job.output))

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.seq2seq.costs import count_line

        return count_line(self, around)

    def _open(self) -> "tuple[Seq2SeqModel, dict[str, Tensor]]":
        import torch

        from energylm.bundles.seq2seq_model import Seq2SeqModel
        from energylm.bundles.sequence_examples import encode_examples, read_examples
        from energylm.objectives.cross_entropy import IGNORED

        model = Seq2SeqModel.from_pretrained(self.model)
        pairs, _ = encode_examples(read_examples(model.task, self.data, limit=self.limit), model)
        arrays = pairs.gather(pairs.source_lengths.argsort(kind="stable"), ignored=IGNORED)
        return model, {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _directions(self, start: "list[Tensor]") -> "list[Tensor]":
        import torch

        from energylm.bundles.seq2seq_model import Seq2SeqModel
        from energylm.errors import ModelError
        from energylm.randomness import generator

        if self.other is not None:
            other = list(Seq2SeqModel.from_pretrained(self.other).network.parameters())
            if [p.shape for p in other] != [p.shape for p in start]:
                raise ModelError(f"{self.other} has other shapes than {self.model}; give a model of the same network")
            return [there.detach() - here for there, here in zip(other, start, strict=True)]
        drawn = generator(self.seed, "line")
        random = [torch.randn(each.shape, generator=drawn) for each in start]
        return [r * each.norm() / r.norm() for r, each in zip(random, start, strict=True)]


def largest_jump(values: Sequence[float]) -> float:
    """Between neighbouring points: a step that stays when the points come closer is a discontinuity."""
    return max((abs(after - before) for before, after in pairwise(values)), default=0.0)


def _nats(model: "Seq2SeqModel", batch: "dict[str, Tensor]", *, alpha: float | None) -> float:
    import torch

    from energylm.objectives.cross_entropy import count_targets, cross_entropy_sum
    from energylm.objectives.scheduled_sampling import scheduled_sampling_scores

    target_BT = batch["target_BT"]
    stepper = model.network.stepper(batch["source_BS"], batch["source_lengths_B"])
    never_BT = torch.zeros_like(target_BT, dtype=torch.bool)
    scores_BTV = scheduled_sampling_scores(stepper, target_BT.clamp(min=0), never_BT, alpha=alpha)
    return float(cross_entropy_sum(scores_BTV, target_BT)) / count_targets(target_BT)


def _write_report(curves: dict[str, Curve], output: Path) -> Path:
    from energylm.report.plots import LinePlot, Series
    from energylm.report.report import Plot, write_report

    plot = LinePlot(
        [Series(curve.name, curve.x, curve.y) for curve in curves.values()],
        x_label="position on the line",
        y_label="loss (nats per symbol)",
    )
    alt = "The loss along a line of weights: the hard objective jumps, the relaxed ones are smooth."
    return write_report(output, title="Scheduled sampling along a line", sections=[Plot("Objectives", plot, alt)])
