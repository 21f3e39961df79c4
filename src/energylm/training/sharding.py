"""Weights, gradients and optimiser state shared out among processes: torch's `fully_shard`, put on and taken off.

    one group a block         gathered when the block runs, let go, gathered again for its backward pass
    one group for the rest    embeddings, heads, small networks: gathered for a whole pass of the loss

The outermost group belongs to the module that computes the loss, so a task may call any part of its model and tie any
weights outside the blocks. Blocks are what transformers will not split over devices (`_no_split_modules`); a network
without such blocks is one group: its processes then share gradients and optimiser state, and see all weights at work.

Gathering is a meeting of all processes, so each must run its blocks equally often. Training does: all processes have
equally many micro-batches. Validation and saving need not: they see the plain model, as it was before.

Relations  `processes` has the other way, DDP; `checkpoint` gathers what it writes, so its files know nothing of shards.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed import broadcast
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from energylm.errors import ConfigError


class Sharding:
    """`fully_shard` on `module`: rank 0's weights as `DTensor`s over all processes. Once in the life of a module."""

    def __init__(self, module: nn.Module, *, device: torch.device, world: int) -> None:
        precisions = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()})
        if len(precisions) > 1:
            raise ConfigError(
                f"the weights have several precisions, {' and '.join(precisions)}, and sharding fsdp takes one; load "
                "the network in float32, or train without sharding"
            )
        self._parts = [_Part(part) for part in module.modules()]
        for parameter in module.parameters():
            broadcast(parameter.detach(), src=0)
        mesh = init_device_mesh(device.type, (world,))
        for group in (*blocks(module), module):
            fully_shard(group, mesh=mesh)
        for part in self._parts:
            part.note_marks()

    @contextmanager
    def taken_off(self) -> Iterator[None]:
        """Inside, the plain model with the weights of now on every process; what happens to them there is forgotten."""
        put_on_again = self.take_off()
        try:
            yield
        finally:
            put_on_again()

    def take_off(self) -> Callable[[], None]:
        """Make it the plain model again, with the weights of now. The way back is returned."""
        whole: dict[nn.Parameter, nn.Parameter] = {}  # sharded -> plain; tied weights stay one
        for part in self._parts:
            for parameter in part.module.parameters(recurse=False):
                if parameter not in whole:
                    whole[parameter] = nn.Parameter(gathered(parameter), requires_grad=parameter.requires_grad)
        ways_back = [part.take_off(whole) for part in self._parts]

        def put_on_again() -> None:
            for way_back in ways_back:
                way_back()

        return put_on_again


class _Part:
    """A module and what `fully_shard` changes of it: class, hooks, marks of torch's own, parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self._kind, self._names = module, type(module), set(vars(module))
        self._hooks = {
            name: value.copy() for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict)
        }

    def note_marks(self) -> None:
        """To be called once it is sharded."""
        self._marks = vars(self.module).keys() - self._names

    def take_off(self, whole: Mapping[nn.Parameter, nn.Parameter]) -> Callable[[], None]:
        module, attributes = self.module, vars(self.module)
        kind, hooks = type(module), {name: attributes[name] for name in self._hooks}
        marks = {name: attributes.pop(name) for name in self._marks}
        sharded = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
        module.__class__ = self._kind
        attributes.update(self._hooks)
        for name, parameter in sharded.items():
            setattr(module, name, whole[parameter])  # an LSTM keeps a list of its weights and watches this

        def put_on_again() -> None:
            module.__class__ = kind
            attributes.update(hooks | marks)
            for name, parameter in sharded.items():
                setattr(module, name, parameter)

        return put_on_again


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that the transformers in `model` repeat."""
    networks = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    kinds = {kind for network in networks for kind in network._no_split_modules or ()}
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return [block for part in lists for block in part if type(block).__name__ in kinds]


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; if it is, a meeting of all processes."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def laid_out(tensor: Tensor, *, like: Tensor) -> Tensor:
    """A whole tensor where `like` is; this process's part of it, if `like` is sharded and of the same shape."""
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
