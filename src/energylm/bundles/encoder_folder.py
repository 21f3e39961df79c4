"""An encoder out of a model folder or the hub: the network below any output layer, in float32 and evaluation mode.

That a language model's output layer is left out goes without saying; that a classifier's trained one is, is said.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from energylm.bundles.model_folder import check_files, check_finite, quiet_transformers
from energylm.energies import encoder_bodies
from energylm.errors import ModelError
from energylm.models import two_tower
from energylm.progress import say

_CLASSIFIER = re.compile(r"For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$")


def load_encoder(location: Path | str, *, device: torch.device) -> PreTrainedModel:
    """The base model of a language model, a masked model or an encoder; anything less is an error that says why."""
    encoder_bodies.register()
    two_tower.register()
    if isinstance(location, Path):
        check_files(location)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(location)
            encoder, loading = AutoModel.from_pretrained(
                location,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                **_without_pooler(config),
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:  # for names, files and shapes
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{str(location)!r} cannot be loaded as an encoder with safetensors weights ({reason:.200}); "
            "give a model folder, a known model (`energylm models list`) or a hub name"
        ) from None
    if config.is_encoder_decoder:
        raise ModelError(f"{str(location)!r} is an encoder-decoder ({config.model_type}); give a model of one stack")
    if loading["missing_keys"]:
        raise ModelError(f"{str(location)!r} lacks {min(loading['missing_keys'])}, so it is no whole encoder")
    check_finite(encoder, location)
    if any(map(_CLASSIFIER.search, config.architectures or ())) and loading["unexpected_keys"]:
        say(
            f"energylm: {location} is a {config.architectures[0]}; its trained output layer "
            f"({', '.join(sorted(loading['unexpected_keys']))}) is left out, and a new one with random weights takes "
            "its place: train it before you use it"
        )
    ready: PreTrainedModel = encoder.to(device).eval()
    return ready


def _without_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """BERT's relatives carry a layer over the first token that no energy uses; distributed training stops at that."""
    network_class: Any = AutoModel._model_mapping.get(type(config), None)
    has_pooler = network_class is not None and "add_pooling_layer" in inspect.signature(network_class).parameters
    return {"add_pooling_layer": False} if has_pooler else {}
