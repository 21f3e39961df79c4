"""Chains for people: verdict, numbers, traces (Goyal 2021, tables 6.2 to 6.4, figures 6.2 and 6.3)."""

import math
from collections.abc import Sequence

from torch import Tensor

from energylm.estimators.mixing import R_HAT_LIMIT, Diagnosis, Trace
from energylm.tables import Cell, Table
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text

CHAINS_SHOWN, TEXTS_SHOWN = 8, 5
ENERGIES = {
    "local": "minus the pseudo-log-likelihood, nats",
    "raw": "minus the sum of the tokens' logits, output bias in, no softmax",
}


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
