"""Blocks cover every token, are full, and are what the encoder's own tokenizer would make of their text."""

import numpy as np
import pytest

from energylm.config.texts import BlockConfig
from energylm.data.text_blocks import BlockReader, block_starts
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ModelError


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [(0, []), (1, [0]), (10, [0]), (11, [0, 1]), (14, [0, 4]), (15, [0, 4, 5]), (18, [0, 4, 8]), (19, [0, 4, 8, 9])],
)
def test_starts_by_hand(tokens, starts):
    assert block_starts(tokens, BlockConfig(tokens=10, stride=4)).tolist() == starts


def uncovered(tokens: int, starts, size: int) -> int:
    return tokens - len({t for start in starts for t in range(start, min(start + size, tokens))})


@pytest.mark.parametrize(("size", "stride"), [(160, 80), (160, 160), (9, 1), (10, 7)])
def test_every_token_is_in_a_block_and_every_block_is_full(size, stride):
    blocks = BlockConfig(tokens=size, stride=stride)
    missed_without_last = 0
    for tokens in range(1, 5 * size):
        starts = block_starts(tokens, blocks)
        assert uncovered(tokens, starts, size) == 0
        assert starts[-1] + size == tokens or len(starts) == 1
        assert (np.diff(starts) > 0).all() and (np.diff(starts) <= stride).all()
        missed_without_last += uncovered(tokens, starts[:-1], size)
    assert missed_without_last > 0  # the mistake: without the block that ends the text, tokens are never read


def test_gaps_are_refused():
    with pytest.raises(ValueError, match="leaves gaps"):
        BlockConfig(tokens=10, stride=11)


def test_rows_are_what_the_tokenizer_makes_of_the_text(bert_folder):
    tokenizer = load_tokenizer(bert_folder)
    reader = BlockReader(tokenizer, BlockConfig(tokens=64, stride=32), special_tokens=True)
    texts = ["The clerk counts the boats.", "A sailor mends a bridge, and [SEP] a stranger sells seven lamps."]
    tokens_BT, lengths_B = reader.rows([text.ids for text in reader.encode(texts)])
    assert reader.row_tokens == 66
    for row, length, text in zip(tokens_BT.tolist(), lengths_B.tolist(), texts, strict=True):
        assert row[length:] == [0] * (len(row) - length)
        if "[SEP]" not in text:
            assert row[:length] == tokenizer(text)["input_ids"]
        assert row[:length].count(tokenizer.sep_token_id) == 1  # what spells a special token stays text


def test_offsets_lead_back_to_the_text(bert_folder):
    reader = BlockReader(load_tokenizer(bert_folder), BlockConfig(tokens=8, stride=4), special_tokens=True)
    text = "The clerk counts the boats. A sailor mends a bridge."
    (encoded,) = reader.encode([text])
    assert "".join(text[start:end] for start, end in encoded.offsets) == text.replace(" ", "")
    cut = encoded.cut(3, 5)
    assert len(cut) == 5 and cut.offsets[0, 0] == encoded.offsets[3, 0]
    assert sum(map(len, reader.pieces(cut))) == 5 and reader.pieces(encoded.cut(0, 0)) == []


def test_an_encoder_that_is_too_short_is_named(bert_folder):
    reader = BlockReader(load_tokenizer(bert_folder), BlockConfig(), special_tokens=True)
    with pytest.raises(ModelError, match="take 162 with special ones, but bert holds 96"):
        reader.check(name="bert", max_tokens=96)
