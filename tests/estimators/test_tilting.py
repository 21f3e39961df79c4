"""Mean score and KL of a tilted base against enumeration, the jackknife against leaving draws out one by one, and the
stated error against seeded repeats.

The language has 3 tokens and 2 steps, 9 sequences, with one score each.
"""

import math

import pytest
import torch

from energylm.errors import ConfigError
from energylm.estimators.tilting import reward_curve
from energylm.testing import TabularEnergy, TabularLanguageModel, enumerate_expectation, exact_language_model

MODEL = TabularLanguageModel.random(3, 2, seed=4)
BASE = exact_language_model(MODEL, max_new_tokens=2)
SCORE = -TabularEnergy.random(3, 2, seed=5).energies(BASE.tokens, BASE.lengths)
BETA = 1.5


def exact(beta, probabilities=BASE.probabilities, score=SCORE):
    """Mean score of π ∝ P exp(βs), and KL(π ‖ P) = Σ π log(π / P), summed over the whole language."""
    tilted = probabilities * (beta * score).exp()
    tilted = tilted / tilted.sum()
    kl = torch.where(tilted > 0, tilted * (tilted / probabilities).log(), 0.0).sum()
    return float((tilted * score).sum()), float(kl)


def plug_in(score_N, beta):
    """The estimates before the jackknife, as the formulas stand."""
    weight_N = (beta * score_N).exp()
    share_N = weight_N / weight_N.sum()
    return (share_N * score_N).sum(), (share_N * beta * score_N).sum() - weight_N.mean().log()


def point(score_N, beta=BETA, **options):
    return reward_curve(score_N, betas=[beta], **options).points[0]


def drawn(n, seed, probabilities=BASE.probabilities):
    return torch.multinomial(probabilities, n, replacement=True, generator=torch.Generator().manual_seed(seed))


def test_a_pool_in_the_proportions_of_the_base_gives_the_exact_numbers():
    """Draws of q uniform with weights P/q: each sequence as often as any other, 20,000 times, so that what is left of
    the jackknife's correction is of order 1/n."""
    base_log_weight = (BASE.probabilities * len(BASE.probabilities)).log().repeat(20_000)
    result = point(SCORE.repeat(20_000), base_log_weight_N=base_log_weight)
    score, kl = exact(BETA)
    assert result.score == pytest.approx(score, abs=1e-4)
    assert result.kl == pytest.approx(kl, abs=1e-4)
    without_weights = point(SCORE.repeat(20_000))  # the deliberate mistake: q taken for P
    assert abs(without_weights.kl - kl) > 1e-2


def test_the_jackknife_equals_leaving_draws_out_one_by_one():
    score_N = SCORE[drawn(12, seed=1)]
    result, n = point(score_N), len(score_N)
    for number, value, error in ((0, result.score, result.score_error), (1, result.kl, result.kl_error)):
        whole = plug_in(score_N, BETA)[number]
        without = torch.stack([plug_in(torch.cat([score_N[:i], score_N[i + 1 :]]), BETA)[number] for i in range(n)])
        assert value == pytest.approx(float(n * whole - (n - 1) * without.mean()), abs=1e-10)
        assert error == pytest.approx(float(((n - 1) * without.var(correction=0)).sqrt()), abs=1e-10)


def test_the_jackknife_takes_away_most_of_the_bias():
    """Exactly, over every multiset of 5 draws."""

    def expectation(statistic):
        return float(enumerate_expectation(BASE.probabilities, lambda draws: statistic(SCORE[draws]), n=5))

    corrected = expectation(lambda s_MN: torch.tensor([point(row, beta=0.5).kl for row in s_MN]))
    plain = expectation(lambda s_MN: torch.stack([plug_in(row, 0.5)[1] for row in s_MN]))
    kl = exact(0.5)[1]
    assert abs(corrected - kl) < 0.35 * abs(plain - kl)


def test_the_stated_error_holds_in_95_percent_of_repeats():
    """400 pools of 500 draws: the share itself has a standard error of 1.1 %, so below 92 % is a rare false alarm."""
    score, kl = exact(BETA)
    results = [point(SCORE[drawn(500, seed)]) for seed in range(400)]
    assert sum(abs(result.kl - kl) <= 1.96 * result.kl_error for result in results) >= 368
    assert sum(abs(result.score - score) <= 1.96 * result.score_error for result in results) >= 368
    too_small = sum(abs(result.kl - kl) <= 1.96 * result.kl_error / 2 for result in results)  # the deliberate mistake
    assert too_small < 368


def coverage(stretched=1.0):
    """Of exact KLs by ±1.96 errors, over 8 random languages of 27 texts, pools of 64 and 400, β of 0.5 and 2: 1,280
    pools, settings that were fixed before the first run."""
    generator, hits = torch.Generator().manual_seed(20261117), []
    for n in (64, 400):
        for beta in (0.5, 2.0):
            for _ in range(8):
                base_V = torch.rand(27, generator=generator, dtype=torch.float64).square()
                score_V = torch.randn(27, generator=generator, dtype=torch.float64)
                _, kl = exact(beta, base_V / base_V.sum(), score_V)
                for _ in range(40):
                    drawn_N = torch.multinomial(base_V, n, replacement=True, generator=generator)
                    estimate = point(score_V[drawn_N], beta)
                    hits.append(abs(estimate.kl - kl) <= 1.96 * stretched * estimate.kl_error)
    return sum(hits) / len(hits)


def test_the_stated_error_of_kl_holds_on_languages_that_nobody_chose():
    """False alarm 1e-4, one-sided: 95 % − 3.72 · √(0.95 · 0.05 / 1,280) = 92.7 %."""
    fewest = 0.95 - 3.72 * math.sqrt(0.95 * 0.05 / 1280)
    assert coverage() >= fewest
    assert coverage(stretched=0.7) < fewest  # deliberate mistake: errors too small


def test_no_tilt_is_the_base():
    score_N = SCORE[drawn(50, seed=3)]
    result = point(score_N, beta=0.0)
    assert result.kl == 0
    assert result.score == pytest.approx(float(score_N.mean()), abs=1e-12)
    assert result.ess == pytest.approx(50)


def test_a_forbidden_draw_weighs_nothing_at_any_beta():
    """A constraint that holds for a share a of the base: KL is −log a where nothing else is tilted."""
    allowed = SCORE > SCORE.median()
    score = torch.where(allowed, 0.0, -math.inf).repeat(20_000)
    base = (BASE.probabilities * len(BASE.probabilities)).log().repeat(20_000)
    share = float(BASE.probabilities[allowed].sum())
    for beta in (0.0, 3.0):
        assert point(score, beta, base_log_weight_N=base).kl == pytest.approx(-math.log(share), abs=1e-4)


def test_a_beta_beyond_the_pool_is_said():
    curve = reward_curve(SCORE[drawn(64, seed=2)] * 4, betas=[0.1, 50.0])
    assert curve.points[0].is_trusted
    assert not curve.points[1].is_trusted
    assert "at β = 50 the 64 draws are worth" in curve.warning
    assert f"{curve.largest_beta:.3g}" in curve.warning
    at_limit = point(SCORE[drawn(64, seed=2)] * 4, beta=curve.largest_beta)
    assert at_limit.ess == pytest.approx(20, abs=1e-3)
    assert reward_curve(torch.zeros(30), betas=[1.0]).largest_beta is None


@pytest.mark.parametrize(
    ("scores", "beta", "message"),
    [
        ([1.0, 2.0], 1.0, "at least 3"),
        ([1.0, math.nan, 0.0], 1.0, "nan"),
        ([-math.inf] * 3, 1.0, "all are −inf"),
        ([1.0, 2.0, 3.0], math.inf, "finite"),
    ],
)
def test_what_gives_no_curve_is_refused(scores, beta, message):
    with pytest.raises(ConfigError, match=message):
        reward_curve(torch.tensor(scores), betas=[beta])
