"""The learning rate of an update as a pure function of its number, so that resuming needs no scheduler state.

With w warm-up updates, S updates in all, update u = 1 … S and p = (u − 1 − w) / (S − w):

    u ≤ w          u / w
    cosine         (1 + cos πp) / 2         bakhtin2019 appendix D: to zero over S updates, no restarts
    linear         1 − p
    inverse-sqrt   √(w / u)                 bakhtin2019 appendix D, for the models without a last step; w ≥ 1
    constant       1

The rate is highest at u = w and at u = w + 1, and would reach zero at u = S + 1: no update is spent on a rate of zero.
"""

import math

from energylm.config.training import TrainingConfig


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
