"""Any encoder under a head for a task: what the sentence and the span networks share.

The encoder is a base model of transformers or one of ours; its config travels inside the head's own, so one folder
holds all, and `AutoModelForSequenceClassification` or `AutoModelForQuestionAnswering` load it once the head's
`register` has been called.

Relations  `sequence_classifier` and `span_predictor` are the heads; `bundles.sentence_model` and `bundles.span_model`
           add tokenizer and folders.
"""

import inspect
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, initialization

from energylm.models import two_tower

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
        known = inspect.signature(self.encoder.forward).parameters
        options: dict[str, Any] = {"attention_mask": attention_mask}
        if token_type_ids is not None and "token_type_ids" in known:
            if getattr(self.encoder.config, "type_vocab_size", 0) > 1:
                options["token_type_ids"] = token_type_ids
        if "use_cache" in known:
            options["use_cache"] = False
        states_BTD: Tensor = self.encoder(input_ids=input_ids, **options).last_hidden_state
        return states_BTD

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Of the head alone: the encoder starts its own."""
        if isinstance(module, nn.Linear):
            initialization.normal_(module.weight, mean=0.0, std=HEAD_SPREAD)
            initialization.zeros_(module.bias)


def register_config() -> None:
    AutoConfig.register(HeadedEncoderConfig.model_type, HeadedEncoderConfig, exist_ok=True)


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
