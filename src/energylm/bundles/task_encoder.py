"""An encoder to be fine-tuned, with its tokenizer: any folder or name that leads to a bidirectional network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from energylm.bundles.encoder_folder import load_encoder
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import check_vocabularies, read_manifest
from energylm.data.tokenizer import load_tokenizer
from energylm.energies.pooled import attends_causally
from energylm.errors import ModelError
from energylm.models.contexts import longest_input


@dataclass(frozen=True)
class TaskEncoder:
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path) -> "TaskEncoder":
        """On the CPU, in float32: the training engine moves it."""
        location = locate(path_or_name)
        if isinstance(location, Path) and location.is_file():
            raise ModelError(f"{location} is a file; an encoder is a model folder, a known model or a hub name")
        manifest = read_manifest(location) if isinstance(location, Path) else {}
        network, tokenizer = load_encoder(location, device=torch.device("cpu")), load_tokenizer(location)
        name = manifest.get("name", Path(location).name)
        if attends_causally(network):
            raise ModelError(
                f"{path_or_name} is a causal language model: its tokens see nothing of what follows them; give a "
                "bidirectional encoder, e.g. minilm-l6 or a model of `energylm pretrain`"
            )
        embedding: Any = network.get_input_embeddings()  # a module, to transformers
        check_vocabularies(name, tokenizer=len(tokenizer), network=embedding.weight.shape[0])
        return cls(network, tokenizer, name)

    def tokens_read(self, wanted: int) -> int:
        """`wanted` tokens, or what the network holds if that is less."""
        limit = longest_input(self.network)
        return wanted if limit is None else min(wanted, limit)
