"""Any encoder under a head for a task: classes or a score of sentences, answers as spans of a context.

    logits          = W · dropout(h_1) + b             `first`: clark2020 app. B (BERT's without its pooler)
    logits          = W · dropout((1/T) Σ_t h_t) + b   `mean`
    log P(s)        = log softmax_t( u · h_t )                                      over the context
    log P(e | s)    = log softmax_t( v · gelu(V [h_t ; h_s]) )                      over the context
    no answer       = w · gelu(W [h_1 ; Σ_s P(s) h_s])                              log-odds

The encoder is a base model of transformers or one of ours; its config travels inside the head's own, so one folder
holds all, and `AutoModelForSequenceClassification` or `AutoModelForQuestionAnswering` load it once `register` has been
called. Start and end of a span are predicted jointly, after XLNet, with a classifier of answerability for SQuAD 2.0
(clark2020 app. B); in training the end is given the gold start.

Use it     `first` with encoders that were pretrained with a [CLS] mark; `mean` with those that were not, whose first
           position has never had to stand for a whole text.
Relations  `training.finetune_task` trains both heads, `bundles.task_models` adds tokenizer and folders.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput

from energylm.models import two_tower
from energylm.models.contexts import takes

HEAD_SPREAD = 0.02  # BERT's, of a head's first weights


class HeadedEncoderConfig(PreTrainedConfig):
    """`encoder` is the encoder's config as a plain dictionary that names its `model_type`; the rest is the head's."""

    model_type = "energylm_headed_encoder"

    encoder: dict[str, Any] | None = None
    pooling: Literal["first", "mean"] = "first"  # of a sentence network
    head_dropout: float = 0.1
    span_width: int = 512  # of a span network's hidden layers


class HeadedEncoder(PreTrainedModel):
    """`states` are what a head reads. A subclass makes its head in `_build_head`."""

    config_class = HeadedEncoderConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    _supports_sdpa = True  # the encoder has attention of its own; what it supports, it says itself

    def __init__(self, config: HeadedEncoderConfig) -> None:
        super().__init__(config)
        self.encoder = _network(config.encoder)
        self.dropout = nn.Dropout(config.head_dropout)
        self._build_head(self.encoder.config.get_text_config().hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, encoder: PreTrainedModel, **settings: Any) -> Self:
        """A new head on an encoder that is taken over with its weights; the head's come from torch's generator."""
        network = cls(HeadedEncoderConfig(encoder=encoder.config.to_dict(), **settings))
        network.encoder = encoder
        return network

    def _build_head(self, width: int) -> None:
        raise NotImplementedError

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def states(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Tensor:
        """(B, T, D) last states of right-padded inputs; token types reach encoders that tell two apart."""
        options: dict[str, Any] = {"attention_mask": attention_mask}
        tells_types = takes(self.encoder, "token_type_ids") and getattr(self.encoder.config, "type_vocab_size", 0) > 1
        if token_type_ids is not None and tells_types:
            options["token_type_ids"] = token_type_ids
        if takes(self.encoder, "use_cache"):
            options["use_cache"] = False
        states_BTD: Tensor = self.encoder(input_ids=input_ids, **options).last_hidden_state
        return states_BTD

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Of the head alone: the encoder starts its own."""
        if isinstance(module, nn.Linear):
            initialization.normal_(module.weight, mean=0.0, std=HEAD_SPREAD)
            initialization.zeros_(module.bias)


def register() -> None:
    """Teach transformers' Auto classes both networks; calling it again changes nothing."""
    AutoConfig.register(HeadedEncoderConfig.model_type, HeadedEncoderConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(HeadedEncoderConfig, SequenceClassifier, exist_ok=True)
    AutoModelForQuestionAnswering.register(HeadedEncoderConfig, SpanPredictor, exist_ok=True)


def _network(config: dict[str, Any] | None) -> PreTrainedModel:
    if config is None:
        raise ValueError("a HeadedEncoderConfig needs the config of its encoder; make the network with `of`")
    two_tower.register()
    settings = dict(config)
    encoder_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    network_class: Any = AutoModel._model_mapping[type(encoder_config)]
    has_pooler = "add_pooling_layer" in inspect.signature(network_class).parameters
    with torch.random.fork_rng(devices=[]):  # its weights are replaced: they must not shift those of the head
        network: PreTrainedModel = (
            network_class(encoder_config, add_pooling_layer=False) if has_pooler else network_class(encoder_config)
        )
    return network


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


@dataclass(frozen=True)
class SpanReading:
    """What one pass over windows gives; ends are scored from it for any starts."""

    states_BTD: Tensor
    allowed_BT: Tensor
    start_log_prob_BT: Tensor  # −∞ outside the context
    no_answer_log_odds_B: Tensor


class SpanPredictor(HeadedEncoder):
    def _build_head(self, width: int) -> None:
        hidden = self.config.span_width
        self.start = nn.Linear(width, 1)
        self.end_hidden = nn.Linear(2 * width, hidden)
        self.end = nn.Linear(hidden, 1)
        self.answerable_hidden = nn.Linear(2 * width, hidden)
        self.answerable = nn.Linear(hidden, 1)

    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> SpanReading:
        """Starts and answerability of right-padded windows; spans lie where `context_mask` (B, T) is true, or anywhere
        in the text where it is not given."""
        states_BTD = self.dropout(self.states(input_ids, attention_mask, token_type_ids))
        given = context_mask if context_mask is not None else attention_mask
        allowed_BT = torch.ones_like(input_ids, dtype=torch.bool) if given is None else given.bool()
        start_BT = self.start(states_BTD)[..., 0].float().masked_fill(~allowed_BT, -torch.inf).log_softmax(-1)
        likely_start_BD = torch.einsum("bt,btd->bd", start_BT.exp().to(states_BTD.dtype), states_BTD)
        summary_B2D = torch.cat([states_BTD[:, 0], likely_start_BD], dim=-1)
        no_answer_B = self.answerable(gelu(self.answerable_hidden(summary_B2D)))[..., 0]
        return SpanReading(states_BTD, allowed_BT, start_BT, no_answer_B.float())

    def end_log_probs(self, reading: SpanReading, starts_BK: Tensor) -> Tensor:
        """(B, K, T) log P(e | s) for K starts of each row; −∞ outside the context. Ends before the start are not
        excluded here: the beam does that."""
        states_BTD = reading.states_BTD
        rows_B1 = torch.arange(len(states_BTD), device=states_BTD.device)[:, None]
        start_BKD = states_BTD[rows_B1, starts_BK]
        # The layer over [h_t ; h_s] is the sum of a part of t and a part of s: neither is computed more than once.
        of_end_WD, of_start_WD = self.end_hidden.weight.chunk(2, dim=1)
        ends_BTW = nn.functional.linear(states_BTD, of_end_WD, self.end_hidden.bias)
        starts_BKW = nn.functional.linear(start_BKD, of_start_WD)
        logits_BKT: Tensor = self.end(gelu(ends_BTW[:, None] + starts_BKW[:, :, None]))[..., 0].float()
        return logits_BKT.masked_fill(~reading.allowed_BT[:, None], -torch.inf).log_softmax(-1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Log-probabilities of starts, and of ends given the likeliest start."""
        reading = self.read(input_ids, attention_mask, token_type_ids, context_mask)
        best_B1 = reading.start_log_prob_BT.argmax(-1, keepdim=True)
        start_BT, end_BT = reading.start_log_prob_BT, self.end_log_probs(reading, best_B1)[:, 0]
        # transformers says FloatTensor
        return QuestionAnsweringModelOutput(start_logits=start_BT, end_logits=end_BT)
