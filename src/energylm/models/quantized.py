"""Eight-bit linear layers for networks that only read (`dtype="int8"`): weights once, activations as they come.

    W ≈ diag(s) Q     s_o = max_i |W_oi| / 127     a scale for every output
    x ≈ t q           t = max_i |x_i| / 127        a scale for every row of the input
    y = t (q Qᵀ) ∘ s + b                           the product is of whole numbers, hence exact

Rounding moves each of Q and q by half a step at most, so |y_o − (W x + b)_o| ≤ t s_o Σ_i (|Q_oi| + |q_i| + ½) / 2.
Embeddings, norms, attention and layers of fewer than 16 outputs (heads, where a small error is all of the score) stay
as they are. Two to five times the speed of float32 where the processor multiplies bytes (AVX-512 VNNI), perhaps less
than float32's where it does not; a quarter of the memory of the layers.

Use it     for frozen encoders and scoring language models on a CPU; never for training, gradients or saving.
Relations  `bundles.devices.move` turns `dtype="int8"` into `quantize`; `Agreement` says what it cost.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from energylm.errors import ModelError
from energylm.estimators.task_metrics import spearman_correlation
from energylm.records import Record

STEPS = 127  # of a sign
LEAST_OUTPUTS = 16
_CURE = "load the model again without dtype int8"


class Int8Linear(nn.Module):
    """y = x Wᵀ + b with W and x rounded to eight bits."""

    rounded_IO: Tensor
    scale_O: Tensor

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_OI.shape
        scale_O = scales(weight_OI)
        self.register_buffer("rounded_IO", rounded(weight_OI, scale_O).T.contiguous())
        self.register_buffer("scale_O", scale_O)
        self.bias = None if bias_O is None else nn.Parameter(bias_O.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """(O, I): the rounded weights, for whoever asks for them."""
        return self.rounded_IO.T * self.scale_O[:, None]

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError(f"a network in int8 has no gradients; {_CURE}")
        x_RI = x.reshape(-1, self.in_features)
        scale_R = scales(x_RI)
        product_RO = torch._int_mm(rounded(x_RI, scale_R), self.rounded_IO)
        y_RO = product_RO.to(x.dtype).mul_(scale_R[:, None]).mul_(self.scale_O)
        y_RO = y_RO if self.bias is None else y_RO.add_(self.bias)
        return y_RO.view(*x.shape[:-1], self.out_features)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise ModelError(f"a network in int8 is not saved, it would lose precision for good; {_CURE} and save that")


def scales(x_RI: Tensor) -> Tensor:
    """(R,) so that a row's largest value is 127 steps; 1 for a row of zeros."""
    largest_R = x_RI.detach().abs().amax(-1)
    return torch.where(largest_R > 0, largest_R / STEPS, torch.ones_like(largest_R))


def rounded(x_RI: Tensor, scale_R: Tensor) -> Tensor:
    return (x_RI.detach() / scale_R[:, None]).round_().to(torch.int8)


def quantize(network: nn.Module) -> int:
    """Round the linear layers of a network in its place; how many. The old ones are kept until `forget_float32`."""
    device = next(network.parameters()).device
    if device.type != "cpu":
        raise ModelError(f"int8 is for CPUs, and the network is on {device}; leave dtype out, or give device cpu")
    replaced: dict[str, nn.Module] = {}
    for name, layer in list(network.named_modules()):
        if name and isinstance(layer, nn.Linear | Conv1D):
            weight_OI = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
            if len(weight_OI) >= LEAST_OUTPUTS:
                replaced[name] = layer
                network.set_submodule(name, Int8Linear(weight_OI, layer.bias))
    if not replaced and not is_quantized(network):
        raise ModelError("the network has no linear layer to read in int8; leave dtype out")
    network.__dict__.setdefault("float32_layers", {}).update(replaced)  # a plain attribute: no submodules
    return len(replaced)


def is_quantized(network: nn.Module) -> bool:
    return any(isinstance(layer, Int8Linear) for layer in network.modules())


@contextmanager
def in_float32(networks: Sequence[nn.Module]) -> Iterator[None]:
    """The networks as they were before `quantize`, for a while."""
    eight_bits = [
        {name: network.get_submodule(name) for name in network.__dict__.get("float32_layers", {})}
        for network in networks
    ]
    try:
        for network in networks:
            for name, layer in network.__dict__.get("float32_layers", {}).items():
                network.set_submodule(name, layer)
        yield
    finally:
        for network, layers in zip(networks, eight_bits, strict=True):
            for name, layer in layers.items():
                network.set_submodule(name, layer)


def has_float32(networks: Sequence[nn.Module]) -> bool:
    """Whether the cost of int8 can still be measured."""
    return any(network.__dict__.get("float32_layers") for network in networks)


def forget_float32(networks: Sequence[nn.Module]) -> None:
    """Give the memory of the old layers back."""
    for network in networks:
        network.__dict__.pop("float32_layers", None)


@dataclass(frozen=True)
class Agreement(Record):
    """Of scores in int8 with those in float32, on the same texts."""

    texts: int
    rank_correlation: float  # Spearman's
    largest_difference: float
    spread: float  # standard deviation of the float32 scores, to hold the difference against

    def summary(self) -> str:
        return (
            f"int8 against float32 on {self.texts} texts: rank correlation {self.rank_correlation:.4f}, largest "
            f"difference {self.largest_difference:.3g} where scores spread by {self.spread:.3g}"
        )


def agreement(networks: Sequence[nn.Module], score: Callable[[], Sequence[float]]) -> Agreement:
    """What int8 costs: `score` is called with the networks in both."""
    eight_bits = np.asarray(score(), dtype=np.float64)
    with in_float32(networks):
        whole = np.asarray(score(), dtype=np.float64)
    correlation = spearman_correlation(whole, eight_bits) / 100
    difference = float(np.abs(eight_bits - whole).max())
    return Agreement(len(whole), float(correlation), difference, float(whole.std()))
