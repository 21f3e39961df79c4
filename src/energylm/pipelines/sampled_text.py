"""Text of the base and of the joint model against real text: unique n-grams and densities of log-probabilities.

One continuation of each context by each: real, drawn from the base, drawn by joint sampling (algorithm 1, untruncated).
The log Z of a context comes from draws of its own: that of the pool which the joint sample was kept of would rise and
fall with the sample's own weight.

Relations  Deng et al. 2020, fig. 2 right (`evaluation.ngrams`) and fig. 3 (`evaluation.density`).
"""

import statistics
from dataclasses import dataclass
from typing import Any

from energylm.config.analysis import SampledTextConfig
from energylm.config.generate import JointSampling
from energylm.evaluation.density import DensityGap, density_gap, density_plot
from energylm.evaluation.ngrams import unique_ngrams
from energylm.pipelines.joint_windows import JointWindows
from energylm.randomness import derive_seed


@dataclass(frozen=True)
class SampledText:
    unique: dict[str, dict[int, float]]  # data, base, joint -> order -> percent
    base: DensityGap
    joint: DensityGap
    tokens: int  # of each body of text
    median_ess: float  # of the candidates of a joint sample
    convention: str
    warning: str | None  # what is known against the joint model

    def to_json(self) -> dict[str, Any]:
        lists = {name: list(found.values()) for name, found in self.unique.items()}
        by_order = {name: {str(order): value for order, value in found.items()} for name, found in self.unique.items()}
        return {
            "unique": {
                "orders": list(self.unique["data"]),
                **lists,
                "percent": by_order,
                "joint_minus_base": [a - b for a, b in zip(lists["joint"], lists["base"], strict=True)],
                "joint_minus_data": [a - b for a, b in zip(lists["joint"], lists["data"], strict=True)],
            },
            **{name: _density_json(gap, name) for name, gap in (("base", self.base), ("joint", self.joint))},
            "tokens": self.tokens,
            "ess": self.median_ess,
            "convention": self.convention,
            "warning": self.warning,
        }


def _density_json(gap: DensityGap, name: str) -> dict[str, Any]:
    real, own = density_plot(gap, model=f"{name} model").series
    return gap.to_json() | {"curves": {"x": real.x, "real": real.y, "own": own.y}}


def compare_sampled_text(config: SampledTextConfig) -> SampledText:
    work = JointWindows.load(config)
    contexts, seed = work.contexts, config.seed
    options = JointSampling(n=config.n, max_new_tokens=work.new_tokens, stop_at_eos=False)
    drawn = work.joint.sample_batch(contexts, options, seed=derive_seed(seed, "joint samples"))
    pools = [sample.pools[-1] for sample in drawn]
    own_weight = [float(pool.log_prob[pool.kept[0]] - pool.energy[pool.kept[0]]) for pool in pools]
    real_weight = work.joint.log_weights(work.windows, prefix_tokens=config.prefix).tolist()
    estimate = work.joint.log_partition(
        contexts, n=config.n, max_new_tokens=work.new_tokens, seed=derive_seed(seed, "log partition")
    )
    log_z = ((estimate.lower + estimate.upper) / 2).tolist()
    base = work.base_samples.continuations
    texts = {
        "data": work.continuations,
        "base": base.tokens[:, 0].tolist(),
        "joint": [sample.tokens[0] for sample in drawn],
    }
    return SampledText(
        unique=unique_ngrams(texts),
        base=density_gap(
            base.log_prob[:, 0].tolist(),
            [score.log_prob for score in work.lm.score(work.windows, prefix_tokens=config.prefix)],
        ),
        joint=density_gap(
            [weight - z for weight, z in zip(own_weight, log_z, strict=True)],
            [weight - z for weight, z in zip(real_weight, log_z, strict=True)],
        ),
        tokens=sum(map(len, work.continuations)),
        median_ess=statistics.median(pool.ess for pool in pools),
        convention=f"{len(contexts)} contexts of {config.prefix} tokens, {work.new_tokens} new tokens each, not "
        f"truncated; joint samples kept of {config.n:,}; log Z midway between the estimates of theorem 2 from as many "
        "others; log-probabilities in nats",
        warning=work.joint.caution(config.length),
    )
