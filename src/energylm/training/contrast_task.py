"""Training Electric and ELECTRA: text against noise, token by token, beside the noise model that is trained with them.

    L = L_noise / (predicted tokens)  +  contrast_weight · L_contrast / (maskable tokens)

    ElectricContrast  one pass of the towers over the original x  →  log q(· | x_∖t) everywhere, their loss, the draws
      efficient       one pass over the noised x                  →  E at every position       clark2020 algorithm 2
      naive           a pass over x, and one for each of the k noise tokens, alone in the true x         algorithm 1
    ElectraContrast   a detector of replaced tokens; a draw that equals the original counts as original
      masked-lm       chosen tokens are masked, a small masked language model fills them in and learns at these only
      two-tower       towers read the original, draw at chosen positions, learn at all: ELECTRA-TT   clark2020 §2.5, 3.2

The noise model learns by maximum likelihood alone; what it draws and how likely it finds it enter the contrast as mere
numbers. Positions and draws are functions of (seed, step, row), in validation of (seed, window): neither the cut into
micro-batches nor the number of processes changes them.

Relations  `objectives.noised_tokens` has the losses and the choice of positions, `language_model_task` the order of
           windows, `models.cloze_presets` and `models.two_tower` the networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from energylm.models.cloze_presets import DetectorNetwork, Generator, replaced_logits, token_logits
from energylm.numerics.categorical import draw_categorical
from energylm.objectives.cross_entropy import IGNORED, cross_entropy_sum
from energylm.objectives.masking import masking_uniforms
from energylm.objectives.noised_tokens import (
    efficient_nce,
    independent_positions,
    naive_nce,
    noise_count,
    noise_logits,
    replaced_token_loss,
    unique_positions,
)
from energylm.training.language_model_task import LanguageModelTask, WindowOptions, WindowSource
from energylm.training.task import Batch, Sums

NOISE_LOSS, CONTRAST_LOSS = "noise_loss", "contrast_loss"  # the terms of the loss, and what is validated


class TokenContrast(Protocol):
    """How a family contrasts text with noise."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a continued run must have the same, JSON-able."""
        ...

    def predictions(self, batch: Batch) -> float:
        """How many tokens the noise model predicts in its own loss."""
        ...

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Sums:
        """Both losses of one batch, and the shares of real and of noise tokens that are told right."""
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

    def counts(self, batch: Batch) -> dict[str, float]:
        return {NOISE_LOSS: self.contrast.predictions(batch), CONTRAST_LOSS: float(batch["maskable_BT"].sum())}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        """The contrast is against the noise model of the moment, which gets better: its loss may rise while all
        improves."""
        return self.contrast.judge(cast(nn.ModuleDict, model), batch)  # the one it was made with

    def _prepared(self, tokens_BT: Tensor, *names: str | int, rows_B: Tensor) -> Batch:
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


def accuracies(says_noise_BT: Tensor, is_noise_BT: Tensor, maskable_BT: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Real tokens called real and noise tokens called noise, each with how many there are."""
    real_BT, noise_BT = maskable_BT & ~is_noise_BT, maskable_BT & is_noise_BT
    return {
        "real_accuracy": ((real_BT & ~says_noise_BT).sum(), real_BT.sum()),
        "noise_accuracy": ((noise_BT & says_noise_BT).sum(), noise_BT.sum()),
    }


@dataclass(frozen=True)
class ElectraContrast:
    """For `ContrastTask`; `model["main"]` is a detector of `models.cloze_presets`, `model["noise"]` a generator if
    there is a `mask_token_id`, else a `TwoTowerForCloze`."""

    mask_token_id: int | None

    @property
    def settings(self) -> dict[str, Any]:
        return {"mask_token_id": self.mask_token_id}

    def predictions(self, batch: Batch) -> float:
        return float(batch["maskable_BT" if self.mask_token_id is None else "noise_count_B"].sum())

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Sums:
        tokens_BT, maskable_BT = batch["tokens_BT"], batch["maskable_BT"]
        chosen_BT = unique_positions(batch["position_uniforms_BT"], maskable_BT, batch["noise_count_B"])
        if self.mask_token_id is None:
            logits_BTV = model["noise"](tokens_BT).logits
            logits_MV = logits_BTV[chosen_BT]
            noise_loss = cross_entropy_sum(logits_BTV, tokens_BT.masked_fill(~maskable_BT, IGNORED))
        else:
            masked_BT = tokens_BT.masked_fill(chosen_BT, self.mask_token_id)
            # The output layer is most of a small generator's work: it runs at the chosen positions only.
            generator = cast(Generator, model["noise"])
            hidden_MD = generator.base_model(input_ids=masked_BT).last_hidden_state[chosen_BT]
            logits_MV = token_logits(generator, hidden_MD)
            noise_loss = cross_entropy_sum(logits_MV, tokens_BT[chosen_BT])
        noised_BT = tokens_BT.clone()
        noised_BT[chosen_BT], _ = drawn_tokens(logits_MV, batch["token_uniforms_BT"][chosen_BT])
        replaced_logit_BT = replaced_logits(cast(DetectorNetwork, model["main"]), noised_BT)
        loss_B = replaced_token_loss(
            replaced_logit_BT.float(), tokens_BT=tokens_BT, noised_BT=noised_BT, maskable_BT=maskable_BT
        )
        return Sums(
            {NOISE_LOSS: noise_loss, CONTRAST_LOSS: loss_B.sum()},
            accuracies(replaced_logit_BT > 0, noised_BT != tokens_BT, maskable_BT),
        )


@dataclass(frozen=True)
class ElectricContrast:
    """For `ContrastTask`; `model["noise"]` is a `TwoTowerForCloze`, `model["main"]` a `TokenEnergy`."""

    algorithm: Literal["efficient", "naive"] = "efficient"

    @property
    def settings(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm}

    def predictions(self, batch: Batch) -> float:
        return float(batch["maskable_BT"].sum())

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Sums:
        tokens_BT, maskable_BT = batch["tokens_BT"], batch["maskable_BT"]
        logits_BTV = model["noise"](tokens_BT).logits.float()
        nats_R = cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten(), reduction="none")
        log_noise_BT = -nats_R.view_as(tokens_BT)
        contrast = _efficient if self.algorithm == "efficient" else _naive
        contrast_loss, metrics = contrast(model["main"], batch, logits_BTV.detach(), log_noise_BT.detach())
        return Sums({NOISE_LOSS: -log_noise_BT[maskable_BT].sum(), CONTRAST_LOSS: contrast_loss}, metrics)


Contrasted = tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]  # the summed loss (), and the metrics


def _efficient(energy: nn.Module, batch: Batch, logits_BTV: Tensor, log_noise_BT: Tensor) -> Contrasted:
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
    return loss_B.sum(), accuracies(says_noise_BT, is_noise_BT, maskable_BT)


def _naive(energy: nn.Module, batch: Batch, logits_BTV: Tensor, log_noise_BT: Tensor) -> Contrasted:
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
    real_right_BT = maskable_BT & (noise_logits(*real, **counts) <= 0)
    noise_right_BK = used_BK & (noise_logits(*noise, **counts) > 0)
    return loss_B.sum(), {
        "real_accuracy": (real_right_BT.sum(), maskable_BT.sum()),
        "noise_accuracy": (noise_right_BK.sum(), count_B.sum()),
    }
