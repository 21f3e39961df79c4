"""Drawing text from a joint model: candidates from the language model, one of them by its weight, chunk after chunk.

    draw x_1 … x_n ~ q(· | c),  keep x_i with probability w_i / Σ_j w_j                Deng et al. 2020, algorithm 1

Long texts go on chunk by chunk: what was kept becomes context, and a new pool is drawn (the paper's future work).
Requests of several people travel together (`sample_requests`): a pool depends on its own request alone.

Relations  `samplers.resampling` holds the weights and the choice; `next_tokens` draws token by token instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from energylm.bundles.batched_requests import RequestShape, groups
from energylm.bundles.energy_binding import scaled
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.weighted_draws import WeightedDraws, ended_texts
from energylm.config.sampling import JointSampling
from energylm.errors import ConfigError, DataError
from energylm.estimators.log_partition import is_weak, shown_ess
from energylm.estimators.tilting import FEWEST_FOR_ERRORS, RewardCurve, TiltPoint, reward_curve, tilt_point
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.plots import LinePlot, Series
from energylm.progress import Progress, progress
from energylm.randomness import derive_seed, row_keys, seed_tensor
from energylm.records import LOCAL, Record
from energylm.samplers.choices import RowChoices
from energylm.samplers.resampling import Weights, importance_log_weights, resample
from energylm.tables import Cell, Table

Caution = Callable[[int, int], str | None]  # against texts of up to so many tokens, of which so many end


@dataclass(frozen=True, repr=False)
class CandidatePool(Record):
    """n weighted candidates to continue one context, and which of them were kept."""

    tokens: Tensor  # (N, T) int64, 0 past the end
    lengths: Tensor  # (N,) the end-of-sequence token counted
    log_prob: Tensor  # (N,) under the language model
    proposal_log_prob: Tensor  # (N,) under the truncated proposal
    energy: Tensor  # (N,) +inf for a candidate that is forbidden
    log_weight: Tensor  # (N,)
    kept: list[int]  # the first has algorithm 1's law; the rest are what else the pool offers

    computed = ("ess", "largest_share")

    def candidate(self, number: int) -> list[int]:
        return self.tokens[number, : self.lengths[number]].tolist()

    @property
    def shares(self) -> Tensor:
        """(N,) the probability with which each candidate is kept."""
        return normalized_log_weights(self.log_weight).exp()

    @property
    def ess(self) -> float:
        return float(effective_sample_size(self.log_weight))

    @property
    def largest_share(self) -> float:
        return float(self.shares.max())

    def reward_curve(self, betas: Sequence[float], *, beta: float) -> RewardCurve:
        """Over β from these candidates, which were weighed at `beta`: s = −E / β. The base is what they are weighed
        from: the truncated proposal with weights "paper", the language model with "corrected"."""
        return reward_curve(-self.energy / beta, betas=betas, base_log_weight_N=self._base_log_weight)

    def tilt(self) -> TiltPoint:
        """Mean of −E and KL from the base as the candidates were weighed: the curve's point at their own β."""
        return tilt_point(-self.energy.double(), 1.0, self._base_log_weight.double())

    @property
    def _base_log_weight(self) -> Tensor:
        """(N,) log P/q: what is left of the weights without the energy."""
        return torch.where(self.energy.isfinite(), self.log_weight + self.energy, 0.0)


def _unknown_texts(candidates: list[list[int]]) -> list[str]:
    raise DataError("a sample that was read from JSON knows its candidates by their tokens only; draw it again")


def _unknown_choice(log_weight_N: Tensor) -> list[int]:
    raise DataError("a sample that was read from JSON does not know its random numbers; draw it again")


@dataclass(frozen=True, repr=False)
class JointSample(Record):
    """Continuations of one context. What is asked of the candidates is answered for the last chunk."""

    texts: list[str]  # one a draw, without the context
    tokens: list[list[int]] = field(repr=False)
    pools: list[CandidatePool] = field(repr=False)  # one a chunk
    new_texts: Callable[[list[list[int]]], list[str]] = field(  # of candidates of the last chunk
        default=_unknown_texts, repr=False, metadata=LOCAL
    )
    choose: Callable[[Tensor], list[int]] = field(  # who is kept by such log-weights, of the last chunk
        default=_unknown_choice, repr=False, metadata=LOCAL
    )
    beta: float | None = None  # the energy's own; None where it has none
    caution: str | None = field(default=None, repr=False)

    computed = ("ess", "largest_share", "kl", "kl_error", "warning")

    @property
    def text(self) -> str:
        """The first draw: the one that has the law of algorithm 1."""
        return self.texts[0]

    @cached_property
    def candidates(self) -> list[str]:
        """The text of every candidate."""
        pool = self.pools[-1]
        return self.new_texts([pool.candidate(number) for number in range(len(pool.lengths))])

    @property
    def energies(self) -> Tensor:
        return self.pools[-1].energy

    @property
    def log_weights(self) -> Tensor:
        return self.pools[-1].log_weight

    @property
    def ess(self) -> float:
        """Of the chunk where it is smallest."""
        return min(pool.ess for pool in self.pools)

    @property
    def largest_share(self) -> float:
        return max(pool.largest_share for pool in self.pools)

    @property
    def kl(self) -> float | None:
        """Nats between the law that is resampled and the base, estimated from the candidates; of several chunks the
        sum, each after the text that was kept. None from two candidates."""
        return None if self._tilts is None else math.fsum(tilt.kl for tilt in self._tilts)

    @property
    def kl_error(self) -> float | None:
        """The standard error of `kl`, by the jackknife."""
        return None if self._tilts is None else math.hypot(*(tilt.kl_error for tilt in self._tilts))

    @cached_property
    def _tilts(self) -> list[TiltPoint] | None:
        if len(self.log_weights) < FEWEST_FOR_ERRORS:
            return None
        return [pool.tilt() for pool in self.pools]

    def reward_curve(self, betas: Sequence[float]) -> RewardCurve:
        """Mean score −E/β and KL of the tilted base over `betas`, from the candidates of the last chunk: what another
        β would give, without a new draw."""
        return self.pools[-1].reward_curve(betas, beta=self._scale())

    def at_beta(self, beta: float) -> "JointSample":
        """What the same seed draws at another β, without a new draw: the candidates do not depend on β, the choice
        among them does."""
        if len(self.pools) > 1:
            raise ConfigError(
                "at another β the first chunk may end otherwise, and the next go on from that; draw again"
            )
        (pool,) = self.pools
        energy_N = scaled(pool.energy, beta / self._scale())
        is_allowed_N = pool.energy.isfinite()
        log_weight_N = torch.where(is_allowed_N, pool.log_weight + pool.energy - energy_N, -math.inf)
        kept = self.choose(log_weight_N)
        tokens = [pool.candidate(number) for number in kept]
        pools = [replace(pool, energy=energy_N, log_weight=log_weight_N, kept=kept)]
        return replace(self, texts=self.new_texts(tokens), tokens=tokens, pools=pools, beta=beta)

    def _scale(self) -> float:
        """The β by which energies are scores."""
        if self.beta == 0:
            raise ConfigError("at β = 0 the energies say nothing of the scores; draw with another β")
        return self.beta or 1.0

    @property
    def warning(self) -> str | None:
        weak, n = None, len(self.log_weights)
        if is_weak(self.ess):
            what = (
                f"{n:,} candidates are few to choose from"
                if self.ess > n / 2
                else f"the {n:,} candidates are worth {shown_ess(self.ess)} independent ones: a few decide"
            )
            law = "the text's law lies between the language model's and the joint model's"
            weak = f"{what}, and {law}; draw more candidates{self._or_lower_beta()}"
        return "; ".join(filter(None, (self.caution, weak))) or None

    def _or_lower_beta(self) -> str:
        """The other cure, where the energy has a β and the candidates carry a smaller one."""
        if not self.beta or self._tilts is None:
            return ""
        largest = self.reward_curve([self.beta]).largest_beta
        return f", or lower β = {self.beta:g} (they carry up to {largest:.2g})" if largest else ""

    @property
    def table(self) -> Table:
        """The candidates of the last chunk, the likeliest to be kept first."""
        pool = self.pools[-1]
        shares, energies, log_probs = pool.shares.tolist(), pool.energy.tolist(), pool.log_prob.tolist()
        kept = set(pool.kept)
        rows: list[list[Cell]] = [
            [self.candidates[i], energies[i], float(pool.log_weight[i]), shares[i], log_probs[i], i in kept]
            for i in sorted(range(len(shares)), key=lambda i: -shares[i])
        ]
        columns = ["candidate", "energy", "log weight", "share", "log-probability", "kept"]
        distance = "" if self.kl is None else f"; KL {self.kl:.3g} ± {self.kl_error:.2g} nats from the base"
        return Table(columns, rows, convention=f"{len(rows):,} candidates worth {self.ess:.1f}{distance}")

    def plot(self) -> LinePlot:
        """Which part of the weight the heaviest candidates hold; a straight line where all weigh the same."""
        total_N = self.pools[-1].shares.sort(descending=True).values.cumsum(0)
        counts = list(range(1, len(total_N) + 1))
        lines = [
            Series("held by the heaviest", counts, total_N.tolist()),
            Series("if all weighed the same", counts, [count / len(counts) for count in counts]),
        ]
        return LinePlot(lines, x_label="candidates", y_label="part of the weight")


@dataclass(frozen=True)
class PoolRequest:
    """A context, what is asked for it, and the random numbers it has: those of (seed, index)."""

    context: Context
    options: JointSampling
    seed: int
    index: int = 0

    @property
    def shape(self) -> RequestShape:
        return RequestShape(len(self.context.lm), self.options.n, self.options.max_new_tokens)


def sample_joint(
    draws: WeightedDraws,
    texts: JointTexts,
    contexts: Sequence[Context],
    options: JointSampling,
    *,
    seed: int,
    first_context: int = 0,
    beta: float | None,
    caution: Caution,
) -> list[JointSample]:
    """A sample of every context. Context i has the random numbers of (seed, first_context + i)."""
    eos_token_id = draws.lm.eos_token_id if options.stop_at_eos else None
    written: list[list[int]] = [[] for _ in contexts]
    pools: list[list[CandidatePool]] = [[] for _ in contexts]
    longest = [0] * len(contexts)  # text that the energy has read
    running = list(range(len(contexts)))
    total = len(contexts) * options.n * options.max_new_tokens * options.chunks
    with progress("sampling candidates", total=total, unit="token") as bar:
        for chunk in range(options.chunks):
            chunk_seed = derive_seed(seed, "chunk", chunk) if chunk else seed
            for start, stop in _runs(running):
                now = [
                    PoolRequest(
                        contexts[i].extended(written[i]).last(options.context_tokens),
                        options,
                        chunk_seed,
                        first_context + i,
                    )
                    for i in range(start, stop)
                ]
                for index, pool in enumerate(_pools(draws, now, eos_token_id=eos_token_id, bar=bar), start=start):
                    pools[index].append(pool)
                    longest[index] = max(longest[index], _longest(now[index - start].context, pool))
                    written[index] += pool.candidate(pool.kept[0])
            running = [index for index in running if written[index][-1] != eos_token_id]
    return [
        _sample(
            texts,
            PoolRequest(context.last(options.context_tokens), options, seed, index),
            tokens,
            drawn,
            beta=beta,
            caution=caution(read, _ended(draws, drawn)),
        )
        for index, (context, tokens, drawn, read) in enumerate(
            zip(contexts, written, pools, longest, strict=True), start=first_context
        )
    ]


def sample_requests(
    draws: WeightedDraws,
    texts: JointTexts,
    requests: Sequence[PoolRequest],
    *,
    window: int | None,
    beta: float | None,
    caution: Caution,
    bar: Progress | None = None,
) -> list[JointSample]:
    """A sample of every request, the same as if it came alone. Requests that are alike enough share one call of the
    engine; `window` is how many tokens the language model holds."""
    for request in requests:
        if request.options.chunks > 1 or request.options.context_tokens is not None or not request.options.stop_at_eos:
            raise ConfigError("requests that travel together are of one chunk, all context and end at the end token")
    samples: list[JointSample | None] = [None] * len(requests)
    for group in groups([request.shape for request in requests], window=window):
        members = [requests[i] for i in group]
        for i, pool in zip(group, _pools(draws, members, eos_token_id=draws.lm.eos_token_id, bar=bar), strict=True):
            tokens = pool.candidate(pool.kept[0])
            against = caution(_longest(requests[i].context, pool), _ended(draws, [pool]))
            samples[i] = _sample(texts, requests[i], tokens, [pool], beta=beta, caution=against)
    return [sample for sample in samples if sample is not None]


def _pools(
    draws: WeightedDraws, requests: Sequence[PoolRequest], *, eos_token_id: int | None, bar: Progress | None
) -> list[CandidatePool]:
    """n weighted candidates for each request, and those that are kept. Where n differs the largest is drawn for all and
    the surplus dropped, which changes no draw."""
    every = [request.options for request in requests]
    shape = len(requests), max(options.n for options in every)
    tokens_BNT = torch.zeros(*shape, max(options.max_new_tokens for options in every), dtype=torch.int64)
    lengths_BN = torch.zeros(shape, dtype=torch.int64)
    log_prob_BN, proposal_BN, energy_BN = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for piece, energy in draws.stream(
        [request.context for request in requests],
        n=shape[1],
        max_new_tokens=[options.max_new_tokens for options in every],
        truncation=[options.truncation for options in every],
        eos_token_id=eos_token_id,
        seed=[request.seed for request in requests],
        context_indices=[request.index for request in requests],
        progress=bar,
    ):
        drawn = torch.tensor(piece.contexts)[:, None], torch.arange(piece.copies.start, piece.copies.stop)[None, :]
        tokens_BNT[drawn] = piece.continuations.tokens.cpu()
        lengths_BN[drawn] = piece.continuations.lengths.cpu()
        log_prob_BN[drawn] = piece.continuations.log_prob.cpu()
        proposal_BN[drawn] = piece.continuations.proposal_log_prob.cpu()
        energy_BN[drawn] = energy
    pools: list[CandidatePool | None] = [None] * len(requests)
    for (n, _, weights), rows in _alike(every).items():
        log_weight_BN = importance_log_weights(
            energy_BN[rows, :n], log_prob_BN[rows, :n], proposal_BN[rows, :n], weights=weights
        )
        kept_BK = _kept(log_weight_BN, [requests[row] for row in rows])
        for row, log_weight_N, kept_K in zip(rows, log_weight_BN, kept_BK, strict=True):
            pools[row] = CandidatePool(
                tokens=tokens_BNT[row, :n, : every[row].max_new_tokens],
                lengths=lengths_BN[row, :n],
                log_prob=log_prob_BN[row, :n],
                proposal_log_prob=proposal_BN[row, :n],
                energy=energy_BN[row, :n],
                log_weight=log_weight_N,
                kept=kept_K,
            )
    return [pool for pool in pools if pool is not None]


def _longest(context: Context, pool: CandidatePool) -> int:
    """Tokens of the longest text of a pool, as the energy reads it."""
    return len(context.energy) + int(pool.lengths.max())


def _ended(draws: WeightedDraws, pools: Sequence[CandidatePool]) -> int:
    """Candidates with an end-of-sequence token."""
    return sum(ended_texts(pool.tokens, pool.lengths, draws.lm.eos_token_id) for pool in pools)


def _alike(every: Sequence[JointSampling]) -> dict[tuple[int, int, Weights], list[int]]:
    """Indices of the requests whose pools have one shape and whose choice is made in one way."""
    alike: dict[tuple[int, int, Weights], list[int]] = {}
    for row, options in enumerate(every):
        alike.setdefault((options.n, options.draws, options.weights), []).append(row)
    return alike


def _kept(log_weight_BN: Tensor, requests: Sequence[PoolRequest]) -> list[list[int]]:
    """Which candidates of each request are kept, with the random numbers of its seed and index; all keep as many."""
    seed_B = seed_tensor([derive_seed(request.seed, "resampling") for request in requests])
    index_B = torch.tensor([request.index for request in requests])
    choices = RowChoices(row_keys(seed_B, index_B, torch.zeros_like(index_B)))
    kept: list[list[int]] = resample(log_weight_BN, choices, draws=requests[0].options.draws).tolist()
    return kept


def _sample(
    texts: JointTexts,
    request: PoolRequest,
    tokens: list[int],
    pools: list[CandidatePool],
    *,
    beta: float | None,
    caution: str | None,
) -> JointSample:
    *_, last = pools
    earlier = tokens[: len(tokens) - len(last.candidate(last.kept[0]))]
    kept = [[*earlier, *last.candidate(number)] for number in last.kept]
    before_last = request.context.extended(earlier)
    return JointSample(
        texts=texts.new_texts(request.context, kept),
        tokens=kept,
        pools=pools,
        new_texts=lambda candidates: texts.new_texts(before_last, candidates),
        choose=lambda log_weight_N: _kept(log_weight_N[None], [request])[0],
        beta=beta,
        caution=caution,
    )


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (start, stop)."""
    if not indices:
        return []
    breaks = [index for index, (left, right) in enumerate(pairwise(indices), start=1) if right != left + 1]
    edges = [0, *breaks, len(indices)]
    return [(indices[left], indices[right - 1] + 1) for left, right in pairwise(edges)]
