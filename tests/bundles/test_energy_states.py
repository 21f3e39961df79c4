"""The states behind an energy: one reading gives both, whatever the energy reads, and of a sum those of all parts."""

import pytest
import torch
from torch.testing import assert_close

from energylm import Energy, EnergyModel, LanguageModel
from energylm.bundles.energy_binding import context_energies, energies_and_states
from energylm.bundles.joint_texts import Context
from energylm.bundles.text_energy import WeightedSum

GENERATOR = torch.Generator().manual_seed(0)
CONTEXTS = [Context(ids, ids) for ids in ([7, 8, 9], [11, 12, 13, 14])]
TOKENS, LENGTHS = torch.randint(5, 60, (2, 3, 6), generator=GENERATOR), torch.tensor([[6, 2, 4], [1, 6, 3]])


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


def projected(energy, states_BND):
    network = energy.network
    raw_BN = states_BND.float() @ network.head.weight[0] + network.head.bias
    return (energy.scale * raw_BN + energy.shift).double()


@pytest.mark.parametrize("reads", ["tokens", "text"])
def test_states_are_those_that_the_energy_projects(lm, reads, energy_folder, bert_folder):
    energy = EnergyModel.from_pretrained(energy_folder)
    if reads == "text":
        energy = EnergyModel.from_encoder(bert_folder, reads="text", seed=1)
        energy.network.head.weight.data *= 1000
    bound = energy.bind(lm)
    energy_BN, states_BND = energies_and_states(bound, CONTEXTS, TOKENS, LENGTHS)
    expected = context_energies(bound, CONTEXTS, TOKENS, LENGTHS)
    assert expected.std() > 1e-3
    assert_close(energy_BN, expected, atol=1e-4, rtol=1e-4)
    assert_close(projected(energy, states_BND), expected, atol=1e-4, rtol=1e-4)
    # teeth: states of other continuations project to other energies
    assert (projected(energy, states_BND.roll(1, 1)) - expected).abs().max() > 1e-2 * expected.std()


def test_a_sum_has_the_states_of_its_parts_side_by_side(lm, energy_folder):
    energy = EnergyModel.from_pretrained(energy_folder)
    long = Energy.from_function(lambda texts: [float(len(text)) for text in texts], better="higher")
    bound = WeightedSum([(2.0, energy), (0.5, long), (1.0, energy)]).bind(lm)
    energy_BN, states_BND = energies_and_states(bound, CONTEXTS, TOKENS, LENGTHS)
    assert_close(energy_BN, context_energies(bound, CONTEXTS, TOKENS, LENGTHS), atol=1e-4, rtol=1e-4)
    _, own_BND = energies_and_states(energy.bind(lm), CONTEXTS, TOKENS, LENGTHS)
    assert_close(states_BND, torch.cat([own_BND, own_BND], dim=-1))
    assert energies_and_states(long.bind(lm), CONTEXTS, TOKENS, LENGTHS)[1] is None
