"""Chains as records and for people: curves by epoch, verdict, numbers, traces (goyal2021 tables and figures 6.2 ff.).

Means over texts and chains. BLEU is that of each chain's texts as a corpus, averaged over chains: a chain is one
translation of everything. Energies that compare runs are local ones (the paper's E_norm) whichever energy the chains
have, in nats for each sentence; the paper prints sums over its test set in thousands, so orders can be compared with
it, levels cannot.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from energylm.estimators.mixing import R_HAT_LIMIT, Diagnosis, Trace
from energylm.estimators.sequence_scores import translation_scores
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text
from energylm.tables import Cell, Table

CHAINS_SHOWN, TEXTS_SHOWN = 8, 5
ENERGIES = {
    "local": "minus the pseudo-log-likelihood, nats",
    "raw": "minus the sum of the tokens' logits, output bias in, no softmax",
}
CONVENTION = "energy: local, nats a sentence, mean over sentences, chains and epochs after burn-in"


@dataclass(frozen=True)
class TextSample(Record):
    """A text that was kept. `score` is mask-predict's mean log-probability of the tokens it filled in."""

    text: int  # number of the text it started from
    chain: int
    epoch: int
    energy: float
    sample: str
    tokens: list[int]
    score: float | None = None


@dataclass(frozen=True)
class ChainCurves(Record):
    """One number an epoch."""

    epoch: list[int]
    energy: list[float]  # the one that the chains have
    local_energy: list[float] | None = None  # where it is that one, or was asked for
    acceptance: list[float] | None = None  # of proposals, those that change nothing included; of chains only
    novel: list[float] | None = None  # of proposals: accepted and different
    bleu: list[float] | None = None  # where there are references


@dataclass(frozen=True)
class MCMCRun(Record):
    """Energies and BLEU in one number: means after burn-in, the best epoch after it, and the last epoch."""

    samples: list[TextSample]
    diagnosis: Diagnosis | None  # none for mask-predict, which draws nothing
    by_epoch: ChainCurves  # of mask-predict, its result alone
    texts: int
    chains: int  # of each text
    burn_in: int
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("energy", "best_energy", "last_energy", "bleu", "best_bleu", "last_bleu", "convention")

    @property
    def energy(self) -> float | None:
        return _mean(self._kept(self.by_epoch.local_energy))

    @property
    def best_energy(self) -> float | None:
        return min(self._kept(self.by_epoch.local_energy), default=None)

    @property
    def last_energy(self) -> float | None:
        return next(reversed(self._kept(self.by_epoch.local_energy)), None)

    @property
    def bleu(self) -> float | None:
        return _mean(self._kept(self.by_epoch.bleu))

    @property
    def best_bleu(self) -> float | None:
        return max(self._kept(self.by_epoch.bleu), default=None)

    @property
    def last_bleu(self) -> float | None:
        return next(reversed(self._kept(self.by_epoch.bleu)), None)

    @property
    def convention(self) -> str:
        return f"{CONVENTION}; {self.texts:,} sentences, {self.chains} chains each; BLEU by sacrebleu"

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [[sample.text, sample.chain, sample.energy, sample.sample] for sample in self.samples]
        return Table(["text", "chain", "energy", "sample"], rows, self.diagnosis.verdict if self.diagnosis else "")

    def plot(self) -> LinePlot:
        """The mean energy by epoch, burn-in included."""
        mean = Series("mean over texts and chains", self.by_epoch.epoch, self.by_epoch.energy)
        return LinePlot([mean], x_label="epoch", y_label="energy")

    def lines(self) -> list[str]:
        """What is said at the end of a run."""
        said = []
        if self.last_bleu is not None:
            said.append(f"BLEU {self.last_bleu:.2f}{' in the last epoch' if self.diagnosis else ''}")
        if self.diagnosis is not None:
            said += [self.diagnosis.facts(), self.diagnosis.verdict]
        return [*said, *([f"report: {self.report}"] if self.report else [])]

    def _kept(self, values: list[float] | None) -> list[float]:
        return (values or [])[self.burn_in :]


def chain_curves(
    trace: Trace, *, local_energy_BCN: Tensor | None = None, bleu_N: list[float] | None = None
) -> ChainCurves:
    proposed_N = trace.proposed_BCN.sum((0, 1)).double()
    return ChainCurves(
        epoch=list(range(trace.energy_BCN.shape[2])),
        energy=trace.energy_BCN.mean((0, 1)).tolist(),
        local_energy=None if local_energy_BCN is None else local_energy_BCN.mean((0, 1)).tolist(),
        acceptance=(trace.accepted_BCN.sum((0, 1)) / proposed_N).tolist(),
        novel=(trace.novel_BCN.sum((0, 1)) / proposed_N).tolist(),
        bleu=bleu_N,
    )


def mean_bleu(
    texts: Sequence[Sequence[Sequence[str]]], sources: Sequence[str], references: Sequence[str], *, chains: int
) -> list[float]:
    """BLEU of each epoch. `texts` has, for groups of sources in their order, every epoch's rows: the chains of one
    source after those of another."""
    epochs = [[text for group in texts for text in group[epoch]] for epoch in range(len(texts[0]))]
    return [
        sum(translation_scores(sources, references, rows[chain::chains]).bleu for chain in range(chains)) / chains
        for rows in epochs
    ]


def chains_sections(result: MCMCRun, trace: Trace, *, energy: str, sampler: str) -> list[Section]:
    """The verdict, its numbers, and everything by epoch; of each text the sample of lowest energy."""
    diagnosis, curves, kept = result.diagnosis, result.by_epoch, len(result.by_epoch.epoch) - result.burn_in
    assert diagnosis is not None
    traces = {f"chain {chain}": e_N.tolist() for chain, e_N in enumerate(trace.energy_BCN[0, :CHAINS_SHOWN])}
    rates = {"accepted": curves.acceptance or [], "novel": curves.novel or []}
    rates_alt = f"Accepted {diagnosis.acceptance:.0%} after burn-in."
    mean = curves.energy
    sections: list[Section] = [
        Text("Verdict", diagnosis.verdict[0].upper() + diagnosis.verdict[1:] + "."),
        Numbers("Numbers", numbers_table(diagnosis, energy=energy, sampler=sampler, kept=kept)),
        _by_epoch("Energies of the first text", "energy", traces, alt=_traces_in_words(trace)),
        _by_epoch(
            "Energy by epoch",
            "energy",
            {"mean over texts and chains": mean},
            alt=f"Mean energy, from {mean[0]:.4g} to {mean[-1]:.4g}.",
        ),
        _by_epoch("Proposals by epoch", "part of the proposals", rates, alt=rates_alt),
    ]
    if curves.bleu:
        alt = f"BLEU, from {curves.bleu[0]:.1f} to {curves.bleu[-1]:.1f}."
        sections.append(_by_epoch("BLEU by epoch", "BLEU", {"mean over chains": curves.bleu}, alt=alt))
    if any(map(math.isfinite, diagnosis.autocorrelation)):
        alt, lines = "Autocorrelation of the energy by lag, after burn-in.", {"energy": diagnosis.autocorrelation}
        sections.append(_by_epoch("Autocorrelation", "autocorrelation", lines, x_label="epochs apart", alt=alt))
    samples = [
        Sample(f"text {sample.text + 1}, chain {sample.chain}, energy {sample.energy:.2f}", "", sample.sample)
        for sample in _lowest(result.samples)
    ]
    return [*sections, *([Samples("Texts of lowest energy", samples)] if samples else [])]


def _by_epoch(
    title: str, y_label: str, lines: Mapping[str, Sequence[float]], *, alt: str, x_label: str = "epoch"
) -> Plot:
    series = [Series(name, list(range(len(values))), list(values)) for name, values in lines.items()]
    return Plot(title, LinePlot(series, x_label=x_label, y_label=y_label), alt=alt)


def numbers_table(diagnosis: Diagnosis, *, energy: str, sampler: str, kept: int) -> Table:
    rows: list[list[Cell]] = [
        ["accepted proposals", diagnosis.acceptance],
        ["novel transitions: accepted and different", diagnosis.novel],
        ["mean energy", diagnosis.mean_energy],
        ["lowest energy", diagnosis.lowest_energy],
        ["spread: standard deviation of chains' means", diagnosis.spread],
        ["split R-hat of the energy, worst text", diagnosis.r_hat],
        [f"texts with R-hat above {R_HAT_LIMIT}", diagnosis.texts_above_limit],
        ["effective draws, worst text", diagnosis.effective_draws],
    ]
    convention = f"sampler {sampler}; {kept} epochs after burn-in; energy {energy}: {ENERGIES[energy]}"
    return Table(["what", "value"], [[what, _known(value)] for what, value in rows], convention=convention)


def _traces_in_words(trace: Trace) -> str:
    first_C, last_C = trace.energy_BCN[0, :, 0], trace.energy_BCN[0, :, -1]
    return (
        f"Energies of {len(first_C)} chains: {first_C.min():.4g} to {first_C.max():.4g} after the first epoch, "
        f"{last_C.min():.4g} to {last_C.max():.4g} after the last."
    )


def _lowest(samples: Sequence[TextSample]) -> list[TextSample]:
    """Of the first texts, the sample of lowest energy each."""
    best: dict[int, TextSample] = {}
    for sample in samples:
        best[sample.text] = min(best.get(sample.text, sample), sample, key=lambda kept: kept.energy)
    return [best[text] for text in sorted(best)[:TEXTS_SHOWN]]


def _known(value: Cell) -> Cell:
    return None if isinstance(value, float) and math.isnan(value) else value


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
