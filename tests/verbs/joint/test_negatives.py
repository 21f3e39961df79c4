"""Negatives: drawn from the language model, whole or not at all, resumable to the byte, never mixed up."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.windows import Windows
from energylm.errors import BusyError, ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.files import folder_lock, sha256_of_file
from energylm.jobs.job import Job
from energylm.verbs.joint import writing_negatives
from energylm.verbs.joint.negatives import MakeNegatives
from energylm.verbs.joint.writing_negatives import plan_negatives

KILLED_IN_THIRD_BLOCK = """
import os, signal, sys
from pathlib import Path
from energylm.jobs.job import Job
from energylm.verbs import MakeNegatives
from energylm.verbs.joint import writing_negatives

written, original = [], writing_negatives.write_shard

def killing(path, rows, **options):
    written.append(path)
    if len(written) == 3:
        path.with_name("." + path.name + ".half.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return original(path, rows, **options)

writing_negatives.write_shard = killing
MakeNegatives.model_validate_json(sys.argv[1]).run(Job(output=Path(sys.argv[2])))
"""


@pytest.fixture
def config(corpus_folder, model_folder):
    def make(**values):
        defaults = {"k": 3, "length": 24, "prefix_tokens": (16, 20), "contexts": 37, "block_contexts": 8, "seed": 5}
        return MakeNegatives.checked(
            {"corpus": str(corpus_folder), "language_model": str(model_folder), **defaults, **values}, origin="test"
        )

    return make


def shards(folder):
    return {path.name: sha256_of_file(path) for path in folder.glob("*.parquet")}


@pytest.mark.parametrize("documents", ["packed", "within"])
def test_a_row_holds_k_continuations_of_its_window_with_the_models_own_log_probabilities(config, tmp_path, documents):
    """The log-probability of every stored continuation, computed by the other route: scoring context + continuation."""
    run = config(documents=documents).run(Job(output=tmp_path / "n"))
    opened = Negatives.open(tmp_path / "n")
    rows = opened.rows(np.arange(len(opened)))
    assert len(opened) == 37 and opened.k == 3 and len(opened.manifest.shards) == 5
    assert len(set(rows.window_B)) == 37 and set(rows.context_length_B) == {16, 20}
    assert np.array_equal(rows.window_B, opened.windows)
    assert (rows.length_BK == 24 - rows.context_length_B[:, None]).all()
    assert run.tokens == rows.length_BK.sum() and run.tokens_per_second > 0

    corpus = Corpus.open(config().corpus)
    windows = Windows(corpus, "train", length=24, documents=documents).gather(rows.window_B)
    lm = LanguageModel.from_pretrained(config().language_model)
    lm = lm.without_special_tokens() if documents == "within" else lm
    for row in range(37):
        cut = rows.context_length_B[row]
        texts = [[*windows[row, :cut], *rows.tokens_BKT[row, copy, : 24 - cut]] for copy in range(3)]
        scores = lm.score([list(map(int, text)) for text in texts], prefix_tokens=int(cut))
        expected = [score.log_prob for score in scores]
        assert rows.log_prob_BK[row] == pytest.approx(expected, abs=1e-4)
        shifted = lm.score([list(map(int, text)) for text in texts], prefix_tokens=int(cut) - 1)
        assert shifted[0].log_prob != pytest.approx(rows.log_prob_BK[row, 0], abs=1e-2)  # a wrong cut would show
    assert np.array_equal(rows.log_prob_BK, rows.proposal_log_prob_BK)


def test_the_end_of_text_token_gives_no_label_away(config, tmp_path):
    """Windows within documents hold no end-of-text token, so generated ones must not; packed ones hold it on both
    sides. Teeth: the model as it is writes the token, and by its presence alone some texts would be told apart."""
    share = {}
    for documents in ("within", "packed"):
        made = config(documents=documents, contexts=200, k=20)
        made.run(Job(output=tmp_path / documents))
        opened = Negatives.open(tmp_path / documents)
        rows = opened.rows(np.arange(len(opened)))
        corpus = Corpus.open(made.corpus)
        windows = Windows(corpus, "train", length=24, documents=documents).gather(rows.window_B)
        written = np.arange(rows.tokens_BKT.shape[2]) < rows.length_BK[..., None]
        ended = (rows.tokens_BKT == corpus.end_token_id) & written
        share[documents] = ended.any(2).mean(), (windows[:, 20:] == corpus.end_token_id).any(1).mean()
    assert share["within"] == (0, 0)
    assert share["packed"][0] > 0 and share["packed"][1] > 0


def test_the_files_are_plain_parquet(config, tmp_path):
    config().run(Job(output=tmp_path))
    table = pq.read_table(tmp_path / "block-00000.parquet")
    assert table.column_names == ["window", "context_length", "continuations", "log_prob", "proposal_log_prob"]
    assert str(table.schema.field("continuations").type) == "list<element: list<element: uint32>>"
    assert [len(copies) for copies in table["continuations"].to_pylist()] == [3] * 8
    assert table.schema.metadata[b"energylm.negatives"].decode() == Negatives.open(tmp_path).manifest.identity


def test_a_windows_draws_depend_on_seed_and_window_only(config, tmp_path):
    """Neither blocks, nor the cap, nor k change a continuation; another seed changes all."""
    runs = {"whole": {}, "blocks": {"block_contexts": 5}, "capped": {"contexts": 20}, "fewer": {"k": 2}}
    draws = {}
    for name, values in (runs | {"seed": {"seed": 6}}).items():
        config(**values).run(Job(output=tmp_path / name))
        opened = Negatives.open(tmp_path / name)
        rows = opened.rows(np.arange(len(opened)))
        draws[name] = {int(w): rows.tokens_BKT[i, :2].tobytes() for i, w in enumerate(rows.window_B)}
    for name in runs:
        assert draws[name] and all(draws["whole"][window] == drawn for window, drawn in draws[name].items())
    shared = draws["whole"].keys() & draws["seed"].keys()
    assert shared and not any(draws["whole"][window] == draws["seed"][window] for window in shared)


def test_rows_come_in_any_order_and_through_a_small_cache(config, tmp_path, monkeypatch):
    config().run(Job(output=tmp_path))
    everything = Negatives.open(tmp_path).rows(np.arange(37))
    monkeypatch.setattr("energylm.data.negatives.CACHE_BYTES", 1)
    opened = Negatives.open(tmp_path)
    for order in (np.array([36, 0, 8, 7, 0]), np.arange(37)[::-1], np.array([5])):
        rows = opened.rows(order)
        longest = rows.tokens_BKT.shape[2]
        assert np.array_equal(rows.tokens_BKT, everything.tokens_BKT[order][..., :longest])
        assert np.array_equal(rows.window_B, everything.window_B[order])
        assert np.array_equal(rows.length_BK, everything.length_BK[order])
    assert len(opened._groups) == 1
    with pytest.raises(IndexError):
        opened.rows(np.array([37]))


def test_killed_and_resumed_gives_the_same_bytes(config, tmp_path, capsys):
    """SIGKILL in the third block, with a half-written file left behind."""
    config().run(Job(output=tmp_path / "alone"))
    command = [sys.executable, "-c", KILLED_IN_THIRD_BLOCK, config().model_dump_json(), str(tmp_path / "killed")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert sorted(shards(tmp_path / "killed")) == ["block-00000.parquet", "block-00001.parquet"]
    with pytest.raises(DataError, match="unfinished"):
        Negatives.open(tmp_path / "killed")
    plan = plan_negatives(config(), tmp_path / "killed")
    assert plan.state == "interrupted" and "after 2 of 5 blocks" in plan.describe(config(), tmp_path / "killed")
    first = (tmp_path / "killed" / "block-00000.parquet").stat().st_mtime_ns
    capsys.readouterr()
    config().run(Job(output=tmp_path / "killed"))
    assert "going on after 2 of 5 blocks" in capsys.readouterr().err
    assert shards(tmp_path / "killed") == shards(tmp_path / "alone")
    assert (tmp_path / "killed" / "block-00000.parquet").stat().st_mtime_ns == first
    assert (tmp_path / "killed/manifest.json").read_bytes() == (tmp_path / "alone/manifest.json").read_bytes()
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {
        path.name for path in (tmp_path / "alone").iterdir()
    }


def test_a_second_run_does_nothing_damage_is_repaired_changes_are_refused(config, tmp_path, capsys):
    first = config().run(Job(output=tmp_path))
    before = shards(tmp_path)
    second = config().run(Job(output=tmp_path))
    assert second.was_finished and not first.was_finished and "nothing to do" in capsys.readouterr().err
    assert plan_negatives(config(), tmp_path).state == "finished"

    damaged = tmp_path / "block-00002.parquet"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DataError, match="block-00002"):
        Negatives.open(tmp_path).verify()
    assert plan_negatives(config(), tmp_path).state == "damaged"
    config().run(Job(output=tmp_path))
    assert shards(tmp_path) == before
    Negatives.open(tmp_path).verify()

    with pytest.raises(DataError, match=r"changed: k, seed\); choose another --output, or say --overwrite"):
        config(k=2, seed=9).run(Job(output=tmp_path))
    assert shards(tmp_path) == before
    config(k=2, seed=9, contexts=10).run(Job(output=tmp_path, overwrite=True))
    assert len(Negatives.open(tmp_path)) == 10 and len(shards(tmp_path)) == 2


def test_a_model_that_overflows_leaves_no_draft_behind(config, tmp_path, monkeypatch):
    """NaN in the logits is one line, in the first block and in a later one; what was finished before it is kept."""
    drawn, usual = [], writing_negatives.sample_continuations

    def overflowing(decoder, contexts, **options):
        drawn.append(contexts)
        if len(drawn) > good:
            raise ModelError("2 of 2 rows of logits hold NaN")
        return usual(decoder, contexts, **options)

    monkeypatch.setattr(writing_negatives, "sample_continuations", overflowing)
    good = 0
    with pytest.raises(ModelError, match="hold NaN"):
        config().run(Job(output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    good, drawn[:] = 3, []  # a block draws once for each of the two lengths of contexts
    with pytest.raises(ModelError, match="hold NaN"):
        config().run(Job(output=tmp_path / "out"))
    assert {"draft.json", "block-00000.parquet"} <= {path.name for path in (tmp_path / "out").iterdir()}
    good = 1 << 30
    assert config().run(Job(output=tmp_path / "out")).contexts == 37


def test_a_missing_shard_is_noticed_on_opening(config, tmp_path):
    config().run(Job(output=tmp_path))
    (tmp_path / "block-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"block-00001\.parquet is missing; run the same"):
        Negatives.open(tmp_path)


def test_negatives_know_their_corpus_and_their_generator(config, corpus_folder, model_folder, tmp_path):
    config().run(Job(output=tmp_path))
    opened = Negatives.open(tmp_path)
    corpus, sha256 = Corpus.open(corpus_folder), weights_sha256(model_folder)
    assert sha256 == json.loads((model_folder / "energylm.json").read_text())["weights"]["model.safetensors"]
    opened.check(corpus=corpus, generator_sha256=sha256)
    with pytest.raises(DataError) as error:
        opened.check(generator_sha256="0" * 64)
    assert sha256 in str(error.value) and "0" * 64 in str(error.value) and "energylm negatives" in str(error.value)
    other = Corpus(corpus.folder, corpus.manifest.model_copy(update={"identity": "f" * 64}))
    with pytest.raises(DataError) as error:
        opened.check(corpus=other)
    assert corpus.manifest.identity in str(error.value) and "f" * 64 in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_negatives_carry_both_log_probabilities_and_are_spoken_of(config, tmp_path, capsys):
    config(truncation={"top_k": 5}).run(Job(output=tmp_path))
    rows = Negatives.open(tmp_path).rows(np.arange(37))
    assert (rows.proposal_log_prob_BK > rows.log_prob_BK).all()
    assert "narrowed proposal" in capsys.readouterr().err


def test_stopping_at_end_of_text(config, corpus_folder, model_folder, tmp_path):
    """The random model draws end-of-text now and then; what follows it is not drawn."""
    config(stop_at_eos=True, documents="packed", k=40).run(Job(output=tmp_path))
    rows = Negatives.open(tmp_path).rows(np.arange(37))
    end = Corpus.open(corpus_folder).end_token_id
    stopped = rows.length_BK < 24 - rows.context_length_B[:, None]
    assert stopped.any() and not stopped.all()
    for row, copy in zip(*np.nonzero(stopped), strict=True):
        drawn = rows.tokens_BKT[row, copy, : rows.length_BK[row, copy]]
        assert drawn[-1] == end and end not in drawn[:-1]
    with pytest.raises(ConfigError, match="would give real text away"):
        config(stop_at_eos=True, documents="within")


@pytest.fixture(scope="module")
def backwards_folder(model_folder, tmp_path_factory):
    lm = LanguageModel.from_pretrained(model_folder)
    lm.model.direction = "right-to-left"
    folder = tmp_path_factory.mktemp("backwards") / "model"
    LanguageModel(lm.model, lm.tokenizer).save_pretrained(folder)
    return folder


def test_a_right_to_left_model_writes_prefixes(config, backwards_folder, tmp_path):
    settings = config(language_model=str(backwards_folder), side="prefix", contexts=6)
    settings.run(Job(output=tmp_path / "n"))
    rows = Negatives.open(tmp_path / "n").rows(np.arange(6))
    windows = Windows(Corpus.open(settings.corpus), "train", length=24, documents="within").gather(rows.window_B)
    lm = LanguageModel.from_pretrained(backwards_folder).without_special_tokens()
    for row in range(6):
        cut = int(rows.context_length_B[row])
        text = [*rows.tokens_BKT[row, 0, : 24 - cut].tolist(), *windows[row, 24 - cut :].tolist()]
        score = lm.score([text], prefix_tokens=cut)[0]
        assert score.log_prob == pytest.approx(rows.log_prob_BK[row, 0], abs=1e-4)
    with pytest.raises(ModelError, match="say --side prefix"):
        config(language_model=str(backwards_folder)).run(Job(output=tmp_path / "x"))
    with pytest.raises(ModelError, match="say --side suffix"):
        config(side="prefix").run(Job(output=tmp_path / "x"))


def test_an_empty_context_is_the_start_token(config, tmp_path):
    config(prefix_tokens=(0,), contexts=3).run(Job(output=tmp_path))
    rows = Negatives.open(tmp_path).rows(np.arange(3))
    lm = LanguageModel.from_pretrained(config().language_model).without_special_tokens()
    score = lm.score([rows.tokens_BKT[0, 0].tolist()])[0]
    assert rows.length_BK[0, 0] == 24 and score.log_prob == pytest.approx(rows.log_prob_BK[0, 0], abs=1e-4)


def test_what_is_refused(config, corpus_folder, tmp_path):
    with pytest.raises(ConfigError, match="shorten the context"):
        config(prefix_tokens=(24,))
    with pytest.raises(ModelError, match="holds 128 tokens, not the 130"):
        config(length=130, documents="packed").run(Job(output=tmp_path / "x"))
    with pytest.raises(DataError, match="is not a corpus"):
        config(corpus=str(tmp_path)).run(Job(output=tmp_path / "x"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(DataError, match="holds no negatives"):
        config().run(Job(output=tmp_path / "full", overwrite=True))
    with pytest.raises(DataError, match="holds no negatives"):
        config().run(Job(output=tmp_path / "full" / "letter.txt"))
    with folder_lock(tmp_path / "busy"), pytest.raises(BusyError):
        config().run(Job(output=tmp_path / "busy"))
    assert not (tmp_path / "x").exists()


def test_another_tokenizer_is_refused(config, texts_folder, tmp_path):
    from energylm.verbs import BuildCorpus

    BuildCorpus(sources=(str(texts_folder),), vocabulary_size=310).run(Job(output=tmp_path / "other"))
    with pytest.raises(VocabularyMismatch, match="build the corpus with --tokenizer"):
        plan_negatives(config(corpus=str(tmp_path / "other")), tmp_path / "x")


def test_micro_batches_are_full(config, tmp_path, monkeypatch):
    """Contexts of a block travel together: with k = 3 a prefill reads many contexts, not one."""
    sizes = []
    original = writing_negatives.sample_continuations

    def counting(decoder, contexts, **options):
        sizes.append(len(contexts))
        return original(decoder, contexts, **options)

    monkeypatch.setattr(writing_negatives, "sample_continuations", counting)
    config(block_contexts=37, prefix_tokens=(16,)).run(Job(output=tmp_path))
    assert sizes == [37]
    assert torch.get_num_threads() == 1
