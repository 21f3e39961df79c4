"""Training Electric: token energies by noise-contrastive estimation, beside the two-tower noise model.

    one pass of the towers over the original x    →  log q(· | x_∖t) at every position, their likelihood, the draws
    algorithm 2: one pass over the noised x       →  E at every position                       Clark et al. 2020
    algorithm 1: one pass over x, one for each of the k noise tokens, alone in the true x      the reference

Relations  `objectives.noised_tokens` is the loss, `contrast_task` all that ELECTRA shares.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from energylm.objectives.noised_tokens import (
    efficient_nce,
    independent_positions,
    naive_nce,
    noise_logits,
    unique_positions,
)
from energylm.training.contrast_task import Judged, drawn_tokens, told_right
from energylm.training.task import Batch


@dataclass(frozen=True)
class ElectricContrast:
    """For `ContrastTask`; `model["noise"]` is a `TwoTowerForCloze`, `model["main"]` a `TokenEnergy`."""

    algorithm: Literal["efficient", "naive"] = "efficient"

    @property
    def settings(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm}

    def predictions(self, batch: Batch) -> float:
        return float(batch["maskable_BT"].sum())

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Judged:
        tokens_BT, maskable_BT = batch["tokens_BT"], batch["maskable_BT"]
        logits_BTV = model["noise"](tokens_BT).logits.float()
        nats_R = cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten(), reduction="none")
        log_noise_BT = -nats_R.view_as(tokens_BT)
        contrast = _efficient if self.algorithm == "efficient" else _naive
        maskable = maskable_BT.sum()
        return Judged(
            noise_loss=-log_noise_BT[maskable_BT].sum(),
            noise_predictions=maskable,
            maskable=maskable,
            **contrast(model["main"], batch, logits_BTV.detach(), log_noise_BT.detach()),
        )


def _efficient(energy: nn.Module, batch: Batch, logits_BTV: Tensor, log_noise_BT: Tensor) -> dict[str, Tensor]:
    """`log_noise_BT` is log q of the original tokens; where noise is put in, it becomes that of the noise."""
    tokens_BT, maskable_BT, count_B = batch["tokens_BT"], batch["maskable_BT"], batch["noise_count_B"]
    is_noise_BT = unique_positions(batch["position_uniforms_BT"], maskable_BT, count_B)
    drawn_M, drawn_log_noise_M = drawn_tokens(logits_BTV[is_noise_BT], batch["token_uniforms_BT"][is_noise_BT])
    noised_BT = tokens_BT.masked_scatter(is_noise_BT, drawn_M)
    log_noise_BT = log_noise_BT.masked_scatter(is_noise_BT, drawn_log_noise_M)
    energy_BT = energy(noised_BT)
    loss_B = efficient_nce(energy_BT, log_noise_BT, is_noise_BT=is_noise_BT, maskable_BT=maskable_BT)
    counts = {"noise_count_B": count_B, "real_count_B": maskable_BT.sum(-1) - count_B}
    says_noise_BT = noise_logits(energy_BT.detach(), log_noise_BT, **counts) > 0
    return {"contrast_loss": loss_B.sum(), **told_right(says_noise_BT, is_noise_BT, maskable_BT)}


def _naive(energy: nn.Module, batch: Batch, logits_BTV: Tensor, log_noise_BT: Tensor) -> dict[str, Tensor]:
    tokens_BT, maskable_BT, count_B = batch["tokens_BT"], batch["maskable_BT"], batch["noise_count_B"]
    most = max(1, int(count_B.max()))
    position_BK = independent_positions(batch["position_uniforms_BT"][:, :most], maskable_BT)
    logits_BKV = logits_BTV.gather(1, position_BK[..., None].expand(-1, -1, logits_BTV.shape[-1]))
    uniforms_R = batch["token_uniforms_BT"][:, :most].flatten()
    drawn_R, drawn_log_noise_R = drawn_tokens(logits_BKV.flatten(0, 1), uniforms_R)
    drawn_BK = drawn_R.view_as(position_BK)
    replaced_BKT = tokens_BT[:, None, :].repeat(1, most, 1).scatter_(2, position_BK[..., None], drawn_BK[..., None])
    energy_BKT = energy(replaced_BKT.flatten(0, 1)).view_as(replaced_BKT)
    real = (energy(tokens_BT), log_noise_BT)
    noise = (energy_BKT.gather(2, position_BK[..., None])[..., 0], drawn_log_noise_R.view_as(position_BK))
    loss_B = naive_nce(*real, *noise, maskable_BT=maskable_BT, count_B=count_B)
    counts = {"noise_count_B": count_B, "real_count_B": maskable_BT.sum(-1)}
    used_BK = torch.arange(most, device=count_B.device) < count_B[:, None]
    return {
        "contrast_loss": loss_B.sum(),
        "real_right": (maskable_BT & (noise_logits(*real, **counts) <= 0)).sum(),
        "real": maskable_BT.sum(),
        "noise_right": (used_BK & (noise_logits(*noise, **counts) > 0)).sum(),
        "noise": count_B.sum(),
    }
