"""The masked language modelling task: batches as pure functions, the loss by another route, learning and resuming."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from energylm.config.pretrain import MaskingConfig
from energylm.models.cloze_presets import build_masked_network
from energylm.objectives.cross_entropy import IGNORED
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.journal import read_journal
from energylm.training.language_model_task import MaskedLMTask
from energylm.training.task import Share

MASK = 22  # the toy sequences count modulo 23; 22 and 0 stand for special tokens here


@pytest.fixture
def make(toy):
    def make_task(*, seed=0, task_class=MaskedLMTask, **options):
        with seeded(0, "initialisation"):
            network = build_masked_network(
                "bit-tiny", vocabulary_size=23, max_length=toy.LENGTH, pad_token_id=None, overrides={"width": 32}
            )
        ordinary = torch.ones(23, dtype=torch.bool)
        ordinary[[0, MASK]] = False
        values = {
            "masking": MaskingConfig(rate=0.3),
            "mask_token_id": MASK,
            "ordinary_V": ordinary,
            "seed": seed,
            "global_batch": toy.BATCH,
            "save_model": toy.save_model,
            "valid_batch": 4,
        }
        return task_class(network, toy.ToyWindows(), toy.ToyWindows(size=11, seed=1), **values | options)

    return make_task


def test_a_batch_is_the_same_however_it_is_cut(make):
    task = make()
    whole = task.batch(13, range(7))
    task.batch(2, range(7))
    pieces = [task.batch(13, rows) for rows in (range(4, 7), range(0, 1), range(1, 4))]
    for name in ("inputs_BT", "targets_BT"):
        assert torch.equal(torch.cat([pieces[place][name] for place in (1, 2, 0)]), whole[name])
    chosen = whole["targets_BT"] != IGNORED
    tokens = torch.from_numpy(task.train_windows.gather(task.window_order(np.arange(7 * 12, 7 * 13))))
    assert torch.equal(whole["targets_BT"][chosen], tokens[chosen])
    assert torch.equal(whole["inputs_BT"][~chosen], tokens[~chosen])
    assert not (chosen & ((tokens == 0) | (tokens == MASK))).any()
    assert 0 < task.counts(whole)["loss"] == chosen.sum() < chosen.numel() / 2
    assert task.tokens(whole) == chosen.numel()


def test_every_visit_masks_anew_and_the_seed_decides(make):
    """40 windows, batches of 7: window w comes again at another step, hidden elsewhere."""
    task = make()
    seen = {}
    for step in range(1, 13):
        windows = task.window_order(np.arange(7 * (step - 1), 7 * step))
        for window, targets in zip(windows, task.batch(step, range(7))["targets_BT"], strict=True):
            seen.setdefault(int(window), []).append(targets != IGNORED)
    twice = [masks for masks in seen.values() if len(masks) == 2]
    assert len(twice) > 30 and sum(torch.equal(*masks) for masks in twice) < 3
    assert not torch.equal(make(seed=1).batch(1, range(7))["targets_BT"], task.batch(1, range(7))["targets_BT"])


def test_loss_and_gradients_equal_the_route_over_all_logits(make):
    """Here the output layer sees chosen positions only; there it sees all, and transformers' own loss ignores −100."""
    ours, theirs = make(), make()
    batch = ours.batch(1, range(7))
    count = ours.counts(batch)["loss"]
    sums = ours.loss(ours.model, batch)
    output = theirs.model(input_ids=batch["inputs_BT"], labels=batch["targets_BT"])
    assert_close(sums.losses["loss"] / count, output.loss)
    (sums.losses["loss"] / count).backward()
    output.loss.backward()
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    chosen = batch["targets_BT"] != IGNORED
    right = (output.logits.argmax(-1) == batch["targets_BT"])[chosen].sum()
    assert [int(part) for part in sums.metrics["accuracy"]] == [int(right), count]
    # Teeth: the loss of all positions is another number.
    everything = theirs.model(input_ids=batch["inputs_BT"], labels=batch["inputs_BT"]).loss
    assert abs(float(everything.detach()) - float(output.loss.detach())) > 0.01


def test_a_batch_without_any_chosen_token_adds_nothing(make):
    task = make(masking=MaskingConfig(rate=1e-9))
    batch = task.batch(1, range(7))
    loss = task.loss(task.model, batch).losses["loss"]
    loss.backward()
    assert task.counts(batch) == {"loss": 0} and float(loss.detach()) == 0
    assert all(float(p.grad.abs().max()) == 0 for p in task.model.parameters())


def test_validation_masks_alike_each_time_and_shares_add_up(make):
    task = make()
    with torch.no_grad():
        whole, again = task.validate(task.model, Share()), task.validate(task.model, Share())
        parts = [task.validate(task.model, Share(rank, 3)) for rank in range(3)]
        other_cut = make(valid_batch=3).validate(task.model, Share())
    assert whole == again and whole["loss"][1] == whole["accuracy"][1] == sum(part["loss"][1] for part in parts)
    for name in ("loss", "accuracy"):
        assert sum(part[name][0] for part in parts) == pytest.approx(whole[name][0], abs=1e-4)
        assert other_cut[name] == pytest.approx(whole[name], abs=1e-4)


def test_it_learns_and_a_resumed_run_ends_with_the_same_bits(make, toy, tmp_path):
    """A hidden token lies between its neighbours: near log 2 to be had from log 23 = 3.1."""
    config = toy.config(
        steps=90, optimizer={"learning_rate": 5e-3}, validation={"every_steps": 45}, checkpoint={"every_steps": 30}
    )
    result = train(make(), config, folder=tmp_path / "whole")
    assert read_journal(tmp_path / "whole" / "journal.jsonl")[0]["loss"] > 2
    assert result.validation["loss"] < 1.6 and result.validation["accuracy"] > 0.3

    class Interrupted(MaskedLMTask):
        def batch(self, step, rows):
            if step == 47:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(make(task_class=Interrupted), config, folder=tmp_path / "cut")
    train(make(), config, folder=tmp_path / "cut")
    weights = [(tmp_path / name / "model" / "final.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
