"""Training ELECTRA: a detector of replaced tokens, beside the noise model that replaces them.

    masked-lm    the chosen tokens are masked, a small masked language model fills them in; it learns at these only
    two-tower    two towers read the original, draw at the chosen positions, learn at every position: ELECTRA-TT

A draw that equals the original counts as original. Clark et al. 2020 (ELECTRA); clark2020 §2.5, 3.2.

Relations  `objectives.noised_tokens` is the loss, `contrast_task` all that Electric shares.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from energylm.models.cloze_presets import DetectorNetwork, Generator, replaced_logits, token_logits
from energylm.objectives.cross_entropy import IGNORED, cross_entropy_sum
from energylm.objectives.noised_tokens import replaced_token_loss, unique_positions
from energylm.training.contrast_task import Judged, drawn_tokens, told_right
from energylm.training.task import Batch


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

    def judge(self, model: nn.ModuleDict, batch: Batch) -> Judged:
        tokens_BT, maskable_BT = batch["tokens_BT"], batch["maskable_BT"]
        chosen_BT = unique_positions(batch["position_uniforms_BT"], maskable_BT, batch["noise_count_B"])
        if self.mask_token_id is None:
            logits_BTV = model["noise"](tokens_BT).logits
            logits_MV, predicted_BT = logits_BTV[chosen_BT], maskable_BT
            noise_loss = cross_entropy_sum(logits_BTV, tokens_BT.masked_fill(~maskable_BT, IGNORED))
        else:
            masked_BT = tokens_BT.masked_fill(chosen_BT, self.mask_token_id)
            # The output layer is most of a small generator's work: it runs at the chosen positions only.
            generator = cast(Generator, model["noise"])
            hidden_MD = generator.base_model(input_ids=masked_BT).last_hidden_state[chosen_BT]
            logits_MV, predicted_BT = token_logits(generator, hidden_MD), chosen_BT
            noise_loss = cross_entropy_sum(logits_MV, tokens_BT[chosen_BT])
        noised_BT = tokens_BT.clone()
        noised_BT[chosen_BT], _ = drawn_tokens(logits_MV, batch["token_uniforms_BT"][chosen_BT])
        replaced_logit_BT = replaced_logits(cast(DetectorNetwork, model["main"]), noised_BT)
        loss_B = replaced_token_loss(
            replaced_logit_BT.float(), tokens_BT=tokens_BT, noised_BT=noised_BT, maskable_BT=maskable_BT
        )
        return Judged(
            noise_loss=noise_loss,
            noise_predictions=predicted_BT.sum(),
            contrast_loss=loss_B.sum(),
            maskable=maskable_BT.sum(),
            **told_right(replaced_logit_BT > 0, noised_BT != tokens_BT, maskable_BT),
        )
