"""Chains by epoch: energies, what was accepted, BLEU of translations (Goyal 2021, figures 6.2 to 6.4).

Means over texts and chains. BLEU is that of each chain's texts as a corpus, averaged over chains: a chain is one
translation of everything.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from energylm.estimators.mixing import Trace
from energylm.estimators.sequence_scores import translation_scores


@dataclass(frozen=True)
class ChainCurves:
    """One number an epoch."""

    epoch: list[int]
    energy: list[float]  # the one that the chains have
    local_energy: list[float] | None = None  # where it is that one, or was asked for
    acceptance: list[float] | None = None  # of proposals, those that change nothing included; of chains only
    novel: list[float] | None = None  # of proposals: accepted and different
    bleu: list[float] | None = None  # where there are references

    def to_json(self) -> dict[str, Any]:
        return {name: values for name, values in asdict(self).items() if values is not None}


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
