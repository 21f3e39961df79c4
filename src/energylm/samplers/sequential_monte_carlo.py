"""Sequential Monte Carlo: particles are written block by block, weighed on the way, and resampled when few weigh much.

    v_t(x_≤t)   an intermediate log-weight of what is written so far, at t = b, 2b, …; at the end the true log w(x)
    W_i ← W_i · exp(v_t(x_i) − v_{t−b}(x_i))        if ESS(W) < threshold · n:  Ẑ ← Ẑ · mean W,  resample,  W ← 1
    Ẑ = Π (mean W at each resampling, and at the end)                       E[Ẑ] = Z, whatever v and threshold

so log Ẑ lies below log Z on average (Jensen). With v = 0 until the end this is importance resampling; the best v is
log E[w | x_≤t] ("twisted" targets, Zhao et al. 2024). v matters for the variance only.

Resampling is systematic: one uniform u, and particle i has as many children as there are k with C_{i−1} ≤ u + k < C_i,
C the cumulated shares times n. The children are a step function of u with at most n + 1 pieces, so u's choice is one
decision among these pieces (`contracts.Choices`), which tests enumerate. Survivors keep their rows, so that only the
children of others are copied in the decoder's cache.

Conditional on a text x (a *retained* particle, Andrieu et al. 2010): x takes a row at random; its row's tokens are
given; at a resampling u has density (children of x) / (n · share of x), and x goes on as one of its children, at
random. Multiplying the densities out shows that the law of the SMC sampler that keeps one particle by its weight is

    q_SMC(x) = E_conditional[ γ(x) / Ẑ ],   γ(x) = q(x) w(x)

for this very resampling: what X9's certificate is for importance resampling. Where x is an exact draw of the target,
E[1/Ẑ] = 1/Z, so there log Ẑ lies above log Z on average.

Relations  `resampling` keeps one of the final particles; `written_rows` writes them; `energies.prefix_value` learns v.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.errors import ConfigError
from energylm.numerics.importance import effective_sample_size, log_mean_exp
from energylm.progress import Progress
from energylm.samplers.written_rows import ReadContexts, WrittenRows


@dataclass(frozen=True)
class Written:
    """What n particles of each of B contexts have written."""

    tokens_BNT: Tensor
    lengths_BN: Tensor
    log_prob_BN: Tensor
    proposal_log_prob_BN: Tensor
    ended_BN: Tensor  # bool: nothing more will come


LogWeights = Callable[[Written], Tensor]  # (B, N), −inf forbidden


@dataclass(frozen=True)
class Particles:
    """Weighted particles at the end. The weights are those since the last resampling."""

    written: Written
    log_weight_BN: Tensor
    log_partition_B: Tensor  # log Ẑ
    family_BN: Tensor  # which of the n first particles each comes from
    resamplings_B: Tensor  # how often each context was resampled


@dataclass(frozen=True)
class Retained:
    """A text a context that one particle is to write; all end with EOS or have the full length."""

    tokens_BT: Tensor
    lengths_B: Tensor


def sequential_monte_carlo(
    read: ReadContexts,
    choices: Choices,
    resampling: Choices,
    *,
    new_tokens: int,
    block_tokens: int,
    on_the_way: LogWeights,
    at_the_end: LogWeights,
    threshold: float = 0.5,
    retained: Retained | None = None,
    progress: Progress | None = None,
) -> Particles:
    """`choices` decides for the B·n particles, `resampling` for the B contexts."""
    shape = read.contexts, read.n
    rows, given = read.rows(new_tokens), _Given(retained, shape, new_tokens, resampling)
    device = rows.tokens_RT.device
    value_BN = torch.zeros(shape, dtype=torch.float64, device=device)
    log_weight_BN, log_partition_B = torch.zeros_like(value_BN), torch.zeros_like(value_BN[:, 0])
    family_BN = torch.arange(read.n, device=device).repeat(read.contexts, 1)
    resamplings_B = torch.zeros_like(family_BN[:, 0])
    for position in range(block_tokens, new_tokens, block_tokens):
        rows.write(position, choices, **given.options(), progress=progress)
        if not rows.running_R.any():
            break
        new_value_BN = on_the_way(_written(rows, shape))
        log_weight_BN, value_BN = log_weight_BN + _increase(new_value_BN, value_BN), new_value_BN
        is_poor_B = effective_sample_size(_checked(log_weight_BN, position)) < threshold * read.n
        parent_BN = given.resample(log_weight_BN, is_poor_B, resampling)
        log_partition_B = log_partition_B + torch.where(is_poor_B, log_mean_exp(log_weight_BN), 0.0)
        log_weight_BN = torch.where(is_poor_B[:, None], 0.0, log_weight_BN)
        if is_poor_B.any():
            value_BN, family_BN = value_BN.gather(1, parent_BN), family_BN.gather(1, parent_BN)
            rows.select((parent_BN + read.n * torch.arange(read.contexts, device=device)[:, None]).flatten())
            resamplings_B += is_poor_B
    rows.write(new_tokens, choices, **given.options(), progress=progress)
    written = _written(rows, shape)
    log_weight_BN = log_weight_BN + _increase(at_the_end(written), value_BN)
    log_partition_B = log_partition_B + log_mean_exp(_checked(log_weight_BN, new_tokens))
    return Particles(written, log_weight_BN, log_partition_B, family_BN, resamplings_B)


def family_sample_size(particles: Particles) -> Tensor:
    """(B,) how many independent particles the weighted ones are worth, those of one first ancestor counted as one: the
    effective sample size of the families' weights. Without resampling that of the particles."""
    share_BN = particles.log_weight_BN.softmax(-1)
    family_share_BN = torch.zeros_like(share_BN).scatter_add(1, particles.family_BN, share_BN)
    return 1 / family_share_BN.square().sum(-1)


@dataclass(frozen=True)
class SystematicPieces:
    """The pieces of u on which the children are the same; M = n + 1 of them, some of length 0."""

    log_length_BM: Tensor
    middle_BM: Tensor
    cumulative_BN: Tensor  # C, from 0 to n

    @classmethod
    def of(cls, log_weight_BN: Tensor) -> "SystematicPieces":
        n = log_weight_BN.shape[1]
        cumulative_BN = (n * log_weight_BN.double().softmax(-1)).cumsum(-1)
        # What comes after the last particle with a weight has no children, whatever the rounding of the last sums.
        is_last_BN = cumulative_BN >= cumulative_BN[:, -1:]
        cumulative_BN = torch.where(is_last_BN, n, cumulative_BN.clamp(max=n))
        edge_BM = torch.cat([torch.zeros_like(cumulative_BN[:, :1]), cumulative_BN.frac()], dim=1).sort(1).values
        length_BM = torch.cat([edge_BM[:, 1:], torch.ones_like(edge_BM[:, :1])], dim=1) - edge_BM
        return cls(length_BM.log(), edge_BM + length_BM / 2, cumulative_BN)

    def parents(self, piece_B: Tensor) -> Tensor:
        """(B, N) in order, where u lies on these pieces."""
        n = self.cumulative_BN.shape[1]
        points_N = torch.arange(n, dtype=torch.float64, device=piece_B.device)
        u_B1 = self.middle_BM.gather(1, piece_B[:, None])
        return torch.searchsorted(self.cumulative_BN, u_B1 + points_N, right=True).clamp(max=n - 1)

    def children(self, particle_B: Tensor) -> Tensor:
        """(B, M) how many children a particle of each context has on each piece."""
        edges_BN = torch.nn.functional.pad(self.cumulative_BN, (1, 0))
        low_B1, high_B1 = (edges_BN.gather(1, particle_B[:, None] + offset) for offset in (0, 1))
        return (high_B1 - self.middle_BM).ceil() - (low_B1 - self.middle_BM).ceil()


def keep_rows(parent_BN: Tensor) -> Tensor:
    """The same parents, which come in order, so that every parent that has children keeps its own row."""
    own_BN = torch.arange(parent_BN.shape[1], device=parent_BN.device).expand_as(parent_BN)
    children_BN = torch.zeros_like(parent_BN).scatter_add(1, parent_BN, torch.ones_like(parent_BN))
    is_further_BN = torch.zeros_like(parent_BN, dtype=torch.bool)
    is_further_BN[:, 1:] = parent_BN[:, 1:] == parent_BN[:, :-1]
    kept_BN = own_BN.clone()
    kept_BN[children_BN == 0] = parent_BN[is_further_BN]  # as many in each context, and both in its order
    return kept_BN


class _Given:
    """Which rows write a retained text, and how they are resampled with it; without one, plain resampling."""

    def __init__(self, retained: Retained | None, shape: tuple[int, int], new_tokens: int, resampling: Choices) -> None:
        self._retained, self._shape = retained, shape
        if retained is None:
            return
        ends_B = retained.lengths_B == new_tokens
        if retained.tokens_BT.shape[1] > new_tokens or not (ends_B | (retained.lengths_B < new_tokens)).all():
            raise ConfigError(f"a retained text is longer than the {new_tokens} tokens of a particle")
        contexts, n = shape
        uniform_BN = torch.zeros(shape, dtype=torch.float64, device=retained.tokens_BT.device)
        self._row_B = resampling.categorical(uniform_BN)
        width = new_tokens - retained.tokens_BT.shape[1]
        self._text_BT = torch.nn.functional.pad(retained.tokens_BT, (0, width))
        self._first_B = n * torch.arange(contexts, device=uniform_BN.device)

    def options(self) -> dict[str, Tensor]:
        """For `WrittenRows.write`."""
        if self._retained is None:
            return {}
        contexts, n = self._shape
        text_RT = self._text_BT.repeat_interleave(n, dim=0)
        is_given_R = torch.zeros(contexts * n, dtype=torch.bool, device=text_RT.device)
        is_given_R[self._first_B + self._row_B] = True
        return {"given_RT": text_RT, "is_given_RT": is_given_R[:, None].expand_as(text_RT)}

    def resample(self, log_weight_BN: Tensor, is_poor_B: Tensor, choices: Choices) -> Tensor:
        """(B, N) the parent of each row; each its own where a context is not resampled."""
        own_N = torch.arange(self._shape[1], device=log_weight_BN.device)
        pieces = SystematicPieces.of(log_weight_BN)
        log_piece_BM = pieces.log_length_BM
        if self._retained is not None:
            log_piece_BM = log_piece_BM + pieces.children(self._row_B).log()
        certain_M = torch.full_like(log_piece_BM[0], float("-inf"))
        certain_M[0] = 0.0
        piece_B = choices.categorical(torch.where(is_poor_B[:, None], log_piece_BM, certain_M))
        parent_BN = torch.where(is_poor_B[:, None], keep_rows(pieces.parents(piece_B)), own_N)
        if self._retained is not None:
            is_child_BN = parent_BN == self._row_B[:, None]
            self._row_B = choices.categorical(torch.where(is_child_BN, 0.0, float("-inf")))
        return parent_BN


def _written(rows: WrittenRows, shape: tuple[int, int]) -> Written:
    return Written(
        tokens_BNT=rows.tokens_RT.view(*shape, -1),
        lengths_BN=rows.lengths_R.view(shape),
        log_prob_BN=rows.log_prob_RT.sum(1).view(shape),
        proposal_log_prob_BN=rows.proposal_log_prob_RT.sum(1).view(shape),
        ended_BN=~rows.running_R.view(shape),
    )


def _increase(new_BN: Tensor, old_BN: Tensor) -> Tensor:
    """new − old; what was forbidden stays so, whatever is said of it later."""
    forbidden_BN = (new_BN == float("-inf")) | (old_BN == float("-inf"))
    return torch.where(forbidden_BN, float("-inf"), new_BN - old_BN)


def _checked(log_weight_BN: Tensor, position: int) -> Tensor:
    if (log_weight_BN == float("-inf")).all(1).any():
        raise ConfigError(
            f"after {position} tokens the energy forbids all {log_weight_BN.shape[1]:,} particles of a context; take "
            "more particles, or loosen the constraint"
        )
    return log_weight_BN
