"""Byte-level BPE: any text → ids → the same text; deterministic; saved and loaded unchanged."""

import random
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from energylm.data.tokenizer import (
    SPECIAL_TOKENS,
    end_token_id,
    load_tokenizer,
    plain_encoder,
    tokenizer_sha256,
    train_tokenizer,
    unread_characters,
)
from energylm.errors import ModelError

TEXTS = ["the cat sat on the mat, didn't it?", "Übergröße naïve café\n\n\tthe  end ", "the cat and the mat " * 5]
AWKWARD = [
    "",
    " ",
    "\n\n\t \r\n",
    "plain",
    " leading and trailing  ",
    "don 't  touch , these . spaces !",
    "é vs e\u0301 (composed and not)",
    "漢字かな交じり 🙂👩‍👩‍👧‍👦",
    "\x00\x1c\x85\xa0\u2028\ufeff",
    "<|endoftext|> spelt out <|pad|>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(TEXTS), vocabulary_size=320)


@pytest.fixture(scope="module")
def loaded(tokenizer, tmp_path_factory):
    """The same tokenizer by every road: as trained, saved and loaded by our function, by the Auto class."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return {"trained": tokenizer, "ours": load_tokenizer(folder), "auto": AutoTokenizer.from_pretrained(folder)}


def random_texts(count, *, seed):
    chooser = random.Random(seed)
    valid = [*range(0xD800), *range(0xE000, 0x110000)]
    return ["".join(map(chr, chooser.choices(valid, k=chooser.randrange(40)))) for _ in range(count)]


@pytest.mark.parametrize("road", ["trained", "ours", "auto"])
def test_decoding_gives_any_text_back(loaded, road):
    for text in AWKWARD + random_texts(200, seed=1):
        assert loaded[road].decode(loaded[road].encode(text)) == text
        ids = plain_encoder(loaded[road]).encode(text, add_special_tokens=False).ids
        assert loaded[road].decode(ids) == text


def test_the_round_trip_check_sees_a_prefix_space(tokenizer):
    """Teeth: the usual slip with byte-level BPE, a space put before the first word."""
    slipped = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    slipped.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert slipped.decode(slipped.encode("plain").ids) != "plain"


def test_special_tokens_have_their_places(loaded):
    for tokenizer in loaded.values():
        assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
        assert tokenizer.bos_token_id == tokenizer.eos_token_id == end_token_id(tokenizer) == 0
        names = (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert names == (1, 2, 3, 4)
        assert len(tokenizer) == tokenizer.vocab_size <= 320


def test_text_that_spells_a_special_token_stays_text(tokenizer):
    assert 0 in tokenizer.encode("a<|endoftext|>b")  # what transformers does by itself
    assert not set(plain_encoder(tokenizer).encode("a<|endoftext|>b").ids) & {0, 1, 2, 3, 4}


def test_use_does_not_change_the_hash_or_the_encoder(tokenizer, loaded):
    before = tokenizer_sha256(tokenizer)
    assert {tokenizer_sha256(each) for each in loaded.values()} == {before}
    loaded["ours"](["a", "the cat sat"], padding=True, truncation=True, max_length=2)
    assert tokenizer_sha256(loaded["ours"]) == before
    assert len(plain_encoder(loaded["ours"]).encode("the cat sat on the mat").ids) > 2
    assert tokenizer_sha256(train_tokenizer(iter(TEXTS[:2]), vocabulary_size=320)) != before


def test_training_is_deterministic_whatever_the_threads(tokenizer):
    program = (
        "from energylm.data.tokenizer import *\n"
        f"print(tokenizer_sha256(train_tokenizer(iter({TEXTS!r}), vocabulary_size=320)))"
    )
    environment = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "7", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tokenizer_sha256(tokenizer)


def test_bad_tokenizers_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"'no/such' cannot be loaded .*give a folder"):
        load_tokenizer("no/such")
    for bare in ("smollm2-135m", "./nowhere", str(tmp_path / "nowhere")):  # the hub is not asked for these
        with pytest.raises(ModelError, match=r"does not exist; give a folder with tokenizer\.json"):
            load_tokenizer(bare)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(tmp_path)
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel()
    with pytest.raises(ModelError, match="neither an EOS nor a SEP"):
        end_token_id(PreTrainedTokenizerFast(tokenizer_object=bare))


def test_unread_characters_by_hand(tokenizer):
    """A byte-level BPE reads all. Of "ab ba cab\n" without blanks (7 characters) pieces "a" and "b" read 6: the "c" has
    no piece, and is dropped in silence, or stands as the unknown token. Blanks never count."""
    assert unread_characters(plain_encoder(tokenizer), [*AWKWARD, "ab ba cab\n"], unknown_id=0)[0] == 0
    silent = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    silent.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert silent.encode("ab ba cab\n").ids == [0, 1, 1, 0, 0, 1]
    assert unread_characters(silent, ["ab ba cab\n"], unknown_id=None) == (1, 7)
    loud = Tokenizer(models.BPE({"a": 0, "b": 1, "?": 2}, [], unk_token="?"))
    loud.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert loud.encode("ab ba cab\n").ids == [0, 1, 1, 0, 2, 0, 1]
    assert unread_characters(loud, ["ab ba cab\n", "c"], unknown_id=2) == (2, 8)
    assert unread_characters(loud, ["ab ba cab\n", "c"], unknown_id=None) == (0, 8)  # teeth: what ids alone show
