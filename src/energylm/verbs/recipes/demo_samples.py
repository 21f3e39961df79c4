"""The demo's texts: what a language model writes, and what an energy keeps of it, side by side.

    base     the first candidates of a pool: draws of the language model
    joint    candidates that the energy keeps of the same pool, at β: the first has the joint model's law, the others
             are what else the pool offers

Where β is not given it is the largest that the pool carries (`estimators.tilting`), rounded down to two digits, so that
a person can type it; the same pool is then chosen from again. Each prompt is kept as soon as it is done.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.residual_model import ResidualModel
from energylm.config.sampling import JointSampling
from energylm.estimators.tilting import RewardCurve, TiltPoint
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.records import Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Sample
from energylm.tables import Cell, Table

CURVE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # times the chosen β
SHOWN = 3  # texts of each kind
LONGEST_NAME = 32  # characters of a prompt in a legend


@dataclass(frozen=True, repr=False)
class SideBySide(Record):
    """A prompt continued by the language model and by the joint model."""

    prompt: str
    base: tuple[str, ...]
    joint: tuple[str, ...]
    curve: RewardCurve  # at `CURVE` times the β that was chosen

    computed = ("chosen",)

    @property
    def chosen(self) -> TiltPoint:
        """What `joint` was drawn at."""
        return self.curve.points[CURVE.index(1.0)]

    def samples(self) -> list[Sample]:
        point = self.chosen
        cost = f"KL {point.kl:.2f} ± {point.kl_error:.2f} nats, ESS {point.ess:.1f}"
        how = f"joint: {len(self.joint)} of {self.curve.n} at β = {point.beta:g} ({cost})"
        return [
            Sample(label="language model", prompt=self.prompt, continuation=_in_lines(self.base)),
            Sample(label=how, prompt=self.prompt, continuation=_in_lines(self.joint)),
        ]

    def in_words(self) -> list[str]:
        lines = []
        for sample in self.samples():
            lines += [
                f"  {sample.label}",
                *(f"    {line}" for line in f"[{sample.prompt}]{sample.continuation}".split("\n")),
            ]
        return lines


def draw_side_by_side(
    load: Callable[[], ResidualModel],
    prompts: Sequence[str],
    options: JointSampling,
    *,
    beta: float | None,
    seed: int,
    output: Path,
    identity: Any,
) -> list[SideBySide]:
    """Of each prompt what `output` holds, or else a new draw of the model that `load` gives; `identity` tells models
    apart. Every prompt has the random numbers of `seed`, as if it came alone."""
    kept = KeptBlocks(output, [identity, options.model_dump(mode="json"), beta, seed], _FORM)
    joint: ResidualModel | None = None
    drawn = []
    for number, prompt in enumerate(prompts):
        known = kept.find(number, prompt)
        if known is None:
            joint = joint or load()
            known = (_side_by_side(joint, prompt, options, beta=beta, seed=seed),)
            kept.keep(number, prompt, known[0])
        drawn.append(known[0])
    return drawn


def _side_by_side(
    joint: ResidualModel, prompt: str, options: JointSampling, *, beta: float | None, seed: int
) -> SideBySide:
    (sample,) = joint.sample_batch([prompt], options, seed=seed)
    if beta is None:
        largest = sample.reward_curve([1.0]).largest_beta
        beta = _rounded_down(largest) if largest else sample.beta or 1.0
    curve = sample.reward_curve([share * beta for share in CURVE])
    return SideBySide(prompt, tuple(sample.candidates[:SHOWN]), tuple(sample.at_beta(beta).texts), curve)


def _in_lines(texts: Sequence[str]) -> str:
    """Each on a line of its own."""
    return "\n…".join(" ".join(text.splitlines()) for text in texts)


def _rounded_down(value: float) -> float:
    """To two digits."""
    unit = math.floor(math.log10(value)) - 1
    return float(f"{math.floor(value / 10**unit)}e{unit}")


_FORM = BlockForm(
    block=lambda prompt: prompt,
    to_json=lambda result: result.to_json(),
    from_json=SideBySide.from_json,
    size=lambda prompt: 1,
)


def steering_table(drawn: Sequence[SideBySide]) -> Table:
    rows: list[list[Cell]] = [
        [
            side.prompt,
            side.curve.points[0].score,
            side.chosen.score,
            side.chosen.score_error,
            side.chosen.beta,
            side.chosen.kl,
            side.chosen.kl_error,
            side.chosen.ess,
        ]
        for side in drawn
    ]
    return Table(
        ["prompt", "mean similarity, base", "joint", "±", "β", "KL", "± ", "ESS"],
        rows,
        convention="cosine of sentence embeddings with the target, and KL of the joint model from the base in nats, of "
        f"the same {drawn[0].curve.n} candidates a prompt; ± standard error (jackknife); β the largest that they carry",
    )


def curves_plot(drawn: Sequence[SideBySide]) -> LinePlot:
    """What a nat of KL buys, as far as the candidates carry β."""
    lines = []
    for side in drawn:
        points = [point for point in side.curve.points if point.is_trusted]
        name = side.prompt if len(side.prompt) <= LONGEST_NAME else f"{side.prompt[:LONGEST_NAME]}…"
        lines.append(Series(name, [point.kl for point in points], [point.score for point in points]))
    return LinePlot(lines, x_label="KL from the language model (nats)", y_label="mean similarity")
