"""Training a two-tower model: what is predicted, the loss by another route, learning and resuming."""

import pytest
import torch
from torch.testing import assert_close

from energylm.config.models import TransformerShape
from energylm.models.cloze_presets import build_two_tower
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.language_model_task import TwoTowerTask
from energylm.training.task import Share

SPECIAL = 0  # the toy sequences count modulo 23; 0 stands for a special token here


@pytest.fixture
def make(toy):
    def make_task(*, task_class=TwoTowerTask, **options):
        with seeded(0, "initialisation"):
            network = build_two_tower(
                TransformerShape(layers=1, width=24, heads=2, dropout=0.0),
                vocabulary_size=23,
                max_length=toy.LENGTH,
                pad_token_id=None,
            )
        ordinary = torch.ones(23, dtype=torch.bool)
        ordinary[SPECIAL] = False
        values = {
            "ordinary_V": ordinary,
            "seed": 0,
            "global_batch": toy.BATCH,
            "save_model": toy.save_model,
            "valid_batch": 4,
        }
        return task_class(network, toy.ToyWindows(), toy.ToyWindows(size=11, seed=1), **values | options)

    return make_task


def test_the_loss_is_the_likelihood_of_every_token_that_is_text(make):
    task = make()
    batch = task.batch(3, range(7))
    tokens = batch["tokens_BT"]
    is_text = tokens != SPECIAL
    sums = task.loss(task.model, batch)
    log_q = task.model(tokens).logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    assert_close(sums.losses["loss"], -log_q[is_text].sum(), rtol=1e-5, atol=0)
    assert task.counts(batch) == {"loss": int(is_text.sum())} and 0 < int(is_text.sum()) < tokens.numel()
    right = (task.model(tokens).logits.argmax(-1) == tokens) & is_text
    assert [int(part) for part in sums.metrics["accuracy"]] == [int(right.sum()), int(is_text.sum())]
    assert abs(float((-log_q.sum() - sums.losses["loss"]).detach())) > 0.1  # teeth: special tokens counted


def test_shares_of_validation_add_up(make):
    task = make()
    with torch.no_grad():
        whole = task.validate(task.model, Share())
        parts = [task.validate(task.model, Share(rank, 3)) for rank in range(3)]
        other_cut = make(valid_batch=3).validate(task.model, Share())
    for name in ("loss", "accuracy"):
        assert sum(part[name][0] for part in parts) == pytest.approx(whole[name][0], abs=1e-3)
        assert other_cut[name] == pytest.approx(whole[name], abs=1e-3)


def test_it_learns_and_a_resumed_run_ends_with_the_same_bits(make, toy, tmp_path):
    """A token lies between its neighbours: near log 2 at most to be had, from log 23 = 3.1."""
    config = toy.config(
        steps=60, optimizer={"learning_rate": 1e-2}, validation={"every_steps": 30}, checkpoint={"every_steps": 20}
    )
    result = train(make(), config, folder=tmp_path / "whole")
    assert result.validation["loss"] < 2.0 and result.validation["accuracy"] > 0.3

    class Interrupted(TwoTowerTask):
        def batch(self, step, rows):
            if step == 37:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(make(task_class=Interrupted), config, folder=tmp_path / "cut")
    train(make(), config, folder=tmp_path / "cut")
    weights = [(tmp_path / name / "model" / "final.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
