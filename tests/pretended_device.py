"""A device that is not there: tensors that say they lie on another device, and refuse those that lie on the CPU.

A `Pretended` tensor holds a real one of the CPU, does its arithmetic with it, and says `device="meta"`, a device type
that torch has on every machine. (Torch's own fake tensors may say "cuda", but a CPU build of torch refuses to move any
there, `.to("cuda")`, and they have no values, on which every draw decides.) Within `pretended_device()` every operation
that meets both kinds is refused as CUDA refuses it: a number without dimensions may come from the CPU, and so may the
indices of a tensor on the device. The values are those of the CPU, so that a whole path can be walked, decisions on
values included, backward passes too, and its result compared.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
MOVES = ("_to_copy", "copy_")  # between devices
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")  # by tensors of the CPU, too


class MixedDevices(RuntimeError):
    pass


class Pretended(Tensor):
    @staticmethod
    def __new__(cls, held: Tensor) -> "Pretended":
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Pretended({self.held!r})"

    def tolist(self) -> Any:  # which torch refuses to subclasses; on a device it copies by itself
        return self.held.tolist()

    def new_tensor(self, values: Any, **options: Any) -> Tensor:
        return Pretended(self.held.new_tensor(values, **options))

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_index(index), value)

    def numpy(self) -> Any:
        raise MixedDevices("a tensor of the device has no numpy(); copy it to the CPU first")

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return _run(operation, args, options or {})


def _index(index: Any) -> Any:
    """Lists and arrays as the tensors that indexing would make of them, unseen by a dispatch mode."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    return torch.as_tensor(index) if isinstance(index, list | np.ndarray) else index


def _run(operation: Any, args: Any, options: dict[str, Any]) -> Any:
    name = operation.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
    if any(tensor.device == DEVICE and not isinstance(tensor, Pretended) for tensor in tensors):
        raise AssertionError(f"{operation}: a tensor was made behind the back of the pretended device; teach it how")
    is_on_device = any(isinstance(tensor, Pretended) for tensor in tensors)
    if is_on_device and name not in MOVES:
        judged = [args[0]] if name in INDEXING else tensors
        if name in INDEXING and len(args) > 2:
            judged.append(args[2])
        for tensor in judged:
            if not isinstance(tensor, Pretended) and tensor.dim() > 0:
                shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in tensors)
                raise MixedDevices(f"{operation}: {shapes}")
    wanted = options.get("device")
    goes_to_device = is_on_device if wanted is None else torch.device(wanted) == DEVICE
    if wanted is not None:
        options = options | {"device": torch.device("cpu")}
    held_args, held_options = tree_map(lambda leaf: leaf.held if isinstance(leaf, Pretended) else leaf, (args, options))
    result = operation(*held_args, **held_options)
    if operation._schema.is_mutable:
        return options["out"] if "out" in options else args[0]
    return (
        tree_map(lambda leaf: Pretended(leaf) if isinstance(leaf, Tensor) else leaf, result)
        if goes_to_device
        else result
    )


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return _run(operation, args, options or {})


def _made_on_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and its kin do not ask a dispatch mode: the tensor is made on the CPU and moved."""

    def made(values: Any, *, device: Any = None, **options: Any) -> Tensor:
        tensor = make(values, **options)
        return tensor if device is None else tensor.to(device)

    return made


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Mixed precision, which torch does not have on this device type, is not asked for. Gradients are, within
    `torch.enable_grad()`: a backward pass is refused tensors of both kinds as a forward pass is."""
    with ExitStack() as stack:
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch(f"torch.{name}", _made_on_cpu(getattr(torch, name))))
        stack.enter_context(patch("torch.autocast", lambda *_, **__: nullcontext()))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_Mode())
        yield DEVICE


def put_on_device(network: nn.Module, *, requires_grad: bool = False) -> None:
    """Parameters and buffers, in place; what is shared stays shared."""
    moved: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in moved:
                held = Pretended(parameter.detach())
                moved[id(parameter)] = nn.Parameter(held, requires_grad=requires_grad and parameter.requires_grad)
                moved[id(moved[id(parameter)])] = moved[id(parameter)]
            setattr(module, name, moved[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, Pretended(buffer))
