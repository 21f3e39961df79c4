"""Perplexities of a joint model, its base and baselines: one record, its table and plots (Deng et al. 2020)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import PerplexityEstimate
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table

COLUMNS = ("model", "perplexity", "upper end", "standard error", "bits per byte", "upper bits per byte", "tokens")
BASE, JOINT, CERTIFIED = "base LM", "joint model", "joint sampler, certified"
MEANING = """
The joint model multiplies the language model's probability by exp(−energy). Its normaliser is estimated from samples,
so its perplexity is an interval: the lower end is too low on average, whatever the number of samples, and the upper end
is an upper bound for many samples only. The effective sample size (ESS) says how many independent samples the weighted
ones of a context are worth; where it is below 20, a few lucky samples decide and the interval should not be trusted.

The certified row needs no such trust. Drawing as many candidates and keeping one by its weight is itself a model of
text. Its perplexity is at most this number in expectation over the samples, however few they are; a single run may give
less, where large weights are rare. The upper end of the row is what holds for a single run: with the stated confidence
over the samples, the sampler's perplexity of these very texts is at most that, whatever the energy. The standard error
is over texts, each with samples of its own; it speaks of other texts, and is one for many texts only.
""".strip()


@dataclass(frozen=True, repr=False)
class PerplexityResult(Record):
    """Everything that was measured; `report` is the page, where one was asked for."""

    windows: str  # which they were, in words
    name: str  # of the base
    base: PerplexityEstimate
    baselines: dict[str, PerplexityEstimate]  # ralm, balm
    joint: JointPerplexity | None = None
    by_samples: tuple[JointPerplexity, ...] = ()
    by_position: PositionPerplexity | None = None
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("convention",)

    @property
    def table(self) -> Table:
        table = perplexity_table(self.base, self.joint, self.baselines)
        return replace(table, convention=f"{self.windows}; {table.convention}")

    @property
    def convention(self) -> str:
        return self.table.convention

    def summary(self) -> str | None:
        return None if self.joint is None else self.joint.summary()

    def sections(self) -> list[Section]:
        """The parts of a report."""
        joint, by_samples, by_position = self.joint, self.by_samples, self.by_position
        sections: list[Section] = [Numbers("Perplexity", self.table)]
        if joint is not None:
            sections += [Text("What the interval means", MEANING), Numbers("How far to trust it", trust_table(joint))]
        if by_samples:
            first, last = by_samples[0], by_samples[-1]
            alt = (
                f"Perplexity over samples a context. The interval goes from {first.lower:.4g} to {first.upper:.4g} "
                f"with {first.n:,} samples to {last.lower:.4g} to {last.upper:.4g} with {last.n:,}; the base has "
                f"{last.base.value:.4g}."
            )
            sections.append(Plot("Perplexity by number of samples", samples_plot(by_samples), alt=alt))
        if by_position is not None:
            (low, high), exact = by_position.gain[-1], by_position.base[-1].value - by_position.last_exact.value
            alt = (
                f"Perplexity gained at positions {by_position.positions[0]} to {by_position.positions[-1]}. First: "
                f"{by_position.gain[0][0]:.3g} to {by_position.gain[0][1]:.3g}; last: {low:.3g} to {high:.3g}, "
                f"exactly {exact:.3g}."
            )
            sections.append(Plot("Perplexity gain by position", positions_plot(by_position), alt=alt))
        return sections


def perplexity_table(
    base: PerplexityEstimate, joint: JointPerplexity | None, baselines: Mapping[str, PerplexityEstimate]
) -> Table:
    """All models in one table; an interval has an upper end, and so has the certificate: its bound with confidence."""
    rows = [_row(BASE, base), *(_row(name.upper(), measured) for name, measured in baselines.items())]
    if joint is not None:
        rows += [
            _row(JOINT, joint.optimistic, upper=(joint.pessimistic.value, joint.pessimistic.bits_per_byte)),
            _row(CERTIFIED, joint.certified, upper=(joint.certified.bound, joint.certified.bound_bits_per_byte)),
        ]
    return Table(COLUMNS, rows, convention=base.convention if joint is None else joint.convention)


def trust_table(joint: JointPerplexity) -> Table:
    """What the interval stands on."""
    estimate = joint.log_partition
    rows: list[list[Cell]] = [
        ["samples a context", joint.n],
        ["contexts", joint.base.sequences],
        ["effective sample size, median", joint.ess.median],
        ["effective sample size, smallest", joint.ess.smallest],
        ["largest share of one sample", float(estimate.largest_share.max())],
        ["perplexity that other samples would move (one standard error)", joint.sampling_error],
        ["mean estimated log Z, nats", float(estimate.lower.mean())],
    ]
    return Table(["what", "value"], rows, convention=joint.warning or "nothing speaks against the interval")


def samples_plot(results: Sequence[JointPerplexity]) -> LinePlot:
    """Perplexity against the number of samples a context."""
    counts = [float(result.n) for result in results]
    series = [
        Series("joint, upper end", counts, [result.upper for result in results]),
        Series("joint, lower end", counts, [result.lower for result in results]),
        Series("sampler, certified in expectation", counts, [result.certified.value for result in results]),
        Series("base", counts, [result.base.value for result in results]),
    ]
    return LinePlot(series, x_label="samples a context", y_label="perplexity", log_x=True)


def positions_plot(result: PositionPerplexity) -> LinePlot:
    """What the joint model gains on the base at each position; the last one also exactly."""
    positions = [float(position) for position in result.positions]
    exact = result.base[-1].value - result.last_exact.value
    series = [
        Series("upper end", positions, [high for _, high in result.gain]),
        Series("lower end", positions, [low for low, _ in result.gain]),
        Series("exact", positions[-1:], [exact]),
    ]
    return LinePlot(series, x_label="position", y_label="perplexity gained on the base")


def _row(
    name: str, lower: PerplexityEstimate, *, upper: tuple[float | None, float | None] = (None, None)
) -> list[Cell]:
    """`upper` is the upper end, as perplexity and in bits per byte."""
    return [
        name,
        lower.value,
        upper[0],
        lower.standard_error if lower.standard_error is not None and math.isfinite(lower.standard_error) else None,
        lower.bits_per_byte,
        upper[1],
        lower.tokens,
    ]
