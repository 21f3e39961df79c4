"""Features of surprise against their definitions in numpy, token by token; padding changes none of them, order only
those that are about order."""

import numpy as np
import pytest
import torch

from energylm.estimators.surprise_features import FEATURES, GROUPS, surprise_features
from energylm.estimators.zero_shot import SCORES, TokenStatistics

LENGTHS = (120, 7, 2)


def statistics(*, order=None):
    generator = torch.Generator().manual_seed(0)
    longest = max(LENGTHS)
    fields = []
    for scale in (-2.0, None, 2.0, 1.0):
        values = torch.rand(len(LENGTHS), longest, generator=generator, dtype=torch.float64)
        values = (2000 * values**4).ceil().log() if scale is None else scale * values  # ranks are whole numbers
        fields.append(values if order is None else values[:, order])
    real = torch.arange(longest) < torch.tensor(LENGTHS)[:, None]
    return TokenStatistics(*(torch.where(real, values, 0.0) for values in fields), torch.tensor(LENGTHS))


def by_definition(log_prob, log_rank, entropy, variance):
    """Of one text, by name."""
    standardised = (log_prob + entropy) / np.maximum(np.sqrt(variance), 0.1)
    half = len(log_prob) // 2

    def correlation(a, b):
        return np.corrcoef(a, b)[0, 1] if len(a) > 1 else 0.0

    features = {
        "standardised surprise": standardised.mean(),
        "standardised surprise deviation": standardised.std(),
        "correlation of log-likelihood and entropy": correlation(log_prob, entropy),
        "log-likelihood gain of the second half": log_prob[half:].mean() - log_prob[:half].mean(),
    }
    named = {"log-likelihood": log_prob, "log-rank": log_rank, "entropy": entropy}
    for name, values in named.items():
        features[f"{name} deviation"] = values.std()
        for level in (5, 25, 50, 75, 95):
            features[f"{name} {level}% quantile"] = np.percentile(values, level)
        for lag in (1, 2):
            features[f"{name} autocorrelation {lag}"] = correlation(values[:-lag], values[lag:])
    for rank in (1, 10, 100, 1000):
        features[f"share of rank ≤ {rank}"] = np.mean(np.exp(log_rank) <= rank)
    beginning = min(32, len(log_prob) // 3)
    for name in ("log-likelihood", "log-rank"):
        features[f"later {name}"] = named[name][beginning:].mean()
        features[f"later {name} deviation"] = named[name][beginning:].std()
    features["later share of rank ≤ 100"] = np.mean(np.exp(log_rank[beginning:]) <= 100)
    return features


def test_features_are_their_definitions():
    given = statistics()
    features = surprise_features(given)
    assert features.shape == (len(LENGTHS), len(FEATURES)) and len(set(FEATURES)) == len(FEATURES)
    for row, length in enumerate(LENGTHS):
        fields = (given.log_prob_BT, given.log_rank_BT, given.entropy_BT, given.variance_BT)
        expected = by_definition(*(values[row, :length].numpy() for values in fields))
        for column, name in enumerate(FEATURES):
            value = float(SCORES[name](given)[row]) if name in SCORES else expected[name]
            assert float(features[row, column]) == pytest.approx(value, abs=1e-9), name


def test_only_features_of_order_know_the_order():
    order = torch.cat([torch.randperm(7, generator=torch.Generator().manual_seed(1)), torch.arange(7, 120)])
    before, after = (surprise_features(given)[1] for given in (statistics(), statistics(order=order)))
    for column, name in enumerate(FEATURES):
        same = float(before[column]) == pytest.approx(float(after[column]), abs=1e-9)
        may_know = name in (*GROUPS["order"], *GROUPS["later"])
        assert same or may_know, name
        assert not (same and may_know) or name.startswith(("correlation of", "later share")), name


def test_padding_and_company_change_nothing():
    given = statistics()
    alone = TokenStatistics(
        *(v[1:2, :7] for v in (given.log_prob_BT, given.log_rank_BT, given.entropy_BT, given.variance_BT)),
        torch.tensor([7]),
    )
    assert torch.allclose(surprise_features(alone)[0], surprise_features(given)[1])
    cut = TokenStatistics(
        *(v[1:2, :6] for v in (given.log_prob_BT, given.log_rank_BT, given.entropy_BT, given.variance_BT)),
        torch.tensor([6]),
    )
    assert not torch.allclose(surprise_features(cut)[0], surprise_features(given)[1])  # teeth
    assert surprise_features(TokenStatistics(*[torch.zeros(0, 3)] * 4, torch.zeros(0))).shape == (0, len(FEATURES))


def test_a_text_that_never_surprises_has_finite_features():
    certain = TokenStatistics(*[torch.zeros(1, 5)] * 4, torch.tensor([5]))
    assert surprise_features(certain).isfinite().all()
