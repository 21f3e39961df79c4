"""Training a conditional masked language model on parallel text; every visit of a pair hides other target tokens.

    L = − Σ_{t hidden} log P(y_t | y without the hidden, x) / number of hidden  −  w · log P(T | x) / number of pairs

What is hidden in row r of step s is a pure function of (seed, s, r), in validation of (seed, pair): neither the cut
into micro-batches nor the number of processes changes it, and every validation hides the same.

Relations  `objectives.masking` hides, `data.sequence_pairs` batches by length, `models.cmlm` is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energylm.data.sequence_pairs import LengthBatches, SequencePairs
from energylm.models.cmlm import ConditionalMaskedLM
from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.objectives.masking import hide_uniformly, masking_uniforms
from energylm.training.task import Batch, Share, Sums

MASKED, LENGTH = "masked", "length"  # the terms of the loss
# Numbers of the validation pairs → name → value over their translations, e.g. {"bleu": 31.2}
Judge = Callable[[Sequence[int]], Mapping[str, float]]


class ConditionalMaskedTask:
    """A `training.task.Task`. Pairs have at most as many tokens on either side as the network holds."""

    def __init__(
        self,
        network: ConditionalMaskedLM,
        train: SequencePairs,
        valid: SequencePairs,
        *,
        mask_token_id: int,
        length_weight: float,
        judge: Judge,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        valid_batch: int = 64,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid = network, train, valid
        self.mask_token_id, self.judge = mask_token_id, judge
        self.seed, self.valid_batch = seed, valid_batch
        self.batches = LengthBatches(train.target_lengths, batch=global_batch, seed=seed)
        self.loss_weights: Mapping[str, float] = {MASKED: 1.0, LENGTH: length_weight}
        self.fingerprint = {"pairs": len(train), "length_weight": length_weight, **(fingerprint or {})}
        self._save_model = save_model

    def batch(self, step: int, rows: range) -> Batch:
        indices = self.batches.rows(step)[rows.start : rows.stop]
        return self._hidden(self.train, indices, "train", step, rows_B=torch.arange(rows.start, rows.stop))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {MASKED: count_targets(batch["targets_BT"]), LENGTH: float(len(batch["lengths_B"]))}

    def tokens(self, batch: Batch) -> int:
        return int(batch["source_lengths_B"].sum() + batch["lengths_B"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        losses, correct_2 = self._predict(model, batch)
        counts = self.counts(batch)
        metrics = {
            name: (correct, correct.new_tensor(counts[term]))
            for name, term, correct in zip(("accuracy", "length_accuracy"), losses, correct_2, strict=True)
        }
        return Sums(losses, metrics)

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per hidden token and how many are predicted right; the same of lengths; what the judge says.

        The judge sees this process's share; with several processes the mean of theirs is reported.
        """
        device = next(model.parameters()).device
        own = np.arange(share.rank, len(self.valid), share.world, dtype=np.int64)
        by_length = own[np.argsort(self.valid.target_lengths[own], kind="stable")]
        sums_4, counts_2 = torch.zeros(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for start in range(0, len(own), self.valid_batch):
            indices = by_length[start : start + self.valid_batch]
            batch = self._hidden(self.valid, indices, "validation", rows_B=torch.from_numpy(indices))
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            losses, correct_2 = self._predict(model, batch)
            sums_4 += torch.stack([*losses.values(), *correct_2]).double().cpu()
            counts_2 += torch.tensor(list(self.counts(batch).values()), dtype=torch.float64)
        names = ("loss", "length_loss", "accuracy", "length_accuracy")
        numbers = zip(names, sums_4.tolist(), counts_2.tolist() * 2, strict=True)
        found = {name: (value, count) for name, value, count in numbers}
        judged = self.judge(own.tolist()) if len(own) else {}
        return found | {name: (value * len(own), float(len(own))) for name, value in judged.items()}

    def save(self, model: nn.Module, folder: Path) -> None:
        self._save_model(model, folder)

    def _hidden(self, pairs: SequencePairs, indices: Any, *names: str | int, rows_B: Tensor) -> Batch:
        arrays = pairs.gather(indices, ignored=self.mask_token_id)
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        target_BT, lengths_B = batch.pop("target_BT"), batch.pop("target_lengths_B")
        uniforms_3BT = masking_uniforms(self.seed, *names, rows_B=rows_B, length=target_BT.shape[1])
        inputs_BT, targets_BT = hide_uniformly(target_BT, lengths_B, uniforms_3BT[:2], mask_token_id=self.mask_token_id)
        return batch | {"inputs_BT": inputs_BT, "targets_BT": targets_BT, "lengths_B": lengths_B}

    def _predict(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        """The summed losses by term, and how many tokens and lengths were predicted right."""
        assert isinstance(model, ConditionalMaskedLM)
        memory = model.encode(batch["source_BS"], batch["source_lengths_B"])
        hidden_BT = batch["targets_BT"] != IGNORED
        logits_NV = model.logits_at(batch["inputs_BT"], batch["lengths_B"], hidden_BT, memory)
        targets_N = batch["targets_BT"][hidden_BT]
        length_BL = model.length_log_probs(memory)
        places_B = batch["lengths_B"] - 1
        losses = {MASKED: cross_entropy_sum(logits_NV, targets_N), LENGTH: cross_entropy_sum(length_BL, places_B)}
        return losses, ((logits_NV.argmax(-1) == targets_N).sum(), (length_BL.argmax(-1) == places_B).sum())
