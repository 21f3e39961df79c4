"""Building: whole or not at all, resumable to the byte, a no-op the second time, and honest about changed inputs."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from energylm.data.corpus import Corpus
from energylm.data.document import split_of
from energylm.data.draft import PartWriter
from energylm.data.encoding import Encoder
from energylm.data.tokenizer import load_tokenizer, plain_encoder
from energylm.errors import BusyError, DataError, DiskFull, ModelError
from energylm.files import folder_lock
from energylm.verbs import BuildCorpus
from energylm.verbs.corpus import build
from energylm.verbs.corpus.build import build_corpus, plan_corpus

# Builds a corpus and kills itself with SIGKILL in the middle of writing a batch of the given part.
KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from energylm.data.draft import PartWriter
from energylm.jobs.job import Job
from energylm.verbs import BuildCorpus
write = PartWriter.write
def write_then_die(self, *arguments):
    write(self, *arguments)
    if self._number == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
PartWriter.write = write_then_die
BuildCorpus.model_validate_json(sys.argv[1]).run(Job(output=Path(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """120 documents, some of them empty after the first reading (blank fields)."""
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    texts = [f"Document {n} é: " + f"some words {n * 7 % 13}. " * (n % 5) if n % 40 else " " for n in range(120)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def config(lines):
    return BuildCorpus(sources=(str(lines),), vocabulary_size=300, valid_fraction=0.2, part_bytes=500)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_two_builds_give_the_same_bytes_and_leave_nothing_beside(config, tmp_path):
    manifest = build_corpus(config, output=tmp_path / "a")
    build_corpus(config, output=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert manifest.empty_documents == 3
    assert sum(count.documents for count in manifest.splits.values()) == 117
    assert len(manifest.shards) > 10
    assert not any(str(tmp_path) in path.read_text(encoding="utf-8") for path in (tmp_path / "a").rglob("*.json"))


def test_batches_and_pieces_do_not_matter(config, lines, tmp_path, monkeypatch):
    """The same tokens whether a batch holds all the text or one piece, and pieces are cut at every word or nowhere."""
    whole = config.model_copy(update={"part_bytes": 1 << 20})
    build_corpus(whole, output=tmp_path / "a")
    monkeypatch.setattr("energylm.data.encoding.BATCH_BYTES", 1)
    monkeypatch.setattr("energylm.data.encoding.cut_exactly.__kwdefaults__", {"piece_characters": 1})
    build_corpus(whole, output=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_second_run_writes_nothing(config, tmp_path, monkeypatch, capsys):
    first = build_corpus(config, output=tmp_path / "a")
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    assert build_corpus(config, output=tmp_path / "a") == first
    assert "up to date" in capsys.readouterr().err
    assert plan_corpus(config, output=tmp_path / "a").state == "finished"


def test_changed_inputs_and_settings_are_noticed(config, lines, tmp_path):
    build_corpus(config, output=tmp_path / "a")
    before = contents(tmp_path / "a")
    other = config.model_copy(update={"valid_fraction": 0.3})
    with pytest.raises(DataError, match=r"made otherwise \(changed: valid_fraction\); .*--overwrite"):
        build_corpus(other, output=tmp_path / "a")
    longer = tmp_path / "lines.jsonl"
    longer.write_text(lines.read_text(encoding="utf-8") + '{"text": "one more"}\n', encoding="utf-8")
    more = config.model_copy(update={"sources": (str(longer),)})
    with pytest.raises(DataError, match=r"\(changed: sources\)"):
        build_corpus(more, output=tmp_path / "a")
    assert contents(tmp_path / "a") == before
    build_corpus(more, output=tmp_path / "a", overwrite=True)
    assert sum(count.documents for count in Corpus.open(tmp_path / "a").manifest.splits.values()) == 118
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "lines.jsonl"]


def test_a_moved_source_is_the_same_source(config, lines, tmp_path):
    build_corpus(config, output=tmp_path / "a")
    (tmp_path / lines.name).write_bytes(lines.read_bytes())
    moved = config.model_copy(update={"sources": (str(tmp_path / lines.name),)})
    assert plan_corpus(moved, output=tmp_path / "a").state == "finished"


def kill_in_part(config, output, part):
    command = [sys.executable, "-c", KILLED_BUILD, config.model_dump_json(), str(output), str(part)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_build_killed_twice_ends_in_the_same_bytes(config, tmp_path, capsys):
    build_corpus(config, output=tmp_path / "whole")
    output = tmp_path / "killed"
    kill_in_part(config, output, 0)
    kill_in_part(config, output, 2)
    assert not output.exists()
    assert plan_corpus(config, output=output).state == "interrupted"
    build_corpus(config, output=output)
    assert "going on after 2 finished parts" in capsys.readouterr().err
    assert contents(output) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]


def interrupt(config, output, monkeypatch, *, part, error):
    """A build that fails with `error` in the given part, all in this process."""

    def write_then_fail(self, *arguments):
        if self._number == part:
            raise error
        return write(self, *arguments)

    write = PartWriter.write
    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write", write_then_fail)
        build_corpus(config, output=output)


def test_the_check_catches_resuming_at_the_wrong_document(config, tmp_path, monkeypatch):
    """Teeth: a draft that forgets one document it has read gives other bytes."""
    build_corpus(config, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        interrupt(config, tmp_path / "a", monkeypatch, part=2, error=KeyboardInterrupt())
    path = tmp_path / ".a.building" / "corpus" / "draft.json"
    draft = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(draft | {"documents_read": draft["documents_read"] - 1}), encoding="utf-8")
    build_corpus(config, output=tmp_path / "a")
    assert contents(tmp_path / "a") != contents(tmp_path / "whole")


def test_an_interrupted_build_of_other_inputs_starts_over(config, tmp_path, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt):
        interrupt(config, tmp_path / "a", monkeypatch, part=2, error=KeyboardInterrupt())
    other = config.model_copy(update={"vocabulary_size": 280})
    build_corpus(other, output=tmp_path / "a")
    assert "starting over" in capsys.readouterr().err
    build_corpus(other, output=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_full_disk_leaves_only_whole_shards_and_the_next_run_finishes(config, tmp_path, monkeypatch):
    build_corpus(config, output=tmp_path / "whole")
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFull, match=r"no space left on the disk while writing .*free some space"):
        interrupt(config, tmp_path / "a", monkeypatch, part=0, error=full)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]
    with pytest.raises(DiskFull):
        interrupt(config, tmp_path / "a", monkeypatch, part=3, error=full)
    left = {path.name for path in (tmp_path / ".a.building" / "corpus").iterdir()}
    shards = {name for name in left if name.endswith((".tokens", ".index"))}
    assert left == shards | {"tokenizer", "draft.json"}
    assert all(int(name[6:].split(".")[0].split("-")[-1]) < 3 for name in shards)
    build_corpus(config, output=tmp_path / "a")
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_really_full_disk(lines, tmp_path):
    """A disk of 64 kB: the build fails in one line, and nothing is left on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        with pytest.raises(DiskFull, match="free some space"):
            build_corpus(BuildCorpus(sources=("sotu:1790-1800",), vocabulary_size=2000), output=disk / "a")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_bad_input_in_a_later_part_leaves_nothing(config, lines, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines.read_text(encoding="utf-8") + '{"text": "half \\ud83d"}\n', encoding="utf-8")
    existing = build_corpus(config, output=tmp_path / "a")
    settings = {"sources": (str(bad),), "tokenizer": str(tmp_path / "a")}
    with pytest.raises(DataError, match=r"bad\.jsonl:121: U\+D83D is half a character"):
        build_corpus(config.model_copy(update=settings), output=tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "bad.jsonl"]
    assert existing.tokenizer.vocabulary_size <= 300


def test_an_existing_tokenizer_is_used_as_it_is(config, lines, tmp_path):
    first = build_corpus(config, output=tmp_path / "a")
    second = build_corpus(config.model_copy(update={"tokenizer": str(tmp_path / "a")}), output=tmp_path / "b")
    assert second.tokenizer == first.tokenizer
    assert [shard.tokens_sha256 for shard in first.shards] == [shard.tokens_sha256 for shard in second.shards]


def letters_tokenizer(letters):
    """A tokenizer of these letters that drops all others without a word, as a BPE without an unknown token does."""
    pieces = ["<end>", *letters]
    backend = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@pytest.mark.parametrize("letters", ["", "e", "aeiou"])
def test_a_tokenizer_that_cannot_read_the_text_is_refused(config, tmp_path, letters):
    """Every document would become an end-of-text token and little else. With vowels alone about two thirds are lost."""
    letters_tokenizer(letters).save_pretrained(tmp_path / "letters")
    poor = config.model_copy(update={"tokenizer": str(tmp_path / "letters")})
    with pytest.raises(DataError, match=rf"\({1 + len(letters)} tokens\) has no token for \d+% of .* characters"):
        build_corpus(poor, output=tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_a_tokenizer_that_lacks_some_characters_is_said(config, tmp_path, capsys, monkeypatch):
    """It has all letters and digits, but neither ":" nor ".": by hand, their share of what the documents hold."""
    monkeypatch.setattr("energylm.data.encoding.SAMPLE_CHARACTERS", 1 << 30)  # all pieces
    texts = [json.loads(line)["text"] for line in Path(config.sources[0]).read_text(encoding="utf-8").splitlines()]
    written = "".join("".join(texts).split())
    share = sum(map(written.count, ":.")) / len(written)
    assert 0.01 < share < 0.2
    letters_tokenizer(sorted({*written} - {*":."})).save_pretrained(tmp_path / "letters")
    build_corpus(config.model_copy(update={"tokenizer": str(tmp_path / "letters")}), output=tmp_path / "corpus")
    assert f"no token for about {share:.1%} of the text's characters" in capsys.readouterr().err
    build_corpus(config, output=tmp_path / "own")
    assert "no token" not in capsys.readouterr().err


def test_a_runs_folder_a_known_name_and_a_corpus_give_their_tokenizer(config, tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    build_corpus(config, output=tmp_path / "first")
    tokenizer = load_tokenizer(tmp_path / "first")
    for folder in (tmp_path / "run" / "model", tmp_path / "home" / "models" / "smollm2-135m"):
        tokenizer.save_pretrained(folder)
        (folder / "config.json").write_text("{}")
    identities = {
        build_corpus(config.model_copy(update={"tokenizer": str(name)}), output=tmp_path / f"corpus{number}").identity
        for number, name in enumerate((tmp_path / "first", tmp_path / "run", "smollm2-135m"))
    }
    assert len(identities) == 1
    with pytest.raises(ModelError, match=r"'smollm2-135' does not exist; .*did you mean 'smollm2-135m'\?"):
        build_corpus(config.model_copy(update={"tokenizer": "smollm2-135"}), output=tmp_path / "none")


def test_the_tokenizer_never_sees_valid_and_test_text(tmp_path):
    """A word that stands in test documents only is no token, though it is as frequent as one that is."""
    fractions = {"valid_fraction": 0.0, "test_fraction": 0.5}
    texts = {"train": [], "test": []}
    for number in range(100):
        for word, split in (("trainword", "train"), ("testword", "test")):
            text = f"{number} " + f"{word} " * 9
            if split_of(text, seed=0, **fractions) == split:
                texts[split].append(text)
    file = tmp_path / "a.txt"
    file.write_text("\n".join(texts["train"] + texts["test"]), encoding="utf-8")
    config = BuildCorpus(sources=(str(file),), format="lines", vocabulary_size=300)
    build_corpus(config.model_copy(update=fractions), output=tmp_path / "a")
    build_corpus(config.model_copy(update={"valid_fraction": 0, "test_fraction": 0}), output=tmp_path / "all")
    vocabulary, from_all = (load_tokenizer(tmp_path / name).get_vocab() for name in ("a", "all"))
    assert "Ġtrainword" in vocabulary and "Ġtestword" not in vocabulary
    assert "Ġtestword" in from_all


def test_a_damaged_corpus_is_built_again(config, tmp_path, capsys):
    build_corpus(config, output=tmp_path / "a")
    before = contents(tmp_path / "a")
    shard = tmp_path / "a" / "train-00000.tokens"
    for damaged in (b"", bytes(shard.stat().st_size)):
        shard.write_bytes(damaged)
        build_corpus(config, output=tmp_path / "a")
        assert "train-00000.tokens has" in capsys.readouterr().err
        assert contents(tmp_path / "a") == before


def test_a_flipped_byte_in_a_finished_part_of_an_interrupted_build_is_noticed(config, tmp_path, monkeypatch, capsys):
    build_corpus(config, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        interrupt(config, tmp_path / "a", monkeypatch, part=2, error=KeyboardInterrupt())
    shard = tmp_path / ".a.building" / "corpus" / "train-00001.tokens"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    build_corpus(config, output=tmp_path / "a")
    assert "train-00001.tokens of the interrupted build is damaged: starting over" in capsys.readouterr().err
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")


def test_a_corpus_that_was_finished_but_not_put_in_place_is_not_built_again(config, tmp_path, monkeypatch):
    build_corpus(config, output=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "take_place_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        build_corpus(config, output=tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(build, "PartReader", None)  # whoever reads anything again fails
        build_corpus(config, output=tmp_path / "a")
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "whole"]


def test_no_text_for_the_train_split_is_named(config, tmp_path):
    with pytest.raises(DataError, match=r"lines\.jsonl holds no text for the train split, .*--tokenizer"):
        build_corpus(config.model_copy(update={"valid_fraction": 1.0, "test_fraction": 0.0}), output=tmp_path / "a")


def test_an_empty_split_is_said(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("one document only", encoding="utf-8")
    build_corpus(BuildCorpus(sources=(str(tmp_path / "a.txt"),), split_seed=1), output=tmp_path / "a")
    said = capsys.readouterr().err
    assert "no document fell into the valid split" in said and "into the test split" in said


def test_one_long_document_is_streamed_to_the_same_tokens(tmp_path):
    """A text file of 3 MB is read and cut in pieces; its tokens are those of the whole."""
    paragraph = "A line of some text, it's 3 MB long — é.\n" * 4 + "\n\n  indented  twice\n"
    text = paragraph * 16_000
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    config = BuildCorpus(sources=(str(tmp_path / "long.txt"),), vocabulary_size=320, valid_fraction=0, test_fraction=0)
    manifest = build_corpus(config, output=tmp_path / "a")
    corpus = Corpus.open(tmp_path / "a")
    assert manifest.splits["train"].documents == 1 and manifest.splits["train"].bytes == len(text.encode())
    expected = plain_encoder(corpus.tokenizer).encode(text).ids
    assert corpus.split_tokens("train")[:].tolist() == [*expected, corpus.end_token_id]


def test_a_tokenizer_that_must_not_be_cut_reads_documents_whole(lines):
    encoder = Encoder(plain_encoder(load_tokenizer_without_words()), end_token_id=0, unknown_id=None)
    assert not encoder.cuts


def load_tokenizer_without_words():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", sep_token="[UNK]")


def test_empty_and_foreign_places_are_named(config, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    nothing = config.model_copy(update={"sources": (str(tmp_path / "empty.txt"),)})
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        build_corpus(nothing, output=tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep me", encoding="utf-8")
    with pytest.raises(DataError, match="exists and is not a corpus"):
        build_corpus(config, output=tmp_path / "mine")
    with folder_lock(tmp_path / ".a.building"), pytest.raises(BusyError, match="in use by process"):
        build_corpus(config, output=tmp_path / "a")


def test_origin_and_licence_are_kept(config, tmp_path):
    stated = config.model_copy(update={"origin": "made up", "licence": "CC0"})
    manifest = build_corpus(stated, output=tmp_path / "a")
    assert (manifest.origin, manifest.licence) == ("made up", "CC0")
    (record,) = manifest.sources
    assert record.name == "lines.jsonl" and len(record.sha256) == 64
