"""Stepping the convolutional LM token by token equals a full forward pass, for contexts of any length."""

import pytest
import torch

from energylm.contracts import Decoder
from energylm.errors import ModelError
from energylm.models.gated_convolution import ConvolutionDecoder
from energylm.models.presets import build_network

CONTEXTS = [[5], [1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]  # shorter than the kernel, longer than it, equal to kernel − 1
COPIES, NEW = 2, 6


@pytest.fixture
def decoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            "conv-tiny",
            vocabulary_size=12,
            max_length=32,
            eos_token_id=0,
            overrides={"width": 16, "embedding_width": 8},
        )
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return ConvolutionDecoder(network.eval())


def largest_difference(decoder):
    """Between stepped logits and those of a full forward pass, over all rows and steps."""
    new_RT = torch.randint(0, 12, (len(CONTEXTS) * COPIES, NEW), generator=torch.Generator().manual_seed(1))
    prefix, logits_BV = decoder.prefill(CONTEXTS)
    differences = []
    for _ in range(2):  # a prefix may be forked again
        state = decoder.fork(prefix, copies=COPIES, max_new_tokens=NEW)
        steps = [logits_BV.repeat_interleave(COPIES, dim=0)]
        steps += [decoder.step(state, new_RT[:, step]) for step in range(NEW - 1)]
        for row in range(len(new_RT)):
            context = CONTEXTS[row // COPIES]
            whole = torch.tensor([context + new_RT[row].tolist()])
            with torch.no_grad():
                expected_TV = decoder.network(input_ids=whole).logits[0, len(context) - 1 : -1]
            differences.append((torch.stack([step[row] for step in steps]) - expected_TV).abs().max())
    return float(torch.stack(differences).max())


def test_steps_equal_a_full_forward_pass(decoder):
    assert isinstance(decoder, Decoder)
    assert largest_difference(decoder) < 1e-5


def test_columns_one_place_off_are_caught(decoder, monkeypatch):
    """Teeth: keeping the columns before the last ones gives other logits."""
    prefill = decoder.prefill

    def off_by_one(contexts):
        prefix, logits = prefill(contexts)
        return [columns.roll(1, dims=1) for columns in prefix], logits

    monkeypatch.setattr(decoder, "prefill", off_by_one)
    assert largest_difference(decoder) > 1e-3


def test_state_does_not_grow(decoder):
    prefix, _ = decoder.prefill(CONTEXTS)
    state = decoder.fork(prefix, copies=COPIES, max_new_tokens=NEW)
    for _ in range(NEW):
        decoder.step(state, torch.zeros(len(CONTEXTS) * COPIES, dtype=torch.int64))
    assert {tuple(columns.shape) for columns in state} == {(6, 3, 16)}
    assert decoder.bytes_per_row(context_tokens=10, max_new_tokens=1) >= 4 * 4 * 3 * 16


def test_mistakes_are_named(decoder):
    with pytest.raises(ModelError, match="a context is empty"):
        decoder.prefill([[1], []])
    decoder.network.train()
    with pytest.raises(ModelError, match="training mode"):
        decoder.prefill([[1]])
