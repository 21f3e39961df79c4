"""The samplers of a joint model by name (`registry.JOINT_SAMPLERS`): from contexts to pools of candidates, some kept.

    resample           n draws, one kept by its share                        near the joint model's law for large n
    rejection          n draws, accepted one by one under a bound            exactly its law, as many texts as accepted
    quasi-rejection    the same where no bound is known                      within a distance that is told
    independence       a chain over the n draws                              its law after enough draws
    suffix             n chains that rewrite the ends of their texts         its law after enough moves
    smc                n particles, resampled on the way by lookahead        near its law, for longer texts

All have one target: q · w, with log w = `samplers.resampling.importance_log_weights`; and one report (`SamplerReport`).
The random numbers of a request are those of its seed and index, whatever it travels with.

Relations  `samplers` holds the algorithms, `estimators` says how far to trust them, `residual_sampling` calls by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.bundles.batched_requests import RequestShape
from energylm.bundles.joint_texts import Context
from energylm.bundles.weighted_draws import CandidatePool, SamplerReport, WeightedDraws
from energylm.config.sampling import JointSampling
from energylm.energies.prefix_value import lookahead_energies, values_on_the_way
from energylm.errors import ConfigError
from energylm.estimators.log_partition import is_weak, shown_ess
from energylm.estimators.mixing import Trace, diagnose
from energylm.estimators.sampler_certificate import (
    independence_distance,
    quasi_rejection_bound,
    quasi_rejection_distance,
)
from energylm.numerics.importance import effective_sample_size
from energylm.progress import Progress
from energylm.randomness import derive_seed, row_keys, seed_tensor
from energylm.registry import JOINT_SAMPLERS
from energylm.samplers.choices import ChainChoices, RowChoices
from energylm.samplers.resampling import (
    accept_draws,
    check_bound,
    first_accepted,
    importance_log_weights,
    independence_chains,
    resample,
)
from energylm.samplers.sequential_monte_carlo import (
    Particles,
    Retained,
    Written,
    family_sample_size,
    sequential_monte_carlo,
)
from energylm.samplers.suffix_metropolis import SuffixMetropolis, run
from energylm.samplers.written_rows import ReadContexts


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


Chosen = tuple[list[int], SamplerReport]  # which candidates are kept, and how far to trust them
Choose = Callable[[Tensor, Sequence[PoolRequest]], list[Chosen]]  # log-weights (B, N) of requests of equal options


def resampled(log_weight_BN: Tensor, requests: Sequence[PoolRequest]) -> list[Chosen]:
    choices = RowChoices(_keys(requests, "resampling", members=1))
    kept_BK = resample(log_weight_BN, choices, draws=requests[0].options.draws).tolist()
    return [(kept, _weighed(log_weight_N)) for kept, log_weight_N in zip(kept_BK, log_weight_BN, strict=True)]


def _weighed(log_weight_N: Tensor) -> SamplerReport:
    ess = float(effective_sample_size(log_weight_N))
    worth = f"{len(log_weight_N):,} candidates are worth {shown_ess(ess)} independent ones"
    return SamplerReport("resample", ess, None, None, None, not is_weak(ess), worth)


def rejected(log_weight_BN: Tensor, requests: Sequence[PoolRequest]) -> list[Chosen]:
    log_bound = requests[0].options.bound
    assert log_bound is not None  # the config sees to it
    log_bound_B = torch.full_like(log_weight_BN[:, 0], log_bound)
    check_bound(log_weight_BN, log_bound_B)
    return _accepted("rejection", log_weight_BN, log_bound_B, torch.zeros_like(log_bound_B), requests)


def quasi_rejected(log_weight_BN: Tensor, requests: Sequence[PoolRequest]) -> list[Chosen]:
    """Without a bound the first half of the draws sets it, and is not chosen from: a bound must not depend on the draws
    that it judges."""
    options, n = requests[0].options, log_weight_BN.shape[1]
    first = 0 if options.bound is not None else n // 2
    judged_BN = log_weight_BN[:, first:]
    if options.bound is None:
        log_bound_B = quasi_rejection_bound(log_weight_BN[:, :first], distance=options.distance)
    else:
        log_bound_B = torch.full_like(log_weight_BN[:, 0], options.bound)
    distance_B = quasi_rejection_distance(judged_BN, log_bound_B)
    chosen = _accepted("quasi-rejection", judged_BN, log_bound_B, distance_B, requests)
    return [([first + index for index in kept], report) for kept, report in chosen]


def _accepted(
    name: str, log_weight_BN: Tensor, log_bound_B: Tensor, distance_B: Tensor, requests: Sequence[PoolRequest]
) -> list[Chosen]:
    accepted_BN = accept_draws(
        log_weight_BN, RowChoices(_keys(requests, "acceptance", members=1)), log_bound_B=log_bound_B
    )
    kept = first_accepted(accepted_BN, draws=requests[0].options.draws)
    chosen = []
    for own, accepted_N, log_weight_N, distance in zip(
        kept, accepted_BN, log_weight_BN, distance_B.tolist(), strict=True
    ):
        count, n, ess = int(accepted_N.sum()), len(accepted_N), float(effective_sample_size(log_weight_N))
        law = (
            "the joint model's law, exactly"
            if name == "rejection"
            else f"a law within {distance:.3g} of the joint model's in total variation, as far as these show"
        )
        is_trusted = name == "rejection" or not is_weak(ess)
        verdict = f"{count:,} of {n:,} candidates were accepted; each has {law}"
        report = SamplerReport(name, float(count), count / n, distance, None, is_trusted, verdict)
        chosen.append((own, report))
    return chosen


def chained(log_weight_BN: Tensor, requests: Sequence[PoolRequest]) -> list[Chosen]:
    """A chain for each text that is kept, all over draws of their own."""
    chains, n = requests[0].options.draws, log_weight_BN.shape[1]
    length = n // chains
    own_RN = log_weight_BN[:, : chains * length].reshape(-1, length)
    visited_RN = independence_chains(own_RN, ChainChoices(_keys(requests, "acceptance", members=chains)))
    chosen = []
    for log_weight_N, visited_CN in zip(log_weight_BN, visited_RN.view(-1, chains, length), strict=True):
        own_CN = log_weight_N[: chains * length].view(chains, length)
        if (own_CN.gather(1, visited_CN[:, -1:]) == float("-inf")).any():
            raise ConfigError(
                f"the energy allows none of the {length:,} candidates of a chain; draw more, or loosen the constraint"
            )
        acceptance = float((visited_CN[:, 1:] != visited_CN[:, :-1]).double().mean())
        distance = float(independence_distance(log_weight_N[None], draws=length)[0])
        ess = float(effective_sample_size(log_weight_N))
        verdict = (
            f"{acceptance:.1%} of {length:,} draws were accepted; after them the chain's law lies within "
            f"{distance:.3g} of the joint model's in total variation, as far as these show"
        )
        offsets = [chain * length + int(last) for chain, last in enumerate(visited_CN[:, -1])]
        report = SamplerReport("independence", ess, acceptance, distance, None, not is_weak(ess), verdict)
        chosen.append((offsets, report))
    return chosen


CHOICES: dict[str, Choose] = {
    "resample": resampled,
    "rejection": rejected,
    "quasi-rejection": quasi_rejected,
    "independence": chained,
}


def joint_pools(
    draws: WeightedDraws, requests: Sequence[PoolRequest], *, eos_token_id: int | None, bar: Progress | None
) -> list[CandidatePool]:
    """A pool for each request, by its sampler. Plain pools of all requests travel together; chains and particles need
    all rows of a context at once, so contexts travel together as memory allows."""
    pools: dict[int, CandidatePool] = {}
    plain = [row for row, request in enumerate(requests) if request.options.sampler in CHOICES]
    groups = [plain] if plain else []
    for options, rows in alike([request.options for request in requests]).items():
        if options.sampler not in CHOICES:
            longest = max(len(requests[row].context.lm) for row in rows)
            together = draws.rows_at_once(context_tokens=longest, max_new_tokens=options.max_new_tokens) // options.n
            groups += [rows[start : start + max(1, together)] for start in range(0, len(rows), max(1, together))]
    for rows in groups:
        members = [requests[row] for row in rows]
        make = JOINT_SAMPLERS.get(members[0].options.sampler)
        pools |= zip(rows, make(draws, members, eos_token_id=eos_token_id, bar=bar), strict=True)
    return [pools[row] for row in range(len(requests))]


def plain_pools(
    draws: WeightedDraws, requests: Sequence[PoolRequest], *, eos_token_id: int | None, bar: Progress | None
) -> list[CandidatePool]:
    """n weighted candidates for each request, and those that its sampler keeps. Where n differs the largest is drawn
    for all and the surplus dropped, which changes no draw."""
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
    for options, rows in alike(every).items():
        n = options.n
        log_weight_BN = importance_log_weights(
            energy_BN[rows, :n],
            log_prob_BN[rows, :n],
            proposal_BN[rows, :n],
            weights=options.weights,
            power=options.power,
        )
        chosen = CHOICES[options.sampler](log_weight_BN, [requests[row] for row in rows])
        for row, log_weight_N, (kept, report) in zip(rows, log_weight_BN, chosen, strict=True):
            pools[row] = CandidatePool(
                tokens=tokens_BNT[row, :n, : every[row].max_new_tokens],
                lengths=lengths_BN[row, :n],
                log_prob=log_prob_BN[row, :n],
                proposal_log_prob=proposal_BN[row, :n],
                energy=energy_BN[row, :n],
                log_weight=log_weight_N,
                kept=kept,
                report=report,
            )
    return [pool for pool in pools if pool is not None]


def alike(every: Sequence[JointSampling]) -> dict[JointSampling, list[int]]:
    """Indices of the requests that ask for the same."""
    rows: dict[JointSampling, list[int]] = {}
    for row, options in enumerate(every):
        rows.setdefault(options, []).append(row)
    return rows


def suffix_chains(
    draws: WeightedDraws, requests: Sequence[PoolRequest], *, eos_token_id: int | None, bar: Progress | None
) -> list[CandidatePool]:
    """n chains for each request, and the texts at which they end."""
    (options,) = {request.options for request in requests}
    contexts = [request.context for request in requests]
    shape, new_tokens = (len(requests), options.n), options.max_new_tokens
    read = _read(draws, contexts, options, eos_token_id)
    weigh = _Weights(draws, contexts, options)
    choices = ChainChoices(_keys(requests, "suffix chains", members=options.n))
    energies, moved = [], []
    for state, info in run(
        SuffixMetropolis(read, weigh.of_rows, bar),
        choices,
        new_tokens=new_tokens,
        block_tokens=options.block_tokens,
        moves=options.moves,
    ):
        energies.append(-(state.proposal_log_prob_R + state.log_weight_R).view(shape).cpu())
        moved.append(torch.stack([info.accepted_R, info.novel_R]) if info else torch.ones(2, shape[0] * shape[1]))
    accepted_BCN, novel_BCN = (torch.stack(moved, dim=-1)[which].view(*shape, -1).double().cpu() for which in (0, 1))
    energy_BCN = torch.stack(energies, dim=-1)
    pools = []
    for row in range(shape[0]):
        here = slice(row * options.n, (row + 1) * options.n)
        energy_CN = energy_BCN[row].clamp(max=torch.finfo(torch.float64).max)
        trace = Trace(
            energy_BCN=energy_CN[None],
            proposed_BCN=torch.ones_like(energy_CN)[None],
            accepted_BCN=accepted_BCN[row][None],
            novel_BCN=novel_BCN[row][None],
            temperature_N=torch.ones(energy_CN.shape[1]),
            burn_in=options.moves // 4 + 1,
            exact=True,
            dispersed=True,  # every chain began at a draw of its own
        )
        diagnosis = diagnose(trace)
        report = SamplerReport(
            sampler="suffix",
            effective=diagnosis.effective_draws,
            acceptance=diagnosis.acceptance,
            distance=None,
            log_partition=None,
            is_trusted=diagnosis.mixed,
            verdict=f"{options.n} chains of {options.moves} moves: {diagnosis.facts()}; {diagnosis.verdict}",
        )
        pools.append(
            CandidatePool(
                tokens=state.tokens_RT[here].cpu(),
                lengths=state.lengths_R[here].cpu(),
                log_prob=state.log_prob_R[here].cpu(),
                proposal_log_prob=state.proposal_log_prob_R[here].cpu(),
                energy=state.energy_R[here].cpu(),
                log_weight=torch.zeros(options.n, dtype=torch.float64),  # each text stands where its chain ended
                kept=list(range(options.draws)),
                report=report,
            )
        )
    return pools


def particle_runs(
    draws: WeightedDraws, requests: Sequence[PoolRequest], *, eos_token_id: int | None, bar: Progress | None
) -> list[CandidatePool]:
    """n particles for each request, some of them kept by their weight at the end."""
    options, particles, weigh = _particles(draws, requests, eos_token_id=eos_token_id, bar=bar)
    written, log_weight_BN = particles.written, particles.log_weight_BN.cpu()
    choices = RowChoices(_keys(requests, "resampling", members=1))
    kept_BK = resample(log_weight_BN, choices, draws=options.draws).tolist()
    pools = []
    for row, effective in enumerate(family_sample_size(particles).tolist()):
        resamplings, log_z = int(particles.resamplings_B[row]), float(particles.log_partition_B[row])
        verdict = (
            f"{options.n:,} particles, resampled {resamplings} times, are worth {shown_ess(effective)} independent "
            f"ones; log Z is estimated as {log_z:.3f}"
        )
        report = SamplerReport("smc", effective, None, None, log_z, not is_weak(effective), verdict)
        pools.append(
            CandidatePool(
                tokens=written.tokens_BNT[row].cpu(),
                lengths=written.lengths_BN[row].cpu(),
                log_prob=written.log_prob_BN[row].cpu(),
                proposal_log_prob=written.proposal_log_prob_BN[row].cpu(),
                energy=weigh.energy_BN[row].cpu(),
                log_weight=log_weight_BN[row],
                kept=kept_BK[row],
                report=report,
            )
        )
    return pools


def retained_log_partitions(
    draws: WeightedDraws,
    requests: Sequence[PoolRequest],
    texts: Sequence[Sequence[int]],
    *,
    eos_token_id: int | None,
    bar: Progress | None,
) -> Tensor:
    """(B,) log Ẑ of runs in which one particle of each request writes a given text: γ(text) / Ẑ estimates the density
    with which such runs write it, without bias."""
    rows = [torch.tensor(text) for text in texts]
    retained = Retained(pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]))
    _, particles, _ = _particles(draws, requests, eos_token_id=eos_token_id, bar=bar, retained=retained)
    return particles.log_partition_B.cpu()


def _particles(
    draws: WeightedDraws,
    requests: Sequence[PoolRequest],
    *,
    eos_token_id: int | None,
    bar: Progress | None,
    retained: Retained | None = None,
) -> "tuple[JointSampling, Particles, _Weights]":
    (options,) = {request.options for request in requests}
    contexts = [request.context for request in requests]
    weigh = _Weights(draws, contexts, options)
    particles = sequential_monte_carlo(
        _read(draws, contexts, options, eos_token_id),
        RowChoices(_keys(requests, "particles", members=options.n)),
        RowChoices(_keys(requests, "resampling of particles", members=1)),
        new_tokens=options.max_new_tokens,
        block_tokens=options.block_tokens or -(-options.max_new_tokens // DEFAULT_BLOCKS),
        on_the_way=weigh.on_the_way,
        at_the_end=weigh.at_the_end,
        threshold=options.ess_threshold,
        retained=retained,
        progress=bar,
    )
    return options, particles, weigh


DEFAULT_BLOCKS = 8  # of a text, where no block_tokens are given: a lookahead costs a reading of all that is written


class _Weights:
    """Energies and log-weights of what rows of these contexts have written, as the options say."""

    def __init__(self, draws: WeightedDraws, contexts: Sequence[Context], options: JointSampling) -> None:
        self._draws, self._contexts, self._options = draws, contexts, options
        self._lookahead = lookahead_energies(options.lookahead)
        self.energy_BN = torch.zeros(len(contexts), options.n, dtype=torch.float64)  # of finished texts

    def of_rows(
        self, tokens_RT: Tensor, lengths_R: Tensor, log_prob_R: Tensor, proposal_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        shape = len(self._contexts), -1
        energy_BN = self._energies(tokens_RT.view(*shape, tokens_RT.shape[1]), lengths_R.view(shape))
        return energy_BN.flatten(), self._log_weights(energy_BN.flatten(), log_prob_R, proposal_R)

    def at_the_end(self, written: Written) -> Tensor:
        self.energy_BN = self._energies(written.tokens_BNT, written.lengths_BN)
        return self._log_weights(self.energy_BN, written.log_prob_BN, written.proposal_log_prob_BN)

    def on_the_way(self, written: Written) -> Tensor:
        """What lies ahead takes the energy's place."""
        ahead_BN = torch.zeros_like(written.log_prob_BN)
        if self._lookahead is not None:
            energy_BN, states_BND = self._draws.energies_and_states(
                self._contexts, written.tokens_BNT, written.lengths_BN
            )
            energy_BN = energy_BN.to(ahead_BN.device)
            ahead_BN = self._lookahead(energy_BN, states_BND, written.lengths_BN, self._options.max_new_tokens)
            ahead_BN = values_on_the_way(ahead_BN, energy_BN, written.ended_BN)
        return self._log_weights(ahead_BN, written.log_prob_BN, written.proposal_log_prob_BN)

    def _energies(self, tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        return self._draws.energies(self._contexts, tokens_BNT, lengths_BN).to(tokens_BNT.device)

    def _log_weights(self, energy: Tensor, log_prob: Tensor, proposal_log_prob: Tensor) -> Tensor:
        options = self._options
        return importance_log_weights(energy, log_prob, proposal_log_prob, weights=options.weights, power=options.power)


def _read(
    draws: WeightedDraws, contexts: Sequence[Context], options: JointSampling, eos_token_id: int | None
) -> ReadContexts:
    ids = [context.lm for context in contexts]
    return ReadContexts(draws.lm.decoder(), ids, n=options.n, truncation=options.truncation, eos_token_id=eos_token_id)


def _keys(requests: Sequence[PoolRequest], purpose: str, *, members: int) -> Tensor:
    """(B·members,) the random numbers of each request for a purpose."""
    seed_B = seed_tensor([derive_seed(request.seed, purpose) for request in requests])
    index_B = torch.tensor([request.index for request in requests])
    member_R = torch.arange(members).repeat(len(requests))
    return row_keys(seed_B.repeat_interleave(members), index_B.repeat_interleave(members), member_R)
