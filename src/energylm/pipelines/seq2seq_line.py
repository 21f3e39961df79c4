"""The objective of scheduled sampling along a line in weight space: goyal2021 figure 3.1.

From the weights θ of a trained model towards θ + r·d, d a random direction of each tensor's own size (or the weights of
another model): the hard objective jumps where a fed-back prediction changes, the relaxed ones pass through smoothly,
the closer to the hard one the larger α. Predictions are always fed back, as in the figure.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq import LineConfig
from energylm.errors import ModelError
from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.objectives.scheduled_sampling import scheduled_sampling_scores
from energylm.pipelines.seq2seq_data import encode_examples, read_examples
from energylm.randomness import generator
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Plot, write_report


def objective_line(config: LineConfig, *, output: Path | str | None = None) -> LinePlot:
    """Nats per symbol over the position t on the line; with `output` also a report with the picture."""
    model = Seq2SeqModel.from_pretrained(config.model)
    pairs, _ = encode_examples(read_examples(model.task, config.data, limit=config.limit), model)
    arrays = pairs.gather(pairs.source_lengths.argsort(kind="stable"), ignored=IGNORED)
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    start = [parameter.detach().clone() for parameter in model.network.parameters()]
    directions = _directions(model, config, start)
    positions = torch.linspace(0.0, config.reach, config.points, dtype=torch.float64).tolist()
    lines: dict[str, list[float]] = {"hard": [], **{f"α = {alpha:g}": [] for alpha in config.alphas}}
    with torch.no_grad():
        for t in positions:
            for parameter, origin, direction in zip(model.network.parameters(), start, directions, strict=True):
                parameter.copy_(origin + t * direction)
            for name, alpha in zip(lines, (None, *config.alphas), strict=True):
                lines[name].append(_nats(model, batch, alpha=alpha))
    plot = LinePlot(
        [Series(name, positions, values) for name, values in lines.items()],
        x_label="position on the line",
        y_label="loss (nats per symbol)",
    )
    if output is not None:
        alt = "The loss along a line of weights: the hard objective jumps, the relaxed ones are smooth."
        write_report(output, title="Scheduled sampling along a line", sections=[Plot("Objectives", plot, alt)])
    return plot


def largest_jump(values: Sequence[float]) -> float:
    """Between neighbouring points: a step that stays when the points come closer is a discontinuity."""
    return float(torch.tensor(values, dtype=torch.float64).diff().abs().max())


def _directions(model: Seq2SeqModel, config: LineConfig, start: list[Tensor]) -> list[Tensor]:
    if config.other is not None:
        other = list(Seq2SeqModel.from_pretrained(config.other).network.parameters())
        if [p.shape for p in other] != [p.shape for p in start]:
            raise ModelError(f"{config.other} has other shapes than {config.model}; give a model of the same network")
        return [there.detach() - here for there, here in zip(other, start, strict=True)]
    drawn = generator(config.seed, "line")
    random = [torch.randn(each.shape, generator=drawn) for each in start]
    return [r * each.norm() / r.norm() for r, each in zip(random, start, strict=True)]


def _nats(model: Seq2SeqModel, batch: dict[str, Tensor], *, alpha: float | None) -> float:
    target_BT = batch["target_BT"]
    stepper = model.network.stepper(batch["source_BS"], batch["source_lengths_B"])
    never_BT = torch.zeros_like(target_BT, dtype=torch.bool)
    scores_BTV = scheduled_sampling_scores(stepper, target_BT.clamp(min=0), never_BT, alpha=alpha)
    return float(cross_entropy_sum(scores_BTV, target_BT)) / count_targets(target_BT)
