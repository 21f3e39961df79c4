"""Training a masked language model on windows of a corpus; every visit of a window masks it anew.

    L = − Σ_{t chosen} log P(x_t | corrupted window)           nats, divided by the number of chosen tokens

What is masked in row r of step s is a pure function of (seed, s, r), in validation of (seed, window): neither the cut
into micro-batches nor the number of processes changes it, and every validation masks alike. The output layer runs over
the chosen positions only, a seventh of the work of running it over all.

Relations  `objectives.masking` is the masking, `language_model_task` the order of windows.
"""

from collections.abc import Mapping
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from energylm.config.pretrain import MaskingConfig
from energylm.models.cloze_presets import MaskedLMNetwork, token_logits
from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.objectives.masking import mask_tokens, masking_uniforms
from energylm.training.language_model_task import LanguageModelTask, WindowOptions, WindowSource
from energylm.training.task import Batch, Share, Sums


class MaskedLMTask(LanguageModelTask):
    """A `training.task.Task` for networks of `models.masked_presets`. `ordinary_V` marks the tokens that are text."""

    def __init__(
        self,
        network: MaskedLMNetwork,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        masking: MaskingConfig,
        mask_token_id: int,
        ordinary_V: Tensor,
        fingerprint: Mapping[str, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        facts = {"masking": masking.model_dump(), **(fingerprint or {})}
        super().__init__(network, train_windows, valid_windows, fingerprint=facts, **options)
        self.masking, self.mask_token_id, self.ordinary_V = masking, mask_token_id, ordinary_V

    def batch(self, step: int, rows: range) -> Batch:
        tokens_BT = super().batch(step, rows)["tokens_BT"]
        return self._masked(tokens_BT, "train", step, rows_B=torch.arange(rows.start, rows.stop))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": count_targets(batch["targets_BT"])}

    def tokens(self, batch: Batch) -> int:
        return batch["inputs_BT"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        loss, correct, count = self._predict(model, batch)
        return Sums({"loss": loss}, {"accuracy": (correct, count)})

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per predicted token, and the part of them whose likeliest prediction is right."""
        if self.valid_windows is None:
            return {}
        device = next(model.parameters()).device
        totals_3 = torch.zeros(3, dtype=torch.float64)
        for indices in self.validated_batches(share):
            tokens_BT = torch.from_numpy(self.valid_windows.gather(indices))
            batch = self._masked(tokens_BT, "validation", rows_B=torch.from_numpy(indices))
            totals_3 += torch.stack(self._predict(model, {k: v.to(device) for k, v in batch.items()})).double().cpu()
        loss, correct, count = totals_3.tolist()
        return {"loss": (loss, count), "accuracy": (correct, count)}

    def _masked(self, tokens_BT: Tensor, *names: str | int, rows_B: Tensor) -> Batch:
        inputs_BT, targets_BT = mask_tokens(
            tokens_BT,
            masking_uniforms(self.seed, *names, rows_B=rows_B, length=tokens_BT.shape[1]),
            ordinary_V=self.ordinary_V,
            mask_token_id=self.mask_token_id,
            **self.masking.model_dump(),
        )
        return {"inputs_BT": inputs_BT, "targets_BT": targets_BT}

    def _predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The summed loss, right predictions and predictions of the chosen positions, each ()."""
        chosen_BT = batch["targets_BT"] != IGNORED
        targets_M = batch["targets_BT"][chosen_BT]
        network = cast(MaskedLMNetwork, model)  # the one it was made with
        hidden_BTD = network.base_model(input_ids=batch["inputs_BT"]).last_hidden_state
        logits_MV = token_logits(network, hidden_BTD[chosen_BT])
        correct = (logits_MV.argmax(-1) == targets_M).sum()
        return cross_entropy_sum(logits_MV, targets_M), correct, chosen_BT.sum()
