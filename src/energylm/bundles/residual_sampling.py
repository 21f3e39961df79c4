"""Drawing text from a joint model: candidates from the language model, one of them by its weight, chunk after chunk.

    draw x_1 … x_n ~ q(· | c),  keep x_i with probability w_i / Σ_j w_j                Deng et al. 2020, algorithm 1

Long texts go on chunk by chunk: what was kept becomes context, and a new pool is drawn (the paper's future work).

Relations  `samplers.resampling` holds the weights and the choice; `next_tokens` draws token by token instead.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.residual_results import JointSample, Pool
from energylm.bundles.weighted_draws import WeightedDraws
from energylm.config.generate import JointSampling
from energylm.progress import Progress, progress
from energylm.randomness import derive_seed, row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.resampling import importance_log_weights, resample


def sample_joint(
    draws: WeightedDraws,
    texts: JointTexts,
    contexts: Sequence[Context],
    options: JointSampling,
    *,
    seed: int,
    first_context: int = 0,
    caution: str | None = None,
) -> list[JointSample]:
    """A sample of every context. Context i has the random numbers of (seed, first_context + i)."""
    eos_token_id = draws.lm.eos_token_id if options.stop_at_eos else None
    written: list[list[int]] = [[] for _ in contexts]
    pools: list[list[Pool]] = [[] for _ in contexts]
    running = list(range(len(contexts)))
    total = len(contexts) * options.n * options.max_new_tokens * options.chunks
    with progress("sampling candidates", total=total, unit="token") as bar:
        for chunk in range(options.chunks):
            chunk_seed = derive_seed(seed, "chunk", chunk) if chunk else seed
            for start, stop in _runs(running):
                now = [contexts[i].extended(written[i]).last(options.context_tokens) for i in range(start, stop)]
                drawn = _pools(
                    draws,
                    now,
                    options,
                    eos_token_id=eos_token_id,
                    seed=chunk_seed,
                    first=first_context + start,
                    bar=bar,
                )
                for index, pool in enumerate(drawn, start=start):
                    pools[index].append(pool)
                    written[index] += pool.candidate(pool.kept[0])
            running = [index for index in running if written[index][-1] != eos_token_id]
    return [
        _sample(texts, context.last(options.context_tokens), tokens, drawn, caution=caution)
        for context, tokens, drawn in zip(contexts, written, pools, strict=True)
    ]


def _pools(
    draws: WeightedDraws,
    contexts: Sequence[Context],
    options: JointSampling,
    *,
    eos_token_id: int | None,
    seed: int,
    first: int,
    bar: Progress,
) -> list[Pool]:
    """n weighted candidates of each context, and those that are kept."""
    shape = len(contexts), options.n
    tokens_BNT = torch.zeros(*shape, options.max_new_tokens, dtype=torch.int64)
    lengths_BN = torch.zeros(shape, dtype=torch.int64)
    log_prob_BN, proposal_BN, energy_BN = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for piece, energy in draws.stream(
        contexts,
        n=options.n,
        max_new_tokens=options.max_new_tokens,
        truncation=options.truncation,
        eos_token_id=eos_token_id,
        seed=seed,
        first_context=first,
        progress=bar,
    ):
        rows = torch.tensor(piece.contexts)[:, None], torch.arange(piece.copies.start, piece.copies.stop)[None, :]
        tokens_BNT[rows] = piece.continuations.tokens.cpu()
        lengths_BN[rows] = piece.continuations.lengths.cpu()
        log_prob_BN[rows] = piece.continuations.log_prob.cpu()
        proposal_BN[rows] = piece.continuations.proposal_log_prob.cpu()
        energy_BN[rows] = energy
    log_weight_BN = importance_log_weights(energy_BN, log_prob_BN, proposal_BN, weights=options.weights)
    group_B = torch.arange(first, first + len(contexts))
    choices = RowChoices(row_keys(derive_seed(seed, "resampling"), group_B, torch.zeros_like(group_B)))
    kept_BK = resample(log_weight_BN, choices, draws=options.draws)
    columns = tokens_BNT, lengths_BN, log_prob_BN, proposal_BN, energy_BN, log_weight_BN
    return [Pool(*(column[row] for column in columns), kept=kept_BK[row].tolist()) for row in range(len(contexts))]


def _sample(
    texts: JointTexts, context: Context, tokens: list[int], pools: list[Pool], *, caution: str | None
) -> JointSample:
    *_, last = pools
    earlier = tokens[: len(tokens) - len(last.candidate(last.kept[0]))]
    kept = [[*earlier, *last.candidate(number)] for number in last.kept]
    before_last = context.extended(earlier)
    return JointSample(
        texts=[texts.new_text(context, sequence) for sequence in kept],
        tokens=kept,
        pools=pools,
        new_text=lambda candidate: texts.new_text(before_last, candidate),
        caution=caution,
    )


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (start, stop)."""
    if not indices:
        return []
    breaks = [place for place, (left, right) in enumerate(pairwise(indices), start=1) if right != left + 1]
    edges = [0, *breaks, len(indices)]
    return [(indices[left], indices[right - 1] + 1) for left, right in pairwise(edges)]
