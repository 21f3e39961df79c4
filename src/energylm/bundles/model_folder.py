"""A model folder: what transformers' `save_pretrained` writes, and `energylm.json` beside it.

The manifest holds what transformers does not know (direction, start token, provenance) and a SHA-256 of every weight
file: a flipped byte in safetensors would otherwise load in silence. Folders made elsewhere have none and go unchecked.

Which weights a model has is one hash, which ties negatives and energies to the language model they came from. A model
in one file is named by that file's SHA-256, a model in several by the hash of theirs.
"""

import inspect
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from energylm import __version__
from energylm.bundles import hub
from energylm.bundles.devices import Device, usable_device
from energylm.bundles.known_models import is_energy_source, locate, locate_energy
from energylm.data.manifest import MANIFEST_FILE as CORPUS_MANIFEST
from energylm.energies import encoder_bodies
from energylm.errors import ModelError, VocabularyMismatch
from energylm.files import atomic_folder, read_json, sha256_of_file, sha256_of_json, write_json
from energylm.models import two_tower
from energylm.progress import say

MANIFEST = hub.MANIFEST
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
HEAD_FILE = "head.safetensors"  # a layer of ours over a network of transformers
WORDS_FILE = "words.safetensors"  # and one below it: word classes
WEIGHTS_FILE = "weights.json"  # of a model of so few numbers that people can read them
_CLASSIFIER = re.compile(r"For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$")
ROUNDING_ROWS = 0.1  # embeddings are often rounded up to a round number of rows, never by this fraction of them


@contextmanager
def new_model_folder(folder: Path | str) -> Iterator[Path]:
    """`files.atomic_folder` that replaces nothing but an older model of ours."""
    folder = Path(folder).expanduser()
    if folder.exists() and not (folder / MANIFEST).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ModelError(f"{folder} exists and is not a model folder of energylm; choose another folder, or remove it")
    with atomic_folder(folder) as temporary:
        yield temporary


class Saved(Protocol):
    def save_pretrained(self, folder: Path) -> None: ...


def save_model(
    folder: Path | str,
    network: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    kind: str,
    facts: Mapping[str, Any],
    provenance: Mapping[str, Any],
    head: nn.Module | None = None,
    words: nn.Module | None = None,
    parts: Mapping[str, Saved] | None = None,
) -> None:
    """Write what transformers' Auto classes read, our layers over and below it, the models it is made of (each a folder
    inside), and the manifest; the folder appears whole or not at all."""
    with new_model_folder(folder) as temporary:
        with quiet_transformers():
            if network is not None:
                network.save_pretrained(temporary)
            if tokenizer is not None:
                tokenizer.save_pretrained(temporary)
        for layer, file in ((head, HEAD_FILE), (words, WORDS_FILE)):
            if layer is not None:
                save_file(layer.state_dict(), temporary / file)
        for name, part in (parts or {}).items():
            part.save_pretrained(temporary / name)
        write_manifest(temporary, kind=kind, facts=facts, provenance=provenance)


def write_manifest(folder: Path, *, kind: str, facts: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Describe the weights that lie in `folder`."""
    made = {"made_by": f"energylm {__version__}", **provenance}
    write_json(folder / MANIFEST, {"kind": kind, **facts, "provenance": made, "weights": _file_hashes(folder)})


def _file_hashes(folder: Path) -> dict[str, str]:
    files = [*sorted(folder.glob("*.safetensors")), *folder.glob(WEIGHTS_FILE)]
    return {file.name: sha256_of_file(file) for file in files}


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


def open_folder(path_or_name: str | Path, kinds: Collection[str], problem: str) -> tuple[Path, dict[str, Any]]:
    """The folder of a model made here, of one of these kinds, and its manifest. What else a path or name leads to is
    refused with the `problem`, in which {kind} stands for what it is."""
    location = locate(path_or_name)
    manifest = read_manifest(location) if isinstance(location, Path) else {}
    if isinstance(location, Path) and location.is_dir() and not manifest:
        check_files(location)
    if not isinstance(location, Path) or manifest.get("kind") not in kinds:
        raise ModelError(f"{path_or_name} {problem.format(kind=manifest.get('kind', 'unknown'))}")
    return location, manifest


def load_network(
    loader: Any,
    location: Path | str,
    *,
    what: str,
    device: Device,
    dtype: torch.dtype | str = torch.float32,
    **options: Any,
) -> tuple[Any, list[str]]:
    """A whole network in evaluation mode, by a class of transformers; and the weights in its files that it does not
    take. `what` it is to be, in messages: anything less is an error that says why."""
    if isinstance(location, Path):
        check_files(location)
    try:
        with quiet_transformers():
            network, loading = loader.from_pretrained(
                location, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:  # for names, files and shapes
        raise _unloadable(location, what, error) from None
    if loading["missing_keys"]:
        raise ModelError(
            f"{str(location)!r} lacks {min(loading['missing_keys'])}, so it is no {what.partition(' ')[2]}; give one "
            "that was saved with its output layer, or make it again"
        )
    check_finite(network, location)
    return network.to(usable_device(device)).eval(), sorted(loading["unexpected_keys"])


def load_config(location: Path | str, *, what: str) -> PreTrainedConfig:
    """What transformers knows of a folder or hub name without its weights."""
    if isinstance(location, Path):
        check_files(location)
    try:
        with quiet_transformers():
            config: PreTrainedConfig = AutoConfig.from_pretrained(location)
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(location, what, error) from None
    return config


def _unloadable(location: Path | str, what: str, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(
        f"{str(location)!r} cannot be loaded as {what} with safetensors weights ({reason:.200}); give a model folder, "
        "a known model (`energylm models list`) or a hub name"
    )


def load_encoder(location: Path | str, *, device: Device, with_words: bool = False) -> PreTrainedModel:
    """The base model of a language model, a masked model or an encoder, in float32. That a language model's output
    layer is left out goes without saying; that a classifier's trained one is, is said, and that word classes are,
    unless the caller sees to them (`with_words`)."""
    encoder_bodies.register()
    two_tower.register()
    config = load_config(location, what="an encoder")
    if config.is_encoder_decoder:
        raise ModelError(f"{str(location)!r} is an encoder-decoder ({config.model_type}); give a model of one stack")
    network_class: Any = AutoModel._model_mapping.get(type(config), None)
    # BERT's relatives carry a layer over the first token that no energy uses; distributed training stops at that.
    has_pooler = network_class is not None and "add_pooling_layer" in inspect.signature(network_class).parameters
    without_pooler: dict[str, Any] = {"add_pooling_layer": False} if has_pooler else {}
    encoder: PreTrainedModel
    encoder, unused = load_network(
        AutoModel, location, what="an encoder", device=device, config=config, **without_pooler
    )
    if not with_words and isinstance(location, Path) and (location / WORDS_FILE).is_file():
        say(f"energylm: {location} reads how common words are; that is left out here, so train it before you use it")
    if any(map(_CLASSIFIER.search, config.architectures or ())) and unused:
        say(
            f"energylm: {location} is a {(config.architectures or [''])[0]}; its trained output layer "
            f"({', '.join(unused)}) is left out, and a new one with random weights takes its place: train it before "
            "you use it"
        )
    return encoder


def load_head(head: nn.Module, folder: Path) -> None:
    """Our layer over a network, as `save_model` wrote it."""
    head.load_state_dict(load_file(folder / HEAD_FILE))
    check_finite(head, folder / HEAD_FILE)


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


def weights_sha256(path_or_name: str | Path) -> str:
    """The hash of a model's weights: a folder, a GGUF file, a known model, or a hub name (fetched if need be)."""
    location = locate(path_or_name)
    if isinstance(location, str):
        location = hub.fetched(location, patterns=["*.safetensors", "*.json"])
    if location.is_file():
        return sha256_of_file(location)
    has_manifest = (location / MANIFEST).is_file()
    if not (hashes := read_json(location / MANIFEST)["weights"] if has_manifest else _file_hashes(location)):
        raise ModelError(f"{location} holds no .safetensors weights; give a model folder")
    return next(iter(hashes.values())) if len(hashes) == 1 else sha256_of_json(hashes)


def weights_hashes(location: Path | str | None, provenance: Mapping[str, Any]) -> frozenset[str]:
    """All hashes under which a loaded model's weights are known: of where they were read from, of the file that was
    converted to it, and those that a copy kept of its original. None are known of a network from nowhere."""
    kept = {provenance.get("sha256"), *provenance.get("copied_weights", ())} - {None}
    if location is None or (isinstance(location, Path) and not location.exists()):
        return frozenset(kept)
    try:
        return frozenset({weights_sha256(location), *kept})
    except ModelError:  # no safetensors, or a hub that cannot be reached now
        return frozenset(kept)


def model_identity(path_or_name: str | Path) -> str:
    """Of a folder made here its manifest, which names the weights and how texts are read; of an energy that is named
    by KIND:TEXT its name, and what lies in the file, or the corpus, of that name; else the weights alone."""
    location = locate_energy(path_or_name)
    if isinstance(location, str) and is_energy_source(location):
        text = Path(location.partition(":")[2])
        content = next((file for file in (text, text / CORPUS_MANIFEST) if file.is_file()), None)
        return sha256_of_json(location if content is None else [location, sha256_of_file(content)])
    if isinstance(location, Path) and (location / MANIFEST).is_file():
        return sha256_of_file(location / MANIFEST)
    return weights_sha256(path_or_name)
