"""Checkpoints: tensors as safetensors, everything else as JSON, a SHA-256 for each file. Nothing unpickles.

    checkpoints/step-00000500/    model.safetensors  optimizer.safetensors  state.json  manifest.json
    checkpoints/best-00000400/    model.safetensors                         state.json  manifest.json

A folder appears whole or not at all. The newest one is verified before it is used: a flipped byte would load without a
murmur, so it is an error that names the file and the way on.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from energylm.errors import CheckpointError, DataError
from energylm.files import atomic_folder, read_json, sha256_of_file, write_json
from energylm.training.sharding import gathered, laid_out

FOLDER, STEP, BEST = "checkpoints", "step", "best"
_MODEL, _OPTIMIZER, _STATE, _MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]  # empty for the best weights
    state: dict[str, Any]


def write_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    state: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    with atomic_folder(path) as folder:
        save_file(distinct_tensors(model), folder / _MODEL)
        if optimizer is not None:
            save_file(optimizer_tensors(model, optimizer), folder / _OPTIMIZER)
        write_json(folder / _STATE, state)
        hashes = {file.name: sha256_of_file(file) for file in sorted(folder.iterdir())}
        write_json(folder / _MANIFEST, {"sha256": hashes})


def take_part(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What the other processes do while one writes the checkpoint of a sharded run: bring their parts of it."""
    for tensor in (*_distinct(model).values(), *_optimizer_state(model, optimizer).values()):
        gathered(tensor)


def newest_checkpoint(run_folder: Path) -> Path | None:
    """The folder of the newest checkpoint of a run, or None."""
    return max((run_folder / FOLDER).glob(f"{STEP}-*"), default=None)


def checkpoint_path(run_folder: Path, kind: str, step: int) -> Path:
    return run_folder / FOLDER / f"{kind}-{step:08}"


def read_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint after comparing every file with its SHA-256."""
    cure = f"delete {path} to continue from the previous checkpoint"
    try:
        hashes = read_json(path / _MANIFEST)["sha256"]
        for name, expected in hashes.items():
            if sha256_of_file(path / name) != expected:
                raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the recorded one; {cure}")
        return Checkpoint(
            path=path,
            model=load_file(path / _MODEL),
            optimizer=load_file(path / _OPTIMIZER) if _OPTIMIZER in hashes else {},
            state=read_json(path / _STATE),
        )
    except (DataError, OSError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} or a file it names is damaged ({error}); {cure}") from None


def refuse_another_run(recorded: Mapping[str, Any], current: Mapping[str, Any], *, folder: Path) -> None:
    """A run continues only under the configuration it began with; otherwise name the keys that differ."""
    before, now = _flat(recorded), _flat(current)
    differing = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if differing:
        shown = ", ".join(f"{key} (was {before.get(key)!r}, now {now.get(key)!r})" for key in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise CheckpointError(
            f"{folder} holds a run with other settings: {shown}{more}; repeat them, or choose another output folder"
        )


def prune_checkpoints(run_folder: Path, *, keep: int, best_step: int) -> None:
    """Keep the newest `keep` checkpoints, and the best weights that one of them or the run itself refers to."""
    checkpoints = sorted((run_folder / FOLDER).glob(f"{STEP}-*"))
    for path in checkpoints[:-keep]:
        shutil.rmtree(path)
    needed = {best_step} | {read_json(path / _STATE)["early_stopping"]["best_step"] for path in checkpoints[-keep:]}
    for path in (run_folder / FOLDER).glob(f"{BEST}-*"):
        if int(path.name.rpartition("-")[2]) not in needed:
            shutil.rmtree(path)


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left half-written. Call it only while holding the lock of the run."""
    for path in (run_folder / FOLDER).glob(".*"):
        shutil.rmtree(path)


def distinct_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's state with each tied tensor once, under its first name (safetensors stores no aliases)."""
    return {name: _whole(tensor) for name, tensor in _distinct(model).items()}


def load_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    own = _distinct(model)
    if differing := sorted(own.keys() ^ checkpoint.model.keys()):
        raise CheckpointError(
            f"{checkpoint.path} was written by another network: tensor {differing[0]!r} is in only one of the two; "
            "choose another output folder"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(checkpoint.model[name])


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name: `exp_avg/transformer.wte.weight`, … (not by position in a group)."""
    return {name: _whole(tensor) for name, tensor in _optimizer_state(model, optimizer).items()}


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    parameters = dict(model.named_parameters())
    for entry, tensor in checkpoint.optimizer.items():
        key, _, name = entry.partition("/")
        optimizer.state[parameters[name]][key] = laid_out(tensor, like=parameters[name])


def _distinct(model: nn.Module) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            result[name] = tensor.detach()
    return result


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def _whole(tensor: Tensor) -> Tensor:
    """As it goes into a file. What lies in shards is brought together tensor by tensor, in the host's memory."""
    return gathered(tensor).cpu().contiguous()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }
