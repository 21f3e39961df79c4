"""Counted compute: the floating-point operations of a training token, so that families are compared at equal cost.

    forward of a token through a layer  =  2·(4 D² + 2 D F) + 4 T D          products with weights; Q·Kᵀ and A·V
                                           3 D F with a gated feed-forward (local attention's form)
    softmax at a predicted token        =  2·(H E + E V)                     states of width H, embeddings of width E
    training                            =  3 · forward                       the backward pass costs two of them

Matrix products only, a multiply-add as two operations; causal and local attention like full attention; embeddings,
norms and element-wise work are free. The output layer counts where it runs: at the masked tokens of a masked language
model, at *every* token of a two-tower or causal model. Clark et al. 2020 leave that out of their rule of thumb (two
quarter-size towers cost about what one third-size generator does); it weighs the more, the smaller the network.

Relations  `config.pretrain` has the shapes; `verbs.cloze.pretraining` turns a budget into steps.
"""

from energylm.config.models import Shape, TransformerShape, preset_shape
from energylm.config.pretrain import (
    TWO_TOWER,
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
from energylm.config.train_lm import LanguageModelSettings
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
