"""Scores that tell machine text from human by a language model's surprise alone: nothing is trained.

    log-likelihood   (1/T) Σ_t log p(x_t)                                        Solaiman et al. 2019
    log-rank         (1/T) Σ_t log r(x_t)                                        Mitchell et al. 2023
    entropy          (1/T) Σ_t H_t                                               Gehrmann et al. 2019
    lrr              −Σ_t log p(x_t) / Σ_t log r(x_t)                            Su et al. 2023, eq. 1
    curvature        (Σ_t log p(x_t) + Σ_t H_t) / √(Σ_t σ²_t)                    Bao et al. 2024, eq. 4 to 6, analytic
    binoculars       Σ_t log p(x_t) / Σ_t Σ_v q(v) log p(v)                      Hans et al. 2024, eq. 4

p = p(· | x_<t) is the model's distribution of token t, r(x_t) = 1 + the number of likelier tokens, H_t its entropy (the
mean of −log p under p), σ²_t the variance of log p under p, q the distribution of a second model of the same tokenizer.
Curvature asks how far the text's log-likelihood lies above what texts drawn token by token beside it would have, in
their standard deviations. In Binoculars p is the performer and q the observer, as in the authors' program.

All come from five numbers a token, `TokenStatistics`, so one pass over a text gives every score (two for Binoculars).

Use it     before there is anything to learn from. Which side machine text lies on (`SIGNS`) is what the papers found
           for chat models; text drawn without truncation from small models can lie on the other: fit the sign.
Relations  `models.causal` makes the statistics, `bundles.zero_shot_energy` an energy of a score,
           `surprise_features` weighs many such numbers at once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.errors import ConfigError

LEAST_LOG_PROB = -1e4  # stands for log 0 where it is multiplied by a probability, which is 0 long before
LEAST_LOG_RANK_SUM = math.log(2)  # a text of likeliest tokens only is taken as if one had been the second likeliest


@dataclass(frozen=True)
class TokenStatistics:
    """Of B texts and the T tokens of each; 0 past its end."""

    log_prob_BT: Tensor
    log_rank_BT: Tensor
    entropy_BT: Tensor
    variance_BT: Tensor  # of the log-probability, under the model's distribution
    tokens_B: Tensor  # that have a probability
    cross_entropy_BT: Tensor | None = None  # −Σ_v q(v) log p(v), if there is a second model q

    @property
    def real(self) -> Tensor:
        """(B, T): which positions hold a token."""
        return torch.arange(self.log_prob_BT.shape[1], device=self.tokens_B.device) < self.tokens_B[:, None]


def token_statistics(logits_BTV: Tensor, targets_BT: Tensor, observer_logits_BTV: Tensor | None = None) -> Tensor:
    """(S, B, T), S = 4, or 5 with an observer: the fields of `TokenStatistics` in order, from logits of every token."""
    log_prob_BTV = logits_BTV.log_softmax(-1)
    chosen_BT1 = log_prob_BTV.gather(2, targets_BT[..., None])
    rank_BT = 1 + (log_prob_BTV > chosen_BT1).sum(-1)
    log_prob_BTV = log_prob_BTV.clamp_(min=LEAST_LOG_PROB)
    prob_BTV = log_prob_BTV.exp()
    entropy_BT = -torch.linalg.vecdot(prob_BTV, log_prob_BTV)
    statistics = []
    if observer_logits_BTV is not None:
        statistics.append(-torch.linalg.vecdot(observer_logits_BTV.softmax(-1), log_prob_BTV))
    second_moment_BT = torch.linalg.vecdot(prob_BTV, log_prob_BTV.square_())
    variance_BT = (second_moment_BT - entropy_BT.square()).clamp(min=0)
    return torch.stack([chosen_BT1[..., 0], rank_BT.to(entropy_BT).log(), entropy_BT, variance_BT, *statistics])


def mean_log_likelihood(statistics: TokenStatistics) -> Tensor:
    """(B,) nats a token."""
    return statistics.log_prob_BT.double().sum(1) / statistics.tokens_B


def mean_log_rank(statistics: TokenStatistics) -> Tensor:
    """(B,) nats a token; 0 where every token is the likeliest."""
    return statistics.log_rank_BT.double().sum(1) / statistics.tokens_B


def mean_entropy(statistics: TokenStatistics) -> Tensor:
    """(B,) nats a token."""
    return statistics.entropy_BT.double().sum(1) / statistics.tokens_B


def log_likelihood_log_rank_ratio(statistics: TokenStatistics) -> Tensor:
    """(B,)"""
    log_ranks_B = statistics.log_rank_BT.double().sum(1).clamp(min=LEAST_LOG_RANK_SUM)
    return -statistics.log_prob_BT.double().sum(1) / log_ranks_B


def curvature(statistics: TokenStatistics) -> Tensor:
    """(B,) standard deviations; 0 where the model leaves no choice at any token."""
    above_B = (statistics.log_prob_BT.double() + statistics.entropy_BT.double()).sum(1)
    variance_B = statistics.variance_BT.double().sum(1)
    return torch.where(variance_B > 0, above_B / variance_B.clamp(min=1e-12).sqrt(), 0.0)


def binoculars(statistics: TokenStatistics) -> Tensor:
    """(B,) 1 where the text surprises the performer as much as the observer's own text would."""
    if statistics.cross_entropy_BT is None:
        raise ConfigError("binoculars compares two language models of one tokenizer, one came; give an observer")
    return -statistics.log_prob_BT.double().sum(1) / statistics.cross_entropy_BT.double().sum(1).clamp(min=1e-12)


SCORES: Mapping[str, Callable[[TokenStatistics], Tensor]] = {
    "log-likelihood": mean_log_likelihood,
    "log-rank": mean_log_rank,
    "entropy": mean_entropy,
    "lrr": log_likelihood_log_rank_ratio,
    "curvature": curvature,
    "binoculars": binoculars,
}
SIGNS: Mapping[str, int] = {  # 1: machine text scores higher
    "log-likelihood": 1,
    "log-rank": -1,
    "entropy": -1,
    "lrr": 1,
    "curvature": 1,
    "binoculars": -1,
}
