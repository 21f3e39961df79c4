"""Beam search, for whole batches: the k best prefixes at each step; greedy search, a beam of one; back-pointers.

    s̃_t[i, v] = s_{t,i} + f(h_{t,i}, v)          s_{t+1} = top-k of s̃_t            goyal2021 algorithm 1
    greedy:  y_t = argmax_v f(h_t, v)            where normalising the scores at each step would not change a choice

f is the log-softmax of the model's scores (a locally normalised model) or the raw scores (a globally normalised one).
Algorithm 1 as printed starts from k equal elements, whose successors tie: here the first step expands a single root.
Its loop "0 to T" makes T + 1 symbols; here there are T. A sequence that has ended goes on with EOS alone, which scores
zero, so it keeps its rank and its score; a row past its own length does likewise. The algorithm's last line, from
who-followed-whom to sequences, is `follow`.

    log P(s, e) = log P(s) + log P(e | s)        s ≤ e < s + longest           Yang et al. 2019 (XLNet)

`span_beam` is the same over two steps, a start and its end: the best spans of a text when the end is scored given the
start, as ELECTRA does for SQuAD (clark2020 app. B). With a beam as wide as the text it is the maximum over all spans.

Use it     to decode; with `beam` as large as the number of sequences it finds the best of all. Greedy search is for a
           first look, and for models that were trained to be followed greedily (goyal2021 ch. 3).
Relations  `continuous_beam` can be differentiated and meets this one as α grows; `models.headed_encoder` scores spans.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.contracts import State, Stepper


def follow(parents_BTK: Tensor, choices_BTK: Tensor) -> Tensor:
    """(B, K, T): the symbols along the back-pointers that end in each of the K elements of the last step."""
    steps, width = choices_BTK.shape[1:]
    element_BK = torch.arange(width, device=choices_BTK.device).expand(len(choices_BTK), width)
    symbols_TBK = [element_BK] * steps
    for t in reversed(range(steps)):
        symbols_TBK[t] = choices_BTK[:, t].gather(1, element_BK)
        element_BK = parents_BTK[:, t].gather(1, element_BK)
    return torch.stack(symbols_TBK, dim=-1)


def pick(state: State, parent_BK: Tensor) -> State:
    """Each new element's own copy of its parent's state."""
    batch_B1 = torch.arange(len(parent_BK), device=parent_BK.device)[:, None]
    return tuple(tensor[batch_B1, parent_BK] for tensor in state)


def mix(state: State, back_BKJ: Tensor) -> State:
    """Each new element's mixture of the states before it, by soft back-pointers (all tensors of the state alike)."""
    return tuple(
        torch.bmm(back_BKJ, tensor.flatten(2)).view(*back_BKJ.shape[:2], *tensor.shape[2:]) for tensor in state
    )


def written_lengths(tokens_BKT: Tensor, *, limit_B: Tensor, eos_token_id: int | None) -> Tensor:
    """(B, K): symbols up to and with the first EOS, at most the row's limit."""
    limit_BK = limit_B[:, None].expand(tokens_BKT.shape[:2])
    if eos_token_id is None:
        return limit_BK
    is_end_BKT = tokens_BKT == eos_token_id
    first_BK = is_end_BKT.int().argmax(-1) + 1
    return torch.where(is_end_BKT.any(-1), torch.minimum(first_BK, limit_BK), limit_BK)


def greedy_search(stepper: Stepper, *, lengths_B: Tensor, eos_token_id: int | None = None) -> tuple[Tensor, Tensor]:
    """Symbols (B, T) and their lengths (B,); `lengths_B` is how many a row writes, or the most where there is an EOS.

    After the end a row repeats EOS (0 where there is none).
    """
    state, inputs_B1E = stepper.start()
    limit = int(lengths_B.max())
    filler = 0 if eos_token_id is None else eos_token_id
    finished_B = torch.zeros_like(lengths_B, dtype=torch.bool)
    written: list[Tensor] = []
    for t in range(limit):
        state, scores_B1V = stepper.step(state, inputs_B1E, position=t)
        finished_B = finished_B | (t >= lengths_B)
        choice_B = scores_B1V[:, 0].argmax(-1).masked_fill(finished_B, filler)
        written.append(choice_B)
        if eos_token_id is not None:
            finished_B = finished_B | (choice_B == eos_token_id)
            if bool(finished_B.all()):
                break
        inputs_B1E = F.embedding(choice_B[:, None], stepper.embedding_VE)
    tokens_BT = F.pad(torch.stack(written, dim=1), (0, limit - len(written)), value=filler)
    return tokens_BT, written_lengths(tokens_BT[:, None], limit_B=lengths_B, eos_token_id=eos_token_id)[:, 0]


@dataclass(frozen=True)
class Beam:
    """K sequences of each row, best first."""

    tokens_BKT: Tensor  # EOS (or 0) past the end
    lengths_BK: Tensor  # EOS counted
    scores_BK: Tensor  # sums of f; −inf where a row has fewer than K sequences
    parents_BTK: Tensor  # back-pointers of the search, in its own order
    choices_BTK: Tensor


def beam_search(
    stepper: Stepper,
    *,
    beam: int,
    lengths_B: Tensor,
    eos_token_id: int | None = None,
    locally_normalized: bool = True,
    length_exponent: float = 0.0,
) -> Beam:
    """`lengths_B` is how many symbols a row writes, or the most where there is an EOS.

    Sequences are ranked by score / length ** length_exponent: 0 is the plain score, 1 the mean of a symbol.
    """
    state, inputs_BKE = stepper.start()
    score_BK = inputs_BKE.new_zeros(len(lengths_B), 1)
    finished_BK = torch.zeros_like(score_BK, dtype=torch.bool)
    filler = 0 if eos_token_id is None else eos_token_id
    parents: list[Tensor] = []
    choices: list[Tensor] = []
    for t in range(int(lengths_B.max())):
        state, scores_BKV = stepper.step(state, inputs_BKE, position=t)
        step_BKV = scores_BKV.log_softmax(-1) if locally_normalized else scores_BKV
        step_BKV = _absorb(step_BKV, finished_BK | (t >= lengths_B)[:, None], symbol=filler)
        candidates_BM = (score_BK[..., None] + step_BKV).flatten(1)
        score_BK, index_BK = candidates_BM.topk(min(beam, candidates_BM.shape[1]))
        vocabulary = scores_BKV.shape[-1]
        parent_BK, choice_BK = index_BK // vocabulary, index_BK % vocabulary
        parents.append(parent_BK)
        choices.append(choice_BK)
        if eos_token_id is not None:
            finished_BK = choice_BK == eos_token_id  # what has ended goes on with EOS alone
            if bool(finished_BK.all()):
                break
        else:
            finished_BK = finished_BK.gather(1, parent_BK)
        state = pick(state, parent_BK)
        inputs_BKE = F.embedding(choice_BK, stepper.embedding_VE)
    return _ranked(parents, choices, score_BK, lengths_B, eos_token_id, length_exponent)


def _absorb(step_BKV: Tensor, finished_BK: Tensor, *, symbol: int) -> Tensor:
    """The step scores, where finished elements can only go on with `symbol`, for nothing."""
    only_V = torch.full_like(step_BKV[0, 0], float("-inf"))
    only_V[symbol] = 0.0
    return torch.where(finished_BK[..., None], only_V, step_BKV)


def _ranked(
    parents: list[Tensor],
    choices: list[Tensor],
    score_BK: Tensor,
    lengths_B: Tensor,
    eos_token_id: int | None,
    length_exponent: float,
) -> Beam:
    """The early steps of a beam that was still growing are filled up, so that steps can be stacked."""
    width, steps = score_BK.shape[1], int(lengths_B.max())
    filler = 0 if eos_token_id is None else eos_token_id
    parents_BTK = torch.stack([F.pad(each, (0, width - each.shape[1])) for each in parents], dim=1)
    choices_BTK = torch.stack([F.pad(each, (0, width - each.shape[1])) for each in choices], dim=1)
    tokens_BKT = F.pad(follow(parents_BTK, choices_BTK), (0, steps - len(parents)), value=filler)
    lengths_BK = written_lengths(tokens_BKT, limit_B=lengths_B, eos_token_id=eos_token_id)
    order_BK = (score_BK / lengths_BK**length_exponent).argsort(dim=1, descending=True, stable=True)
    return Beam(
        tokens_BKT=tokens_BKT.gather(1, order_BK[..., None].expand_as(tokens_BKT)),
        lengths_BK=lengths_BK.gather(1, order_BK),
        scores_BK=score_BK.gather(1, order_BK),
        parents_BTK=parents_BTK,
        choices_BTK=choices_BTK,
    )


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
