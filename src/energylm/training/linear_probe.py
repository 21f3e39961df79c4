"""Fit an energy's projection to its encoder as it is, before both are trained: linear probing, then fine-tuning.

    min over w, b of   Σ_human softplus(E) + Σ_machine softplus(−E) + (1/2C)·‖w‖²        on standardised pooled states

A projection that starts near zero sends noise into the encoder until it has learnt which way is which; one that is
fitted first keeps what the encoder knows, which also helps on texts unlike the training texts (Kumar et al. 2022). The
problem is convex and takes seconds.

Use it     where an encoder's features already tell something: detectors. A residual energy must start at E ≈ 0 instead.
Relations  `detector_task` gives the blocks; `energies.pooled` has the projection.
"""

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

STRENGTH = 0.01  # C: a few hundred blocks of a few hundred features need a strong hand


@torch.no_grad()
def fit_projection(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set `model.head` from batches of (tokens, lengths) whose rows are human, machine, human, machine, …"""
    from sklearn.linear_model import LogisticRegression

    states_ND = np.concatenate([_pooled_states(model, *batch) for batch in batches])
    is_machine_N = np.arange(len(states_ND)) % 2 == 1
    mean_D, spread_D = states_ND.mean(0), states_ND.std(0) + 1e-6
    fitted = LogisticRegression(C=STRENGTH, max_iter=1000).fit((states_ND - mean_D) / spread_D, is_machine_N)
    weight_D = fitted.coef_[0] / spread_D
    head = cast(nn.Linear, model.head)
    head.weight.copy_(torch.from_numpy(weight_D)[None])
    head.bias.fill_(float(fitted.intercept_[0] - weight_D @ mean_D))


def _pooled_states(model: nn.Module, tokens_BT: Tensor, lengths_B: Tensor) -> NDArray[np.float64]:
    """(B, D) what the projection sees, in float64."""
    seen: list[Tensor] = []
    watch = cast(nn.Linear, model.head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model(tokens_BT, lengths_B)
    finally:
        watch.remove()
    return torch.cat(seen).double().cpu().numpy()
