"""Training a conditional masked model on the engine: pure batches, cut-independent losses, learning, resuming."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from energylm.config.training import TrainingConfig
from energylm.data.sequence_pairs import SequencePairs
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM
from energylm.objectives.cross_entropy import IGNORED
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.sequence_pair_task import ConditionalMaskedTask
from energylm.training.task import Share

V, MASK, BATCH = 8, 7, 16


def pairs(count=320, *, seed=0):
    """Every token of a target is the next of five after the one at its place in the source."""
    generator = np.random.default_rng(seed)
    sources = [generator.integers(0, 5, generator.integers(2, 7)) for _ in range(count)]
    return SequencePairs(sources, [(each + 1) % 5 for each in sources])


def make(*, task_class=ConditionalMaskedTask, dropout=0.1, judge=lambda indices: {"judged": 3.0}):
    config = ConditionalMaskedConfig(
        vocab_size=V,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        encoder_layers=1,
        decoder_layers=2,
        dropout=dropout,
        max_position_embeddings=8,
        reach=4,
    )
    with seeded(0, "initialisation"):
        network = ConditionalMaskedLM(config)
    return task_class(
        network,
        pairs(),
        pairs(20, seed=1),
        mask_token_id=MASK,
        length_weight=0.1,
        judge=judge,
        seed=5,
        global_batch=BATCH,
        save_model=lambda model, folder: model.save_pretrained(folder),
        valid_batch=8,
    )


def settings(**values):
    return TrainingConfig.checked(
        {
            "steps": 12,
            "global_batch": BATCH,
            "threads": 1,
            "optimizer": {"learning_rate": 5e-3},
            "validation": {"every_steps": 6},
            "checkpoint": {"every_steps": 4},
            **values,
        }
    )


def test_batches_are_pure_and_hide_what_is_to_be_predicted():
    task = make()
    batch, again = task.batch(3, range(BATCH)), task.batch(3, range(BATCH))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    hidden_BT = batch["targets_BT"] != IGNORED
    assert (batch["inputs_BT"][hidden_BT] == MASK).all() and (hidden_BT.sum(1) >= 1).all()
    real_BT = torch.arange(hidden_BT.shape[1]) < batch["lengths_B"][:, None]
    assert (batch["inputs_BT"][real_BT & ~hidden_BT] != MASK).all() and not (hidden_BT & ~real_BT).any()
    part = task.batch(3, range(4, 9))
    width = part["inputs_BT"].shape[1]
    assert torch.equal(part["inputs_BT"], batch["inputs_BT"][4:9, :width])
    assert not torch.equal(task.batch(4, range(BATCH))["inputs_BT"], batch["inputs_BT"])
    # Other tokens at the hidden positions make the same inputs: their identity never reaches the network.
    other = make()
    other.train.targets = [(target + 1) % 5 for target in other.train.targets]
    inputs_BT = other.batch(3, range(BATCH))["inputs_BT"]
    assert torch.equal(inputs_BT == MASK, batch["inputs_BT"] == MASK) and torch.equal(
        inputs_BT[hidden_BT], batch["inputs_BT"][hidden_BT]
    )


def test_sums_do_not_depend_on_the_cut():
    task = make(dropout=0.0)
    whole = task.loss(task.model, task.batch(2, range(BATCH))).losses
    parts = [task.loss(task.model, task.batch(2, range(start, start + 4))).losses for start in range(0, BATCH, 4)]
    for name, value in whole.items():
        assert_close(sum(part[name] for part in parts), value, atol=1e-4, rtol=1e-5)
    counts = [task.counts(task.batch(2, range(start, start + 4))) for start in range(0, BATCH, 4)]
    total = task.counts(task.batch(2, range(BATCH)))
    assert {name: sum(count[name] for count in counts) for name in total} == total


def test_it_learns_words_and_lengths(tmp_path):
    """A source tells everything about its target; without a look at it nobody beats log 5 and one right in five."""
    task = make(dropout=0.0)
    before = {name: total / count for name, (total, count) in task.validate(task.model.eval(), Share()).items()}
    task.model.train()
    config = settings(steps=100, validation={"every_steps": 100}, checkpoint={"every_steps": 100})
    result = train(task, config, folder=tmp_path)
    after = result.best_validation
    assert after["loss"] < 0.5 * np.log(5) < before["loss"] and after["accuracy"] > 0.6
    assert after["length_accuracy"] > 0.9 > before["length_accuracy"] and after["judged"] == 3.0


def test_shares_of_the_validation_add_up():
    task = make(dropout=0.0)
    task.model.eval()
    with torch.no_grad():
        whole, halves = task.validate(task.model, Share()), [task.validate(task.model, Share(r, 2)) for r in (0, 1)]
    for name, (total, count) in whole.items():
        sums = [sum(half[name][place] for half in halves) for place in (0, 1)]
        assert sums == pytest.approx([total, count], rel=1e-5)


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path):
    alone = make()
    train(alone, settings(), folder=tmp_path / "alone")

    class Interrupted(ConditionalMaskedTask):
        def batch(self, step, rows):
            if step == 7:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(make(task_class=Interrupted), settings(), folder=tmp_path / "killed")
    resumed = make()
    train(resumed, settings(), folder=tmp_path / "killed")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("alone", "killed")]
    assert weights[0] == weights[1]
    other = make()
    train(other, settings(seed=1), folder=tmp_path / "other")  # teeth: another stream of dropout, other bits
    assert (tmp_path / "other" / "model" / "model.safetensors").read_bytes() != weights[0]
