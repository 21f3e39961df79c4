"""RALM: a residual auto-regressive language model, the product of a frozen language model and a trained one.

    log P_RALM(x_t | x_<t) = log P_LM(x_t | x_<t) + log P_φ(x_t | x_<t) − log Σ_v P_LM(v | x_<t) P_φ(v | x_<t)

Deng et al. 2020, eq. 6; the constant that the paper does not write out is a log-sum-exp over the vocabulary, one for
each context. The logits here are the sum of both networks' logits: the softmax that every reader of logits takes is
that constant, and the networks' own normalisers cancel in it. Only φ learns, by exact maximum likelihood. An untrained
φ is nearly uniform, so training starts at the base model.

Use it     as the auto-regressive twin of a residual energy with as many parameters: it differs from the joint model
           with a causal energy in nothing but local normalisation and the way it is trained.
Relations  `decoders` samples from it; `training.language_model_task` trains it like any other language model.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from energylm.errors import VocabularyMismatch
from energylm.models import gated_convolution
from energylm.models.contexts import positions, takes
from energylm.numerics.categorical import widened


class RalmConfig(PreTrainedConfig):
    """The configs of both networks, as plain dictionaries that name their `model_type`."""

    model_type = "energylm_ralm"

    base: dict[str, Any] | None = None
    residual: dict[str, Any] | None = None
    vocab_size: int = 50257
    max_position_embeddings: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class RalmLM(PreTrainedModel):
    config_class = RalmConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True  # each network has attention of its own; what it supports, it says itself

    def __init__(self, config: RalmConfig) -> None:
        super().__init__(config)
        self.base = _network(config.base)
        self.residual = _network(config.residual)
        self.post_init()  # type: ignore[no-untyped-call]
        self.train(self.training)

    @classmethod
    def of(cls, base: PreTrainedModel, residual: PreTrainedModel) -> Self:
        """The product of two networks, which are taken over with their weights."""
        sizes = [network.config.get_text_config().vocab_size for network in (base, residual)]
        if sizes[0] != sizes[1]:
            raise VocabularyMismatch(
                f"the base knows {sizes[0]:,} tokens but the residual {sizes[1]:,}; a product needs one vocabulary"
            )
        lengths = [positions(network) for network in (base, residual)]
        config = RalmConfig(
            base=base.config.to_dict(),
            residual=residual.config.to_dict(),
            vocab_size=sizes[0],
            max_position_embeddings=min((length for length in lengths if length is not None), default=None),
            bos_token_id=base.config.bos_token_id,
            eos_token_id=base.config.eos_token_id,
        )
        with torch.device("meta"):  # the weights of this one are replaced at once
            product = cls(config)
        product.base, product.residual = base, residual
        return product.train(residual.training)

    def train(self, mode: bool = True) -> Self:
        """The base model stays frozen and out of training mode: dropout would change the distribution it stands for."""
        super().train(mode)
        self.base.eval().requires_grad_(False)  # loading from a folder makes all parameters trainable again
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput:
        """Logits (B, T, V), or those of the last `logits_to_keep` positions; the loss where `labels` (shifted here,
        −100 left out) are given."""
        options = {"attention_mask": attention_mask, "position_ids": position_ids, "logits_to_keep": logits_to_keep}
        with torch.no_grad():
            base = _logits(self.base, input_ids, options)
        return gated_convolution.causal_output(base + _logits(self.residual, input_ids, options), labels)

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: both networks initialise themselves."""


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(RalmConfig.model_type, RalmConfig, exist_ok=True)
    AutoModelForCausalLM.register(RalmConfig, RalmLM, exist_ok=True)


def _network(config: dict[str, Any] | None) -> PreTrainedModel:
    if config is None:
        raise ValueError("a RalmConfig needs the configs of both networks; make the model with RalmLM.of")
    gated_convolution.register()  # either factor may be one
    settings = dict(config)
    network_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    network: PreTrainedModel = AutoModelForCausalLM.from_config(network_config)
    return network


def _logits(network: PreTrainedModel, input_ids: Tensor, options: dict[str, Any]) -> Tensor:
    options = {"use_cache": False} | {name: value for name, value in options.items() if value is not None}
    chosen = {name: value for name, value in options.items() if takes(network, name)}
    logits = widened(network(input_ids=input_ids, **chosen).logits)
    return logits[:, -options["logits_to_keep"] :] if options.get("logits_to_keep") else logits
