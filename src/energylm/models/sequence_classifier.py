"""A linear layer on an encoder: classes, or a score, of a sentence or a pair of sentences.

    logits = W · dropout(h_1) + b                   first: clark2020 app. B (BERT's without its pooler)
    logits = W · dropout((1/T) Σ_t h_t) + b         mean

Use it     `first` with encoders that were pretrained with a [CLS] mark; `mean` with those that were not, whose first
           position has never had to stand for a whole text.
"""

from typing import cast

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from energylm.models.headed_encoder import HeadedEncoder, HeadedEncoderConfig, register_config


class SequenceClassifier(HeadedEncoder):
    """`config.num_labels` outputs; one of them for a regression."""

    def _build_head(self, width: int) -> None:
        self.classifier = nn.Linear(width, cast(int, self.config.num_labels))  # transformers' own default is 2

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Logits (B, C) of right-padded inputs."""
        states_BTD = self.states(input_ids, attention_mask, token_type_ids)
        if self.config.pooling == "first":
            pooled_BD = states_BTD[:, 0]
        elif attention_mask is None:
            pooled_BD = states_BTD.mean(1)
        else:
            real_BT = attention_mask.to(states_BTD.dtype)
            pooled_BD = (states_BTD * real_BT[..., None]).sum(1) / real_BT.sum(1, keepdim=True)
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(pooled_BD)))


def register() -> None:
    """Teach transformers' Auto classes this network; calling it again changes nothing."""
    register_config()
    AutoModelForSequenceClassification.register(HeadedEncoderConfig, SequenceClassifier, exist_ok=True)
