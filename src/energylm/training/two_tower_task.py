"""Training a two-tower cloze model by maximum likelihood: every token of a window from all the others, in one pass.

    L = − Σ_t log q(x_t | x_∖t)           nats, divided by the number of tokens that are text

Relations  `models.two_tower` is the network; `masked_lm_task` predicts a seventh of the tokens in a pass.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from energylm.models.two_tower import TwoTowerForCloze
from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.training.language_model_task import LanguageModelTask, WindowOptions, WindowSource
from energylm.training.task import Batch, Share, Sums


class TwoTowerTask(LanguageModelTask):
    """A `training.task.Task`. `ordinary_V` marks the tokens that are text: only these are predicted."""

    def __init__(
        self,
        network: TwoTowerForCloze,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        ordinary_V: Tensor,
        fingerprint: Mapping[str, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(network, train_windows, valid_windows, fingerprint=fingerprint, **options)
        self.ordinary_V = ordinary_V

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": count_targets(self._targets(batch["tokens_BT"]))}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        loss, correct, count = self._predict(model, batch["tokens_BT"])
        return Sums({"loss": loss}, {"accuracy": (correct, count)})

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per token, and the part of them whose likeliest prediction is right."""
        if self.valid_windows is None:
            return {}
        device = next(model.parameters()).device
        totals_3 = torch.zeros(3, dtype=torch.float64)
        for indices in self.validated_batches(share):
            tokens_BT = self._read(self.valid_windows, indices).to(device)
            totals_3 += torch.stack(self._predict(model, tokens_BT)).double().cpu()
        loss, correct, count = totals_3.tolist()
        return {"loss": (loss, count), "accuracy": (correct, count)}

    def _targets(self, tokens_BT: Tensor) -> Tensor:
        return tokens_BT.masked_fill(~self.ordinary_V.to(tokens_BT.device)[tokens_BT], IGNORED)

    def _predict(self, model: nn.Module, tokens_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The summed loss, right predictions and predictions, each ()."""
        targets_BT = self._targets(tokens_BT)
        logits_BTV = model(tokens_BT).logits
        correct = (logits_BTV.detach().argmax(-1) == targets_BT).sum()
        return cross_entropy_sum(logits_BTV, targets_BT), correct, (targets_BT != IGNORED).sum()
