"""What networks cost to run, counted from their sizes: matrix products, memory traffic, launched operations, room.

    seconds  ≈  flops / matrix-multiply rate  +  bytes / memory bandwidth  +  operations · the time of a small one

`compute` counts products only, to compare families at equal compute; small networks are not bound by these. So here the
element-wise work is counted as bytes that pass through memory, and what is too small for either as operations. The
constants below say how much of each a layer does; how fast a kind of work really is, relative to a machine's rates, is
measured (`verbs/recipes/plan_factors.json`).

Relations  the `cost` of each verb turns its options into such work; `verbs.recipes.plan_cost` turns it into time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from energylm.config.energy_shapes import ENERGY_PRESETS, BiLSTMShape, energy_preset_shape
from energylm.config.models import PRESETS, ConvolutionShape, Shape, TransformerShape, preset_shape
from energylm.config.pretrain import LocalTransformerShape, masked_preset_shape
from energylm.models.compute import TRAINING_FACTOR, encoder_flops

FLOAT = 4  # bytes
LAYER_FLOATS = 40  # a token's element-wise reads and writes in a layer, for each unit of width (norms, GELU, residuals)
ATTENTION_FLOATS = 4  # the same for each head and key
LOGIT_FLOATS = 4  # the same for each token of the vocabulary where the output layer runs
LAYER_OPERATIONS, PASS_OPERATIONS = 30, 80  # launched by a layer, and around the layers of a pass
KEPT_FLOATS, KEPT_ATTENTION, KEPT_LOGITS = 17, 2.5, 3  # of the above, kept for the backward pass
ADAM_FLOATS = 4  # weights, gradients, two averages


@dataclass(frozen=True)
class Work:
    flops: float = 0.0
    bytes: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Self) -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.operations + other.operations)

    def __mul__(self, times: float) -> "Work":
        return Work(self.flops * times, self.bytes * times, self.operations * times)


@dataclass(frozen=True)
class Network:
    """The sizes that cost depends on. `inner_width` is the feed-forward's, or a convolution's embedding; `read_only` is
    a frozen network that is read beside this one (the base of a RALM)."""

    kind: Literal["causal", "bidirectional", "convolution", "bilstm", "linear"]
    layers: int
    width: int
    heads: int
    inner_width: int
    vocabulary_size: int
    gated: bool = False  # three matrices in the feed-forward
    kernel: int = 1
    read_only: "Network | None" = None

    @classmethod
    def of_shape(cls, shape: Shape, *, vocabulary_size: int, bidirectional: bool = False) -> "Network":
        if isinstance(shape, ConvolutionShape):
            sizes = (shape.layers, shape.width, 1, shape.embedding_width, vocabulary_size)
            return cls("convolution", *sizes, kernel=shape.kernel)
        sizes = (shape.layers, shape.width, shape.heads, shape.inner_width, vocabulary_size)
        return cls(
            "bidirectional" if bidirectional else "causal", *sizes, gated=isinstance(shape, LocalTransformerShape)
        )

    @classmethod
    def of_preset(cls, preset: str, overrides: Mapping[str, Any], *, vocabulary_size: int) -> "Network":
        """A preset of a language model, an energy or a masked model."""
        if preset in PRESETS:
            return cls.of_shape(preset_shape(preset, overrides), vocabulary_size=vocabulary_size)
        if preset in ENERGY_PRESETS:
            shape = energy_preset_shape(preset, overrides)
            if isinstance(shape, BiLSTMShape):
                return cls("bilstm", shape.layers, shape.width, 1, shape.embedding_width, vocabulary_size)
            return cls("linear", 0, 1, 1, 0, vocabulary_size)
        encoder = masked_preset_shape(preset, overrides)
        return cls.of_shape(encoder, vocabulary_size=vocabulary_size, bidirectional=True)

    @property
    def parameters(self) -> int:
        """About: positions, biases and norms are left out."""
        width, inner, vocabulary = self.width, self.inner_width, self.vocabulary_size
        if self.kind == "linear":
            return vocabulary
        if self.kind == "convolution":
            return vocabulary * inner + 2 * inner * width + self.layers * 2 * self.kernel * width**2
        if self.kind == "bilstm":
            inputs = [inner] + [2 * width] * (self.layers - 1)
            return vocabulary * inner + sum(8 * width * (given + width) for given in inputs)
        return vocabulary * width + self.layers * (4 * width**2 + (3 if self.gated else 2) * width * inner)

    def widened(self, parameters: int) -> "Network":
        """The same network at the width that gives it about so many parameters (a BALM)."""
        ratio, found = self.inner_width / self.width, self
        while found.parameters < parameters:
            width = found.width + self.heads
            found = replace(found, width=width, inner_width=round(ratio * width))
        return found

    def token_flops(self, length: int) -> float:
        """Of a forward pass, output layer left out."""
        width, inner = self.width, self.inner_width
        if self.kind == "linear":
            return 0.0
        if self.kind == "convolution":
            return 2 * (2 * inner * width + self.layers * 2 * self.kernel * width**2)
        if self.kind == "bilstm":
            return 2 * (self.parameters - self.vocabulary_size * inner)
        form = LocalTransformerShape if self.gated else TransformerShape
        shape = form(layers=self.layers, width=width, heads=1, feedforward_width=inner)
        return encoder_flops(shape, length=length)


def reading(network: Network, *, rows: float, length: float, predicted: float = 0.0, passes: float = 1.0) -> Work:
    """One forward pass over rows · length tokens in `passes` micro-batches, with the output layer at `predicted` of the
    tokens."""
    tokens = rows * length
    has_attention = network.kind in ("causal", "bidirectional")
    layer = LAYER_FLOATS * network.width + (ATTENTION_FLOATS * network.heads * length if has_attention else 0)
    floats = tokens * network.layers * layer + predicted * LOGIT_FLOATS * network.vocabulary_size
    flops = tokens * network.token_flops(int(length)) + predicted * 2 * _output_width(network) * network.vocabulary_size
    in_a_layer = length if network.kind == "bilstm" else LAYER_OPERATIONS  # an LSTM reads token after token
    return Work(flops, FLOAT * floats, passes * (network.layers * in_a_layer + PASS_OPERATIONS))


def updating(network: Network, *, rows: float, length: float, predicted: float = 0.0, passes: float = 1.0) -> Work:
    """One update on as many tokens: forward, backward, optimiser."""
    work = reading(network, rows=rows, length=length, predicted=predicted, passes=passes) * TRAINING_FACTOR
    work += Work(bytes=2 * FLOAT * ADAM_FLOATS * network.parameters)
    if network.read_only is not None:
        work += reading(network.read_only, rows=rows, length=length, predicted=predicted, passes=passes)
    return work


def drawing(network: Network, *, contexts: float, copies: float, given: float, new: float, rows: float) -> Work:
    """`copies` continuations of `new` tokens for each of `contexts` contexts of `given` tokens, `rows` at a time; keys
    and values of a context are kept once."""
    passes = max(1.0, contexts * copies / rows)
    tokens = contexts * copies * new
    work = reading(network, rows=contexts, length=max(given, 1), predicted=contexts, passes=passes)
    step = reading(network, rows=tokens, length=1, predicted=tokens, passes=passes * new)
    has_attention = network.kind in ("causal", "bidirectional")
    keys = tokens * network.layers * 2 * network.width * (new / 2 + given / copies) if has_attention else 0.0
    attention = tokens * network.layers * 4 * network.width * (given + new / 2) if has_attention else 0.0
    return work + step + Work(flops=attention, bytes=FLOAT * keys)


def resident_bytes(network: Network, *, tokens: float, length: float, predicted: float, learns: bool) -> float:
    """Weights, and of a micro-batch of `tokens` what has to stay in memory."""
    weights = FLOAT * network.parameters * (ADAM_FLOATS if learns else 1)
    layers = network.layers if learns else 1  # without a backward pass a layer's room is used again
    kept = tokens * layers * (KEPT_FLOATS * network.width + KEPT_ATTENTION * network.heads * length)
    beside = 0.0 if network.read_only is None else FLOAT * network.read_only.parameters
    return weights + FLOAT * (kept + KEPT_LOGITS * predicted * network.vocabulary_size) + beside


def _output_width(network: Network) -> int:
    return network.inner_width if network.kind == "convolution" else network.width
