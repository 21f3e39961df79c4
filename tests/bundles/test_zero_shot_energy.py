"""A language model as an energy: its mean log-likelihood by the other route, both directions of reading, folders."""

import pytest
import torch
from torch.testing import assert_close

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.zero_shot_energy import ScoreRule, ZeroShotEnergy, load_energy
from energylm.contracts import SequenceEnergy
from energylm.data.contrast import pad
from energylm.errors import DataError, ModelError
from energylm.models.causal import CausalLanguageModel

TEXTS = ["The clerk counts the boats.", "A sailor mends a letter and a bridge.", "Our neighbour sells seven lamps."]


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


def test_energies_are_mean_log_likelihoods(lm):
    """`LanguageModel.score` is the other route: the sum of log-probabilities over the number of tokens."""
    rule = ScoreRule(sign=-1, threshold=-2.0)
    energy = ZeroShotEnergy(lm, rule=rule)
    assert isinstance(energy, SequenceEnergy) and energy.reads == "tokens"
    assert energy.vocabulary_size == lm.vocabulary_size
    scores = lm.score(TEXTS)
    means = torch.tensor([score.log_prob / score.tokens for score in scores], dtype=torch.float64)
    assert_close(energy.text_energies(TEXTS), -(means + 2.0), atol=1e-6, rtol=0)
    assert_close(energy.energies(*pad([lm.encode(text) for text in TEXTS])), energy.text_energies(TEXTS))
    summed = torch.tensor([score.log_prob for score in scores], dtype=torch.float64)
    assert not torch.allclose(energy.text_energies(TEXTS), -(summed + 2.0))  # teeth: lengths differ
    assert energy.text_energies([]).shape == (0,)


def test_without_a_start_token_the_first_token_is_given(lm):
    for direction, given in (("left-to-right", 0), ("right-to-left", -1)):
        bare = CausalLanguageModel(lm.model.network, start_token_id=None, eos_token_id=None, direction=direction)
        energy = ZeroShotEnergy(LanguageModel(bare, lm.tokenizer))
        ids = [lm.encode(text) for text in TEXTS]
        expected = []
        for row in ids:
            seen = row if direction == "left-to-right" else row[::-1]
            with torch.no_grad():
                log_prob_TV = lm.model.network(torch.tensor([seen])).logits[0].log_softmax(-1)
            expected.append(sum(float(log_prob_TV[t, seen[t + 1]]) for t in range(len(seen) - 1)) / (len(seen) - 1))
        assert_close(energy.energies(*pad(ids)), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)
        with pytest.raises(DataError, match="gives a likelihood from 2 on; leave it out"):
            energy.energies(*pad([[ids[0][given]]]))
    with pytest.raises(DataError, match="a text of 0 tokens"):
        ZeroShotEnergy(lm).text_energies([""])


def test_it_learns_which_side_machine_text_is_on(lm):
    """Greedy text of the model is likelier than other text, random tokens less likely: the sign follows."""
    generator = torch.Generator().manual_seed(0)
    plain = (torch.randint(5, 300, (20, 12), generator=generator), torch.full((20,), 12))
    likely, row = [], torch.randint(5, 300, (20, 1), generator=generator)
    for _ in range(11):
        with torch.no_grad():
            row = torch.cat([row, lm.model.network(row).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    likely = (row, torch.full((20,), 12))
    for real, machine, sign in ((plain, likely, 1), (likely, plain, -1)):
        energy = ZeroShotEnergy(lm).fitted(real, machine)
        assert energy.rule.sign == sign
        assert (energy.energies(*real) < 0).all() and (energy.energies(*machine) > 0).all()


def test_folders(lm, energy_folder, tmp_path):
    energy = ZeroShotEnergy(lm, "log-rank", ScoreRule(-1, -2.5), provenance={"fitted_on": ["x"]})
    energy.save_pretrained(tmp_path / "e")
    again = load_energy(tmp_path / "e")
    assert isinstance(again, ZeroShotEnergy) and again.rule == energy.rule
    assert again.provenance["fitted_on"] == ["x"]
    assert torch.equal(again.text_energies(TEXTS), energy.text_energies(TEXTS))
    assert isinstance(load_energy(energy_folder), EnergyModel)
    with pytest.raises(ModelError, match="holds no zero-shot energy"):
        ZeroShotEnergy.from_pretrained(energy_folder)
    with pytest.raises(ModelError, match="does not exist"):
        load_energy(tmp_path / "nothing")
