"""Scheduled sampling: cross-entropy after the model's own predictions, hard or relaxed, mixed with the gold symbols.

    L = − Σ_t log p(y*_t | h_t),   h_t = r(h_{t−1}, ẽ_{t−1}),   ẽ = e(y*) with probability ε, else a prediction's

    hard greedy     e(argmax s)                      Bengio et al. 2015
    hard sample     e(argmax (s + G))                a draw from softmax(s), by Gumbel noise G
    soft greedy     Σ_v e(v) softmax(α s)_v          goyal2021 §3.3.2: differentiable, so that errors reach their source
    soft sample     Σ_v e(v) softmax(α (s + G))_v    the same noise as the hard draw, which it meets as α grows

Through a hard prediction no gradient flows to the scores that made it; through a soft one it does. ε = 1 everywhere is
plain cross-entropy, stepped. `inverse_sigmoid` is how ε falls with the epochs.

Use it     to train a model for greedy decoding.
Relations  `search_losses` does the same for beam search and pays for the answer; `cross_entropy` is the scores' loss.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.contracts import Stepper
from energylm.numerics.relaxations import gumbel_noise, soft_argmax, soft_sample
from energylm.randomness import row_keys, row_uniforms

Noise = Callable[[int, int], Tensor]  # (position, vocabulary) -> Gumbel numbers (B, V)


def scheduled_sampling_scores(
    stepper: Stepper,
    gold_BT: Tensor,
    given_BT: Tensor,
    *,
    alpha: float | Tensor | None = None,
    noise: Noise | None = None,
) -> Tensor:
    """(B, T, V) scores of each symbol. `given_BT` marks the positions whose gold symbol is fed to the next step.

    `alpha` none is a hard prediction, else a soft one; with `noise` predictions are draws, without they are greedy.
    """
    state, inputs_B1E = stepper.start()
    gold_BTE = F.embedding(gold_BT, stepper.embedding_VE)
    scores: list[Tensor] = []
    for t in range(gold_BT.shape[1]):
        state, scores_B1V = stepper.step(state, inputs_B1E, position=t)
        scores.append(scores_B1V)
        if t + 1 == gold_BT.shape[1]:
            break
        drawn_B1V = None if noise is None else noise(t, scores_B1V.shape[-1])[:, None].to(scores_B1V.dtype)
        predicted_B1E = _prediction(scores_B1V, drawn_B1V, stepper.embedding_VE, alpha=alpha)
        inputs_B1E = torch.where(given_BT[:, t, None, None], gold_BTE[:, t : t + 1], predicted_B1E)
    return torch.cat(scores, dim=1)


def inverse_sigmoid(epoch: float, *, strength: float) -> float:
    """The probability ε of a gold symbol in an epoch 0, 1, …: k / (k + exp(epoch / k)), 1 in the first.

    A larger k falls later and more gently (goyal2021 §3.3.3, table 3.2); the first epoch is taught throughout.
    """
    if epoch < 1:
        return 1.0
    exponent = epoch / strength
    return 0.0 if exponent > 700 else strength / (strength + math.exp(exponent))


def taught(keys_B: Tensor, *, share: float, length: int) -> Tensor:
    """(B, length) true with probability `share`, each by its row's key and its position."""
    keys_BT = row_keys(0, keys_B[:, None], torch.arange(length, device=keys_B.device)[None])
    return row_uniforms(keys_BT, step=0) < share


def gumbel_of_rows(keys_B: Tensor) -> Noise:
    """Noise that depends on a row's key, the position and the symbol alone, whatever batch the row is in."""

    def noise(position: int, vocabulary: int) -> Tensor:
        symbols_V = torch.arange(vocabulary, device=keys_B.device)
        return gumbel_noise(row_uniforms(row_keys(1, keys_B[:, None], symbols_V[None]), step=position))

    return noise


def _prediction(
    scores_B1V: Tensor, noise_B1V: Tensor | None, embedding_VE: Tensor, *, alpha: float | Tensor | None
) -> Tensor:
    if alpha is None:
        return F.embedding((scores_B1V if noise_B1V is None else scores_B1V + noise_B1V).argmax(-1), embedding_VE)
    if noise_B1V is None:
        return soft_argmax(scores_B1V, alpha=alpha) @ embedding_VE
    return soft_sample(scores_B1V, noise_B1V, alpha=alpha) @ embedding_VE
