"""Chains as records and for people: curves by epoch, verdict, numbers, traces (goyal2021 tables and figures 6.2 ff.).

Means over texts and chains. BLEU is that of each chain's texts as a corpus, averaged over chains: a chain is one
translation of everything. Energies that compare runs are local ones (the paper's E_norm) whichever energy the chains
have, in nats for each sentence; the paper prints sums over its test set in thousands, so orders can be compared with
it, levels cannot.
"""

import math
from collections.abc import Sequence
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


def chains_sections(
    trace: Trace,
    diagnosis: Diagnosis,
    *,
    energy: str,
    sampler: str,
    bleu_N: Sequence[float] = (),
    started: Sequence[tuple[str, str]] = (),
    ended: Sequence[tuple[int, int, float, str]] = (),
) -> list[Section]:
    """`started` are labelled first texts, `ended` kept ones as (text, chain, energy, text), `bleu_N` is that of each
    epoch where there are references."""
    kept = trace.energy_BCN.shape[2] - trace.burn_in
    sections: list[Section] = [
        Text("Verdict", diagnosis.verdict[0].upper() + diagnosis.verdict[1:] + "."),
        Numbers("Numbers", numbers_table(diagnosis, energy=energy, sampler=sampler, kept=kept)),
        Plot("Energies of the first text", traces_plot(trace), alt=_traces_in_words(trace)),
        Plot(
            "Energy by epoch",
            LinePlot(
                [Series("mean over texts and chains", _epochs(trace), _means(trace.energy_BCN))],
                x_label="epoch",
                y_label="energy",
            ),
            alt=f"Mean energy, from {_means(trace.energy_BCN)[0]:.4g} to {_means(trace.energy_BCN)[-1]:.4g}.",
        ),
        Plot("Proposals by epoch", rates_plot(trace), alt=f"Accepted {diagnosis.acceptance:.0%} after burn-in."),
    ]
    if bleu_N:
        plot = LinePlot([Series("mean over chains", _epochs(trace), bleu_N)], x_label="epoch", y_label="BLEU")
        sections.append(Plot("BLEU by epoch", plot, alt=f"BLEU, from {bleu_N[0]:.1f} to {bleu_N[-1]:.1f}."))
    if any(map(math.isfinite, diagnosis.autocorrelation)):
        lags = list(range(len(diagnosis.autocorrelation)))
        plot = LinePlot(
            [Series("energy", lags, list(diagnosis.autocorrelation))], x_label="epochs apart", y_label="autocorrelation"
        )
        sections.append(Plot("Autocorrelation", plot, alt="Autocorrelation of the energy by lag, after burn-in."))
    if ended:
        shown = _lowest(ended)
        first = dict(enumerate(started))
        samples = [
            Sample(f"{first[text][0]}, chain {chain}, energy {value:.2f}", "", words)
            for text, chain, value, words in shown
        ]
        sections.append(Samples("Texts of lowest energy", samples))
    return sections


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


def traces_plot(trace: Trace) -> LinePlot:
    series = [
        Series(f"chain {chain}", _epochs(trace), energy_N.tolist())
        for chain, energy_N in enumerate(trace.energy_BCN[0, :CHAINS_SHOWN])
    ]
    return LinePlot(series, x_label="epoch", y_label="energy")


def rates_plot(trace: Trace) -> LinePlot:
    proposed_N = trace.proposed_BCN.sum((0, 1)).double()
    return LinePlot(
        [
            Series(name, _epochs(trace), (counts_BCN.sum((0, 1)) / proposed_N).tolist())
            for name, counts_BCN in (("accepted", trace.accepted_BCN), ("novel", trace.novel_BCN))
        ],
        x_label="epoch",
        y_label="part of the proposals",
    )


def _epochs(trace: Trace) -> list[int]:
    return list(range(trace.energy_BCN.shape[2]))


def _means(energy_BCN: Tensor) -> list[float]:
    means: list[float] = energy_BCN.mean((0, 1)).tolist()
    return means


def _traces_in_words(trace: Trace) -> str:
    first_C, last_C = trace.energy_BCN[0, :, 0], trace.energy_BCN[0, :, -1]
    return (
        f"Energies of {len(first_C)} chains: {first_C.min():.4g} to {first_C.max():.4g} after the first epoch, "
        f"{last_C.min():.4g} to {last_C.max():.4g} after the last."
    )


def _lowest(ended: Sequence[tuple[int, int, float, str]]) -> list[tuple[int, int, float, str]]:
    best: dict[int, tuple[int, int, float, str]] = {}
    for sample in ended:
        if sample[0] not in best or sample[2] < best[sample[0]][2]:
            best[sample[0]] = sample
    return [best[text] for text in sorted(best)[:TEXTS_SHOWN]]


def _known(value: Cell) -> Cell:
    return None if isinstance(value, float) and math.isnan(value) else value


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
