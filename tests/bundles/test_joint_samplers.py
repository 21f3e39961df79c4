"""Every sampler of a joint model by its name: the law of what it keeps, its report, its numbers in any batch.

A language of 8 texts after a context. The law of each sampler's first text over many contexts is compared with the
exact joint one by chi-square, false alarm 1e-4; the kernels themselves are proved in tests/samplers.
"""

import inspect

import pytest
import torch

from energylm import ResidualModel
from energylm.config.sampling import JointSampling
from energylm.errors import ConfigError, TooFewAccepted
from energylm.registry import JOINT_SAMPLERS
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_same_distribution,
    exact_joint,
    exact_language_model,
)

CONTEXT, NEW = [1], 3
LM = TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3)
ENERGY = TabularEnergy.random(2, len(CONTEXT) + NEW, seed=5)
JOINT = exact_joint(LM, ENERGY, CONTEXT, max_new_tokens=NEW)
BASE = exact_language_model(LM, CONTEXT, max_new_tokens=NEW)
LOWEST = float(ENERGY.table.min())
OPTIONS = {
    "resample": {"n": 60},
    "rejection": {"n": 60, "bound": -LOWEST},
    "quasi-rejection": {"n": 60, "distance": 0.001},
    "independence": {"n": 40},
    "suffix": {"n": 4, "moves": 25},
    "smc": {"n": 60, "block_tokens": 1},
}


def model():
    return ResidualModel(LM, ENERGY)


def options(name, **others):
    return JointSampling(sampler=name, max_new_tokens=NEW, **(OPTIONS[name] | others))


def counts(samples):
    return JOINT.counts(torch.tensor([sample.tokens[0] for sample in samples]))


@pytest.mark.parametrize("name", JOINT_SAMPLERS.names())
def test_what_is_kept_has_the_joint_law(name):
    samples = model().sample_batch([CONTEXT] * 500, options(name), seed=2)
    assert_same_distribution(counts(samples), JOINT.probabilities, false_alarm=1e-4)
    with pytest.raises(AssertionError):  # teeth: it is not the language model's
        assert_same_distribution(counts(samples), BASE.probabilities, false_alarm=1e-4)
    report = samples[0].report
    assert report.sampler == name and report.verdict and report.effective > 0
    assert type(report).from_json(report.to_json()) == report


@pytest.mark.parametrize("name", JOINT_SAMPLERS.names())
def test_python_takes_every_sampler_by_name(name):
    """`sample` with keywords is `sample_batch` with a config. Teeth: with the sampler left out it is another pool."""
    own = OPTIONS[name] | {"block_tokens": 2}
    if name == "quasi-rejection":
        own = {"n": 60, "bound": -LOWEST - 0.5}
    expected = model().sample_batch([CONTEXT], JointSampling(sampler=name, max_new_tokens=NEW, **own), seed=9)[0]
    sample = model().sample(CONTEXT, sampler=name, max_new_tokens=NEW, seed=9, **own)
    assert sample.tokens == expected.tokens and sample.report == expected.report
    if name != "resample":
        assert model().sample(CONTEXT, max_new_tokens=NEW, seed=9, n=own["n"]).report != expected.report


def test_defaults_of_python_are_those_of_the_config():
    fields = JointSampling.model_fields
    defaults = {name: word.default for name, word in inspect.signature(ResidualModel.sample).parameters.items()}
    shared = defaults.keys() & fields.keys()
    assert {"sampler", "bound", "moves", "block_tokens", "power", "lookahead", "n", "draws"} <= shared
    assert {name: defaults[name] for name in shared} == {name: fields[name].default for name in shared}


@pytest.mark.parametrize("name", ["resample", "independence", "suffix", "smc"])
def test_a_power_sharpens_the_language_model(name):
    """P^α exp(−E) with α = 3, by every sampler that needs no bound."""
    law = (3 * BASE.log_prob + JOINT.log_prob - BASE.log_prob).softmax(0)
    samples = model().sample_batch([CONTEXT] * 400, options(name, power=3.0), seed=4)
    assert_same_distribution(counts(samples), law, false_alarm=1e-4)
    with pytest.raises(AssertionError):
        assert_same_distribution(counts(samples), JOINT.probabilities, false_alarm=1e-4)


@pytest.mark.parametrize("name", JOINT_SAMPLERS.names())
def test_a_request_draws_the_same_alone_and_in_company(name):
    together = model().sample_batch([CONTEXT] * 3, options(name), seed=6)
    alone = model().sample_batch([CONTEXT], options(name), seed=6, first_context=2)
    assert alone[0].tokens == together[2].tokens
    assert alone[0].pools[0].log_weight.equal(together[2].pools[0].log_weight)


@pytest.mark.parametrize("lookahead", ["none", "energy"])
def test_particles_estimate_log_z(lookahead):
    samples = model().sample_batch([CONTEXT] * 50, options("smc", lookahead=lookahead), seed=1)
    estimates = torch.tensor([sample.report.log_partition for sample in samples])
    assert float(estimates.exp().mean().log()) == pytest.approx(JOINT.log_partition, abs=0.05)


def test_rejection_says_what_it_lacks():
    with pytest.raises(ConfigError, match="needs a bound"):  # before anything is drawn
        JointSampling.checked({"sampler": "rejection"})
    with pytest.raises(ConfigError, match="above the bound"):
        model().sample_batch([CONTEXT], options("rejection", bound=-LOWEST - 1))
    with pytest.raises(TooFewAccepted, match="accepted, but 3 shall be kept"):
        model().sample_batch([CONTEXT], options("rejection", bound=-LOWEST + 7, draws=3))


def test_an_unknown_sampler_names_its_neighbour():
    with pytest.raises(ConfigError, match="did you mean 'smc'"):
        JointSampling.checked({"sampler": "smcs"}, origin="test")


def test_reports_say_how_far_to_trust():
    exact, near, chain, moved, led = (
        model().sample_batch([CONTEXT], options(name), seed=3)[0].report
        for name in ("rejection", "quasi-rejection", "independence", "suffix", "smc")
    )
    assert exact.distance == 0.0 and exact.is_trusted and "exactly" in exact.verdict
    assert 0 <= near.distance < 0.1 and 0 < near.acceptance <= 1
    assert 0 <= chain.distance < 0.1 and 0 < chain.acceptance < 1
    assert 0 < moved.acceptance < 1 and "chains of 25 moves" in moved.verdict
    assert led.log_partition is not None and "particles, resampled" in led.verdict


def test_only_independent_draws_answer_for_another_beta():
    energy = model()
    assert energy.sample_batch([CONTEXT], options("resample"), seed=3)[0].at_beta(0.5).report.sampler == "resample"
    led = energy.sample_batch([CONTEXT], options("smc"), seed=3)[0]
    assert led.kl is None
    with pytest.raises(ConfigError, match="led by the energy"):
        led.at_beta(0.5)


def test_particles_survive_a_constraint_that_is_met_late():
    """A text that must hold token 0 is forbidden until it does: on the way that only counts as unlikely."""
    energy = TabularEnergy.from_function(
        lambda text: 0.0 if 0 in text[1:] else float("inf"), vocabulary_size=2, length=len(CONTEXT) + NEW
    )
    samples = ResidualModel(LM, energy).sample_batch([CONTEXT] * 200, options("smc"), seed=5)
    allowed = (BASE.tokens == 0).any(1)
    law = torch.where(allowed, BASE.probabilities, 0.0)
    assert_same_distribution(counts(samples)[allowed], law[allowed] / law.sum(), false_alarm=1e-4)
