"""An encoder made elsewhere as the start of cloze models: its weights, token embeddings and tokens under a new head.

    masked network    the encoder under an output layer (its own, where the folder has one)       `pretrain mlm`
    encoder           as it is; `energies.electric.TokenEnergy` puts a head on it                 `pretrain electric`
    detector          the encoder under a logit a token                                `pretrain electra`, `electra-tt`

BERT's encoder has ELECTRA's form to the letter, so a detector takes its weights under ELECTRA's classes, and what is
saved loads like any other. Towers and generators have other shapes than the start: they take its table of token
embeddings alone, which is most of what a small network has to learn of a large vocabulary.

Relations  `models.cloze_presets` builds the same networks from random weights.
"""

import shlex
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    BertModel,
    ElectraConfig,
    ElectraForPreTraining,
    ModernBertForTokenClassification,
    PreTrainedModel,
)

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import load_config, load_encoder, quiet_transformers, weights_sha256
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.errors import ConfigError, ModelError, VocabularyMismatch
from energylm.models.cloze_presets import DetectorNetwork, MaskedLMNetwork

FORMS = ("bert", "electra", "modernbert")  # whose output layers and detectors transformers has


class EncoderStart:
    """`EncoderStart("minilm-l6")`; no weights are read before a network is asked for."""

    def __init__(self, name: str, dropout: float | None = None) -> None:
        """`dropout` in place of the encoder's own."""
        self.name, self.dropout, self.location = name, dropout, locate(name)
        self.config = load_config(self.location, what="an encoder")
        if self.config.is_encoder_decoder or getattr(self.config, "is_decoder", False):
            raise ModelError(f"{name} is a {self.config.model_type} that reads one way; give a bidirectional encoder")
        for key in () if dropout is None else vars(self.config):
            if key.endswith(("dropout", "dropout_prob")) and isinstance(getattr(self.config, key), float):
                setattr(self.config, key, dropout)

    @property
    def sizes(self) -> dict[str, int]:
        """For `PretrainConfig.shaped`."""
        return {
            "layers": self.config.num_hidden_layers,
            "width": self.config.hidden_size,
            "heads": self.config.num_attention_heads,
            "inner_width": self.config.intermediate_size,
        }

    @property
    def vocabulary_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def max_length(self) -> int:
        return int(self.config.max_position_embeddings)

    @property
    def identity(self) -> str:
        """What a continued run must have the same."""
        return weights_sha256(self.location)

    def check(self, tokenizer_hash: str, corpus: str, *, window: int) -> None:
        """Whether the corpus holds its tokens, in windows that it can read."""
        if tokenizer_sha256(load_tokenizer(self.location)) != tokenizer_hash:
            raise VocabularyMismatch(
                f"{self.name} reads other tokens than {corpus} holds; build the corpus with "
                f"--tokenizer {shlex.quote(self.name)}"
            )
        if window > self.max_length:
            raise ConfigError(f"{self.name} holds {self.max_length:,} tokens, not {window:,}; set a shorter window")

    def encoder(self) -> PreTrainedModel:
        return self._with_dropout(load_encoder(self.location, device="cpu"))

    def masked_network(self) -> MaskedLMNetwork:
        """Under its own output layer if its folder has one, else under one from torch's global generator."""
        self._check_form("an output layer over the vocabulary")
        with quiet_transformers():
            network: MaskedLMNetwork = AutoModelForMaskedLM.from_pretrained(
                self.location, config=self.config, dtype=torch.float32, use_safetensors=True
            )
        return network

    def detector(self) -> DetectorNetwork:
        """Its head from torch's global generator."""
        self._check_form("a detector of replaced tokens")
        if self.config.model_type == "modernbert":
            self.config.num_labels = 1
            with quiet_transformers():
                local: ModernBertForTokenClassification = ModernBertForTokenClassification.from_pretrained(
                    self.location, config=self.config, dtype=torch.float32, use_safetensors=True
                )
            return local
        encoder = self.encoder()
        config: Any = encoder.config
        if isinstance(encoder, BertModel):
            plain = {key: value for key, value in config.to_dict().items() if key not in _OF_BERT}
            config = ElectraConfig(embedding_size=config.hidden_size, **plain)
        detector = ElectraForPreTraining(config)
        detector.electra.load_state_dict(encoder.state_dict())
        return detector

    def _check_form(self, what: str) -> None:
        if self.config.model_type not in FORMS:
            raise ModelError(
                f"{self.name} is a {self.config.model_type} encoder, for which there is no {what.partition(' ')[2]}; "
                f"give one of {', '.join(FORMS)}, or pretrain electric, which takes any"
            )

    def _with_dropout(self, network: PreTrainedModel) -> PreTrainedModel:
        for module in network.modules():
            if isinstance(module, nn.Dropout) and self.dropout is not None:
                module.p = self.dropout
        return network


_OF_BERT = ("model_type", "architectures", "transformers_version", "_name_or_path", "is_decoder", "add_cross_attention")


@torch.no_grad()
def copy_token_embeddings(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """The values of one table of token embeddings into another of the same size; a narrower one stays as it is."""
    table, new = source.get_input_embeddings().weight, target.get_input_embeddings().weight
    assert isinstance(table, Tensor) and isinstance(new, Tensor)
    if table.shape == new.shape:
        new.copy_(table)
