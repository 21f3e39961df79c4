"""Rows that go on from one another: after `select` a row's logits are those of the text it has taken over.

Two contexts of unequal length, three rows each; three tokens, a selection, two more tokens. Every decoder is compared
with itself on rows that wrote those texts from the beginning, without any selection.
"""

import pytest
import torch
import transformers

from energylm.contracts import ForkingDecoder
from energylm.models import packed
from energylm.models.decoders import ForbiddenTokensDecoder, PlainDecoder, ProductDecoder
from energylm.models.gated_convolution import ConvolutionDecoder
from energylm.models.packed import PackedDecoder
from energylm.models.presets import build_network
from energylm.models.shared_prefix import SharedPrefixDecoder
from energylm.testing import TabularLanguageModel

CONTEXTS, COPIES, TOKENS = [[1, 2, 3], [2, 1]], 3, 4
ROWS = torch.tensor([0, 0, 1, 5, 4, 4])
WRITTEN = torch.tensor([[0, 1, 2], [1, 1, 0], [3, 2, 1], [2, 2, 2], [0, 3, 3], [1, 0, 2]])
AFTER = torch.tensor([[1, 0], [2, 3], [3, 3], [0, 0], [1, 2], [2, 1]])


def gpt2(seed):
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformers.GPT2LMHeadModel(config).eval()
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.5)
    return network


def convolution():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build_network("conv-tiny", vocabulary_size=TOKENS, max_length=32, eos_token_id=0).eval()


DECODERS = {
    "shared prefix": lambda: SharedPrefixDecoder(gpt2(0)),
    "packed": lambda: PackedDecoder(gpt2(0)),
    "packed, on two threads": lambda: PackedDecoder(gpt2(0), threads=2),
    "plain": lambda: PlainDecoder(gpt2(0)),
    "convolution": lambda: ConvolutionDecoder(convolution()),
    "product": lambda: ProductDecoder([SharedPrefixDecoder(gpt2(0)), PlainDecoder(gpt2(1))]),
    "forbidden": lambda: ForbiddenTokensDecoder(PlainDecoder(gpt2(0)), token_ids=[3]),
    "table": lambda: TabularLanguageModel.random(TOKENS, 9, seed=0).decoder(),
}


def last_logits(decoder, written, *, rows=None):
    prefix, _ = decoder.prefill(CONTEXTS)
    state = decoder.fork(prefix, copies=COPIES, max_new_tokens=6)
    for tokens in written.T:
        decoder.step(state, tokens)
    if rows is not None:
        decoder.select(state, rows)
    return [decoder.step(state, tokens) for tokens in AFTER.T][-1]


@pytest.mark.parametrize("name", DECODERS)
def test_a_selected_row_goes_on_from_what_it_took_over(name, monkeypatch):
    monkeypatch.setattr(packed, "ROWS_A_THREAD", 1)
    decoder = DECODERS[name]()
    assert isinstance(decoder, ForkingDecoder)
    expected = last_logits(decoder, WRITTEN[ROWS])
    torch.testing.assert_close(last_logits(decoder, WRITTEN, rows=ROWS), expected, atol=1e-5, rtol=0)
    # teeth: rows that keep their own text, and the selection turned round, are told apart
    for wrong in (torch.arange(6), torch.tensor([0, 2, 2, 3, 4, 3])):
        assert not torch.allclose(last_logits(decoder, WRITTEN, rows=wrong), expected, atol=1e-3)
