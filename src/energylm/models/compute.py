"""Counted compute: what networks cost to train and to run, from their sizes alone.

    forward of a token through a layer  =  2·(4 D² + 2 D F) + 4 T D          products with weights; Q·Kᵀ and A·V
                                           3 D F with a gated feed-forward (local attention's form)
    softmax at a predicted token        =  2·(H E + E V)                     states of width H, embeddings of width E
    training                            =  3 · forward                       the backward pass costs two of them

`training_flops_per_token` counts matrix products only, so that families are compared at equal compute: a multiply-add
as two operations; causal and local attention like full attention; embeddings, norms and element-wise work are free. The
output layer counts where it runs: at the masked tokens of a masked language model, at *every* token of a two-tower or
causal model. Clark et al. 2020 leave that out of their rule of thumb (two quarter-size towers cost about what one
third-size generator does); it weighs the more, the smaller the network.

    seconds  ≈  flops / matrix-multiply rate  +  bytes / memory bandwidth  +  operations · the time of a small one

`Work` is for time: small networks are not bound by products. Element-wise work is counted as bytes that pass through
memory, and what is too small for either as operations. The constants below say how much of each a layer does; how fast
a kind of work really is, relative to a machine's rates, is measured (`verbs/recipes/plan_factors.json`).

Relations  `config.pretrain` has the shapes; `verbs.cloze.pretraining` turns a budget into steps; `verbs.verb.Verb.cost`
           turns the options of a verb into work, `verbs.recipes.plan_cost` that into time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from energylm.config.models import (
    ENERGY_PRESETS,
    PRESETS,
    BiLSTMShape,
    ConvolutionShape,
    Shape,
    TransformerShape,
    energy_preset_shape,
    preset_shape,
)
from energylm.config.pretrain import (
    TWO_TOWER,
    LanguageModelSettings,
    LocalTransformerShape,
    PretrainConfig,
    PretrainContrastiveConfig,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
    masked_preset_shape,
    tower_shape,
)
from energylm.errors import ConfigError

TRAINING_FACTOR = 3


def encoder_flops(shape: TransformerShape, *, length: int, embedding_width: int | None = None) -> float:
    """Forward operations of one token of a sequence of `length` tokens; embeddings of another width are projected."""
    width, matrices = shape.width, 3 if isinstance(shape, LocalTransformerShape) else 2
    layer = 2 * (4 * width**2 + matrices * width * shape.inner_width) + 4 * length * width
    projection = 0 if embedding_width is None or embedding_width == width else 2 * embedding_width * width
    return shape.layers * layer + projection


def softmax_flops(*, states_width: int, embedding_width: int, vocabulary_size: int) -> float:
    """Forward operations of one predicted token."""
    return 2 * (states_width * embedding_width + embedding_width * vocabulary_size)


def two_tower_flops(shape: TransformerShape, *, length: int, embedding_width: int, vocabulary_size: int) -> float:
    """Forward operations of one token; each tower reads one position more, the edge."""
    towers = 2 * encoder_flops(shape, length=length + 1, embedding_width=embedding_width) * (length + 1) / length
    softmax = softmax_flops(
        states_width=2 * shape.width, embedding_width=embedding_width, vocabulary_size=vocabulary_size
    )
    return towers + softmax


def causal_flops(shape: TransformerShape, *, length: int, vocabulary_size: int) -> float:
    """Forward operations of one token of a causal language model, whose output layer is the embedding alone."""
    return encoder_flops(shape, length=length) + 2 * shape.width * vocabulary_size


def training_flops_per_token(
    config: PretrainConfig | LanguageModelSettings, *, vocabulary_size: int
) -> dict[str, float]:
    """Operations of one token of a training window by part: "main", and "noise" where there is a noise model."""
    if isinstance(config, LanguageModelSettings):
        causal: Shape = preset_shape(config.preset, config.network)
        if config.kind != "lm" or not isinstance(causal, TransformerShape):
            raise ConfigError(
                f"compute is counted for transformers of kind lm, came kind {config.kind}, preset {config.preset}"
            )
        forward = causal_flops(causal, length=config.window, vocabulary_size=vocabulary_size)
        return {"main": TRAINING_FACTOR * forward}
    shape = masked_preset_shape(config.preset, config.network)
    window, main = config.window, encoder_flops(shape, length=config.window)
    parts: dict[str, float] = {}
    if isinstance(config, PretrainMLMConfig):
        predicted = softmax_flops(
            states_width=shape.width, embedding_width=shape.width, vocabulary_size=vocabulary_size
        )
        parts = {"main": main + config.masking.rate * predicted}
    elif isinstance(config, PretrainTwoTowerConfig):
        tower = tower_shape(shape, config.size)
        parts = {
            "main": two_tower_flops(tower, length=window, embedding_width=tower.width, vocabulary_size=vocabulary_size)
        }
    elif isinstance(config, PretrainElectricConfig):
        passes = 1 if config.algorithm == "efficient" else 1 + config.noise_rate * window
        parts = {"main": passes * (main + 2 * shape.width), "noise": _noise_flops(config, shape, vocabulary_size)}
    elif isinstance(config, PretrainElectraConfig):
        head = 2 * shape.width**2 + 2 * shape.width
        parts = {"main": main + head, "noise": _noise_flops(config, shape, vocabulary_size)}
    return {name: TRAINING_FACTOR * forward for name, forward in parts.items()}


def training_flops_per_step(config: PretrainConfig | LanguageModelSettings, *, vocabulary_size: int) -> float:
    """Operations of one update."""
    per_token = sum(training_flops_per_token(config, vocabulary_size=vocabulary_size).values())
    return per_token * config.window * config.training.global_batch


def equal_steps(config: PretrainConfig | LanguageModelSettings, compute: float, *, vocabulary_size: int) -> int:
    """The updates that `compute` operations pay for, at least one."""
    return max(1, round(compute / training_flops_per_step(config, vocabulary_size=vocabulary_size)))


def _noise_flops(config: PretrainContrastiveConfig, shape: TransformerShape, vocabulary_size: int) -> float:
    noise = config.noise_shape
    if config.noise_kind == TWO_TOWER:
        return two_tower_flops(
            noise, length=config.window, embedding_width=shape.width, vocabulary_size=vocabulary_size
        )
    # A local generator has embeddings of its own width (`models.cloze_presets`).
    embedding_width = noise.width if isinstance(noise, LocalTransformerShape) else shape.width
    predicted = softmax_flops(
        states_width=noise.width, embedding_width=embedding_width, vocabulary_size=vocabulary_size
    )
    generator = encoder_flops(noise, length=config.window, embedding_width=embedding_width)
    return generator + config.noise_rate * predicted


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
        ratio, wider = self.inner_width / self.width, self
        while wider.parameters < parameters:
            width = wider.width + self.heads
            wider = replace(wider, width=width, inner_width=round(ratio * width))
        return wider

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
