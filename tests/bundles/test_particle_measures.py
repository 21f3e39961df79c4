"""Perplexity by sequential Monte Carlo: interval and certificate against exact ones, on enumerable languages."""

import math

import pytest
import torch

from energylm import ResidualModel
from energylm.config.sampling import ParticleRuns
from energylm.errors import ConfigError
from energylm.estimators.log_partition import log_partition, log_partition_of_runs
from energylm.testing import TabularEnergy, TabularLanguageModel, assert_mean, exact_joint

CONTEXT, NEW = [1], 3
ENERGY = TabularEnergy.random(2, len(CONTEXT) + NEW, seed=5)
LMS = {
    "fixed length": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3),
    "end token": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3, eos_token_id=0),
}
TEXTS = {"fixed length": [1, 0, 1, 1], "end token": [1, 1, 1, 0]}
RUNS = ParticleRuns(runs=6, block_tokens=1)


def measured(kind, *, texts=40, n=60, **options):
    cap = NEW if kind == "end token" else None
    joint = ResidualModel(LMS[kind], ENERGY)
    return joint.perplexity([TEXTS[kind]] * texts, prefix_tokens=1, n=n, max_new_tokens=cap, particles=RUNS, **options)


@pytest.mark.parametrize("kind", LMS)
def test_runs_estimate_z_and_certify(kind):
    """40 measurements of one text: the mean of exp(lower) is Z, that of exp(certificate) the density of what a run of
    10 particles writes, which is near the joint one and sums to one over texts."""
    exact = exact_joint(LMS[kind], ENERGY, CONTEXT, max_new_tokens=NEW)
    result = measured(kind, seed=1)
    partition = result.log_partition
    assert_mean(partition.lower.exp(), math.exp(exact.log_partition), false_alarm=1e-4)
    assert (partition.upper >= partition.lower).all()
    assert partition.n == 60 and partition.runs == 6
    assert "6 runs of 10 particles" in result.convention
    text = exact.index(torch.tensor([TEXTS[kind][1:]]))
    assert float(-math.log(result.certified.value)) == pytest.approx(float(exact.log_prob[text]) / NEW, abs=0.1)
    assert result.certified.bound > result.certified.value
    with pytest.raises(AssertionError):  # teeth: the base's Z is 1
        assert_mean(partition.lower.exp(), 1.0, false_alarm=1e-4)


def test_blocks_of_texts_are_measured_alike():
    whole = measured("fixed length", texts=3)
    joint = ResidualModel(LMS["fixed length"], ENERGY)
    last = joint.measure([TEXTS["fixed length"]], counts=[60], prefix_tokens=1, first_context=2, seed=0, particles=RUNS)
    assert float(last.partitions[0].lower[0]) == float(whole.log_partition.lower[2])
    assert type(last).from_json(last.to_json()).partitions[0].runs == 6


def test_what_runs_are_worth():
    """Runs of one particle are draws: n / (1 + n v) is then their effective sample size, up to the factor of an
    unbiased variance. Equal runs are worth all their particles."""
    log_weight = torch.randn(5, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    runs, draws = log_partition_of_runs(log_weight, particles=1), log_partition(log_weight)
    torch.testing.assert_close(runs.ess, draws.ess, rtol=0.01, atol=0)
    assert log_partition_of_runs(torch.zeros(1, 4), particles=8).ess.tolist() == [32.0]
    assert (log_partition_of_runs(log_weight, particles=8).ess < 8 * draws.ess).all()


def test_too_few_samples_for_the_runs_are_told():
    with pytest.raises(ConfigError, match="fewer than 2 particles to each of 6 runs"):
        measured("fixed length", n=7)
