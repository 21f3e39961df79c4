"""Text of the base and of the joint model against real text: unique n-grams and densities of log-probabilities.

One continuation of each context by each: real, drawn from the base, drawn by joint sampling (algorithm 1, untruncated).

    unique_n = 100 · |{n-grams that occur}| / (number of n-grams)        percent        Deng et al. 2020, fig. 2 right
    Δ = | mean log P(x), x ~ P  −  mean log P(x), x real |               nats           Deng et al. 2020, fig. 3

The more text, the fewer of its n-grams are new, so bodies of text are comparable at equal token counts only: all are
cut to the shortest of them, text by text in turn, and an n-gram never crosses from one text to the next.

If P were the data's distribution both sides of Δ would have the same law, so Δ = 0 is necessary (not sufficient). The
base model judges its own samples; the joint model, log P(x | c) = log P_LM(x | c) − E(c, x) − log Z(c), judges what
joint sampling drew. Its log Z must be estimated for each context, without which contexts would be shifted against each
other, and from draws of its own: that of the pool which the sample was kept of would rise and fall with its weight.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.config.sampling import JointSampling
from energylm.errors import DataError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.randomness import derive_seed
from energylm.records import Record
from energylm.verbs.joint.analyses import JointAnalysis, JointWindows

ORDERS = (2, 3, 4)  # the paper's
POINTS = 200  # of a drawn curve


@dataclass(frozen=True, repr=False)
class UniqueNgrams(Record):
    """Percentages of unique n-grams in each body of text, for each order."""

    orders: tuple[int, ...]
    data: tuple[float, ...]
    base: tuple[float, ...]
    joint: tuple[float, ...]

    computed = ("percent", "joint_minus_base", "joint_minus_data")

    @property
    def percent(self) -> dict[str, dict[int, float]]:
        """By body of text and order."""
        bodies = {"data": self.data, "base": self.base, "joint": self.joint}
        return {name: dict(zip(self.orders, values, strict=True)) for name, values in bodies.items()}

    @property
    def joint_minus_base(self) -> list[float]:
        return [joint - base for joint, base in zip(self.joint, self.base, strict=True)]

    @property
    def joint_minus_data(self) -> list[float]:
        return [joint - data for joint, data in zip(self.joint, self.data, strict=True)]


@dataclass(frozen=True, repr=False)
class DensityGap(Record):
    """A model's view of its own samples and of real text; log-probabilities in nats of whole continuations."""

    own_mean: float
    real_mean: float
    difference: float  # |own − real|
    standard_error: float  # of the difference, over texts, as if the two groups were independent
    own: tuple[float, ...]
    real: tuple[float, ...]

    computed = ("curves",)

    @property
    def curves(self) -> dict[str, list[float]]:
        """Kernel density estimates (Scott's rule) of both groups on one axis `x`."""
        everything = np.array([*self.own, *self.real])
        margin = 0.15 * (everything.max() - everything.min()) or 1.0
        grid = np.linspace(everything.min() - margin, everything.max() + margin, POINTS)
        return {"x": grid.tolist(), "real": _density(self.real, grid), "own": _density(self.own, grid)}


@dataclass(frozen=True, repr=False)
class SampledTextResult(Record):
    unique: UniqueNgrams
    base: DensityGap
    joint: DensityGap
    tokens: int  # of each body of text
    median_ess: float  # of the candidates of a joint sample
    convention: str
    warning: str | None  # what is known against the joint model


class SampledText(JointAnalysis):
    """Compare base and joint continuations with real ones: unique n-grams (fig. 2 right), densities (fig. 3)."""

    def run(self, job: Job = DEFAULT_JOB) -> SampledTextResult:
        loaded = JointWindows.load(self)
        contexts, seed = loaded.contexts, self.seed
        options = JointSampling(n=self.n, max_new_tokens=loaded.new_tokens, stop_at_eos=False)
        drawn = loaded.joint.sample_batch(contexts, options, seed=derive_seed(seed, "joint samples"))
        pools = [sample.pools[-1] for sample in drawn]
        own_weight = [float(pool.log_prob[pool.kept[0]] - pool.energy[pool.kept[0]]) for pool in pools]
        real_weight = loaded.joint.log_weights(loaded.windows, prefix_tokens=self.prefix_tokens).tolist()
        estimate = loaded.joint.log_partition(
            contexts, n=self.n, max_new_tokens=loaded.new_tokens, seed=derive_seed(seed, "log partition")
        )
        log_z = ((estimate.lower + estimate.upper) / 2).tolist()
        base = loaded.base_samples.continuations
        texts = {
            "data": loaded.continuations,
            "base": base.tokens[:, 0].tolist(),
            "joint": [sample.tokens[0] for sample in drawn],
        }
        return SampledTextResult(
            unique=UniqueNgrams(ORDERS, **unique_ngrams(texts)),
            base=density_gap(
                base.log_prob[:, 0].tolist(),
                [score.log_prob for score in loaded.lm.score(loaded.windows, prefix_tokens=self.prefix_tokens)],
            ),
            joint=density_gap(
                [weight - z for weight, z in zip(own_weight, log_z, strict=True)],
                [weight - z for weight, z in zip(real_weight, log_z, strict=True)],
            ),
            tokens=sum(map(len, loaded.continuations)),
            median_ess=statistics.median(pool.ess for pool in pools),
            convention=f"{len(contexts)} contexts of {self.prefix_tokens} tokens, {loaded.new_tokens} new tokens each, "
            f"not truncated; joint samples kept of {self.n:,}; log Z midway between the estimates of theorem 2 from as "
            "many others; log-probabilities in nats",
            warning=loaded.joint.caution(self.length),
        )


def unique_ngrams(
    bodies: Mapping[str, Sequence[Sequence[int]]], *, orders: Sequence[int] = ORDERS
) -> dict[str, tuple[float, ...]]:
    """name -> percentage for each order, after cutting all bodies to equal token counts."""
    tokens = min(sum(map(len, texts)) for texts in bodies.values())
    return {
        name: tuple(unique_percentage(first_tokens(texts, tokens), order) for order in orders)
        for name, texts in bodies.items()
    }


def unique_percentage(texts: Sequence[Sequence[int]], order: int) -> float:
    """The percentage of different n-grams among all n-grams of `texts` (token ids)."""
    grams = [tuple(text[start : start + order]) for text in texts for start in range(len(text) - order + 1)]
    if not grams:
        raise DataError(f"no text has {order} tokens, so there are no {order}-grams to count; give longer texts")
    return 100 * len(set(grams)) / len(grams)


def first_tokens(texts: Sequence[Sequence[int]], tokens: int) -> list[Sequence[int]]:
    """The first texts, the last of them cut, so that they have `tokens` tokens together."""
    kept, left = [], tokens
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
        if left == 0:
            break
    return kept


def density_gap(own_log_probs: Sequence[float], real_log_probs: Sequence[float]) -> DensityGap:
    own, real = np.asarray(own_log_probs, dtype=np.float64), np.asarray(real_log_probs, dtype=np.float64)
    if min(own.size, real.size) < 2:
        raise DataError(f"a density needs at least 2 texts a side, came {own.size} and {real.size}; give more contexts")
    return DensityGap(
        own_mean=float(own.mean()),
        real_mean=float(real.mean()),
        difference=abs(float(own.mean() - real.mean())),
        standard_error=math.sqrt(own.var(ddof=1) / own.size + real.var(ddof=1) / real.size),
        own=tuple(own.tolist()),
        real=tuple(real.tolist()),
    )


def _density(values: Sequence[float], grid: NDArray[Any]) -> list[float]:
    if max(values) == min(values):
        raise DataError(f"all {len(values)} texts have the same log-probability, so there is no density to draw")
    from scipy.stats import gaussian_kde

    curve: list[float] = gaussian_kde(np.array(values))(grid).tolist()
    return curve
