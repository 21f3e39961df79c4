"""Universe, replacements and partition of a BiLSTM-context energy: against loops over all sequences and each other."""

import pytest
import torch

from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.models import context_energies
from energylm.models.context_energies import Replacements, Universe, log_partition, reading
from energylm.objectives.sequence_likelihood import pseudo_nll
from energylm.testing import enumerate_sequences

V, T = 3, 4
STATES = enumerate_sequences(V, T)


def brute_energies(network, sequences_BT):
    """E_raw of each sequence by itself, each token hidden in turn."""
    lengths_B = torch.full((len(sequences_BT),), sequences_BT.shape[1])
    return MaskedLMEnergy(network, kind="raw").energies(sequences_BT, lengths_B)


def test_the_universe_holds_every_energy(context_network) -> None:
    network = context_network()
    universe, brute_S = Universe(network, T), brute_energies(network, STATES)
    torch.testing.assert_close(-universe.log_weights, brute_S)
    torch.testing.assert_close(universe.energies(STATES[[5, 5, 80]]), brute_S[[5, 5, 80]])
    torch.testing.assert_close(universe.log_partition, (-brute_S).logsumexp(0))
    torch.testing.assert_close(universe.cloze_logits(STATES), network.cloze_logits(STATES))
    backwards_S = brute_energies(network, STATES.flip(1))
    assert not torch.allclose(-universe.log_weights, backwards_S), "the order of a sequence matters"


@pytest.mark.parametrize("length", [1, 2, 4])
def test_replacements_are_energies_of_changed_sequences(context_network, length: int) -> None:
    network = context_network()
    sequences_BT = enumerate_sequences(V, length)[-5:]
    found_BTV = Replacements(network).replaced_energies(sequences_BT)
    for t in range(length):
        for w in range(V):
            changed_BT = sequences_BT.clone()
            changed_BT[:, t] = w
            torch.testing.assert_close(found_BTV[:, t, w], brute_energies(network, changed_BT))
    torch.testing.assert_close(Universe(network, length).replaced_energies(sequences_BT), found_BTV)


def test_only_the_own_potential_is_not_the_energy(context_network) -> None:
    """The deficient conditional of §6.2.1 takes the potential at t alone: another one where others depend on t."""
    network = context_network()
    true_BTV = (-Replacements(network).replaced_energies(STATES)).softmax(-1)
    assert (true_BTV - network.cloze_logits(STATES).softmax(-1)).abs().max() > 0.1


def test_both_routes_have_the_same_gradient(context_network) -> None:
    gradients = []
    tokens_BT = STATES[[3, 3, 40, 77]]
    for route in (Universe, Replacements):
        network = context_network().requires_grad_(True)
        read = Universe(network, T) if route is Universe else Replacements(network)
        pseudo_nll(read.replaced_energies(tokens_BT), tokens_BT).sum().backward()
        gradients.append({name: parameter.grad for name, parameter in network.named_parameters()})
    assert all(gradient is not None and gradient.abs().max() > 1e-6 for gradient in gradients[0].values())
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(("vocabulary", "length"), [(3, 1), (3, 2), (3, 3), (3, 5), (4, 4), (2, 6)])
@pytest.mark.parametrize("block", [1, 2, 13])
def test_partition_by_boxes_is_the_sum_over_all_sequences(
    context_network, monkeypatch: pytest.MonkeyPatch, vocabulary: int, length: int, block: int
) -> None:
    monkeypatch.setattr(context_energies, "WORK_FLOATS", 37)  # slices that divide nothing evenly
    network = context_network(vocabulary, seed=length)
    brute = (-brute_energies(network, enumerate_sequences(vocabulary, length))).logsumexp(0)
    assert log_partition(network, length, block=block) == pytest.approx(float(brute), abs=1e-10)


@pytest.mark.parametrize("forgotten", ["_add_middle", "_add_end", "_sum_of_biases"])
def test_a_partition_that_forgets_a_part_is_another_number(
    context_network, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    network = context_network()
    right = log_partition(network, T, block=2)
    if forgotten == "_sum_of_biases":
        monkeypatch.setattr(
            context_energies, forgotten, lambda n, c: torch.zeros([V if s is None else len(s) for s in c]).double()
        )
    else:
        monkeypatch.setattr(context_energies, forgotten, lambda *arguments: None)
    assert abs(log_partition(network, T, block=2) - right) > 1e-3


def test_the_partition_keeps_digits_where_energies_are_large(context_network) -> None:
    """Energies near −10⁴ would overflow without the shift by the largest."""
    network = context_network()
    network.output.bias += 5000.0
    brute = (-brute_energies(network, STATES)).logsumexp(0)
    assert log_partition(network, T, block=2) == pytest.approx(float(brute), rel=1e-12)


def test_small_languages_are_enumerated(context_network) -> None:
    network = context_network()
    assert isinstance(reading(network, 4), Universe) and isinstance(reading(network, 12), Replacements)
