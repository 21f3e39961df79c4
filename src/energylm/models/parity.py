"""Comparisons at equal size: the width at which a network has a given number of parameters.

Deng et al. 2020 compare the joint model with a language model of its size (BALM, §4.1) that keeps the number of layers
and is wider. Widths go in steps of the number of heads, so the count is met as nearly as such a step allows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from energylm.config.models import Shape, TransformerShape, preset_shape
from energylm.errors import ConfigError
from energylm.models.presets import build_network


def count_parameters(network: nn.Module) -> int:
    """Tied tensors once."""
    return sum(parameter.numel() for parameter in network.parameters())


def width_for(
    parameters: int, preset: str, *, vocabulary_size: int, max_length: int, overrides: Mapping[str, Any] | None = None
) -> int:
    """The width at which a network of `preset`'s other sizes comes nearest to having `parameters` parameters."""
    shape: Shape = preset_shape(preset, overrides)
    step = shape.heads if isinstance(shape, TransformerShape) else 1

    def count(steps: int) -> int:
        wider = {**(overrides or {}), "width": steps * step}
        with torch.device("meta"):
            network = build_network(
                preset, vocabulary_size=vocabulary_size, max_length=max_length, eos_token_id=None, overrides=wider
            )
        return count_parameters(network)

    if parameters < count(1):
        raise ConfigError(
            f"no width of {preset!r} is so small that it has {parameters:,} parameters; take fewer layers"
        )
    below, above = 1, 2
    while count(above) < parameters:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < parameters else (below, middle)
    return step * min((below, above), key=lambda steps: abs(count(steps) - parameters))
