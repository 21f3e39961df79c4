"""`energylm generate --sampler`, `energylm energy value` and `energylm perplexity --sampler smc`, on networks."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from energylm import EnergyModel
from energylm.data.negatives import open_negatives_sources
from energylm.errors import ConfigError
from energylm.jobs.job import Job
from energylm.registry import JOINT_SAMPLERS
from energylm.verbs import FitValue, Generate, MakeNegatives, Perplexity


@pytest.fixture(scope="module")
def value_folder(corpus_folder, model_folder, energy_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("value")
    MakeNegatives(
        language_model=str(model_folder), corpus=str(corpus_folder), k=3, length=20, prefix_tokens=12, contexts=8
    ).run(Job(output=folder / "negatives"))
    verb = FitValue(
        language_model=str(model_folder),
        negatives=str(folder / "negatives"),
        corpus=str(corpus_folder),
        energy=str(energy_folder),
        cuts=3,
    )
    assert verb.check().startswith("would read 8 contexts with 3 negatives of")
    value = verb.run(Job(output=folder / "value"))
    assert value.contexts == 8 and len(value.slopes) == len(value.offsets) == 5 and value.slopes[-1] == 1.0
    assert len(value.state_weights) == EnergyModel.from_pretrained(energy_folder).network.head.weight.shape[1]
    shorter = verb.model_copy(update={"max_new_tokens": 4}).run(Job(output=folder / "shorter"))
    assert shorter.slopes != value.slopes
    with pytest.raises(ConfigError, match="have 8 tokens; ask for fewer"):
        verb.model_copy(update={"max_new_tokens": 9}).run(Job(output=folder / "longer"))
    return folder / "value"


def test_the_first_blocks_of_negatives_are_negatives(corpus_folder, model_folder, tmp_path):
    """What docs/samplers.py trains on. Teeth: half as many contexts, asked for, are others."""
    path = Path(__file__).parents[3] / "docs" / "samplers.py"
    spec = importlib.util.spec_from_file_location("samplers", path)
    samplers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(samplers)
    shape = {"k": 2, "length": 14, "prefix_tokens": 12, "block_contexts": 3}
    paths = {"language_model": str(model_folder), "corpus": str(corpus_folder)}
    MakeNegatives(**paths, **shape, contexts=6).run(Job(output=tmp_path / "whole"))
    MakeNegatives(**paths, **shape, contexts=3).run(Job(output=tmp_path / "fewer"))
    samplers.first_blocks(tmp_path / "whole", tmp_path / "first", blocks=1)

    def rows(name, count):
        (source,) = open_negatives_sources([str(tmp_path / name)], [str(corpus_folder)])
        return source.negatives.rows(np.arange(count)).window_B.tolist(), len(source.negatives)

    assert rows("first", 3) == (rows("whole", 3)[0], 3)
    assert rows("fewer", 3)[0] != rows("first", 3)[0]


@pytest.mark.parametrize("name", JOINT_SAMPLERS.names())
def test_every_sampler_writes_and_reports(name, model_folder, energy_folder, value_folder):
    verb = Generate(
        language_model=str(model_folder),
        energy=str(energy_folder),
        prompt=["The clerk"],
        sampler=name,
        n=8,
        max_new_tokens=4,
        moves=6,
        bound=30.0 if name == "rejection" else None,
        lookahead=str(value_folder),
        stop_at_eos=False,
    )
    if name == "rejection":
        with pytest.raises(ConfigError, match="of 8 candidates none was accepted"):  # so high a bound takes e^30 draws
            verb.run()
        return
    (continuation,) = verb.run().results
    assert len(continuation.result.tokens[0]) == 4
    assert continuation.result.report.sampler == name
    assert ("candidates worth" if name == "resample" else continuation.result.report.verdict) in continuation.facts()


def test_a_value_of_another_energy_is_refused(model_folder, value_folder):
    verb = Generate(
        language_model=str(model_folder),
        energy="length:1-9",
        prompt=["The clerk"],
        sampler="smc",
        n=4,
        max_new_tokens=4,
        lookahead=str(value_folder),
    )
    with pytest.raises(ConfigError, match="but this one has 0; fit one"):
        verb.run()


def test_a_power_needs_no_energy(model_folder):
    """Sharper than the model itself, and told apart from it by mean log-probability."""
    options = {"prompt": ["The clerk"], "n": 64, "draws": 16, "max_new_tokens": 4, "stop_at_eos": False}
    verb = Generate(language_model=str(model_folder), power=4.0, **options)
    assert "choose by its own power" in verb.check()
    (continuation,) = verb.run().results
    pool = continuation.result.pools[0]
    assert torch.allclose(pool.log_weight, 3 * pool.log_prob)
    assert pool.log_prob[pool.kept].mean() > pool.log_prob.mean() + pool.log_prob.std() / 2
    for wrong in ({}, {"power": 4.0, "beta": 2.0}, {"power": 4.0, "method": "next-token"}):
        with pytest.raises(ValueError, match="no energy came; give --energy"):
            Generate(language_model=str(model_folder), **options, **wrong)


def test_perplexity_by_particles(model_folder, energy_folder, corpus_folder, value_folder):
    sizes = {"length": 16, "prefix_tokens": 12, "contexts": 3, "n": 16, "runs": 4, "lookahead": str(value_folder)}
    paths = {"language_model": str(model_folder), "energy": str(energy_folder), "source": str(corpus_folder)}
    verb = Perplexity(**paths, **sizes, sampler="smc")
    result = verb.run()
    assert result.joint.n == 16 and result.joint.log_partition.runs == 4
    assert result.joint.lower <= result.joint.upper and "4 runs of 4 particles" in result.convention
    plain = Perplexity(**paths, **sizes)
    assert result.base == plain.run().base
    assert "particles" in verb.step_content() and "particles" not in plain.step_content()
    with pytest.raises(ValueError, match="go by independent draws"):
        Perplexity(**paths, **sizes, sampler="smc", by_samples=True)
