"""`energylm generate --sampler`, `energylm energy value` and `energylm perplexity --sampler smc`, on networks."""

import pytest

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
    return folder / "value"


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
