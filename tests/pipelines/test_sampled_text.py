"""Base and joint text side by side: with an energy of zero both models are one; an energy that forbids is obeyed."""

import pytest
import torch

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.config.analysis import SampledTextConfig
from energylm.errors import ConfigError
from energylm.pipelines.joint_windows import JointWindows
from energylm.pipelines.sampled_text import compare_sampled_text


@pytest.fixture(scope="module")
def zero_energy(model_folder, tmp_path_factory):
    """An energy that is 0 for every text."""
    energy = EnergyModel.from_encoder(model_folder)
    with torch.no_grad():
        energy.network.head.weight.zero_()
    folder = tmp_path_factory.mktemp("energies") / "zero"
    energy.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def some_energy(model_folder, tmp_path_factory):
    """An energy that says something: a head of size."""
    energy = EnergyModel.from_encoder(model_folder)
    with torch.no_grad():
        energy.network.head.weight.normal_(0, 2.0, generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("energies") / "some"
    energy.save_pretrained(folder)
    return folder


def config(model_folder, energy, corpus_folder, **values):
    span = {"length": 20, "prefix": 8, "contexts": 12, "n": 40, "split": "train"}
    return SampledTextConfig(
        language_model=str(model_folder), energy=str(energy), source=str(corpus_folder), **span | values
    )


def test_with_an_energy_of_zero_the_joint_model_is_the_base(model_folder, zero_energy, corpus_folder):
    """log Z is 0 exactly, so log-probabilities of real text agree with `LanguageModel.score`, the other route."""
    settings = config(model_folder, zero_energy, corpus_folder)
    found = compare_sampled_text(settings)
    assert found.joint.real == pytest.approx(found.base.real, abs=1e-4)
    lm = LanguageModel.from_pretrained(model_folder).without_special_tokens()
    scores = lm.score(JointWindows.load(settings).windows, prefix_tokens=8)
    assert found.base.real == pytest.approx([score.log_prob for score in scores], abs=1e-4)
    assert found.median_ess == pytest.approx(40)
    assert found.tokens == 12 * 12 and set(found.unique) == {"data", "base", "joint"}


def test_own_samples_are_judged_by_their_own_model(model_folder, some_energy, corpus_folder):
    """The joint model's own log-probabilities, recomputed from the sampled tokens; leaving log Z out is caught."""
    from energylm.config.generate import JointSampling
    from energylm.randomness import derive_seed

    settings = config(model_folder, some_energy, corpus_folder)
    found = compare_sampled_text(settings)
    work = JointWindows.load(settings)
    options = JointSampling(n=40, max_new_tokens=12, stop_at_eos=False)
    drawn = work.joint.sample_batch(work.contexts, options, seed=derive_seed(0, "joint samples"))
    texts = [[*context, *sample.tokens[0]] for context, sample in zip(work.contexts, drawn, strict=True)]
    weight = work.joint.log_weights(texts, prefix_tokens=8)
    log_z = work.joint.log_partition(work.contexts, n=40, max_new_tokens=12, seed=derive_seed(0, "log partition"))
    expected = weight - (log_z.lower + log_z.upper) / 2
    assert found.joint.own == pytest.approx(expected.tolist(), abs=1e-4)
    assert max(abs(a - b) for a, b in zip(found.joint.own, weight.tolist(), strict=True)) > 0.01


def test_what_a_recipe_reads(model_folder, zero_energy, corpus_folder):
    found = compare_sampled_text(config(model_folder, zero_energy, corpus_folder)).to_json()
    unique = found["unique"]
    assert unique["orders"] == [2, 3, 4] and unique["percent"]["joint"]["3"] == unique["joint"][1]
    assert unique["joint_minus_base"][0] == pytest.approx(unique["joint"][0] - unique["base"][0])
    assert len(found["joint"]["curves"]["x"]) == len(found["joint"]["curves"]["own"]) == 200
    assert "12 contexts of 8 tokens, 12 new tokens each" in found["convention"]


def test_nothing_to_write_is_refused(model_folder, zero_energy, corpus_folder):
    with pytest.raises(ConfigError, match="prefix 20 leaves nothing"):
        SampledTextConfig.checked(
            config(model_folder, zero_energy, corpus_folder).model_dump() | {"prefix": 20}, origin="here"
        )


def test_an_energy_of_another_model_and_of_shorter_windows_is_told(model_folder, zero_energy, corpus_folder, tmp_path):
    """The step's result carries what the joint model knows; teeth: with an energy that tells nothing it is silent."""
    energy = EnergyModel.from_pretrained(zero_energy)
    negatives = {"truncation": {}, "length": 12}
    energy.provenance["sources"] = [{"generator": {"name": "other", "sha256": "0" * 64}, "negatives": negatives}]
    energy.save_pretrained(tmp_path / "doubtful")
    told = compare_sampled_text(config(model_folder, tmp_path / "doubtful", corpus_folder)).to_json()["warning"]
    assert "trained against other (weights 000000000000)" in told and "windows of 12 tokens and reads up to 20" in told
    assert compare_sampled_text(config(model_folder, zero_energy, corpus_folder)).to_json()["warning"] is None
