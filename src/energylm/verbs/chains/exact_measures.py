"""What an energy of short sequences says of held-out ones, exactly; and the cells of a study as numbers by name.

    −LL   E(y) + log Z        of E_raw, whatever it was trained by
    −PLL  − Σ_t log p(y_t | y_\\t)                −MLM  − Σ_t log p_mlm(y_t | y_\\t)          Goyal 2021, table 6.1

All in nats of a sequence. Z is the sum over all sequences of the same length. Objectives that look at one token at a
time never compare sequences of different lengths, so lengths have probabilities of their own, those of the training
data, whose −log is part of −LL where lengths differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from energylm.data.small_languages import Sequences
from energylm.models.bilstm_context import BiLSTMContext
from energylm.models.context_energies import log_partition, reading
from energylm.objectives.sequence_likelihood import pseudo_nll, sequence_nll
from energylm.records import Record
from energylm.tables import Table

AT_ONCE = 256
COLUMNS = {"−LL": "nll", "±": "nll_error", "−LL − true": "gap", "−PLL": "pseudo_nll", "−MLM": "masked_nll"}
CONVENTION = (
    "nats of a sequence; −LL exactly under E_raw, −PLL under its true conditionals, −MLM under the softmax of the "
    "hidden token; of small languages in expectation over the whole language, of phonemes on the held-out tenth with "
    "−log of the length's share in training; ± is the standard error over seeds"
)


@dataclass(frozen=True)
class Measured(Record):
    """Means over held-out sequences."""

    nll: float
    pseudo_nll: float
    masked_nll: float
    length_nll: float  # the part of `nll` that is due to lengths
    log_partitions: dict[int, float]  # by length


@dataclass(frozen=True)
class ExactStudyResult(Record):
    """What reports and claims refer to.

    rows                                        of a table
    languages.LANGUAGE.SIZE.OBJECTIVE.nll       mean over seeds, `nll_error` its standard error; so for other measures
    languages.LANGUAGE.OBJECTIVE.nll            the same as a list over sizes, which are languages.LANGUAGE.sequences
    """

    rows: list[dict[str, Any]]
    languages: dict[str, dict[str, Any]]

    computed = ("convention",)

    @property
    def convention(self) -> str:
        return CONVENTION

    @property
    def table(self) -> Table:
        columns = ["language", "sequences", "objective", *COLUMNS]
        return Table(columns, [[row[column] for column in columns] for row in self.rows], self.convention)


@torch.no_grad()
def measure(
    network: BiLSTMContext, held_out: Sequences, weights_N: Tensor, *, log_length_probs: Mapping[int, float]
) -> Measured:
    """Means under the weights, which sum to one: those of a sample, or the probabilities of all sequences."""
    log_partitions = {length: log_partition(network, length) for length in sorted(set(held_out.lengths_N.tolist()))}
    readings, totals_4 = {length: reading(network, length) for length in log_partitions}, torch.zeros(4).double()
    for rows_G, tokens_GT in held_out.by_length(at_once=AT_ONCE):
        length = tokens_GT.shape[1]
        logits_GTV = readings[length].cloze_logits(tokens_GT)
        energy_G = -logits_GTV.gather(2, tokens_GT[..., None]).double().sum((1, 2))
        length_G = torch.full_like(energy_G, -log_length_probs[length])
        log_z = torch.tensor(log_partitions[length], dtype=torch.float64)
        losses_4G = [
            sequence_nll(energy_G, log_z) + length_G,
            pseudo_nll(readings[length].replaced_energies(tokens_GT), tokens_GT),
            pseudo_nll(-logits_GTV, tokens_GT),
            length_G,
        ]
        totals_4 += torch.stack([loss_G.double() for loss_G in losses_4G]) @ weights_N[rows_G].double()
    nll, pseudo, masked, lengths = totals_4.tolist()
    return Measured(nll, pseudo, masked, lengths, log_partitions)


def study_result(table: Mapping[str, Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]]) -> ExactStudyResult:
    """From the numbers of every seed by language, size and objective."""
    rows: list[dict[str, Any]] = []
    languages: dict[str, dict[str, Any]] = {}
    for language, by_size in table.items():
        of_language: dict[str, Any] = {
            size: {name: _over_seeds(seeds) for name, seeds in by_name.items()} for size, by_name in by_size.items()
        }
        rows += [
            {"language": language, "sequences": size, "objective": name}
            | {column: numbers.get(key) for column, key in COLUMNS.items()}
            for size, by_name in of_language.items()
            for name, numbers in by_name.items()
        ]
        sizes = list(of_language.values())
        lists = {name: {key: [size[name][key] for size in sizes] for key in sizes[0][name]} for name in sizes[0]}
        sequences = next(iter(lists.values()))["train_sequences"]
        languages[language] = of_language | lists | {"sequences": sequences}
    return ExactStudyResult(rows, languages)


def _over_seeds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    numbers: dict[str, Any] = {"seeds": len(seeds), "train_sequences": seeds[0]["train_sequences"]}
    for key in ("nll", "pseudo_nll", "masked_nll"):
        values = [seed[key] for seed in seeds]
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        numbers |= {key: fmean(values), f"{key}_error": error}
    if seeds[0]["true_nll"] is not None:
        numbers |= {"true_nll": seeds[0]["true_nll"], "gap": numbers["nll"] - seeds[0]["true_nll"]}
    return numbers
