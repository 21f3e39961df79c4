"""Measuring a joint model: log Z, perplexity and its interval, the same from fewer samples, the same by position.

Texts are measured in blocks of contexts; of each context n scalars are kept while its block is worked on, and a few
estimates afterwards. The samples of context i are those of the numbers (seed, i), so neither blocks nor a larger n
change them, and the first n' of n are the very samples that n' alone would have drawn.

Relations  the formulas stand in `estimators`; `weighted_draws` draws; `residual_model` is the face.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch
from torch import Tensor

from energylm.bundles.joint_samplers import PoolRequest, joint_pools, retained_log_partitions
from energylm.bundles.joint_texts import Context, CutText, lm_token_log_probs
from energylm.bundles.weighted_draws import WeightedDraws
from energylm.config.sampling import CONFIDENCE, JointSampling, ParticleRuns
from energylm.errors import ConfigError, DataError
from energylm.estimators.joint_perplexity import JointPerplexity, joined, joint_perplexity
from energylm.estimators.log_partition import LogPartition, log_partition, log_partition_of_runs
from energylm.estimators.position_perplexity import (
    PositionPerplexity,
    last_step_log_prob,
    position_perplexity,
    stepwise_log_probs,
)
from energylm.estimators.sampler_certificate import certified_log_prob
from energylm.plots import LinePlot, Series
from energylm.progress import Counter, Progress, progress
from energylm.randomness import derive_seed
from energylm.records import Record
from energylm.tables import Cell, Table


@dataclass(frozen=True)
class PerplexityBySamples(Record):
    """The interval as it closes: one measurement for each number of samples, all from one pool."""

    results: list[JointPerplexity]

    def __iter__(self) -> Iterator[JointPerplexity]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> JointPerplexity:
        return self.results[index]

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [result.n, result.base.value, result.lower, result.upper, result.certified.value, result.ess.smallest]
            for result in self.results
        ]
        columns = ["samples", "base", "joint, lower", "joint, upper", "certified", "smallest ESS"]
        return Table(columns, rows, convention=self.results[-1].convention)

    def plot(self) -> LinePlot:
        counts = [float(result.n) for result in self.results]
        lines = {
            "joint, upper end": [result.upper for result in self.results],
            "joint, lower end": [result.lower for result in self.results],
            "sampler, certified in expectation": [result.certified.value for result in self.results],
            "base": [result.base.value for result in self.results],
        }
        series = [Series(name, counts, values) for name, values in lines.items()]
        return LinePlot(series, x_label="samples a context", y_label="perplexity", log_x=True)


@dataclass(frozen=True)
class MeasuredTexts(Record):
    """B texts, measured with one or several numbers of samples a context."""

    lm_log_prob: Tensor  # (B,) log P_LM(x | c)
    energy: Tensor  # (B,) E(c, x)
    tokens: Tensor  # (B,) that are scored
    bytes: Tensor | None  # (B,) None where no bytes are known
    partitions: tuple[LogPartition, ...]  # one for each number of samples
    certified: tuple[Tensor, ...]  # (B,) the sampler's log-probability, one for each number of samples

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Blocks of texts as one."""
        sizes = [part.bytes for part in parts if part.bytes is not None]
        return cls(
            lm_log_prob=torch.cat([part.lm_log_prob for part in parts]),
            energy=torch.cat([part.energy for part in parts]),
            tokens=torch.cat([part.tokens for part in parts]),
            bytes=torch.cat(sizes) if len(sizes) == len(parts) else None,
            partitions=tuple(map(joined, zip(*(part.partitions for part in parts), strict=True))),
            certified=tuple(map(torch.cat, zip(*(part.certified for part in parts), strict=True))),
        )

    def perplexities(
        self, *, convention: str, caution: str | None, confidence: float = CONFIDENCE
    ) -> list[JointPerplexity]:
        """One for each number of samples."""
        return [
            joint_perplexity(
                self.lm_log_prob,
                self.energy,
                partition,
                certified_B,
                self.tokens,
                self.bytes,
                convention=convention,
                caution=caution,
                confidence=confidence,
            )
            for partition, certified_B in zip(self.partitions, self.certified, strict=True)
        ]


@dataclass(frozen=True)
class MeasuredPositions(Record):
    """B texts, measured at each of T positions."""

    lm_log_prob: Tensor  # (B, T) log P_LM(x_t | c, x_<t)
    energy: Tensor  # (B,)
    last_log_prob: Tensor  # (B,) of the joint model at the last position, exactly
    futures: tuple[LogPartition, ...]  # (T,) log Z of what stands before each position

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Blocks of texts as one."""
        return cls(
            lm_log_prob=torch.cat([part.lm_log_prob for part in parts]),
            energy=torch.cat([part.energy for part in parts]),
            last_log_prob=torch.cat([part.last_log_prob for part in parts]),
            futures=tuple(map(joined, zip(*(part.futures for part in parts), strict=True))),
        )

    def perplexity(self, *, first_position: int, convention: str, caution: str | None) -> PositionPerplexity:
        lower_BT, upper_BT = stepwise_log_probs(self.lm_log_prob, -self.energy, self.futures)
        return position_perplexity(
            self.lm_log_prob,
            lower_BT,
            upper_BT,
            self.last_log_prob,
            self.futures,
            first_position=first_position,
            convention=convention,
            caution=caution,
        )


LAST_TOKENS_AT_ONCE = 1024  # candidates for the last token whose energies are asked for together
COUNTS_PER_TENFOLD = (1, 2, 5)


def estimate_log_partition(
    draws: WeightedDraws,
    contexts: Sequence[Context],
    *,
    n: int,
    max_new_tokens: int,
    eos_token_id: int | None,
    seed: int,
    first_context: int = 0,
    within: Progress | None = None,
) -> LogPartition:
    """log Z of every context, between two estimates."""
    _check_counts([n])
    _check_some(contexts)
    total = len(contexts) * n * max_new_tokens
    with progress("estimating log Z", total=total, unit="token", within=within) as bar:
        blocks = draws.blocks(
            contexts,
            n=n,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            seed=seed,
            first_context=first_context,
            progress=bar,
        )
        return joined([log_partition(log_weight_BN) for _, log_weight_BN in blocks])


def measure_texts(
    draws: WeightedDraws,
    texts: Sequence[CutText],
    *,
    counts: Sequence[int],
    max_new_tokens: int | None,
    seed: int,
    first_context: int,
    particles: ParticleRuns | None = None,
    within: Progress | None = None,
) -> MeasuredTexts:
    """What perplexity is made of, for each of `counts`, all from the same max(counts) samples a context.

    With `max_new_tokens` lengths vary and end with EOS; without, each text has the horizon of its own length. With
    `particles` the samples are those of sequential Monte Carlo, for one count.
    """
    _check_counts(counts)
    if particles is not None:
        (n,) = counts
        return _measure_by_particles(
            draws,
            texts,
            particles.sampling(n),
            runs=particles.runs,
            max_new_tokens=max_new_tokens,
            seed=seed,
            first_context=first_context,
            within=within,
        )
    _check_some(texts)
    n = max(counts)
    lm_log_prob_B, energy_B = score_texts(draws, texts)
    horizons = [max_new_tokens or len(text.continuation) for text in texts]
    estimates: list[list[LogPartition]] = [[] for _ in counts]
    certified: list[list[Tensor]] = [[] for _ in counts]
    start = 0
    with progress("measuring the joint model", total=n * sum(horizons), unit="token", within=within) as bar:
        for horizon, run in groupby(horizons):
            size = len(list(run))
            for block, log_weight_BN in draws.blocks(
                [text.context for text in texts[start : start + size]],
                n=n,
                max_new_tokens=horizon,
                eos_token_id=None if max_new_tokens is None else draws.lm.eos_token_id,
                seed=seed,
                first_context=first_context + start,
                progress=bar,
            ):
                here = slice(start + block.start, start + block.stop)
                for index, count in enumerate(counts):
                    pool_BN = log_weight_BN[:, :count]
                    estimates[index].append(log_partition(pool_BN))
                    certified[index].append(certified_log_prob(lm_log_prob_B[here], -energy_B[here], pool_BN))
            start += size
    sizes = [text.bytes for text in texts]
    return MeasuredTexts(
        lm_log_prob=lm_log_prob_B,
        energy=energy_B,
        tokens=torch.tensor([len(text.continuation) for text in texts]),
        bytes=None if None in sizes else torch.tensor(sizes),
        partitions=tuple(map(joined, estimates)),
        certified=tuple(map(torch.cat, certified)),
    )


def _measure_by_particles(
    draws: WeightedDraws,
    texts: Sequence[CutText],
    options: JointSampling,
    *,
    runs: int,
    max_new_tokens: int | None,
    seed: int,
    first_context: int,
    within: Progress | None,
) -> MeasuredTexts:
    """The same by sequential Monte Carlo: `runs` independent runs of options.n particles for each text, and one run
    that retains the text, for the certificate. Particles, proposals and lookahead are those of `options`."""
    lm_log_prob_B, energy_B = score_texts(draws, texts)
    eos_token_id = None if max_new_tokens is None else draws.lm.eos_token_id
    horizons = [max_new_tokens or len(text.continuation) for text in texts]
    log_estimate_BR = torch.empty(len(texts), runs, dtype=torch.float64)
    retained_B = torch.empty(len(texts), dtype=torch.float64)
    total = (runs + 1) * options.n * sum(horizons)
    with progress("measuring the joint model", total=total, unit="token", within=within) as bar:
        for row, (text, horizon) in enumerate(zip(texts, horizons, strict=True)):
            own = options.model_copy(update={"max_new_tokens": horizon})
            *plain, last = (
                PoolRequest(text.context, own, derive_seed(seed, "run", run), first_context + row)
                for run in range(runs + 1)
            )
            pools = joint_pools(draws, plain, eos_token_id=eos_token_id, bar=bar)
            log_estimate_BR[row] = torch.tensor([pool.report.log_partition for pool in pools], dtype=torch.float64)
            retained_B[row] = retained_log_partitions(
                draws, [last], [text.continuation], eos_token_id=eos_token_id, bar=bar
            )[0]
    sizes = [text.bytes for text in texts]
    return MeasuredTexts(
        lm_log_prob=lm_log_prob_B,
        energy=energy_B,
        tokens=torch.tensor([len(text.continuation) for text in texts]),
        bytes=None if None in sizes else torch.tensor(sizes),
        partitions=(log_partition_of_runs(log_estimate_BR, particles=options.n),),
        certified=(lm_log_prob_B - energy_B - retained_B,),
    )


def score_texts(draws: WeightedDraws, texts: Sequence[CutText]) -> tuple[Tensor, Tensor]:
    """(B,) log P_LM(x | c) and (B,) E(c, x), in float64."""
    _check_some(texts)
    rows = [torch.tensor(text.continuation) for text in texts]
    tokens_B1T = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[:, None]
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    energy_B1 = draws.energies([text.context for text in texts], tokens_B1T, lengths_B1)
    return lm_token_log_probs(draws.lm, texts).sum(1), energy_B1[:, 0]


def measure_positions(
    draws: WeightedDraws,
    texts: Sequence[CutText],
    *,
    n: int,
    seed: int,
    first_context: int = 0,
    within: Progress | None = None,
) -> MeasuredPositions:
    """Eq. 5 at every position of equally long texts; the last position also exactly, over the whole vocabulary."""
    _check_counts([n])
    _check_some(texts)
    lengths = {len(text.continuation) for text in texts}
    if len(lengths) > 1:
        raise DataError(
            f"positions are compared over texts of one length, came {min(lengths)} to {max(lengths)} tokens after the "
            "prefix; cut them into windows"
        )
    (horizon,) = lengths
    futures = [
        estimate_log_partition(
            draws,
            _contexts_at(texts, position),
            n=n,
            max_new_tokens=horizon - position,
            eos_token_id=None,
            seed=derive_seed(seed, "position", position),
            first_context=first_context,
            within=within,
        )
        for position in range(horizon)
    ]
    _, energy_B = score_texts(draws, texts)
    return MeasuredPositions(
        lm_log_prob=lm_token_log_probs(draws.lm, texts),
        energy=energy_B,
        last_log_prob=exact_last_log_probs(draws, texts, within=None if within is None else Counter()),
        futures=tuple(futures),
    )


@torch.no_grad()
def exact_last_log_probs(draws: WeightedDraws, texts: Sequence[CutText], *, within: Progress | None = None) -> Tensor:
    """(B,) the joint model's log-probability of each text's last token given all before it, by enumeration."""
    result = []
    with progress("enumerating the last token", total=len(texts), unit="text", within=within) as bar:
        for text, context in zip(texts, _contexts_at(texts, -1), strict=True):
            _, logits_1V = draws.lm.decoder().prefill([context.lm])
            last_1 = torch.tensor(text.continuation[-1:])
            energies = [
                draws.energies([context], tokens_K[None, :, None], torch.ones(1, len(tokens_K), dtype=torch.int64))
                for tokens_K in torch.arange(logits_1V.shape[1]).split(LAST_TOKENS_AT_ONCE)
            ]
            lm_log_prob_1V = logits_1V.double().cpu().log_softmax(-1)
            result.append(last_step_log_prob(lm_log_prob_1V, torch.cat(energies, dim=1), last_1))
            bar.advance()
    return torch.cat(result)


def sample_counts(n: int) -> list[int]:
    """2, 5, 10, 20, 50 … up to n itself: where the interval is looked at on its way."""
    counts = [step * 10**power for power in range(len(str(n))) for step in COUNTS_PER_TENFOLD]
    return [count for count in counts if 2 <= count < n] + [n]


def _contexts_at(texts: Sequence[CutText], position: int) -> list[Context]:
    return [text.context.extended(text.continuation[:position]) for text in texts]


def _check_counts(counts: Sequence[int]) -> None:
    """Before anything is drawn, since drawing takes long."""
    if min(counts, default=0) < 2:
        raise ConfigError(
            f"the upper estimate of log Z needs at least 2 samples a context, came {min(counts, default=0)}; "
            "ask for 1,000 or so"
        )


def _check_some(texts: Sequence[object]) -> None:
    if not texts:
        raise DataError("no text came; give at least one")
