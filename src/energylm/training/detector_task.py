"""Train an energy to tell blocks of machine text from blocks of human text: binary cross-entropy, classes balanced.

    L = softplus(E(human block)) + softplus(−E(machine block))      bakhtin2019 §5.4: blocks take their text's label

Row r of a step is a human and a machine block. Each class goes through its texts in a random order per epoch, so a long
text does not weigh more than a short one, and a visit takes one of the text's intersecting blocks at random, sometimes
cut shorter. All of it is a pure function of (seed, epoch, text). Validation scores whole texts by the mean over blocks.

Before both are trained, `fit_projection` fits the energy's projection to its encoder as it is:

    min over w, b of   Σ_human softplus(E) + Σ_machine softplus(−E) + (1/2C)·‖w‖²        on standardised pooled states

A projection that starts near zero sends noise into the encoder until it has learnt which way is which; one that is
fitted first keeps what the encoder knows, which also helps on texts unlike the training texts (Kumar et al. 2022). The
problem is convex and takes seconds.

Use it     `fit_projection` where an encoder's features already tell something: detectors. A residual energy must start
           at E ≈ 0 instead.
Relations  `objectives.residual_energy` is the loss, `energies.pooled` has the projection; `bundles.detector` scores
           texts the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from energylm.bundles.energy_reading import sequence_energies
from energylm.data.text_blocks import BlockReader, EncodedText, block_starts
from energylm.energies.pooled import PooledEnergy
from energylm.errors import extra
from energylm.objectives.residual_energy import residual_nce
from energylm.randomness import derive_seed, epoch_order, row_keys, row_uniforms
from energylm.training.energy_task import ContrastEnergies, contrast_sums
from energylm.training.task import Batch, Share, Sums

SHORTEST_SHARE = 0.25  # of a block: what blocks are cut to at the least, the first span of the calibration


class DetectorTask:
    """A `training.task.Task`. `model(tokens_BT, lengths_B)` gives energies (B,)."""

    loss_weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self,
        model: nn.Module,
        human: Sequence[EncodedText],
        machine: Sequence[EncodedText],
        *,
        valid_human: Sequence[EncodedText],
        valid_machine: Sequence[EncodedText],
        reader: BlockReader,
        shorter_blocks: float,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.reader, self.seed, self.global_batch = model, reader, seed, global_batch
        self.classes = {"human": human, "machine": machine}
        self.valid = [*valid_human, *valid_machine]
        self.valid_human = len(valid_human)
        self.shorter_blocks = shorter_blocks
        self.fingerprint = {
            "texts": {name: len(texts) for name, texts in self.classes.items()},
            "blocks": reader.blocks.model_dump(),
            "shorter_blocks": shorter_blocks,
            **(fingerprint or {}),
        }
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        positions = (step - 1) * self.global_batch + np.arange(rows.start, rows.stop, dtype=np.int64)
        columns = [self._chosen_blocks(name, positions) for name in self.classes]
        pieces = [piece for pair in zip(*columns, strict=True) for piece in pair]
        tokens_ST, lengths_S = self.reader.rows(pieces)
        return {"tokens_ST": tokens_ST, "lengths_S": lengths_S}

    def _chosen_blocks(self, name: str, positions: NDArray[np.int64]) -> list[NDArray[np.int32]]:
        """A block of the text that is read at each position of the endless sequence of epochs of one class."""
        texts = self.classes[name]
        epoch_B, text_B = epoch_order(positions, len(texts), seed=derive_seed(self.seed, f"{name} order"))
        keys_B = row_keys(derive_seed(self.seed, f"{name} blocks"), torch.from_numpy(text_B), torch.from_numpy(epoch_B))
        uniforms = (row_uniforms(keys_B, step=step).tolist() for step in range(4))
        pieces = []
        for text, block, whether, length, offset in zip(text_B, *uniforms, strict=True):
            ids = texts[text].ids
            starts = block_starts(len(ids), self.reader.blocks)
            start = int(starts[int(block * len(starts))])
            piece = ids[start : start + self.reader.blocks.tokens]
            if whether < self.shorter_blocks:
                shortest = min(len(piece), max(1, round(SHORTEST_SHARE * self.reader.blocks.tokens)))
                kept = shortest + int(length * (len(piece) - shortest + 1))
                first = int(offset * (len(piece) - kept + 1))
                piece = piece[first : first + kept]
            pieces.append(piece)
        return pieces

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": len(batch["lengths_S"]) / 2}

    def tokens(self, batch: Batch) -> int:
        return int(batch["lengths_S"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        energy_S = model(batch["tokens_ST"], batch["lengths_S"])
        return contrast_sums(ContrastEnergies.of(energy_S, negatives=1), residual_nce)

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Loss and balanced accuracy of whole texts, both classes weighing the same."""
        own = range(share.rank, len(self.valid), share.world)
        if not own:
            return {}
        energy_N = self._text_energies(model, [self.valid[text] for text in own])
        is_human_N = torch.tensor([text < self.valid_human for text in own])
        sizes = {True: self.valid_human, False: len(self.valid) - self.valid_human}
        weight_N = torch.tensor([1 / sizes[text < self.valid_human] for text in own], dtype=torch.float64)
        loss_N = torch.nn.functional.softplus(torch.where(is_human_N, energy_N, -energy_N))
        right_N = torch.where(is_human_N, energy_N < 0, energy_N > 0).double()
        part = len(own) / len(self.valid)  # the parts of all processes add up to one
        return {
            "loss": (float((weight_N * loss_N).sum()), part),
            "accuracy": (float((weight_N * right_N).sum()) / 2, part),
        }

    def _text_energies(self, model: nn.Module, texts: Sequence[EncodedText]) -> Tensor:
        """(N,) means over blocks, in float64 on the CPU."""
        of_texts = [self.reader.pieces(text) for text in texts]
        network = cast(PooledEnergy, model)  # or a network with the same parts
        energy_R = sequence_energies(network, *self.reader.rows([piece for pieces in of_texts for piece in pieces]))
        parts = energy_R.double().cpu().split([len(pieces) for pieces in of_texts])
        return torch.stack([part.mean() for part in parts])


STRENGTH = 0.01  # C: a few hundred blocks of a few hundred features need a strong hand


@torch.no_grad()
def fit_projection(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set `model.head` from batches of (tokens, lengths) whose rows are human, machine, human, machine, …"""
    with extra("detect"):
        from sklearn.linear_model import LogisticRegression

    states_ND = np.concatenate([_pooled_states(model, *batch) for batch in batches])
    is_machine_N = np.arange(len(states_ND)) % 2 == 1
    mean_D, spread_D = states_ND.mean(0), states_ND.std(0) + 1e-6
    fitted = LogisticRegression(C=STRENGTH, max_iter=1000).fit((states_ND - mean_D) / spread_D, is_machine_N)
    weight_D = fitted.coef_[0] / spread_D
    head = cast(nn.Linear, model.head)
    head.weight.copy_(torch.from_numpy(weight_D)[None])
    head.bias.fill_(float(fitted.intercept_[0] - weight_D @ mean_D))


def _pooled_states(model: nn.Module, tokens_BT: Tensor, lengths_B: Tensor) -> NDArray[np.float64]:
    """(B, D) what the projection sees, in float64."""
    seen: list[Tensor] = []
    watch = cast(nn.Linear, model.head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model(tokens_BT, lengths_B)
    finally:
        watch.remove()
    return torch.cat(seen).double().cpu().numpy()
