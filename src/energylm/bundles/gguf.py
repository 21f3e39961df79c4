"""A GGUF file (llama.cpp's format, often 4-bit) as an ordinary float32 network and tokenizer.

transformers dequantises it but marks the result as quantised and then refuses to save it; so the weights move into a
network built from the same config without that mark.
"""

import copy
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from energylm.bundles.model_folder import check_finite, quiet_transformers
from energylm.errors import ModelError


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            marked = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except Exception as error:  # the gguf reader raises whatever a damaged header leads it to
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(
            f"{path} cannot be read as a GGUF causal language model ({reason:.200}); download it again, or give a "
            "safetensors folder"
        ) from None
    check_finite(marked, path)
    config = copy.deepcopy(marked.config)
    del config.quantization_config
    network = type(marked)(config)
    network.load_state_dict(marked.state_dict())
    network.generation_config = marked.generation_config
    return network.eval(), cast(PreTrainedTokenizerFast, tokenizer)  # transformers makes a fast one of every GGUF file
