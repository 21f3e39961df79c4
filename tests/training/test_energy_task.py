"""The choice of negatives and its law, batches as a pure function of the step, sums that add up, and learning."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from energylm.config.training import TrainingConfig
from energylm.data.contrast import pad
from energylm.objectives.residual_energy import residual_nce
from energylm.registry import LOSSES
from energylm.testing import assert_same_distribution
from energylm.training.energy_task import EnergyTask, chosen_negatives, contrast_energies, measures
from energylm.training.engine import train
from energylm.training.task import Share

VOCABULARY, K = 12, 5


class ToyContrast:
    """Real text never repeats a token at once, generated text does so now and then: a bigram tells them apart."""

    def __init__(self, size=40, seed=0):
        numbers = np.random.default_rng(seed)
        steps = numbers.integers(1, VOCABULARY, (size, 10))
        self.real = np.cumsum(steps, axis=1) % VOCABULARY
        self.noise = numbers.integers(0, VOCABULARY, (size, K, 10))
        self.noise[..., 4] = self.noise[..., 5]

    def __len__(self):
        return len(self.real)

    def counts(self, contexts):
        return np.full(len(contexts), K)

    def sequences(self, contexts, copies):
        result = []
        for context, chosen in zip(contexts, copies, strict=True):
            result += [self.real[context], *(self.noise[context, copy] for copy in chosen)]
        return result


class BigramEnergy(nn.Module):
    """One number for each pair of neighbours, summed."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Embedding(VOCABULARY * VOCABULARY, 1)
        nn.init.normal_(self.pairs.weight, std=0.1, generator=torch.Generator().manual_seed(0))

    def forward(self, tokens, lengths):
        energy = self.pairs(tokens[:, :-1] * VOCABULARY + tokens[:, 1:])[..., 0]
        real = torch.arange(energy.shape[1]) < lengths[:, None] - 1
        return torch.where(real, energy, 0.0).sum(1)


def task(**options):
    defaults = {"encode": pad, "seed": 3, "global_batch": 7, "save_model": lambda model, folder: None, "valid_batch": 4}
    return EnergyTask(BigramEnergy(), ToyContrast(), ToyContrast(size=11, seed=1), **(defaults | options))


def test_the_choice_of_negatives_is_uniform():
    """10 subsets of 2 of 5, over 20,000 contexts, in an epoch in the middle of a round; a false alarm in 10⁴."""
    contexts = np.arange(20_000)
    chosen = chosen_negatives(np.full(20_000, 7), contexts, np.full(20_000, 5), count=2, seed=1)
    assert all(len(set(row)) == 2 for row in chosen.tolist())
    numbers = [5 * min(row) + max(row) for row in chosen.tolist()]
    names, observed = np.unique(numbers, return_counts=True)
    assert len(names) == 10
    assert_same_distribution(torch.tensor(observed), torch.full((10,), 0.1, dtype=torch.float64))
    with pytest.raises(AssertionError):  # the mistake: negatives 0 and 1 for everyone in every fifth epoch
        biased = np.where(contexts % 5 == 0, 1, numbers)
        names, observed = np.unique(biased, return_counts=True)
        assert_same_distribution(torch.tensor(observed), torch.full((10,), 0.1, dtype=torch.float64))


def test_every_epoch_has_a_fresh_subset_until_all_have_been_used():
    """k = 5, two at a time: a round has 2 epochs without repetition; the next round has an order of its own."""
    contexts = np.arange(50)
    epochs = [chosen_negatives(np.full(50, e), contexts, np.full(50, 5), count=2, seed=1) for e in range(6)]
    for first, second in (epochs[0:2], epochs[2:4], epochs[4:6]):
        assert all(not set(a) & set(b) for a, b in zip(first.tolist(), second.tolist(), strict=True))
    assert not np.array_equal(epochs[0], epochs[2]) and not np.array_equal(epochs[2], epochs[4])
    assert not np.array_equal(epochs[0], chosen_negatives(np.zeros(50, int), contexts, np.full(50, 5), count=2, seed=2))


def test_the_choice_depends_on_seed_epoch_and_context_only():
    """… and on how many negatives a context has: sources of a union may differ in that."""
    contexts, epochs, ks = np.array([4, 9, 4, 17]), np.array([0, 3, 8, 3]), np.array([6, 4, 6, 6])
    whole = chosen_negatives(epochs, contexts, ks, count=3, seed=5)
    for row in range(4):
        one = slice(row, row + 1)
        assert np.array_equal(whole[row], chosen_negatives(epochs[one], contexts[one], ks[one], count=3, seed=5)[0])
    many = chosen_negatives(np.zeros(200, int), np.arange(200), np.tile([2, 7], 100), count=2, seed=0)
    assert sorted(set(many[0::2].ravel())) == [0, 1] and sorted(set(many[1::2].ravel())) == list(range(7))


def test_a_batch_is_the_same_however_it_is_cut_and_whenever_it_is_asked_for():
    """40 contexts, batches of 7: update 6 spans two epochs."""
    one, other = task(negatives_per_context=2), task(negatives_per_context=2)
    whole = one.batch(6, range(7))
    other.batch(2, range(7))
    pieces = [other.batch(6, rows)["tokens_ST"] for rows in (range(0, 1), range(1, 4), range(4, 7))]
    assert torch.equal(torch.cat(pieces), whole["tokens_ST"]) and len(whole["tokens_ST"]) == 7 * 3
    assert one.counts(whole) == {"loss": 7} and one.tokens(whole) == 7 * 3 * 10
    epochs, contexts = one.context_order(np.arange(80))
    assert sorted(contexts[:40]) == sorted(contexts[40:]) == list(range(40)) and epochs.tolist() == [0] * 40 + [1] * 40
    assert not np.array_equal(contexts[:40], contexts[40:])
    assert not torch.equal(task(seed=4).batch(1, range(7))["tokens_ST"], task().batch(1, range(7))["tokens_ST"])


def test_loss_and_metrics_by_hand():
    """The objective of each context's own energies: real first, then its negatives."""
    subject = task(negatives_per_context=2)
    batch = subject.batch(1, range(7))
    energy = subject.model(batch["tokens_ST"], batch["lengths_S"]).detach()
    real, noise = energy[0::3], torch.stack([energy[1::3], energy[2::3]], dim=1)
    sums = subject.loss(subject.model, batch)
    assert_close(sums.losses["loss"].detach(), residual_nce(real, noise).sum())
    value = {name: float(total / count) for name, (total, count) in sums.metrics.items()}
    accuracy = 0.5 * float((real < 0).float().mean()) + 0.5 * float((noise > 0).float().mean())
    assert value["accuracy"] == pytest.approx(accuracy)
    assert value["real_loss"] + value["generated_loss"] == pytest.approx(float(residual_nce(real, noise).mean()))
    assert value["generated_energy"] == pytest.approx(float(noise.mean()), abs=1e-6)
    shuffled = residual_nce(energy[1::3], torch.stack([energy[0::3], energy[2::3]], dim=1)).sum()
    assert abs(float(shuffled - sums.losses["loss"].detach())) > 1e-3  # a negative in the place of real text would show


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("nce", residual_nce),
        ("most-offending", lambda real, noise: residual_nce(real, noise.sort(dim=1).values[:, :1])),
        ("ranking", lambda real, noise: torch.relu(0.3 + real - noise.sort(dim=1).values[:, 0])),
    ],
)
def test_every_objective_reaches_training_and_validation(objective, expected):
    subject = task(objective=objective, margin=0.3, negatives_per_context=4, valid_negatives=4)
    batch = subject.batch(1, range(7))
    energies = subject.model(batch["tokens_ST"], batch["lengths_S"]).view(-1, 5)
    sums = subject.loss(subject.model, batch)
    assert_close(sums.losses["loss"], expected(energies[:, 0], energies[:, 1:]).sum())
    lowest = (energies.argmin(1) == 0).float().mean()
    total, count = sums.metrics["precision_at_1"]
    assert float(total / count) == pytest.approx(float(lowest))
    held_out = contrast_energies(subject.model, subject.valid, pad, contexts=np.arange(11), negatives=4, batch=100)
    value = subject.validate(subject.model, Share())["loss"][0]
    assert value == pytest.approx(float(expected(held_out.real_B, held_out.noise_BK).sum()), abs=1e-5)
    assert subject.fingerprint["margin"] == (0.3 if objective == "ranking" else None)
    others = [task(objective=name, negatives_per_context=4) for name in LOSSES.names() if name != objective]
    for other in others:  # teeth: another loss gives another number
        assert abs(float((other.loss(subject.model, batch).losses["loss"] - sums.losses["loss"]).detach())) > 1e-3


def test_validation_shares_add_up_to_the_whole():
    subject = task(valid_negatives=3)
    whole = subject.validate(subject.model, Share())
    parts = [subject.validate(subject.model, Share(rank, 3)) for rank in range(3)]
    for name, (total, count) in whole.items():
        assert count == 11 == sum(part[name][1] for part in parts)
        assert sum(part[name][0] for part in parts) == pytest.approx(total, abs=1e-6)
    energies = contrast_energies(subject.model, subject.valid, pad, contexts=np.arange(11), negatives=3, batch=100)
    assert whole["loss"][0] == pytest.approx(float(residual_nce(energies.real_B, energies.noise_BK).sum()), abs=1e-5)
    assert EnergyTask.validate(task(), subject.model, Share()).keys() == {"loss", *measures(energies)}


def test_an_energy_learns_a_bigram_that_gives_generated_text_away(tmp_path):
    """Every negative repeats a token at once, no real text does: held-out accuracy goes from chance to above 90 %."""
    subject = EnergyTask(
        BigramEnergy(),
        ToyContrast(size=400),
        ToyContrast(size=100, seed=1),
        encode=pad,
        seed=0,
        global_batch=16,
        save_model=lambda model, folder: None,
        valid_negatives=K,
    )
    before = subject.validate(subject.model, Share())["accuracy"]
    assert before[0] / before[1] < 0.7
    config = TrainingConfig.checked(
        {
            "steps": 150,
            "global_batch": 16,
            "threads": 1,
            "optimizer": {"learning_rate": 0.1},
            "validation": {"every_steps": 50},
        }
    )
    result = train(subject, config, folder=tmp_path)
    assert result.best_validation["accuracy"] > 0.9 and result.best_validation["loss"] < 0.7
    assert result.best_validation["real_energy"] < 0 < result.best_validation["generated_energy"]
