"""The objectives of sequence models on the engine: pure batches, cut-independent losses, learning, resuming."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from energylm.config.seq2seq import DecodingConfig, ObjectiveConfig
from energylm.config.training import TrainingConfig
from energylm.data.sequence_pairs import SequencePairs
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from energylm.objectives.search_losses import step_cost
from energylm.randomness import seeded
from energylm.search.beam import greedy_search
from energylm.training.engine import train
from energylm.training.sequence_pair_task import Seq2SeqTask
from energylm.training.task import Share

VOCABULARY, BATCH = 4, 6


def pairs(count=48, *, seed=0, eos=False):
    """A tag is one more than the larger of its symbol and the one before; EOS (0) at the end where it is asked for."""
    generator = np.random.default_rng(seed)
    sources = [generator.integers(0, 3, generator.integers(1, 6)) for _ in range(count)]
    targets = [np.maximum(each, np.append(0, each[:-1])) + 1 for each in sources]
    return SequencePairs(sources, [np.append(t, 0) for t in targets] if eos else targets)


def decode(model, source_BS, lengths_B, decoding):
    tokens_BT, ends_B = greedy_search(model.stepper(source_BS, lengths_B), lengths_B=lengths_B)
    return [row[:end] for row, end in zip(tokens_BT.tolist(), ends_B.tolist(), strict=True)]


def make(objective=None, *, eos=False, network=None, task_class=Seq2SeqTask):
    config = LSTMSeq2SeqConfig(
        source_vocab_size=3,
        vocab_size=VOCABULARY,
        hidden_size=16,
        source_embedding_size=8,
        embedding_size=4,
        attention="learned" if eos else "fixed",
        eos_token_id=0 if eos else None,
    )
    with seeded(0, "initialisation"):
        network = network or LSTMSeq2Seq(config)
    valid = pairs(20, seed=1, eos=eos)

    def judge(indices, outputs):
        wrong = [
            sum(a != b for a, b in zip(valid.targets[i], o, strict=False))
            for i, o in zip(indices, outputs, strict=True)
        ]
        return {"quality": 100 * (1 - sum(wrong) / valid.target_lengths[indices].sum())}

    return task_class(
        network,
        pairs(eos=eos),
        valid,
        objective=ObjectiveConfig.checked(objective or {}),
        cost=step_cost("hamming", vocabulary_size=VOCABULARY),
        decoding=DecodingConfig(method="greedy"),
        decode=decode,
        judge=judge,
        seed=5,
        global_batch=BATCH,
        save_model=lambda model, folder: model.save_pretrained(folder),
    )


OBJECTIVES = {
    "cross-entropy": {},
    "self-normalized": {"self_normalization": 0.1},
    "hard greedy": {"kind": "scheduled-sampling", "relaxed": False, "mixing": "always"},
    "soft sample": {"kind": "scheduled-sampling", "predictions": "sample", "strength": 2},
    "direct": {"kind": "direct-loss", "alpha": {"growth": 2}},
    "direct global": {"kind": "direct-loss", "normalization": "global"},
    "hinge": {"kind": "hinge"},
}


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_cut_in_two_gives_the_same_sums_and_gradients(name, eos):
    """At step 40 (epoch 4), where coins are mixed: two micro-batches of three add up to one of six."""
    task = make(OBJECTIVES[name], eos=eos)
    task.model.double()

    def sums_and_gradient(cuts):
        totals = dict.fromkeys(task.loss_weights, 0.0)
        for rows in cuts:
            batch = task.batch(40, rows)
            losses = task.loss(task.model, batch).losses
            totals = {term: totals[term] + value.detach() for term, value in losses.items()}
            sum(losses.values()).backward()
        gradient = task.model.output.weight.grad.clone()
        task.model.zero_grad()
        return totals, gradient

    whole, parts = sums_and_gradient([range(6)]), sums_and_gradient([range(3), range(3, 6)])
    assert_close(whole[0], parts[0])
    assert_close(whole[1], parts[1])
    assert float(whole[1].abs().max()) > 0


def test_direct_loss_in_the_limit_is_the_cost_of_beam_search():
    """Sharp: the mean of Hamming distances of greedy answers (a beam of one) is the loss."""
    task = make({"kind": "direct-loss", "beam": 1, "alpha": {"start": 1e14, "largest": 1e14}})
    task.model.double()
    batch = task.batch(1, range(6))
    loss = float(task.loss(task.model, batch).losses["loss"].detach())
    outputs = decode(task.model, batch["source_BS"], batch["source_lengths_B"], None)
    wrong = sum(
        int((torch.tensor(output) != target[: len(output)]).sum())
        for output, target in zip(outputs, batch["target_BT"], strict=True)
    )
    assert loss == pytest.approx(wrong, abs=1e-3) and wrong > 0


def test_schedules_are_functions_of_the_epoch():
    """48 pairs in batches of 6 are 8 steps an epoch; α doubles after each; the first epoch is taught throughout."""
    task = make({"kind": "scheduled-sampling", "alpha": {"start": 0.5, "growth": 2, "largest": 3}, "strength": 1})
    alphas = [float(task.batch(step, range(2))["alpha"]) for step in (1, 8, 9, 17, 25, 800)]
    assert alphas == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]
    shares = [float(task.batch(step, range(2))["gold_share"]) for step in (1, 9, 17)]
    assert shares[0] == 1.0 and shares[1] == pytest.approx(1 / (1 + 2.718281828)) and shares[2] < shares[1]
    assert float(make({"mixing": "always"}).batch(1, range(2))["gold_share"]) == 0.0
    quick = make({"kind": "scheduled-sampling", "alpha": {"growth": 2}, "strength": 1, "epoch_steps": 3})
    batches = [quick.batch(step, range(2)) for step in (1, 3, 4, 7)]
    assert [float(batch["alpha"]) for batch in batches] == [1.0, 1.0, 2.0, 4.0]
    assert [float(batch["gold_share"]) < 1 for batch in batches] == [False, False, True, True]


def test_validation_shares_add_up():
    task = make()
    with torch.no_grad():
        whole, parts = task.validate(task.model, Share()), [task.validate(task.model, Share(r, 3)) for r in range(3)]
    for name in ("loss", "log_z"):
        assert sum(part[name][0] for part in parts) == pytest.approx(whole[name][0], rel=1e-4)
        assert sum(part[name][1] for part in parts) == whole[name][1]
    assert sum(part["quality"][1] for part in parts) == whole["quality"][1] == 20


def config(**values):
    return TrainingConfig.checked(
        {
            "steps": 120,
            "global_batch": BATCH,
            "seed": 5,
            "threads": 1,
            "optimizer": {"learning_rate": 0.03},
            "validation": {"every_steps": 60, "metric": "quality", "larger_is_better": True},
            "checkpoint": {"every_steps": 120},
            **values,
        }
    )


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A model trained by cross-entropy, and how well it decodes."""
    task = make()
    result = train(task, config(), folder=tmp_path_factory.mktemp("warm") / "run")
    return result


def test_cross_entropy_learns(warm):
    assert warm.best_validation["quality"] > 90 and warm.best_validation["loss"] < 0.4


@pytest.mark.parametrize("name", ["soft sample", "direct", "hinge"])
def test_search_aware_training_goes_on_from_a_warm_start(warm, name, tmp_path):
    network = LSTMSeq2Seq.from_pretrained(warm.folder / "model")
    result = train(
        make(OBJECTIVES[name], network=network),
        config(steps=20, validation={"every_steps": 20, "metric": "quality", "larger_is_better": True}),
        folder=tmp_path / "run",
    )
    assert result.best_validation["quality"] >= warm.best_validation["quality"] - 10


def test_self_normalisation_brings_log_z_to_zero(warm, tmp_path):
    result = train(make({"self_normalization": 0.03}), config(), folder=tmp_path / "run")
    assert abs(result.validation["log_z"]) < 0.5 < 2 < abs(warm.validation["log_z"])
    assert result.validation["quality"] > 85


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    objective = {"kind": "scheduled-sampling", "predictions": "sample", "strength": 1}
    settings = config(steps=40, checkpoint={"every_steps": 15})
    train(make(objective), settings, folder=tmp_path / "whole")

    class Interrupted(Seq2SeqTask):
        def batch(self, step, rows):
            if step == 22:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(make(objective, task_class=Interrupted), settings, folder=tmp_path / "cut")
    train(make(objective), settings, folder=tmp_path / "cut")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
