"""Networks of masked language models, Electric, ELECTRA and two towers, with random weights, by `config.pretrain`.

Masked language models have BERT's form with one token type: RoBERTa's network (post-norm, GELU, tied output) without
RoBERTa's shift of positions by the padding index, so that any tokenizer serves, with a padding token or without.
Encoders, detectors and generators are transformers' own ELECTRA classes of the same form, so that what is saved loads
with `ElectraForPreTraining` and `AutoModel`. Shapes with local attention, which learn within minutes what these take
hours for, are ModernBERT's classes instead: rotary positions, gated feed-forward, every third layer from the first on
over all positions; a detector is then a token classifier with one label. Towers are always BERT's form with causal
attention.

Weights start at BERT's spread of 0.02 from width 768 on, and wider in narrower networks, where 0.02 would leave each
layer so faint a voice that the first hundred steps of a small run are lost.

Noise models have embeddings as wide as the encoder's and share its table (clark2020 app. A). A local generator cannot:
ModernBERT has no projection between embeddings and states, so it has a narrower table of its own.

Relations  `two_tower` is the network of the towers; `presets` has the causal networks; `training.language_model_task`
           and `training.contrast_task` train what is built here.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForTokenClassification,
    ModernBertModel,
    PreTrainedModel,
)

from energylm.config.models import TransformerShape
from energylm.config.pretrain import LocalTransformerShape, masked_preset_shape
from energylm.models.two_tower import TwoTowerConfig, TwoTowerForCloze

BERT_SPREAD, BERT_WIDTH = 0.02, 768
NORM_EPS = 1e-5  # RoBERTa's
MaskedLMNetwork = BertForMaskedLM | ModernBertForMaskedLM | ElectraForMaskedLM
DetectorNetwork = ElectraForPreTraining | ModernBertForTokenClassification
Generator = ElectraForMaskedLM | ModernBertForMaskedLM


class NetworkSizes(TypedDict):
    """What a network must know of the corpus it will read."""

    vocabulary_size: int
    max_length: int
    pad_token_id: int | None


def build_masked_network(
    preset: str, *, overrides: Mapping[str, Any] | None = None, **sizes: Unpack[NetworkSizes]
) -> MaskedLMNetwork:
    """A network of `preset`'s shape with weights from torch's global generator (the training engine seeds it)."""
    shape = masked_preset_shape(preset, overrides)
    if isinstance(shape, LocalTransformerShape):
        return ModernBertForMaskedLM(local_config(shape, **sizes))
    return BertForMaskedLM(BertConfig(**_like_bert(shape, **sizes)))


def _like_bert(shape: TransformerShape, **sizes: Unpack[NetworkSizes]) -> dict[str, Any]:
    """What the configs of BERT and ELECTRA have in common."""
    return {
        "vocab_size": sizes["vocabulary_size"],
        "max_position_embeddings": sizes["max_length"],
        "pad_token_id": sizes["pad_token_id"],
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner_width,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "type_vocab_size": 1,
        "initializer_range": _spread(shape),
        "layer_norm_eps": NORM_EPS,
    }


def local_config(shape: LocalTransformerShape, **sizes: Unpack[NetworkSizes]) -> ModernBertConfig:
    """ModernBERT's form with the sizes of `shape`."""
    without: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    return ModernBertConfig(
        vocab_size=sizes["vocabulary_size"],
        max_position_embeddings=sizes["max_length"],
        pad_token_id=sizes["pad_token_id"],
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner_width,
        local_attention=shape.local_attention,
        embedding_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        mlp_dropout=shape.dropout,
        initializer_range=shape.first_spread,
        **without,
    )


def token_logits(network: MaskedLMNetwork, hidden_MD: Tensor) -> Tensor:
    """(M, V) predictions at M chosen positions, whose hidden states these are."""
    if isinstance(network, ModernBertForMaskedLM):
        logits_MV: Tensor = network.decoder(network.head(hidden_MD))
    elif isinstance(network, ElectraForMaskedLM):
        logits_MV = network.generator_lm_head(network.generator_predictions(hidden_MD))
    else:
        logits_MV = network.cls(hidden_MD)
    return logits_MV


def build_encoder(shape: TransformerShape, **sizes: Unpack[NetworkSizes]) -> ElectraModel | ModernBertModel:
    """A bidirectional encoder with weights from torch's global generator (the training engine seeds it)."""
    if isinstance(shape, LocalTransformerShape):
        return ModernBertModel(local_config(shape, **sizes))
    return ElectraModel(electra_config(shape, **sizes))


def build_detector(shape: TransformerShape, **sizes: Unpack[NetworkSizes]) -> DetectorNetwork:
    """An encoder with a logit of "replaced" for every token: `replaced_logits`."""
    if isinstance(shape, LocalTransformerShape):
        config = local_config(shape, **sizes)
        config.num_labels = 1
        return ModernBertForTokenClassification(config)
    return ElectraForPreTraining(electra_config(shape, **sizes))


def build_generator(shape: TransformerShape, *, embedding_width: int, **sizes: Unpack[NetworkSizes]) -> Generator:
    """A small masked language model."""
    if isinstance(shape, LocalTransformerShape):
        return ModernBertForMaskedLM(local_config(shape, **sizes))
    return ElectraForMaskedLM(electra_config(shape, embedding_width=embedding_width, **sizes))


def replaced_logits(detector: DetectorNetwork, tokens_BT: Tensor, attention_mask_BT: Tensor | None = None) -> Tensor:
    """(B, T) logits that a token was replaced."""
    logits: Tensor = detector(tokens_BT, attention_mask=attention_mask_BT).logits
    return logits[..., 0] if logits.ndim == 3 else logits


def build_two_tower(
    shape: TransformerShape, *, embedding_width: int | None = None, **sizes: Unpack[NetworkSizes]
) -> TwoTowerForCloze:
    """Two towers of `shape` each."""
    return TwoTowerForCloze(
        TwoTowerConfig(
            vocab_size=sizes["vocabulary_size"],
            max_position_embeddings=sizes["max_length"],
            pad_token_id=sizes["pad_token_id"],
            embedding_size=embedding_width or shape.width,
            hidden_size=2 * shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.inner_width,
            dropout=shape.dropout,
            initializer_range=_spread(shape),
            layer_norm_eps=NORM_EPS,
        )
    )


def electra_config(
    shape: TransformerShape, *, embedding_width: int | None = None, **sizes: Unpack[NetworkSizes]
) -> ElectraConfig:
    """For `ElectraModel`, `ElectraForPreTraining` (the detector) and `ElectraForMaskedLM` (the generator)."""
    return ElectraConfig(embedding_size=embedding_width or shape.width, **_like_bert(shape, **sizes))


def share_token_embeddings(main: PreTrainedModel, noise: PreTrainedModel) -> None:
    """Let both read, and `noise` write, with one table of token embeddings, if they are equally wide.

    It is the noise model's, whose spread fits its learnt positions; the encoder of a local shape normalises it at once.
    """
    if noise.get_input_embeddings().weight.shape == main.get_input_embeddings().weight.shape:
        main.set_input_embeddings(noise.get_input_embeddings())


def _spread(shape: TransformerShape) -> float:
    spread: float = BERT_SPREAD * max(1.0, BERT_WIDTH / shape.width) ** 0.5
    return spread
