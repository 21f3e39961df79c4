"""Drawing text from a joint model: candidates of each context by a sampler's name, one of them kept, chunk after chunk.

Long texts go on chunk by chunk: what was kept becomes context, and a new pool is drawn (the paper's future work).
Requests of several people travel together (`sample_requests`): a pool depends on its own request alone.

Relations  `joint_samplers` draws the candidates and keeps some (algorithm 1, or another); `next_tokens` draws token by
           token instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from energylm.bundles.batched_requests import groups
from energylm.bundles.energy_binding import scaled
from energylm.bundles.joint_samplers import CHOICES, Chosen, PoolRequest, joint_pools
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.weighted_draws import CandidatePool, SamplerReport, WeightedDraws, ended_texts
from energylm.config.sampling import JointSampling
from energylm.errors import ConfigError, DataError
from energylm.estimators.log_partition import is_weak, shown_ess
from energylm.estimators.tilting import FEWEST_FOR_ERRORS, RewardCurve, TiltPoint
from energylm.plots import LinePlot, Series
from energylm.progress import Progress, progress
from energylm.randomness import derive_seed
from energylm.records import LOCAL, Record
from energylm.samplers.suffix_metropolis import tokens_of_a_chain
from energylm.tables import Cell, Table

Caution = Callable[[int, int], str | None]  # against texts of up to so many tokens, of which so many end


def _unknown_texts(candidates: list[list[int]]) -> list[str]:
    raise DataError("a sample that was read from JSON knows its candidates by their tokens only; draw it again")


def _unknown_choice(log_weight_N: Tensor) -> Chosen:
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
    choose: Callable[[Tensor], Chosen] = field(  # who is kept by such log-weights, of the last chunk
        default=_unknown_choice, repr=False, metadata=LOCAL
    )
    beta: float | None = None  # the energy's own; None where it has none
    caution: str | None = field(default=None, repr=False)

    computed = ("ess", "largest_share", "kl", "kl_error", "report", "warning")

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
        if len(self.log_weights) < FEWEST_FOR_ERRORS or not self._is_plain:
            return None
        return [pool.tilt() for pool in self.pools]

    def reward_curve(self, betas: Sequence[float]) -> RewardCurve:
        """Mean score −E/β and KL of the tilted base over `betas`, from the candidates of the last chunk: what another
        β would give, without a new draw."""
        self._refuse_other_samplers()
        return self.pools[-1].reward_curve(betas, beta=self._scale())

    def at_beta(self, beta: float) -> "JointSample":
        """What the same seed draws at another β, without a new draw: the candidates do not depend on β, the choice
        among them does."""
        self._refuse_other_samplers()
        if len(self.pools) > 1:
            raise ConfigError(
                "at another β the first chunk may end otherwise, and the next go on from that; draw again"
            )
        (pool,) = self.pools
        energy_N = scaled(pool.energy, beta / self._scale())
        is_allowed_N = pool.energy.isfinite()
        log_weight_N = torch.where(is_allowed_N, pool.log_weight + pool.energy - energy_N, -math.inf)
        kept, report = self.choose(log_weight_N)
        tokens = [pool.candidate(number) for number in kept]
        pools = [replace(pool, energy=energy_N, log_weight=log_weight_N, kept=kept, report=report)]
        return replace(self, texts=self.new_texts(tokens), tokens=tokens, pools=pools, beta=beta)

    @property
    def report(self) -> SamplerReport:
        """Of the chunk that is worth least."""
        return min((pool.report for pool in self.pools), key=lambda report: report.effective)

    @property
    def _is_plain(self) -> bool:
        """Whether the candidates are independent draws of the proposal, which any β can weigh."""
        return self.report.sampler in CHOICES

    def _refuse_other_samplers(self) -> None:
        if not self._is_plain:
            raise ConfigError(
                f"candidates of sampler {self.report.sampler} were led by the energy at its β, so they say nothing of "
                "another; draw again, or with sampler resample"
            )

    def _scale(self) -> float:
        """The β by which energies are scores."""
        if self.beta == 0:
            raise ConfigError("at β = 0 the energies say nothing of the scores; draw with another β")
        return self.beta or 1.0

    @property
    def warning(self) -> str | None:
        weak, n = None, len(self.log_weights)
        if self.report.sampler != "resample":
            weak = None if self.report.is_trusted else self.report.verdict
        elif is_weak(self.ess):
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


def tokens_of_a_candidate(options: JointSampling) -> int:
    """How many tokens are drawn for each of the n candidates of a chunk, at most: a chain writes its text anew with
    every move."""
    if options.sampler == "suffix":
        return tokens_of_a_chain(options.max_new_tokens, options.block_tokens, options.moves)
    return options.max_new_tokens


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
    total = len(contexts) * options.n * tokens_of_a_candidate(options) * options.chunks
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
                for index, pool in enumerate(joint_pools(draws, now, eos_token_id=eos_token_id, bar=bar), start=start):
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
        for i, pool in zip(
            group, joint_pools(draws, members, eos_token_id=draws.lm.eos_token_id, bar=bar), strict=True
        ):
            tokens = pool.candidate(pool.kept[0])
            against = caution(_longest(requests[i].context, pool), _ended(draws, [pool]))
            samples[i] = _sample(texts, requests[i], tokens, [pool], beta=beta, caution=against)
    return [sample for sample in samples if sample is not None]


def _longest(context: Context, pool: CandidatePool) -> int:
    """Tokens of the longest text of a pool, as the energy reads it."""
    return len(context.energy) + int(pool.lengths.max())


def _ended(draws: WeightedDraws, pools: Sequence[CandidatePool]) -> int:
    """Candidates with an end-of-sequence token."""
    return sum(ended_texts(pool.tokens, pool.lengths, draws.lm.eos_token_id) for pool in pools)


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
        choose=lambda log_weight_N: CHOICES[request.options.sampler](log_weight_N[None], [request])[0],
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
