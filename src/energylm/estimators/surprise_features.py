"""Numbers of a text for a detector that weighs them: how a language model's surprise is distributed over its tokens.

    ℓ_t = log p(x_t), r_t = log rank, H_t = entropy, σ_t = deviation of log p under p,   z_t = (ℓ_t + H_t) / σ_t

    zero-shot      the five scores of `zero_shot` that one model gives
    distribution   quantiles and deviations of ℓ, r, H; shares of tokens of rank 1, ≤ 10, > 100, > 1000; mean and
                   deviation of z, of which people's text has a heavier left tail
    order          autocorrelation of ℓ and H at lags 1 and 2; correlation of ℓ with H; how much likelier the second
                   half of a text is than the first
    later          means and deviations of ℓ and r, share of rank ≤ 100: after the first 32 tokens, or after a third of
                   a shorter text

The length itself is none of them: in most data sets people and machines write texts of different lengths, and nobody
wants a detector of that. What scatters with it is left to the calibration by length.

Without context every beginning is a surprise, whoever wrote it, and what machines continue begins with a person's
words: later tokens tell more. Level and spread of their surprise are lower in the text of every generator that was
tried; curvature and entropy tell kinds of generators apart, and change sides between them.

Use it     where texts of several generators and domains are there to learn weights from: a sum over these tells more
           than any one of them, as long as it is fitted across groups.
Relations  `bundles.combined_energy` is the weighted sum; `zero_shot` has the scores and the pass over the text.
"""

import torch
from torch import Tensor

from energylm.estimators.zero_shot import SCORES, TokenStatistics

QUANTILES = {  # of log-ranks the lower ones are 0 in nearly every text
    "log-likelihood": (0.05, 0.25, 0.5, 0.75, 0.95),
    "log-rank": (0.5, 0.75, 0.95),
    "entropy": (0.05, 0.25, 0.5, 0.75, 0.95),
}
RANKS = (1, 10, 100, 1000)
LAGS = (1, 2)
ZERO_SHOT = tuple(name for name in SCORES if name != "binoculars")
DISTRIBUTION = (
    *(f"{name} {level:.0%} quantile" for name, levels in QUANTILES.items() for level in levels),
    *(f"{name} deviation" for name in QUANTILES),
    *(f"share of rank ≤ {rank}" for rank in RANKS),
    "standardised surprise",
    "standardised surprise deviation",
)
ORDER = (
    *(f"{name} autocorrelation {lag}" for name in ("log-likelihood", "entropy") for lag in LAGS),
    "correlation of log-likelihood and entropy",
    "log-likelihood gain of the second half",
)
LATER_RANK = 100
LATER = (
    *(f"later {name}{kind}" for name in ("log-likelihood", "log-rank") for kind in ("", " deviation")),
    f"later share of rank ≤ {LATER_RANK}",
)
GROUPS = {"zero-shot": ZERO_SHOT, "distribution": DISTRIBUTION, "order": ORDER, "later": LATER}
FEATURES = tuple(name for group in GROUPS.values() for name in group)
BEGINNING = 32  # tokens, at most a third of a text
LEAST_DEVIATION = 0.1  # nats: below, the model left hardly a choice, and a standardised surprise would be noise


def surprise_features(statistics: TokenStatistics) -> Tensor:
    """(B, J) float64, the columns in the order of `FEATURES`."""
    if not len(statistics.tokens_B):
        return torch.zeros(0, len(FEATURES), dtype=torch.float64)
    columns = [SCORES[name](statistics) for name in ZERO_SHOT]
    rows = [_of_text(statistics, row, int(length)) for row, length in enumerate(statistics.tokens_B)]
    return torch.cat([torch.stack(columns, dim=1).cpu(), torch.stack(rows)], dim=1)


def _of_text(statistics: TokenStatistics, row: int, length: int) -> Tensor:
    """(J',) all but the zero-shot scores."""
    log_prob, log_rank, entropy, variance = (
        values_BT[row, :length].double().cpu()
        for values_BT in (
            statistics.log_prob_BT,
            statistics.log_rank_BT,
            statistics.entropy_BT,
            statistics.variance_BT,
        )
    )
    standardised = (log_prob + entropy) / variance.sqrt().clamp(min=LEAST_DEVIATION)
    half, beginning = length // 2, min(BEGINNING, length // 3)
    later = (log_prob[beginning:], log_rank[beginning:])
    gain = log_prob[half:].mean() - log_prob[:half].mean() if half else log_prob.new_zeros(())
    measured = dict(zip(QUANTILES, (log_prob, log_rank, entropy), strict=True))
    numbers = [
        *(measured[name].quantile(torch.tensor(levels, dtype=torch.float64)) for name, levels in QUANTILES.items()),
        *(values.std(correction=0) for values in measured.values()),
        *(_share_up_to(rank, log_rank) for rank in RANKS),
        standardised.mean(),
        standardised.std(correction=0),
        *(_correlation(values[:-lag], values[lag:]) for values in (log_prob, entropy) for lag in LAGS),
        _correlation(log_prob, entropy),
        gain,
        *(number for values in later for number in (values.mean(), values.std(correction=0))),
        _share_up_to(LATER_RANK, later[1]),
    ]
    return torch.cat([number.double().reshape(-1) for number in numbers])


def _share_up_to(rank: int, log_rank: Tensor) -> Tensor:
    return (log_rank < torch.tensor(rank + 0.5).log()).double().mean()


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Pearson's, 0 where one of them does not vary."""
    if len(first) < 2:
        return first.new_zeros(())
    first, second = first - first.mean(), second - second.mean()
    norm = first.norm() * second.norm()
    return torch.dot(first, second) / norm if norm > 1e-9 else first.new_zeros(())
