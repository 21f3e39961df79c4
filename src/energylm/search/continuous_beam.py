"""Beam search that can be differentiated: soft choices instead of hard ones at every step, goyal2021 algorithm 3.

    p_1 … p_k   = continuous-top-k(s̃),  s̃[j, v] = s_j + f(h_j, v)                 (numerics.relaxations)
    b_i, a_i    = row sums of p_i (soft back-pointers), column sums of p_i (soft symbols)
    s_i ← Σ p_i s̃      D_i ← a_i·d + b_i·D      e_i ← a_i E      state_i ← Σ_j b_ij state_j

d is the cost of each symbol at this step, D the cost so far, carried along the soft back-pointers; with `augmented` the
cost is added to s̃ as well, which is what the hinge loss searches. Both states of an LSTM are mixed. The hard choice of
each p_i (its largest entry) is kept beside the soft ones: following it is soft-beam decoding (§4.3.4).

The printed algorithm starts from k equal elements and loops once too often; here a single root is expanded first and T
symbols are written. Where sequences end by EOS, element i has ended to the degree o_i = a_i(EOS): its EOS scores
(1 − o_i)·f, every other symbol f + log(1 − o_i). As α grows that is an EOS which absorbs and scores zero. A row past
its own length stands still.

Use it     to train a model for the beam search that will decode it.
Relations  `beam` is the limit α → ∞; `objectives.search_losses` reads its result.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.contracts import State, Stepper
from energylm.errors import ConfigError
from energylm.numerics.relaxations import continuous_top_k
from energylm.search.beam import follow, mix, written_lengths

_LEAST_OPEN = 1e-30  # an element that is open to a lesser degree has ended; its logarithm's gradient stays in range


@dataclass(frozen=True)
class SoftBeam:
    """Where a soft search has come to: K elements of each row."""

    scores_BK: Tensor
    costs_BK: Tensor  # zero where no costs were given
    soft_parents: tuple[Tensor, ...]  # the soft back-pointers (B, K, J) of each step; of rows that are still writing
    parents_BTK: Tensor  # the hard back-pointers beside them
    choices_BTK: Tensor

    def decode(self, *, lengths_B: Tensor, eos_token_id: int | None = None) -> tuple[Tensor, Tensor]:
        """Symbols (B, T) and lengths (B,) of the best element, along the hard back-pointers."""
        tokens_BKT = follow(self.parents_BTK, self.choices_BTK)
        best_B1 = self.scores_BK.argmax(1, keepdim=True)
        tokens_BT = tokens_BKT.gather(1, best_B1[..., None].expand(-1, -1, tokens_BKT.shape[-1]))[:, 0]
        lengths_BK = written_lengths(tokens_BT[:, None], limit_B=lengths_B, eos_token_id=eos_token_id)
        return tokens_BT, lengths_BK[:, 0]


def continuous_beam_search(
    stepper: Stepper,
    *,
    beam: int,
    alpha: float | Tensor,
    lengths_B: Tensor,
    eos_token_id: int | None = None,
    locally_normalized: bool = True,
    costs: Callable[[int], Tensor] | None = None,
    augmented: bool = False,
) -> SoftBeam:
    """`lengths_B` symbols are written in each row; `costs(t)` gives the cost (B, V) of each symbol as the t-th."""
    state, inputs_BKE = stepper.start()
    vocabulary = len(stepper.embedding_VE)
    if beam > vocabulary:
        raise ConfigError(
            f"a soft beam of {beam} is wider than its first step allows: there are {vocabulary} symbols; narrow it"
        )
    score_BK = cost_BK = inputs_BKE.new_zeros(len(lengths_B), 1)
    going_on_BK = torch.ones_like(score_BK)  # 1 − o
    not_end_V = inputs_BKE.new_ones(vocabulary)
    if eos_token_id is not None:
        not_end_V[eos_token_id] = 0.0
    soft_parents: list[Tensor] = []
    parents: list[Tensor] = []
    choices: list[Tensor] = []
    for t in range(int(lengths_B.max())):
        state, scores_BJV = stepper.step(state, inputs_BKE, position=t)
        step_BJV = scores_BJV.log_softmax(-1) if locally_normalized else scores_BJV
        if eos_token_id is not None and t > 0:
            step_BJV = _absorb(step_BJV, going_on_BK, not_end_V=not_end_V)
        cost_BV = None if costs is None else costs(t).to(score_BK.dtype)
        if augmented and cost_BV is not None:
            step_BJV = step_BJV + cost_BV[:, None]
        top = continuous_top_k(score_BK[..., None] + step_BJV, k=beam, alpha=alpha)
        state_new = mix(state, top.back_BKJ)
        inputs_new = top.symbol_BKV @ stepper.embedding_VE
        cost_new = carried(top.back_BKJ, cost_BK)
        if cost_BV is not None:
            cost_new = cost_new + torch.bmm(top.symbol_BKV, cost_BV[..., None])[..., 0]
        going_on_new = top.symbol_BKV @ not_end_V  # summed, since 1 − a(EOS) would lose its digits
        soft_parents.append(top.back_BKJ)
        parent_BK, choice_BK = top.parent_BK, top.choice_BK
        new = (*state_new, inputs_new, top.score_BK, cost_new, going_on_new)
        if t > 0:  # every row writes a first symbol
            writing_B = t < lengths_B
            new = _where(writing_B, new, (*state, inputs_BKE, score_BK, cost_BK, going_on_BK))
            itself_BK = torch.arange(beam, device=parent_BK.device).expand_as(parent_BK)
            filler_BK = torch.full_like(choice_BK, 0 if eos_token_id is None else eos_token_id)
            parent_BK, choice_BK = _where(writing_B, (parent_BK, choice_BK), (itself_BK, filler_BK))
        *state_list, inputs_BKE, score_BK, cost_BK, going_on_BK = new
        state = tuple(state_list)
        parents.append(parent_BK)
        choices.append(choice_BK)
    return SoftBeam(score_BK, cost_BK, tuple(soft_parents), torch.stack(parents, 1), torch.stack(choices, 1))


def carried(back_BKJ: Tensor, cost_BJ: Tensor) -> Tensor:
    """(B, K): the costs so far, followed along the soft back-pointers."""
    return torch.bmm(back_BKJ, cost_BJ[..., None])[..., 0]


def _absorb(step_BKV: Tensor, going_on_BK: Tensor, *, not_end_V: Tensor) -> Tensor:
    """The step scores of elements that have ended to some degree; −inf for all but EOS where one has ended wholly."""
    share_BK1 = going_on_BK[..., None]
    is_open_BK1 = share_BK1 > _LEAST_OPEN
    penalty_BK1 = torch.where(is_open_BK1, torch.where(is_open_BK1, share_BK1, 1.0).log(), float("-inf"))
    return torch.where(not_end_V > 0, step_BKV + penalty_BK1, share_BK1 * step_BKV)


def _where(writing_B: Tensor, new: State, old: State) -> State:
    """`new` in rows that are still writing, `old` in those that have reached their length."""
    return tuple(
        torch.where(writing_B.view(-1, *[1] * (ours.ndim - 1)), ours, before)
        for ours, before in zip(new, old, strict=True)
    )
