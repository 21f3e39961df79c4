"""What Electric and ELECTRA share in training: batches, which tokens are noise, the noise model's own likelihood.

    L = L_noise / (predicted tokens)  +  contrast_weight · L_contrast / (maskable tokens)

The noise model learns by maximum likelihood alone; what it draws and how likely it finds it enter the contrast as mere
numbers. Positions and draws are functions of (seed, step, row), in validation of (seed, window): neither the cut into
micro-batches nor the number of processes changes them.

Relations  `electric_task` and `electra_task` contrast the tokens; `language_model_task` has the order of windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Unpack, cast

import torch
from torch import Tensor, nn

from energylm.numerics.categorical import draw_categorical
from energylm.objectives.masking import masking_uniforms
from energylm.objectives.noised_tokens import noise_count
from energylm.training.language_model_task import LanguageModelTask, WindowOptions, WindowSource
from energylm.training.task import Batch, Share, Sums

NOISE_LOSS, CONTRAST_LOSS = "noise_loss", "contrast_loss"  # the terms of the loss, and what is validated


@dataclass(frozen=True)
class Judged:
    """What came of one batch: sums () of both losses, and of tokens told right among real and noise ones."""

    noise_loss: Tensor
    noise_predictions: Tensor
    contrast_loss: Tensor
    maskable: Tensor
    real_right: Tensor
    real: Tensor
    noise_right: Tensor
    noise: Tensor


class TokenContrast(Protocol):
    """How a family contrasts text with noise."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a continued run must have the same, JSON-able."""
        ...

    def predictions(self, batch: Batch) -> float:
        """How many tokens the noise model predicts in its own loss."""
        ...

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Judged:
        """Both losses of one batch."""
        ...


class ContrastTask(LanguageModelTask):
    """A `training.task.Task` over `nn.ModuleDict({"noise": …, "main": …})`. `ordinary_V` marks tokens that are text."""

    def __init__(
        self,
        model: nn.ModuleDict,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        contrast: TokenContrast,
        noise_rate: float,
        contrast_weight: float,
        ordinary_V: Tensor,
        fingerprint: Mapping[str, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        facts = {"noise_rate": noise_rate, "contrast_weight": contrast_weight, **contrast.settings}
        super().__init__(model, train_windows, valid_windows, fingerprint=facts | dict(fingerprint or {}), **options)
        self.contrast, self.noise_rate, self.ordinary_V = contrast, noise_rate, ordinary_V
        self.loss_weights = {NOISE_LOSS: 1.0, CONTRAST_LOSS: contrast_weight}

    def batch(self, step: int, rows: range) -> Batch:
        tokens_BT = super().batch(step, rows)["tokens_BT"]
        return self._noised(tokens_BT, "train", step, rows_B=torch.arange(rows.start, rows.stop))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {NOISE_LOSS: self.contrast.predictions(batch), CONTRAST_LOSS: float(batch["maskable_BT"].sum())}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        judged = self.contrast.judge(cast(nn.ModuleDict, model), batch)  # the one it was made with
        return Sums(
            {NOISE_LOSS: judged.noise_loss, CONTRAST_LOSS: judged.contrast_loss},
            {
                "real_accuracy": (judged.real_right, judged.real),
                "noise_accuracy": (judged.noise_right, judged.noise),
            },
        )

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats per token of the noise model; the contrast's loss; parts of real and of noise tokens told right.

        The contrast is against the noise model of the moment, which gets better: its loss may rise while all improves.
        """
        if self.valid_windows is None:
            return {}
        device = next(model.parameters()).device
        totals = torch.zeros(4, 2, dtype=torch.float64)
        for indices in self.validated_batches(share):
            tokens_BT = torch.from_numpy(self.valid_windows.gather(indices))
            batch = self._noised(tokens_BT, "validation", rows_B=torch.from_numpy(indices))
            on_device = {name: value.to(device) for name, value in batch.items()}
            judged = self.contrast.judge(cast(nn.ModuleDict, model), on_device)
            pairs = (
                (judged.noise_loss, judged.noise_predictions),
                (judged.contrast_loss, judged.maskable),
                (judged.real_right, judged.real),
                (judged.noise_right, judged.noise),
            )
            totals += torch.tensor([[float(total), float(count)] for total, count in pairs], dtype=torch.float64)
        names = (NOISE_LOSS, CONTRAST_LOSS, "real_accuracy", "noise_accuracy")
        return {name: (total, count) for name, (total, count) in zip(names, totals.tolist(), strict=True)}

    def _noised(self, tokens_BT: Tensor, *names: str | int, rows_B: Tensor) -> Batch:
        """Tokens, which of them are text, how many are to be noise, and two random numbers a position."""
        uniforms_3BT = masking_uniforms(self.seed, *names, rows_B=rows_B, length=tokens_BT.shape[1])
        maskable_BT = self.ordinary_V[tokens_BT]
        return {
            "tokens_BT": tokens_BT,
            "maskable_BT": maskable_BT,
            "noise_count_B": noise_count(maskable_BT, rate=self.noise_rate),
            "position_uniforms_BT": uniforms_3BT[0],
            "token_uniforms_BT": uniforms_3BT[1],
        }


@torch.no_grad()
def drawn_tokens(logits_MV: Tensor, uniforms_M: Tensor) -> tuple[Tensor, Tensor]:
    """One token (M,) from each row of logits, and its log-probability (M,) float32; no gradient goes this way."""
    if not len(logits_MV):  # a batch of special tokens
        return uniforms_M.long(), uniforms_M.float()
    token_M, log_prob_M = draw_categorical(logits_MV.float(), uniforms_M)
    return token_M, log_prob_M.float()


def told_right(says_noise_BT: Tensor, is_noise_BT: Tensor, maskable_BT: Tensor) -> dict[str, Tensor]:
    """The counts of `Judged`: real tokens called real, noise tokens called noise."""
    real_BT, noise_BT = maskable_BT & ~is_noise_BT, maskable_BT & is_noise_BT
    return {
        "real_right": (real_BT & ~says_noise_BT).sum(),
        "real": real_BT.sum(),
        "noise_right": (noise_BT & says_noise_BT).sum(),
        "noise": noise_BT.sum(),
    }
