"""Train an energy to tell real continuations from a language model's, on pre-generated negatives.

    batch of step s    contexts in an order of each epoch's own; of each the real text and M of its K negatives
    loss               a function of (E(x+), E(x−_1 … M)) by name: `registry.LOSSES`

The M negatives are a uniform choice, new in every epoch: a context goes through its K negatives in a random order, M at
a time, before it takes another order (deng2020 §4.1 samples uniformly from the pre-generated ones). Everything is a
pure function of (seed, epoch, context), so a run resumes at once and bit for bit.

Relations  `objectives.residual_energy` has the losses, `data.contrast` the text; `calibration` comes after.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from energylm.config.models import NCE, Objective
from energylm.objectives.residual_energy import PAPER_MARGIN, precision_at_1
from energylm.randomness import derive_seed, epoch_order, row_keys, row_uniforms
from energylm.registry import LOSSES
from energylm.training.task import Batch, Share, Sums

Loss = Callable[[Tensor, Tensor], Tensor]  # (B,) real and (B, M) noise energies -> (B,) losses


def loss_of(objective: Objective, *, margin: float = PAPER_MARGIN) -> Loss:
    """The loss called `objective` in `registry.LOSSES`; the margin goes to those that take one."""
    loss: Callable[..., Tensor] = LOSSES.get(objective)
    return partial(loss, margin=margin) if takes_margin(objective) else loss


def takes_margin(objective: Objective) -> bool:
    return "margin" in inspect.signature(LOSSES.get(objective)).parameters


class ContrastSource(Protocol):
    """What the task needs of `data.contrast.Contrast` or `data.contrast.ContrastUnion`."""

    def __len__(self) -> int: ...

    def counts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,) how many negatives each context has."""
        ...

    def sequences(self, contexts: NDArray[np.int64], copies_BM: NDArray[np.int64]) -> Sequence[Sequence[int]]:
        """B·(1 + M) token sequences: of each context the real one, then the negatives `copies_BM`."""
        ...


# Token sequences -> what the energy reads: (S, T) right-padded ids and (S,) lengths. Real and generated alike.
Encode = Callable[[Sequence[Sequence[int]]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ContrastEnergies:
    """Energies of B contexts: real text and K negatives each."""

    real_B: Tensor
    noise_BK: Tensor

    @classmethod
    def of(cls, energy_S: Tensor, *, negatives: int) -> "ContrastEnergies":
        """From those of all texts, each context's real one before its negatives."""
        energy_BJ = energy_S.view(-1, 1 + negatives)
        return cls(energy_BJ[:, 0], energy_BJ[:, 1:])


class EnergyTask:
    """A `training.task.Task`. `model(tokens_BT, lengths_B)` gives energies (B,)."""

    loss_weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self,
        model: nn.Module,
        train: ContrastSource,
        valid: ContrastSource | None = None,
        *,
        encode: Encode,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        objective: Objective = NCE,
        margin: float = PAPER_MARGIN,
        negatives_per_context: int = 1,
        valid_negatives: int = 1,
        valid_batch: int = 32,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid, self.encode = model, train, valid, encode
        self.seed, self.global_batch = seed, global_batch
        self.objective = loss_of(objective, margin=margin)
        self.negatives_per_context, self.valid_negatives = negatives_per_context, valid_negatives
        self.valid_batch = valid_batch
        self.fingerprint = {
            "objective": objective,
            "margin": margin if takes_margin(objective) else None,
            "negatives_per_context": negatives_per_context,
            "contexts": len(train),
            **(fingerprint or {}),
        }
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        positions = (step - 1) * self.global_batch + np.arange(rows.start, rows.stop, dtype=np.int64)
        epoch_B, context_B = self.context_order(positions)
        copies_BM = chosen_negatives(
            epoch_B, context_B, self.train.counts(context_B), count=self.negatives_per_context, seed=self.seed
        )
        tokens_ST, lengths_S = self.encode(self.train.sequences(context_B, copies_BM))
        return {"tokens_ST": tokens_ST, "lengths_S": lengths_S}

    def context_order(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The epoch, and the context that is read, at each position of the endless sequence of epochs."""
        return epoch_order(positions, len(self.train), seed=derive_seed(self.seed, "context order"))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": len(batch["lengths_S"]) / (1 + self.negatives_per_context)}

    def tokens(self, batch: Batch) -> int:
        return int(batch["lengths_S"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        energy_S = model(batch["tokens_ST"], batch["lengths_S"])
        return contrast_sums(ContrastEnergies.of(energy_S, negatives=self.negatives_per_context), self.objective)

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Means over contexts of the loss and of `measures`."""
        if self.valid is None:
            return {}
        own = np.arange(share.rank, len(self.valid), share.world, dtype=np.int64)
        energies = contrast_energies(
            model, self.valid, self.encode, contexts=own, negatives=self.valid_negatives, batch=self.valid_batch
        )
        values = {"loss": self.objective(energies.real_B, energies.noise_BK), **measures(energies)}
        return {name: (float(value_B.sum()), len(own)) for name, value_B in values.items()}


def chosen_negatives(
    epoch_B: NDArray[np.int64], context_B: NDArray[np.int64], k_B: NDArray[np.int64], *, count: int, seed: int
) -> NDArray[np.int64]:
    """(B, count) distinct numbers below k, uniform for each (epoch, context); none comes twice in k // count epochs."""
    copies_BM = np.empty((len(context_B), count), dtype=np.int64)
    round_B, turn_B = np.divmod(epoch_B, k_B // count)
    for k, number in np.unique(np.stack([k_B, round_B]), axis=1).T.tolist():
        members = np.flatnonzero((k_B == k) & (round_B == number))
        groups_R = torch.from_numpy(context_B[members]).repeat_interleave(k)
        keys_R = row_keys(derive_seed(seed, "negatives", number), groups_R, torch.arange(k).repeat(len(members)))
        order_GK = row_uniforms(keys_R, step=0).view(-1, k).argsort(dim=1).numpy()
        columns_GM = turn_B[members, None] * count + np.arange(count)
        copies_BM[members] = np.take_along_axis(order_GK, columns_GM, axis=1)
    return copies_BM


@torch.no_grad()
def contrast_energies(
    model: nn.Module,
    source: ContrastSource,
    encode: Encode,
    *,
    contexts: NDArray[np.int64],
    negatives: int,
    batch: int,
) -> ContrastEnergies:
    """Energies of `contexts` and the first `negatives` of each, in float64 on the CPU; `batch` contexts at a time."""
    device = next(model.parameters()).device
    copies_M = np.arange(negatives, dtype=np.int64)
    parts = [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, len(contexts), batch):
        chosen = contexts[start : start + batch]
        tokens_ST, lengths_S = encode(source.sequences(chosen, np.tile(copies_M, (len(chosen), 1))))
        parts.append(model(tokens_ST.to(device), lengths_S.to(device)).double().cpu())
    return ContrastEnergies.of(torch.cat(parts), negatives=negatives)


def contrast_sums(energies: ContrastEnergies, objective: Loss) -> Sums:
    """The loss of a batch of contexts, and `measures` for the journal."""
    contexts = torch.tensor(float(len(energies.real_B)), device=energies.real_B.device)
    metrics = {name: (value_B.detach().sum(), contexts) for name, value_B in measures(energies).items()}
    return Sums({"loss": objective(energies.real_B, energies.noise_BK).sum()}, metrics)


def measures(energies: ContrastEnergies) -> dict[str, Tensor]:
    """Each (B,): what is journalled of an energy beside its loss. Real text should have E < 0, generated E > 0."""
    real_B, noise_BK = energies.real_B, energies.noise_BK
    real_right_B, noise_right_B = (real_B < 0).to(real_B.dtype), (noise_BK > 0).to(real_B.dtype).mean(-1)
    return {
        "accuracy": (real_right_B + noise_right_B) / 2,
        "precision_at_1": precision_at_1(real_B, noise_BK),
        "real_accuracy": real_right_B,
        "generated_accuracy": noise_right_B,
        "real_loss": softplus(real_B),  # the two parts of the logistic loss, whatever the objective
        "generated_loss": softplus(-noise_BK).mean(-1),
        "real_energy": real_B,
        "generated_energy": noise_BK.mean(-1),
    }
