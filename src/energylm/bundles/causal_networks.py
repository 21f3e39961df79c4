"""Causal networks from folders, the hub, GGUF files, or somebody's memory, before they are language models of ours.

A network in memory is one of transformers, or a PEFT model around one: its adapters lie inside the layers of its base
model, which is read as it is, so that what is trained further shows at once. Adapters that are no layers (learned
prompts) are refused, because the base model alone would leave them out in silence.

Relations  `language_model` is made of these; `energy_model` takes networks in memory by `live_network`, too.
"""

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from energylm.bundles.devices import INT8, DType, move, usable_dtype
from energylm.bundles.model_folder import check_finite, load_config, load_network, quiet_transformers
from energylm.errors import ModelError, extra
from energylm.models import gated_convolution, ralm
from energylm.models.causal import CausalLanguageModel
from energylm.randomness import seeded


def load_causal(location: Path | str, *, device: torch.device, dtype: DType) -> PreTrainedModel:
    """A causal network in evaluation mode from a folder or from the hub."""
    gated_convolution.register()
    ralm.register()
    wanted, what = usable_dtype(None if dtype in INT8 else dtype, device) or "auto", "a causal language model"
    config = load_config(location, what=what)
    masked = set(config.architectures or ()) & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())
    if masked:
        raise ModelError(
            f"{str(location)!r} is a masked model ({', '.join(masked)}), so it is no causal language model; give "
            "another model"
        )
    network: PreTrainedModel
    network, _ = load_network(AutoModelForCausalLM, location, what=what, device=device, dtype=wanted, config=config)
    if dtype in INT8:
        move(network, device, dtype)
    return network


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A GGUF file (llama.cpp's format, often 4-bit) as an ordinary float32 network. transformers dequantises it but
    marks the result as quantised and then refuses to save it; so the weights move into a network without that mark."""
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
    config = deepcopy(marked.config)
    del config.quantization_config
    network = type(marked)(config)
    network.load_state_dict(marked.state_dict())
    network.generation_config = marked.generation_config
    return network.eval(), cast(PreTrainedTokenizerFast, tokenizer)  # transformers makes a fast one of every GGUF file


def boundary_tokens(tokenizer: PreTrainedTokenizerFast, network: PreTrainedModel) -> tuple[int | None, int | None]:
    """The tokens that start and end a sequence. Where no start is named, a sequence starts after the end of another."""
    config = network.config.get_text_config()
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else getattr(config, "eos_token_id", None)
    eos = eos[0] if isinstance(eos, list) else eos
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else getattr(config, "bos_token_id", None)
    return (eos if start is None else start), eos


def as_causal(model: Any, tokenizer: PreTrainedTokenizerFast) -> CausalLanguageModel:
    """A causal model of ours as it is; a network in memory with the boundary tokens of its tokenizer."""
    if isinstance(model, CausalLanguageModel):
        return model
    network = live_network(model)
    if not network.can_generate():
        raise ModelError(
            f"a {type(network).__name__} came, which has no output layer to write tokens with; give a causal language "
            "model (AutoModelForCausalLM)"
        )
    start, eos = boundary_tokens(tokenizer, network)
    return CausalLanguageModel(network, start_token_id=start, eos_token_id=eos)


def live_network(model: Any) -> PreTrainedModel:
    """The network of transformers in what a person holds: itself, or the one inside a PEFT model."""
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, dict) and hasattr(model, "get_base_model"):
        learned = [name for name, adapter in adapters.items() if getattr(adapter, "is_prompt_learning", False)]
        if learned:
            raise ModelError(
                f"the adapter {learned[0]!r} is a learned prompt, which its base model does not hold; give one that "
                "changes layers (LoRA and its kin)"
            )
        model = model.get_base_model()
    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"a {type(model).__name__} came as a network; give a PreTrainedModel of transformers, a PEFT model around "
            "one, or a folder or name to from_pretrained"
        )
    return model


def refuse_adapters(network: nn.Module) -> None:
    """A folder holds plain weights; saved with adapters inside, nothing could load it again."""
    if any(hasattr(module, "base_layer") for module in network.modules()):
        raise ModelError(
            "the network has adapters in its layers, which a model folder cannot hold; merge them first: "
            "model.merge_and_unload(), and wrap the result"
        )


def with_adapters(network: PreTrainedModel, rank: int | None, *, seed: int) -> PreTrainedModel:
    """The network with low-rank adapters in all its layers, which alone learn; as it is without a rank."""
    if rank is None:
        return network
    with extra("adapters"):
        from peft import LoraConfig, get_peft_model
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with seeded(seed, "adapters"), warnings.catch_warnings(action="ignore"):  # GPT-2's layers lie otherwise: it sees
        return cast(PreTrainedModel, get_peft_model(network, config))


def without_adapters(network: nn.Module) -> PreTrainedModel:
    """What `with_adapters` gave, with what its adapters learnt in the weights."""
    merged = network if isinstance(network, PreTrainedModel) else cast(Any, network).merge_and_unload()
    assert isinstance(merged, PreTrainedModel)
    return merged
