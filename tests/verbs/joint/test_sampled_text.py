"""Base and joint text side by side: with an energy of zero both models are one; an energy that forbids is obeyed.
N-grams and differences of means by hand and by simulation."""

import math

import numpy as np
import pytest
import torch

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.errors import ConfigError, DataError
from energylm.verbs.joint.analyses import (
    JointWindows,
    SampledText,
    SampledTextResult,
    density_gap,
    first_tokens,
    unique_ngrams,
    unique_percentage,
)

LOOP = [1, 2, 1, 2, 1, 2]  # bigrams 12 21 12 21 12: 2 of 5; trigrams 121 212 121 212: 2 of 4
PLAIN = [1, 2, 3, 4]  # bigrams 12 23 34


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
    span = {"length": 20, "prefix_tokens": 8, "contexts": 12, "n": 40, "split": "train"}
    return SampledText(language_model=str(model_folder), energy=str(energy), source=str(corpus_folder), **span | values)


def test_with_an_energy_of_zero_the_joint_model_is_the_base(model_folder, zero_energy, corpus_folder):
    """log Z is 0 exactly, so log-probabilities of real text agree with `LanguageModel.score`, the other route."""
    settings = config(model_folder, zero_energy, corpus_folder)
    result = settings.run()
    assert result.joint.real == pytest.approx(result.base.real, abs=1e-4)
    lm = LanguageModel.from_pretrained(model_folder).without_special_tokens()
    scores = lm.score(JointWindows.load(settings).windows, prefix_tokens=8)
    assert result.base.real == pytest.approx([score.log_prob for score in scores], abs=1e-4)
    assert result.median_ess == pytest.approx(40)
    assert result.tokens == 12 * 12 and set(result.unique.percent) == {"data", "base", "joint"}


def test_own_samples_are_judged_by_their_own_model(model_folder, some_energy, corpus_folder):
    """The joint model's own log-probabilities, recomputed from the sampled tokens; leaving log Z out is caught."""
    from energylm.config.sampling import JointSampling
    from energylm.randomness import derive_seed

    settings = config(model_folder, some_energy, corpus_folder)
    result = settings.run()
    loaded = JointWindows.load(settings)
    options = JointSampling(n=40, max_new_tokens=12, stop_at_eos=False)
    drawn = loaded.joint.sample_batch(loaded.contexts, options, seed=derive_seed(0, "joint samples"))
    texts = [[*context, *sample.tokens[0]] for context, sample in zip(loaded.contexts, drawn, strict=True)]
    weight = loaded.joint.log_weights(texts, prefix_tokens=8)
    log_z = loaded.joint.log_partition(loaded.contexts, n=40, max_new_tokens=12, seed=derive_seed(0, "log partition"))
    expected = weight - (log_z.lower + log_z.upper) / 2
    assert result.joint.own == pytest.approx(expected.tolist(), abs=1e-4)
    assert max(abs(a - b) for a, b in zip(result.joint.own, weight.tolist(), strict=True)) > 0.01


def test_what_a_recipe_reads(model_folder, zero_energy, corpus_folder):
    record = config(model_folder, zero_energy, corpus_folder).run()
    result = record.to_json()
    assert SampledTextResult.from_json(result) == record  # out and in, to the last digit
    unique = result["unique"]
    assert unique["orders"] == [2, 3, 4] and unique["percent"]["joint"]["3"] == unique["joint"][1]
    assert unique["joint_minus_base"][0] == pytest.approx(unique["joint"][0] - unique["base"][0])
    assert len(result["joint"]["curves"]["x"]) == len(result["joint"]["curves"]["own"]) == 200
    assert "12 contexts of 8 tokens, 12 new tokens each" in result["convention"]


def test_nothing_to_write_is_refused(model_folder, zero_energy, corpus_folder):
    with pytest.raises(ConfigError, match="prefix_tokens 20 leaves nothing"):
        SampledText.checked(
            config(model_folder, zero_energy, corpus_folder).model_dump() | {"prefix_tokens": 20}, origin="here"
        )


def test_an_energy_of_another_model_and_of_shorter_windows_is_told(model_folder, zero_energy, corpus_folder, tmp_path):
    """The step's result carries what the joint model knows; teeth: with an energy that tells nothing it is silent."""
    energy = EnergyModel.from_pretrained(zero_energy)
    negatives = {"truncation": {}, "length": 12}
    energy.provenance["sources"] = [{"generator": {"name": "other", "sha256": "0" * 64}, "negatives": negatives}]
    energy.save_pretrained(tmp_path / "doubtful")
    told = config(model_folder, tmp_path / "doubtful", corpus_folder).run().to_json()["warning"]
    assert "trained against other (weights 000000000000)" in told and "windows of 12 tokens and reads up to 20" in told
    assert config(model_folder, zero_energy, corpus_folder).run().to_json()["warning"] is None


def test_unique_ngrams_by_hand():
    assert unique_percentage([LOOP], 2) == 40.0 and unique_percentage([LOOP], 3) == 50.0
    assert (
        unique_percentage([LOOP, PLAIN], 2) == 100 * 4 / 8
    )  # 12 21 23 34 of eight; no 2-gram from 2 to 1 across texts
    # Teeth: joined into one text they would have a ninth bigram, 21 at the seam.
    assert unique_percentage([LOOP + PLAIN], 2) == 100 * 4 / 9


def test_bodies_are_cut_to_equal_token_counts():
    """The longer a loop, the fewer of its n-grams are new: uncut, the longer body would look worse than it is."""
    bodies = {"short": [LOOP], "long": [LOOP, LOOP, LOOP]}
    assert unique_ngrams(bodies, orders=(2,)) == {"short": (40.0,), "long": (40.0,)}
    assert unique_percentage(bodies["long"], 2) < 40.0


def test_first_tokens():
    assert first_tokens([[1, 2, 3], [4, 5], [6]], 4) == [[1, 2, 3], [4]]
    assert first_tokens([[1, 2, 3], [4, 5], [6]], 5) == [[1, 2, 3], [4, 5]]


def test_nothing_to_count():
    with pytest.raises(DataError, match="no text has 3 tokens"):
        unique_percentage([[1, 2], [3]], 3)


def test_a_gap_by_hand():
    """Own −4, −6 (mean −5, variance 2), real −7, −8, −9 (mean −8, variance 1): Δ = 3, error √(2/2 + 1/3)."""
    gap = density_gap([-4.0, -6.0], [-7.0, -8.0, -9.0])
    assert (gap.own_mean, gap.real_mean, gap.difference) == (-5.0, -8.0, 3.0)
    assert gap.standard_error == pytest.approx(math.sqrt(2 / 2 + 1 / 3))
    assert density_gap(gap.real, gap.own).difference == 3.0
    assert gap.to_json()["own"] == [-4.0, -6.0]


def test_log_z_of_each_context_matters():
    """A language of known law: real text drawn from the joint model itself, in two contexts of unequal log Z. Under the
    joint model the gap is zero in expectation; leaving log Z out moves each context by its own constant (teeth)."""
    generator = np.random.default_rng(0)
    own, real, own_unnormalised, real_unnormalised = [], [], [], []
    for log_z, own_texts, real_texts in ((0.0, 3000, 1000), (5.0, 1000, 3000)):  # unequal shares of the contexts
        probabilities = generator.dirichlet(np.ones(8))
        for texts, normalised, unnormalised in (
            (own_texts, own, own_unnormalised),
            (real_texts, real, real_unnormalised),
        ):
            drawn = np.log(generator.choice(probabilities, p=probabilities, size=texts))
            normalised.extend(drawn)
            unnormalised.extend(drawn + log_z)
    right, wrong = density_gap(own, real), density_gap(own_unnormalised, real_unnormalised)
    assert wrong.difference > 1.5 > right.difference


def test_curves_are_densities_over_both_groups():
    generator = np.random.default_rng(0)
    gap = density_gap(generator.normal(-50, 3, 200).tolist(), generator.normal(-60, 5, 200).tolist())
    curves = gap.curves
    for name in ("real", "own"):
        assert np.trapezoid(curves[name], curves["x"]) == pytest.approx(1.0, abs=0.01)
    assert curves["x"][int(np.argmax(curves["real"]))] == pytest.approx(-60, abs=3)


def test_too_little_text():
    with pytest.raises(DataError, match="at least 2 texts a side, came 1 and 2"):
        density_gap([1.0], [1.0, 2.0])
    with pytest.raises(DataError, match="same log-probability"):
        density_gap([1.0, 1.0], [1.0, 2.0]).to_json()


def test_truncated_text_is_judged_by_the_whole_model(model_folder, some_energy, corpus_folder):
    """With top-k 1 both models write the likeliest tokens; their log-probabilities are the whole model's, not 0."""
    settings = config(model_folder, some_energy, corpus_folder, truncation={"top_k": 1})
    result, loaded = settings.run(), JointWindows.load(settings)
    base = loaded.base_samples.continuations.tokens[:, 0].tolist()
    texts = [[*context, *tokens] for context, tokens in zip(loaded.contexts, base, strict=True)]
    scores = [score.log_prob for score in loaded.lm.score(texts, prefix_tokens=8)]
    assert result.base.own == pytest.approx(scores, abs=1e-4) and max(scores) < -0.1
    assert result.base.real == pytest.approx(config(model_folder, some_energy, corpus_folder).run().base.real)
    assert result.unique.base == result.unique.joint, "one text can be drawn of each context, whatever its energy"
    assert "drawn with top-k 1" in result.convention
    assert "truncation" not in config(model_folder, some_energy, corpus_folder).step_content(), "keys stay as they were"
