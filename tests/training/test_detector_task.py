"""Batches are balanced, a pure function of the step, and blocks of their own texts; sums and validation by hand."""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from energylm.config.texts import BlockConfig
from energylm.data.text_blocks import BlockReader, EncodedText, block_starts
from energylm.data.tokenizer import load_tokenizer
from energylm.energies.encoder_bodies import BagOfTokens, BagOfTokensConfig
from energylm.energies.pooled import PooledEnergy
from energylm.training.detector_task import DetectorTask
from energylm.training.task import Share

BLOCKS = BlockConfig(tokens=8, stride=3)


def token_energy():
    """The sum of the ids: human tokens are below 50, machine tokens from 100 on."""
    bag = BagOfTokens(BagOfTokensConfig(vocab_size=200))
    bag.token_weight.weight.data[:, 0] = (torch.arange(200.0) - 75) / 500
    return PooledEnergy(bag, kind="linear")


def texts(first, lengths):
    """Texts whose tokens say which text they are and in which order they stand."""
    return [
        EncodedText((first + (number * 7 + np.arange(length)) % 50).astype(np.int32), np.zeros((length, 2), np.int32))
        for number, length in enumerate(lengths)
    ]


@pytest.fixture
def make(bert_folder):
    reader = BlockReader(load_tokenizer(bert_folder), BLOCKS, special_tokens=False)

    def task(**options):
        values = {
            "human": texts(0, [30, 9, 8, 3, 17]),
            "machine": texts(100, [12, 40, 5]),
            "valid_human": texts(0, [9, 20, 4]),
            "valid_machine": texts(100, [25]),
            "reader": reader,
            "shorter_blocks": 0.0,
            "seed": 3,
            "global_batch": 6,
            "save_model": lambda model, folder: None,
        } | options
        return DetectorTask(token_energy(), values.pop("human"), values.pop("machine"), **values)

    return task


def rows(batch):
    return [row[:length] for row, length in zip(batch["tokens_ST"].tolist(), batch["lengths_S"].tolist(), strict=True)]


def test_a_batch_is_pairs_of_blocks_of_both_classes(make):
    task = make()
    blocks = {
        name: {tuple(piece) for text in texts for piece in task.reader.pieces(text)}
        for name, texts in task.classes.items()
    }
    for step in range(1, 20):
        found = rows(task.batch(step, range(6)))
        assert len(found) == 12
        assert all(tuple(row) in blocks["human"] for row in found[::2])
        assert all(tuple(row) in blocks["machine"] for row in found[1::2])


def test_the_cut_into_micro_batches_and_the_moment_change_nothing(make):
    task = make(shorter_blocks=0.5)
    whole = rows(task.batch(7, range(6)))
    assert whole == rows(task.batch(7, range(0, 2))) + rows(task.batch(7, range(2, 6)))
    assert whole == rows(make(shorter_blocks=0.5).batch(7, range(6)))
    assert whole != rows(task.batch(8, range(6)))


def test_an_epoch_reads_every_text_once_however_long_it_is(make):
    """5 human texts, 6 rows a step: in 5 steps each comes 6 times. By blocks the longest would come far more often."""
    task = make()
    owner = {tuple(p): n for n, text in enumerate(task.classes["human"]) for p in task.reader.pieces(text)}
    seen = [owner[tuple(row)] for step in range(1, 6) for row in rows(task.batch(step, range(6)))[::2]]
    assert np.bincount(seen).tolist() == [6] * 5
    by_blocks = np.array([len(block_starts(len(text), BLOCKS)) for text in task.classes["human"]])
    assert by_blocks.max() / by_blocks.sum() > 1.5 / 5  # what the mistake, an epoch over blocks, would give


def test_all_blocks_of_a_text_are_visited(make):
    task = make(human=texts(0, [30]))
    starts = {row[0] for step in range(1, 40) for row in rows(task.batch(step, range(6)))[::2]}
    assert starts == set(block_starts(30, BLOCKS).tolist())


def test_shorter_blocks_are_cut_inside_and_not_below_a_quarter(make):
    lengths = [len(row) for step in range(1, 60) for row in rows(make(shorter_blocks=1.0).batch(step, range(6)))]
    assert min(lengths) == 2 and max(lengths) == 8 and len(set(lengths)) == 7


def test_loss_by_hand(make):
    task = make()
    batch = task.batch(1, range(6))
    energy = task.model(batch["tokens_ST"], batch["lengths_S"])
    sums = task.loss(task.model, batch)
    expected = softplus(energy[::2]).sum() + softplus(-energy[1::2]).sum()
    assert torch.allclose(sums.losses["loss"], expected) and task.counts(batch) == {"loss": 6.0}
    swapped = softplus(-energy[::2]).sum() + softplus(energy[1::2]).sum()  # the mistake: labels exchanged
    assert not torch.allclose(sums.losses["loss"], swapped)
    assert task.tokens(batch) == int(batch["lengths_S"].sum())


def test_validation_scores_whole_texts_with_both_classes_weighing_the_same(make):
    """Three human texts and one machine text: the loss is the mean of three plus the one, on means over blocks."""
    task = make()
    task.model.eval()
    means = []
    for text in task.valid:
        pieces = [torch.from_numpy(piece.astype(np.int64))[None] for piece in task.reader.pieces(text)]
        means.append(torch.stack([task.model(p, torch.tensor([p.shape[1]])).detach() for p in pieces]).mean())
    human, machine = torch.stack(means[:3]), torch.stack(means[3:])
    value, count = task.validate(task.model, Share())["loss"]
    assert count == 1 and value == pytest.approx(float(softplus(human).mean() + softplus(-machine).mean()), abs=1e-5)
    parts = [task.validate(task.model, Share(rank, 2)) for rank in range(2)]
    for name in ("loss", "accuracy"):
        whole = task.validate(task.model, Share())[name][0]
        assert sum(part[name][0] for part in parts) == pytest.approx(whole)
        assert sum(part[name][1] for part in parts) == 1
