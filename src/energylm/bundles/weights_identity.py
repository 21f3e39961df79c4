"""Which weights a model has, as one hash: what ties negatives and energies to the language model they came from.

A model in one file is named by that file's SHA-256, a model in several by the hash of theirs. Folders made here have
them in `energylm.json`; elsewhere the files are read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import MANIFEST
from energylm.errors import ModelError
from energylm.files import read_json, sha256_of_file, sha256_of_json


def weights_sha256(path_or_name: str | Path) -> str:
    """The hash of a model's weights: a folder, a GGUF file, a known model, or a hub name (fetched if need be)."""
    location = locate(path_or_name)
    if isinstance(location, str):
        location = _fetched(location)
    if location.is_file():
        return sha256_of_file(location)
    if (location / MANIFEST).is_file():
        hashes = read_json(location / MANIFEST)["weights"]
    else:
        hashes = {file.name: sha256_of_file(file) for file in sorted(location.glob("*.safetensors"))}
    if not hashes:
        raise ModelError(f"{location} holds no .safetensors weights; give a model folder")
    return next(iter(hashes.values())) if len(hashes) == 1 else sha256_of_json(hashes)


def weights_hashes(location: Path | str | None, provenance: Mapping[str, Any]) -> frozenset[str]:
    """All hashes under which a loaded model's weights are known: of the place they were read from, of the file that was
    converted to it, and those that a copy kept of its original. None are known of a network from nowhere."""
    kept = {provenance.get("sha256"), *provenance.get("copied_weights", ())} - {None}
    if location is None or (isinstance(location, Path) and not location.exists()):
        return frozenset(kept)
    try:
        return frozenset({weights_sha256(location), *kept})
    except ModelError:  # no safetensors, or a hub that cannot be reached now
        return frozenset(kept)


def model_identity(path_or_name: str | Path) -> str:
    """Of a folder made here its manifest, which names the weights and how texts are read; else the weights alone."""
    location = locate(path_or_name)
    if isinstance(location, Path) and (location / MANIFEST).is_file():
        return sha256_of_file(location / MANIFEST)
    return weights_sha256(path_or_name)


def _fetched(hub_name: str) -> Path:
    try:
        return Path(snapshot_download(hub_name, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:  # of the hub, or of whatever HTTP library it stands on
        reason = " ".join(str(error).split())
        raise ModelError(f"{hub_name!r} cannot be had from the hub ({reason:.160}); give a model folder") from None
