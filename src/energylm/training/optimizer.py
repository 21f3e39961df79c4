"""The learning rate of an update as a pure function of its number, so that resuming needs no scheduler state.

With w warm-up updates, S updates in all, update u = 1 … S and p = (u − 1 − w) / (S − w):

    u ≤ w          u / w
    cosine         (1 + cos πp) / 2         bakhtin2019 appendix D: to zero over S updates, no restarts
    linear         1 − p
    inverse-sqrt   √(w / u)                 bakhtin2019 appendix D, for the models without a last step; w ≥ 1
    constant       1

The rate is highest at u = w and at u = w + 1, and would reach zero at u = S + 1: no update is spent on a rate of zero.

=====

AdamW with two kinds of parameter groups: decayed or not, and deeper layers slower.

    learning rate of layer d  =  learning_rate · layer_decay^(n + 1 − d)      d = 0 embeddings, 1 … n blocks, n + 1 head

Layer-wise decay is for fine-tuning (clark2020 table 3). Biases, norms and other vectors are not decayed towards zero.
"""

import math
import re
from collections.abc import Iterable

import torch
from torch import nn

from energylm.config.training import OptimizerConfig, TrainingConfig


def learning_rate_factor(config: TrainingConfig, update: int) -> float:
    """The fraction of the highest learning rate that update 1, 2, … uses."""
    warmup, kind = config.warmup_steps, config.schedule.kind
    if update <= warmup:
        return update / warmup
    if kind == "constant":
        return 1.0
    if kind == "inverse-sqrt":
        return math.sqrt(max(warmup, 1) / update)
    assert config.steps is not None  # the config refuses these kinds without a last step
    progress = (update - 1 - warmup) / (config.steps - warmup)
    return (1 + math.cos(math.pi * progress)) / 2 if kind == "cosine" else 1 - progress


_BLOCK = re.compile(
    r"(?:^|\.)(\d+)\."
)  # the first number in a parameter's name counts blocks: h.3.attn, layer.3.output
_EMBEDDING = re.compile(r"embed|(?:^|\.)(?:wte|wpe)\.")


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all trainable parameters; each group carries its `multiplier` of the learning rate."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    multipliers = layer_multipliers(parameters, layer_decay=config.layer_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        weight_decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        groups.setdefault((multipliers[name], weight_decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": members, "multiplier": multiplier, "weight_decay": weight_decay}
            for (multiplier, weight_decay), members in groups.items()
        ],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def layer_multipliers(names: Iterable[str], *, layer_decay: float) -> dict[str, float]:
    """For each parameter name, its share of the learning rate. Modules side by side count their own blocks."""
    names = list(names)
    block = {name: int(match[1]) + 1 for name in names if (match := _BLOCK.search(name))}
    blocks_of: dict[str, int] = {}  # first component of the name -> n
    for name, depth in block.items():
        module = name.partition(".")[0]
        blocks_of[module] = max(depth, blocks_of.get(module, 0))

    def below_head(name: str) -> int:
        blocks = blocks_of.get(name.partition(".")[0], max(blocks_of.values(), default=0))
        if name in block:
            return blocks + 1 - block[name]
        return blocks + 1 if _EMBEDDING.search(name) else 0

    return {name: layer_decay ** below_head(name) for name in names}


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["multiplier"]
