"""Training on pairs of sequences: a conditional masked language model, and a sequence model by search-aware losses.

    ConditionalMaskedTask   L = − Σ_{t hidden} log P(y_t | y without the hidden, x) / number of hidden
                                − w · log P(T | x) / number of pairs
    Seq2SeqTask             cross-entropy, scheduled sampling, soft direct loss or hinge       goyal2021 ch. 3 to 5

What is hidden in row r of step s, and the coins and the noise of scheduled sampling, are pure functions of (seed, s,
r), in validation of (seed, pair); α and the share of gold symbols, which change from epoch to epoch, are functions of
the step. So neither resuming nor the cut into micro-batches or processes changes anything. Every loss of a sequence
model is divided by the number of gold symbols, so that learning rates mean the same for all of them.

Relations  `data.sequence_pairs` batches by length; `models.cmlm` and `models.lstm_seq2seq` are trained;
           `objectives.masking` hides; `objectives.scheduled_sampling` and `objectives.search_losses` are the losses,
           over the soft beam of `search.continuous_beam`. Validation decodes as the user will.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from energylm.config.seq2seq import (
    CROSS_ENTROPY,
    DIRECT_LOSS,
    LOCAL,
    SCHEDULED_SAMPLING,
    DecodingConfig,
    ObjectiveConfig,
)
from energylm.contracts import Stepper
from energylm.data.sequence_pairs import LengthBatches, SequencePairs
from energylm.models.cmlm import ConditionalMaskedLM
from energylm.models.lstm_seq2seq import LSTMSeq2Seq
from energylm.objectives.cross_entropy import (
    IGNORED,
    count_targets,
    cross_entropy_sum,
    log_z_moments,
    squared_log_z_sum,
)
from energylm.objectives.masking import hide_uniformly, masking_uniforms
from energylm.objectives.scheduled_sampling import (
    gumbel_of_rows,
    inverse_sigmoid,
    scheduled_sampling_scores,
    taught,
)
from energylm.objectives.search_losses import StepCost, soft_direct_loss, soft_hinge
from energylm.randomness import derive_seed, row_keys
from energylm.search.continuous_beam import SoftBeam, continuous_beam_search
from energylm.training.task import Batch, Share, Sums, validated

MASKED, LENGTH = "masked", "length"  # the terms of the loss
# Numbers of the validation pairs → name → value over their translations, e.g. {"bleu": 31.2}
TranslationJudge = Callable[[Sequence[int]], Mapping[str, float]]


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
        judge: TranslationJudge,
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
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        indices = self.batches.rows(step)[rows.start : rows.stop]
        return self._hidden(self.train, indices, "train", step, rows_B=torch.arange(rows.start, rows.stop))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {MASKED: count_targets(batch["targets_BT"]), LENGTH: float(len(batch["lengths_B"]))}

    def tokens(self, batch: Batch) -> int:
        return int(batch["source_lengths_B"].sum() + batch["lengths_B"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        assert isinstance(model, ConditionalMaskedLM)
        memory = model.encode(batch["source_BS"], batch["source_lengths_B"])
        hidden_BT = batch["targets_BT"] != IGNORED
        logits_NV = model.logits_at(batch["inputs_BT"], batch["lengths_B"], hidden_BT, memory)
        targets_N = batch["targets_BT"][hidden_BT]
        length_BL, length_B = model.length_log_probs(memory), batch["lengths_B"] - 1
        right_N, right_B = logits_NV.argmax(-1) == targets_N, length_BL.argmax(-1) == length_B
        return Sums(
            {MASKED: cross_entropy_sum(logits_NV, targets_N), LENGTH: cross_entropy_sum(length_BL, length_B)},
            {"accuracy": _share(right_N), "length_accuracy": _share(right_B)},
        )

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per hidden token and how many are predicted right; the same of lengths; what the judge says.

        The judge sees this process's share; with several processes the mean of theirs is reported.
        """
        own = np.arange(share.rank, len(self.valid), share.world, dtype=np.int64)
        by_length = own[np.argsort(self.valid.target_lengths[own], kind="stable")]
        parts = (by_length[start : start + self.valid_batch] for start in range(0, len(own), self.valid_batch))
        batches = (self._hidden(self.valid, part, "validation", rows_B=torch.from_numpy(part)) for part in parts)
        numbers = validated(self, model, batches)
        names = {MASKED: "loss", LENGTH: "length_loss"}
        return {names.get(name, name): pair for name, pair in numbers.items()} | _judged(self.judge, own)

    def _hidden(self, pairs: SequencePairs, indices: NDArray[np.int64], *names: str | int, rows_B: Tensor) -> Batch:
        arrays = pairs.gather(indices, ignored=self.mask_token_id)
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        target_BT, lengths_B = batch.pop("target_BT"), batch.pop("target_lengths_B")
        uniforms_3BT = masking_uniforms(self.seed, *names, rows_B=rows_B, length=target_BT.shape[1])
        inputs_BT, targets_BT = hide_uniformly(target_BT, lengths_B, uniforms_3BT[:2], mask_token_id=self.mask_token_id)
        return batch | {"inputs_BT": inputs_BT, "targets_BT": targets_BT, "lengths_B": lengths_B}


def _share(right_N: Tensor) -> tuple[Tensor, Tensor]:
    """How many are right, and of how many."""
    return right_N.sum(), torch.tensor(float(len(right_N)), device=right_N.device)


def _judged(
    judge: Callable[..., Mapping[str, float]], own: NDArray[np.int64], *outputs: Any
) -> dict[str, tuple[float, float]]:
    """What the judge says of the validation pairs `own`, to be averaged over processes by their number."""
    values = judge(own.tolist(), *outputs) if len(own) else {}
    return {name: (value * len(own), float(len(own))) for name, value in values.items()}


Decode = Callable[[LSTMSeq2Seq, Tensor, Tensor, DecodingConfig], list[list[int]]]
# Outputs (ids) of the validation pairs `indices` -> name -> value over them, e.g. {"quality": 0.81}
OutputJudge = Callable[[Sequence[int], Sequence[Sequence[int]]], Mapping[str, float]]


class Seq2SeqTask:
    """A `training.task.Task`."""

    def __init__(
        self,
        network: LSTMSeq2Seq,
        train: SequencePairs,
        valid: SequencePairs,
        *,
        objective: ObjectiveConfig,
        cost: StepCost,
        decoding: DecodingConfig,
        decode: Decode,
        judge: OutputJudge,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        valid_batch: int = 64,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid = network, train, valid
        self.objective, self.cost = objective, cost
        self.decoding, self.decode, self.judge = decoding, decode, judge
        self.seed, self.valid_batch = seed, valid_batch
        self.batches = LengthBatches(train.source_lengths, batch=global_batch, seed=seed)
        self.loss_weights: Mapping[str, float] = {"loss": 1.0}
        if objective.self_normalization:
            self.loss_weights = {"cross_entropy": 1.0, "squared_log_z": objective.self_normalization}
        self.fingerprint = {"objective": objective.model_dump(), "pairs": len(train), **(fingerprint or {})}
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        indices = self.batches.rows(step)[rows.start : rows.stop]
        batch = {name: torch.from_numpy(array) for name, array in self.train.gather(indices, ignored=IGNORED).items()}
        epoch = self._epoch(step)
        rows_B = torch.arange(rows.start, rows.stop)
        batch["keys_B"] = row_keys(derive_seed(self.seed, "scheduled sampling"), torch.tensor(step), rows_B)
        batch["alpha"] = torch.tensor(self.objective.alpha.at(epoch), dtype=torch.float64)
        batch["gold_share"] = torch.tensor(self._gold_share(epoch), dtype=torch.float64)
        return batch

    def _epoch(self, step: int) -> int:
        """As α and the share of gold symbols count it."""
        updates = self.objective.epoch_steps
        return self.batches.epoch(step) if updates is None else (step - 1) // updates

    def _gold_share(self, epoch: int) -> float:
        if self.objective.mixing == "always":
            return 0.0
        return inverse_sigmoid(epoch, strength=self.objective.strength)

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(self.loss_weights, float(batch["target_lengths_B"].sum()))

    def tokens(self, batch: Batch) -> int:
        return int(batch["source_lengths_B"].sum() + batch["target_lengths_B"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        assert isinstance(model, LSTMSeq2Seq)
        objective, target_BT = self.objective, batch["target_BT"]
        gold_BT, mask_BT = target_BT.clamp(min=0), target_BT != IGNORED
        stepper = model.stepper(batch["source_BS"], batch["source_lengths_B"])
        if objective.kind == CROSS_ENTROPY:
            scores_BTV = stepper.all_scores(gold_BT)
            loss = cross_entropy_sum(scores_BTV, target_BT)
            if objective.self_normalization:
                return Sums({"cross_entropy": loss, "squared_log_z": squared_log_z_sum(scores_BTV, mask_BT)})
            return Sums({"loss": loss})
        metrics = {"alpha": (batch["alpha"], torch.ones(()))}
        if objective.kind == SCHEDULED_SAMPLING:
            scores_BTV = scheduled_sampling_scores(
                stepper,
                gold_BT,
                taught(batch["keys_B"], share=float(batch["gold_share"]), length=gold_BT.shape[1]),
                alpha=batch["alpha"] if objective.relaxed else None,
                noise=gumbel_of_rows(batch["keys_B"]) if objective.predictions == "sample" else None,
            )
            metrics["gold_share"] = (batch["gold_share"], torch.ones(()))
            return Sums({"loss": cross_entropy_sum(scores_BTV, target_BT)}, metrics)
        soft = self._soft_beam(stepper, gold_BT, batch, augmented=objective.kind != DIRECT_LOSS)
        if objective.kind == DIRECT_LOSS:
            loss_B = soft_direct_loss(soft.scores_BK, soft.costs_BK, alpha=batch["alpha"])
        else:
            gold_score_B = self._gold_score(stepper.all_scores(gold_BT), gold_BT, mask_BT)
            loss_B = soft_hinge(soft.scores_BK, gold_score_B, alpha=batch["alpha"])
        return Sums({"loss": loss_B.sum()}, metrics)

    def _soft_beam(self, stepper: Stepper, gold_BT: Tensor, batch: Batch, *, augmented: bool) -> SoftBeam:
        return continuous_beam_search(
            stepper,
            beam=self.objective.beam,
            alpha=batch["alpha"],
            lengths_B=batch["target_lengths_B"],
            eos_token_id=self.model.config.eos_token_id,
            locally_normalized=self.objective.normalization == LOCAL,
            costs=lambda t: self.cost(gold_BT[:, t]),
            augmented=augmented,
        )

    def _gold_score(self, scores_BTV: Tensor, gold_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """(B,) the score of the gold sequence, normalised as the search's are."""
        step_BTV = scores_BTV.log_softmax(-1) if self.objective.normalization == LOCAL else scores_BTV
        return (step_BTV.gather(-1, gold_BT[..., None])[..., 0] * mask_BT).sum(-1)

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per gold symbol, the mean log Z, and what the judge says of the decoded outputs.

        F1 and BLEU are of this process's share; with several processes their mean is reported.
        """
        assert isinstance(model, LSTMSeq2Seq)
        device = next(model.parameters()).device
        own = np.arange(share.rank, len(self.valid), share.world, dtype=np.int64)
        own = own[np.argsort(self.valid.source_lengths[own], kind="stable")]
        loss, symbols, moments_3, outputs = 0.0, 0.0, torch.zeros(3, dtype=torch.float64), []
        for start in range(0, len(own), self.valid_batch):
            arrays = self.valid.gather(own[start : start + self.valid_batch], ignored=IGNORED)
            batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
            target_BT = batch["target_BT"]
            scores_BTV = model.scores(batch["source_BS"], batch["source_lengths_B"], target_BT.clamp(min=0))
            loss += float(cross_entropy_sum(scores_BTV, target_BT))
            symbols += float((target_BT != IGNORED).sum())
            moments_3 += log_z_moments(scores_BTV, target_BT != IGNORED).cpu()
            outputs += self.decode(model, batch["source_BS"], batch["source_lengths_B"], self.decoding)
        numbers = {"loss": (loss, symbols), "log_z": (float(moments_3[1]), float(moments_3[0]))}
        return numbers | _judged(self.judge, own, outputs)
