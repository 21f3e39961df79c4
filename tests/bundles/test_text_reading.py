"""TextReader: special tokens, what it remembers, and cutting on the left."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from energylm.bundles.text_codec import TextReader
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import DataError

CLS, SEP = 3, 4


@pytest.fixture
def tokenizer():
    made = train_tokenizer(["the clerk counts the boats"] * 9, vocabulary_size=280)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|cls|> $A <|sep|>", special_tokens=[("<|cls|>", CLS), ("<|sep|>", SEP)]
    )
    return made


def reader(tokenizer, **options):
    return TextReader(tokenizer, **{"special_tokens": True, "max_tokens": 12, "long_texts": "refuse"} | options)


def ids(tokenizer, text):
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def test_special_tokens_are_added_where_asked_for_and_never_read_out_of_text(tokenizer):
    plain = ids(tokenizer, "the boats")
    tokens, lengths = reader(tokenizer).read(["the boats", "the"])
    assert tokens[0].tolist() == [CLS, *plain, SEP] and lengths.tolist() == [len(plain) + 2, 3]
    assert tokens[1].tolist() == [CLS, *ids(tokenizer, "the"), SEP] + [0] * (len(plain) - 1)
    tokens, _ = reader(tokenizer, special_tokens=False).read(["the boats"])
    assert tokens[0].tolist() == plain
    spelt, _ = reader(tokenizer, max_tokens=None).read(["<|sep|>"])
    assert spelt[0].tolist().count(SEP) == 1  # the last one, not the text


def test_long_texts_lose_their_beginning_and_keep_their_special_tokens(tokenizer):
    text = "the clerk counts the boats " * 3
    with pytest.raises(DataError, match=r"text 1 has .* tokens but the energy's encoder holds 12"):
        reader(tokenizer).read([text])
    tokens, lengths = reader(tokenizer, long_texts="cut-left").read([text, "the boats"])
    assert lengths.tolist()[0] == 12 and tokens[0].tolist() == [CLS, *ids(tokenizer, text)[-10:], SEP]
    assert tokens[1, : lengths[1]].tolist() == [CLS, *ids(tokenizer, "the boats"), SEP]


def test_a_text_without_tokens_is_refused_or_read_as_the_end_of_a_text(tokenizer):
    """A person's empty text is a mistake; what a model writes may be empty, and is then the end-of-sequence token."""
    bare = reader(tokenizer, special_tokens=False)
    for _ in range(2):  # remembered, too
        with pytest.raises(DataError, match="text 2 is empty, so it has no energy"):
            bare.read(["the", ""])
        tokens, lengths = bare.read(["the boats", ""], may_be_empty=True)
        assert lengths.tolist() == [len(ids(tokenizer, "the boats")), 1]
        assert tokens[1, 0] == tokenizer.eos_token_id
    tokens, _ = reader(tokenizer).read([""], may_be_empty=True)
    assert tokens.tolist() == [[CLS, SEP]]  # a tokenizer that frames texts needs no such thing
    tokenizer.eos_token = tokenizer.sep_token = None
    tokens, _ = reader(tokenizer, special_tokens=False).read([""], may_be_empty=True)
    assert tokens.tolist() == [[tokenizer.bos_token_id]]
    for name in ("bos", "cls", "pad", "unk", "mask"):
        setattr(tokenizer, f"{name}_token", None)
    with pytest.raises(DataError, match="text 1 is empty, so it has no energy; leave it out, or give it a context"):
        reader(tokenizer, special_tokens=False).read([""], may_be_empty=True)


def test_encodings_are_remembered_and_the_oldest_forgotten(tokenizer):
    reading, encoded = reader(tokenizer, remembered_texts=2), []
    encode_batch = reading._encoder.encode_batch

    class Spy:
        def encode_batch(self, texts, **options):
            encoded.extend(texts)
            return encode_batch(texts, **options)

    reading._encoder = Spy()
    first = reading.read(["the", "boats", "the"])
    assert encoded == ["the", "boats"]
    again = reading.read(["the", "boats", "the"])
    assert encoded == ["the", "boats"] and torch.equal(first[0], again[0])
    reading.read(["the"])
    reading.read(["clerk"])  # "boats" was used longest ago
    encoded.clear()
    reading.read(["the", "clerk", "boats"])
    assert encoded == ["boats"]
