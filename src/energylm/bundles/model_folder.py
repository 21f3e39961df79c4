"""A model folder: what transformers' `save_pretrained` writes, and `energylm.json` beside it.

The manifest holds what transformers does not know (direction, start token, provenance) and a SHA-256 of every weight
file: a flipped byte in safetensors would otherwise load in silence. Folders made elsewhere have none and go unchecked.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from energylm import __version__
from energylm.errors import ModelError, VocabularyMismatch
from energylm.files import atomic_folder, read_json, sha256_of_file, write_json
from energylm.models import gated_convolution, ralm

MANIFEST = "energylm.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
ROUNDING_ROWS = 0.1  # embeddings are often rounded up to a round number of rows, never by this fraction of them


@contextmanager
def new_model_folder(folder: Path | str) -> Iterator[Path]:
    """`files.atomic_folder` that replaces nothing but an older model of ours."""
    folder = Path(folder).expanduser()
    if folder.exists() and not (folder / MANIFEST).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ModelError(f"{folder} exists and is not a model folder of energylm; choose another folder, or remove it")
    with atomic_folder(folder) as temporary:
        yield temporary


def write_manifest(folder: Path, *, kind: str, facts: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Describe the weights that lie in `folder`."""
    weights = {file.name: sha256_of_file(file) for file in sorted(folder.glob("*.safetensors"))}
    made = {"made_by": f"energylm {__version__}"}
    write_json(folder / MANIFEST, {"kind": kind, **facts, "provenance": made | dict(provenance), "weights": weights})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, once every weight file has been compared with it; empty for a folder made elsewhere."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    for name, expected in manifest["weights"].items():
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name} is missing; copy or make the model again")
        if sha256_of_file(folder / name) != expected:
            raise ModelError(f"{folder / name} is damaged (its SHA-256 is not the one in {MANIFEST}); make it again")
    return manifest


def load_network(location: Path | str, *, device: torch.device, dtype: torch.dtype | str | None) -> PreTrainedModel:
    """A causal network in evaluation mode from a folder or from the hub; anything less is an error that says why."""
    gated_convolution.register()
    ralm.register()
    wanted = _dtype(dtype, device)
    if isinstance(location, Path):
        check_files(location)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(location)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                location,
                config=config,
                dtype=wanted or "auto",
                use_safetensors=True,
                output_loading_info=True,
            )
            network, loading = loaded  # a pair because of output_loading_info, which transformers' types do not know
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:  # for names, files and shapes
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{str(location)!r} cannot be loaded as a causal language model with safetensors weights ({reason:.200}); "
            "give a model folder, a known model (`energylm models list`) or a hub name"
        ) from None
    masked = set(config.architectures or ()) & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())
    if loading["missing_keys"] or masked:
        why = f"is a masked model ({', '.join(masked)})" if masked else f"lacks {min(loading['missing_keys'])}"
        raise ModelError(f"{str(location)!r} {why}, so it is no causal language model; give another model")
    check_finite(network, location)
    ready: PreTrainedModel = network.to(device).eval()
    return ready


def check_finite(network: nn.Module, location: Path | str) -> None:
    """Refuse weights that hold NaN or infinity: every number that comes of them would be NaN, too."""
    for name, weight in network.named_parameters():
        if weight.detach().sum().isfinite():  # a sum tells in one pass; of large weights it may overflow by itself
            continue
        if bad := int((~weight.isfinite()).sum()):
            raise ModelError(
                f"{_file_of(name, location)}: {bad:,} of the {weight.numel():,} numbers in {name} are NaN or infinite, "
                "so its training diverged or the file is damaged; make the model again, or give another"
            )


def _file_of(name: str, location: Path | str) -> Path | str:
    """The weight file in `location` that holds a network's tensor `name`; files may leave a prefix out or add one, so
    the one that has most of the name."""
    shared: dict[Path | str, int] = {location: 0}
    for file in sorted(location.glob("*.safetensors")) if isinstance(location, Path) else ():
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():
                if f".{key}".endswith(f".{name}") or f".{name}".endswith(f".{key}"):
                    shared[file] = max(shared.get(file, 0), min(len(key), len(name)))
    return max(shared, key=lambda file: shared[file])


def _dtype(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype | None:
    """The dtype that was asked for, by itself or by its name; None, where nothing was, on all but a CPU."""
    named = getattr(torch, dtype.removeprefix("torch."), dtype) if isinstance(dtype, str) else dtype
    if named is None:
        return torch.float32 if device.type == "cpu" else None
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        raise ModelError(f"dtype {dtype!r} is no type of weights; give e.g. 'float32' or 'bfloat16', or leave it out")
    if device.type == "cpu" and named not in (torch.float32, torch.float64):
        # A hundred times slower than float32, and an illegal instruction on some machines.
        raise ModelError(f"{named} came for a CPU, which needs torch.float32; leave dtype out, or use a GPU")
    return named


def boundary_tokens(tokenizer: PreTrainedTokenizerFast, network: PreTrainedModel) -> tuple[int | None, int | None]:
    """The tokens that start and end a sequence. Where no start is named, a sequence starts after the end of another."""
    config = network.config.get_text_config()
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else getattr(config, "eos_token_id", None)
    eos = eos[0] if isinstance(eos, list) else eos
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else getattr(config, "bos_token_id", None)
    return (eos if start is None else start), eos


def check_vocabularies(name: str, *, tokenizer: int, network: int) -> None:
    """The network must know every id of its tokenizer; it may have some more rows, as rounding up leaves them."""
    if tokenizer > network or network - tokenizer > ROUNDING_ROWS * network:
        raise VocabularyMismatch(
            f"{name}: the tokenizer has {tokenizer:,} tokens but the network knows {network:,}; "
            "put the tokenizer that the network was trained with into the folder"
        )


def check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        if (folder / "checkpoints").is_dir():
            raise ModelError(
                f"{folder} is a training run without a model: it is not finished; run the same command again"
            )
        raise ModelError(
            f"{folder} holds no config.json, so it is no model folder; give one that save_pretrained wrote"
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):  # transformers would make up an empty one
        raise ModelError(f"{folder} holds no tokenizer (tokenizer.json); put the network's own tokenizer into it")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder} holds no .safetensors weights; load it with transformers and save_pretrained it again"
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and no advice from transformers while it loads: what is wrong, we say ourselves."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
