"""The data order as a pure function of seed and position, both directions, and what validation adds up."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from energylm.models.presets import build_network
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.journal import read_journal
from energylm.training.task import Share


def test_every_epoch_reads_every_window_once_in_an_order_of_its_own(toy):
    """40 windows, batches of 7: epochs end in the middle of batches."""
    task = toy.task()
    read = np.concatenate([task.window_order(np.arange(7 * step, 7 * step + 7)) for step in range(40)])
    epochs = read.reshape(7, 40)
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 7
    assert tuple(epochs[0]) != tuple(range(40))
    assert not np.array_equal(toy.task(seed=1).window_order(np.arange(40)), epochs[0])


def test_a_batch_is_the_same_however_it_is_cut_and_whenever_it_is_asked_for(toy):
    task = toy.task()
    whole = task.batch(13, range(7))["tokens_BT"]
    task.batch(2, range(7))
    pieces = [task.batch(13, rows)["tokens_BT"] for rows in (range(4, 7), range(0, 1), range(1, 4))]
    assert torch.equal(torch.cat([pieces[1], pieces[2], pieces[0]]), whole)


def test_right_to_left_reads_the_same_windows_reversed(toy):
    left, right = toy.task(), toy.task(direction="right-to-left")
    tokens = left.batch(3, range(7))["tokens_BT"]
    assert torch.equal(right.batch(3, range(7))["tokens_BT"], tokens.flip(1)) and not torch.equal(
        tokens, tokens.flip(1)
    )


def test_loss_is_minus_the_log_probability_of_each_next_token(toy):
    """By hand: gather log-softmax at every next token; the first token of a window is given."""
    task = toy.task(toy.network(dropout=0.0))
    batch = task.batch(1, range(7))
    tokens = batch["tokens_BT"]
    log_probs = task.model(tokens).logits.detach().log_softmax(-1)
    expected = -sum(log_probs[b, t, tokens[b, t + 1]] for b in range(7) for t in range(toy.LENGTH - 1))
    assert_close(task.loss(task.model, batch).losses["loss"].detach(), expected, atol=1e-4, rtol=1e-6)
    assert task.counts(batch) == {"loss": 7 * (toy.LENGTH - 1)}
    unshifted = -sum(log_probs[b, t, tokens[b, t]] for b in range(7) for t in range(toy.LENGTH - 1))
    assert abs(float(unshifted - expected)) > 1  # the mistake that the check would catch


def test_validation_shares_add_up_to_the_whole(toy):
    task = toy.task(toy.network(dropout=0.0))
    with torch.no_grad():
        whole, count = task.validate(task.model, Share())["loss"]
        parts = [task.validate(task.model, Share(rank, 3))["loss"] for rank in range(3)]
    assert count == 11 * (toy.LENGTH - 1) == sum(part[1] for part in parts)
    assert_close(sum(part[0] for part in parts), whole, atol=1e-4, rtol=0)
    assert toy.task(max_valid_windows=4).validated_windows.tolist() == [0, 2, 5, 8]


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
def test_transformer_and_convolution_learn_in_both_directions(toy, tmp_path, preset, direction):
    """Each next token is one of two, so a model that has learnt comes near log 2 = 0.69 nats from log 23 = 3.1."""
    with seeded(0, "initialisation"):
        model = build_network(
            preset, vocabulary_size=toy.VOCABULARY, max_length=toy.LENGTH, eos_token_id=0, overrides={"width": 64}
        )
    task = toy.task(model, direction=direction, max_valid_windows=5)
    config = toy.config(steps=60, optimizer={"learning_rate": 5e-3}, validation={"every_steps": 60})
    result = train(task, config, folder=tmp_path)
    assert read_journal(tmp_path / "journal.jsonl")[0]["loss"] > 2
    assert result.validation["loss"] < 1.1
