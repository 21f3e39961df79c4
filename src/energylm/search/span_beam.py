"""The best spans of a text when the end is scored given the start: a beam over starts, then over their ends.

    log P(s, e) = log P(s) + log P(e | s)          s ≤ e < s + longest              Yang et al. 2019 (XLNet)

Clark et al. 2020 (app. B) use it for SQuAD, as ELECTRA does: starts and ends are predicted jointly, not independently.
With a beam as wide as the text this is the maximum over all spans.

Relations  `models.headed_encoder` gives the log-probabilities; `beam` searches sequences of symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EndLogProbs = Callable[[Tensor], Tensor]  # starts (B, K) -> log P(e | s) (B, K, T)


@dataclass(frozen=True)
class Spans:
    """N spans of each row, the likeliest first; those past the number of possible spans have −∞."""

    start_BN: Tensor
    end_BN: Tensor
    log_prob_BN: Tensor


def span_beam(
    start_log_prob_BT: Tensor,
    end_log_probs: EndLogProbs,
    *,
    allowed_BT: Tensor,
    beam: int,
    longest: int,
    n: int = 1,
) -> Spans:
    """The `n` likeliest spans among the `beam` likeliest ends of the `beam` likeliest starts, within `allowed_BT` and
    of at most `longest` tokens."""
    beam = min(beam, start_log_prob_BT.shape[1])
    start_BK = start_log_prob_BT.masked_fill(~allowed_BT, -torch.inf).topk(beam, dim=1)
    positions_T = torch.arange(start_log_prob_BT.shape[1], device=start_log_prob_BT.device)
    after_BKT = positions_T - start_BK.indices[..., None]
    possible_BKT = allowed_BT[:, None] & (after_BKT >= 0) & (after_BKT < longest)
    end_BKM = end_log_probs(start_BK.indices).masked_fill(~possible_BKT, -torch.inf).topk(beam, dim=2)
    joint_BS = (start_BK.values[..., None] + end_BKM.values).flatten(1)
    best_BN = joint_BS.topk(min(n, joint_BS.shape[1]), dim=1)
    return Spans(
        start_BN=start_BK.indices.gather(1, best_BN.indices // beam),
        end_BN=end_BKM.indices.flatten(1).gather(1, best_BN.indices),
        log_prob_BN=best_BN.values,
    )
