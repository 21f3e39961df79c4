"""A corpus folder: what was written is what is read, across shards; damage is noticed."""

import json
import shutil

import numpy as np
import pytest

from energylm.data.corpus import Corpus, TokenStream
from energylm.data.manifest import token_dtype
from energylm.data.tokenizer import plain_encoder
from energylm.data.windows import Windows
from energylm.errors import DataError
from energylm.files import sha256_of_file
from energylm.jobs.job import Job
from energylm.verbs import BuildCorpus

LINES = [f"line {n} says " + " ".join(f"w{n * k % 17}" for k in range(n % 9 + 1)) for n in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200 documents in shards of about a kilobyte of text."""
    place = tmp_path_factory.mktemp("corpus")
    (place / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    config = BuildCorpus(
        sources=(str(place / "lines.txt"),), format="lines", vocabulary_size=300, valid_fraction=0.2, part_bytes=1000
    )
    config.run(Job(output=place / "built"))
    return place / "built"


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_document_comes_back_once_with_its_bytes(folder):
    corpus = Corpus.open(folder)
    found = []
    for split in ("train", "valid", "test"):
        table, tokens = corpus.documents(split), corpus.split_tokens(split)
        counts = corpus.manifest.splits[split]
        assert (counts.documents, counts.tokens) == (len(table), len(tokens))
        assert counts.bytes == table.text_bytes.sum()
        for start, length, size in zip(table.starts, table.lengths, table.text_bytes, strict=True):
            text = corpus.tokenizer.decode(tokens[start : start + length].tolist())
            assert tokens[start + length : start + length + 1] == [corpus.end_token_id]
            assert len(text.encode()) == size
            found.append(text)
    assert sorted(found) == sorted(LINES)
    assert [text for split in ("train", "valid", "test") for text in corpus.texts(split)] == found
    assert len(corpus.manifest.shards) > 10


def test_tokens_are_those_of_the_tokenizer_in_the_order_of_the_source(folder):
    corpus = Corpus.open(folder)
    encoder = plain_encoder(corpus.tokenizer)
    table, tokens = corpus.documents("train"), corpus.split_tokens("train")
    texts = [corpus.tokenizer.decode(tokens[s : s + n]) for s, n in zip(table.starts, table.lengths, strict=True)]
    assert texts == [line for line in LINES if line in set(texts)]
    expected = [i for text in texts for i in [*encoder.encode(text).ids, corpus.end_token_id]]
    assert tokens[:].tolist() == expected


def test_a_stream_over_shards_is_one_array(tmp_path):
    """All slices and all rows of a stream of shards with 5, 1 and 4 tokens equal those of the plain array."""
    whole = np.arange(10) + 100
    paths = []
    for number, (start, stop) in enumerate(((0, 5), (5, 6), (6, 10))):
        paths.append(tmp_path / f"{number}.tokens")
        whole[start:stop].astype("<u2").tofile(paths[-1])
    hashes = [sha256_of_file(path) for path in paths]
    stream = TokenStream(paths, [5, 1, 4], hashes=hashes, dtype=np.dtype("<u2"))
    assert len(stream) == 10
    for start in range(11):
        for stop in range(11):
            np.testing.assert_array_equal(stream[start:stop], whole[start:stop])
    for length in range(1, 11):
        starts = np.arange(10 - length, -1, -1)
        np.testing.assert_array_equal(stream.rows(starts, length=length), [whole[s : s + length] for s in starts])
    assert stream.rows(np.zeros(0, dtype=np.int64), length=3).shape == (0, 3)


def test_more_shards_than_may_be_mapped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("energylm.data.corpus._MAPPED_SHARDS", 2)
    for number in range(5):
        np.array([number], dtype="<u2").tofile(tmp_path / f"{number}")
    paths = [tmp_path / f"{number}" for number in range(5)]
    stream = TokenStream(paths, [1] * 5, hashes=[sha256_of_file(path) for path in paths], dtype=np.dtype("<u2"))
    assert stream.rows(np.array([4, 0, 3, 1, 2, 0]), length=1).ravel().tolist() == [4, 0, 3, 1, 2, 0]
    assert stream[:].tolist() == [0, 1, 2, 3, 4]


def test_the_smallest_type_that_holds_every_id():
    assert token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32


def test_a_truncated_or_missing_shard_is_noticed_on_opening(copy):
    shard = copy / "train-00000.tokens"
    content = shard.read_bytes()
    shard.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"train-00000\.tokens has .* bytes, expected .* damaged; build"):
        Corpus.open(copy)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00000\.tokens is missing"):
        Corpus.open(copy)


def test_a_flipped_bit_is_noticed_by_verify(copy):
    Corpus.open(copy).verify()
    for name in ("train-00001.tokens", "valid-00000.index"):
        content = bytearray((copy / name).read_bytes())
        content[3] ^= 1
        (copy / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name} has changed"):
            Corpus.open(copy).verify()
        content[3] ^= 1
        (copy / name).write_bytes(content)
    Corpus.open(copy).verify()


def flip(path):
    content = bytearray(path.read_bytes())
    content[2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_noticed_before_its_shard_is_read(copy):
    """Of two shards the second is damaged: tokens of the first can be read, none of the second, in any way."""
    first, second = [shard for shard in Corpus.open(copy).manifest.shards if shard.split == "train"][:2]
    flip(copy / second.tokens_file)
    stream = Corpus.open(copy).split_tokens("train")
    assert len(stream[: first.tokens]) == first.tokens
    assert stream.rows(np.array([0]), length=first.tokens).shape == (1, first.tokens)
    damaged = rf"{second.tokens_file} has changed since it was made .*; build the corpus again"
    for read in (
        lambda: stream[first.tokens - 1 : first.tokens + 1],
        lambda: stream.rows(np.array([0, first.tokens]), length=1),
        lambda: stream.rows(np.array([first.tokens - 1]), length=2),  # across the border
        lambda: Windows(Corpus.open(copy), "train", length=4).gather(np.arange(first.tokens // 2)),
    ):
        with pytest.raises(DataError, match=damaged):
            read()
    flip(copy / "train-00003.index")
    with pytest.raises(DataError, match=r"train-00003\.index has changed since it was made"):
        Corpus.open(copy).documents("train")


def test_without_the_check_a_flipped_bit_is_read(copy, monkeypatch):
    """Teeth: the damage above is seen by nothing else."""
    before = Corpus.open(copy).split_tokens("train")[:]
    flip(copy / "train-00001.tokens")
    monkeypatch.setattr("energylm.data.corpus.check_shard", lambda path, sha256, cure: None)
    assert (Corpus.open(copy).split_tokens("train")[:] != before).sum() == 1


def test_a_shard_is_hashed_once_a_process_and_again_if_it_changes(copy, monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "energylm.data.manifest.sha256_of_file", lambda path: hashed.append(path.name) or sha256_of_file(path)
    )
    shards = [shard.tokens_file for shard in Corpus.open(copy).manifest.shards if shard.split == "train"]
    assert hashed == []  # opening reads no shard
    for _ in range(2):
        _ = Corpus.open(copy).split_tokens("train")[:]
        assert hashed == shards
    content = (copy / shards[0]).read_bytes()
    (copy / shards[0]).write_bytes(content)
    _ = Corpus.open(copy).split_tokens("train")[:]
    assert hashed == [*shards, shards[0]]
    Corpus.open(copy).verify()  # reads all
    assert len(hashed) == len(shards) + 1 + 2 * len(Corpus.open(copy).manifest.shards)


def test_another_tokenizer_in_the_folder_is_noticed(copy):
    file = copy / "tokenizer" / "tokenizer.json"
    pipeline = json.loads(file.read_text(encoding="utf-8"))
    pipeline["model"]["merges"].pop()
    file.write_text(json.dumps(pipeline), encoding="utf-8")
    with pytest.raises(DataError, match="is not the tokenizer that wrote the shards"):
        _ = Corpus.open(copy).tokenizer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m | {"format_version": 99}, r"no manifest of a corpus in format 1, .*\(it says 99\)"),
        (lambda m: m | {"shard": []}, "unknown key 'shard'; did you mean 'shards'.*damaged"),
        (lambda m: {k: v for k, v in m.items() if k != "dtype"}, "dtype.*damaged"),
        (lambda m: [], "it says None"),
    ],
)
def test_a_damaged_manifest_is_named(copy, change, message):
    path = copy / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Corpus.open(copy)


def test_what_is_not_a_corpus_is_named(tmp_path, folder):
    with pytest.raises(DataError, match=r"is not a corpus .*energylm corpus build"):
        Corpus.open(tmp_path)
    with pytest.raises(DataError, match="unknown split 'dev'; a corpus has: train, valid, test"):
        Corpus.open(folder).split_tokens("dev")
