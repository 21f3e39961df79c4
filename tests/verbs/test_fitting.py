"""Fits in a line of Python: the verbs' own bytes, whatever the texts come as, once; and the mistakes that are named."""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from energylm import Detector, EnergyModel, LanguageModel, Reranker, ResidualModel, Scorer
from energylm.bundles.model_folder import weights_sha256
from energylm.data.nbest import Hypothesis, NBest, read_lists
from energylm.errors import ConfigError, DataError, EnergyLMError, ModelError
from energylm.jobs.job import Job
from energylm.registry import FITS
from energylm.verbs import BuildCorpus, MakeNegatives, TrainEnergy, TrainLM
from energylm.verbs.cloze.rerank import Rerank

NEGATIVES = {"length": 24, "prefix_tokens": 12, "k": 3, "contexts": 80, "seed": 5}
TRAINING = {
    "network": {"width": 16, "layers": 1, "heads": 2},
    "steps": 6,
    "batch": 4,
    "validation_fraction": 0.4,
    "training": {"threads": 1, "validation": {"every_steps": 3}, "checkpoint": {"every_steps": 3}},
}
OPTIONS = NEGATIVES | TRAINING
SHORT = ["The clerk sells a bridge.", "A sailor forgets."]
KILLED = """
import os, signal, sys
from energylm import EnergyModel
from energylm.training.energy_task import EnergyTask

original = EnergyTask.batch

def killing(self, step, rows):
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, step, rows)

EnergyTask.batch = killing
texts = sys.stdin.read().split("\\0")
EnergyModel.fit(sys.argv[1], texts, encoder="tiny", output=sys.argv[2], **eval(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def texts(texts_folder):
    return [path.read_text(encoding="utf-8") for path in sorted(texts_folder.iterdir())]


@pytest.fixture(scope="module")
def fitted(texts, model_folder, tmp_path_factory):
    """A fit with an output folder, and that folder."""
    output = tmp_path_factory.mktemp("fit") / "energy"
    return EnergyModel.fit(str(model_folder), texts, encoder="tiny", output=output, **OPTIONS), output


def weights(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


def test_a_fit_gives_the_bytes_of_the_verbs(fitted, texts, model_folder, tmp_path):
    energy, output = fitted
    for number, text in enumerate(texts):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    corpus, negatives = str(tmp_path / "corpus"), str(tmp_path / "negatives")
    BuildCorpus(sources=str(tmp_path / "texts"), tokenizer=str(model_folder)).run(Job(output=Path(corpus)))
    made = MakeNegatives(language_model=str(model_folder), corpus=corpus, **NEGATIVES).run(Job(output=Path(negatives)))
    verb = TrainEnergy(negatives=negatives, corpus=corpus, init="tiny", **TRAINING | {"seed": 5})
    run = verb.run(Job(output=tmp_path / "energy"))
    assert weights(run.model) == weights(output / "model") != {}
    for name in ("accuracy", "precision_at_1", "loss_after_calibration", "scale", "scale_standard_error", "gain"):
        assert getattr(energy.report, name) == getattr(run, name)
    assert (energy.scale, energy.shift, energy.name) == (run.scale, run.shift, "energy")
    assert made.contexts * 3 * 12 == made.tokens
    other = verb.model_copy(update={"training": verb.training.model_copy(update={"seed": 6})})
    assert weights(other.run(Job(output=tmp_path / "other")).model) != weights(run.model)  # teeth


def test_strings_a_data_set_and_a_corpus_give_the_same(fitted, texts, model_folder):
    from datasets import Dataset

    energy, output = fitted
    for source, options in (
        (Dataset.from_dict({"number": range(len(texts)), "body": texts}), {"field": "body"}),
        (iter(texts), {}),
        (output / "data" / "corpus", {}),
        (str(output / "data" / "texts.jsonl"), {}),
    ):
        again = EnergyModel.fit(model_folder, source, encoder="tiny", **OPTIONS, **options)
        assert torch.equal(again.text_energies(SHORT), energy.text_energies(SHORT))
        assert again.report.gain == energy.report.gain


def test_a_finished_fit_is_not_repeated(fitted, texts, model_folder, monkeypatch):
    energy, output = fitted
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.safetensors")}
    monkeypatch.setattr(LanguageModel, "decoder", None)  # nothing is drawn
    again = EnergyModel.fit(str(model_folder), texts, encoder="tiny", output=output, **OPTIONS)
    assert again.report.was_finished and not energy.report.was_finished
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*.safetensors")}
    for changed in ({"texts": texts[:-1]}, {"k": 2}, {"steps": 7}):
        options = OPTIONS | changed
        with pytest.raises(EnergyLMError) as raised:
            EnergyModel.fit(str(model_folder), options.pop("texts", texts), encoder="tiny", output=output, **options)
        assert "\n" not in str(raised.value)
    assert EnergyModel.fit(str(model_folder), texts, encoder="tiny", output=output, **OPTIONS).report.was_finished


def test_a_killed_fit_goes_on_and_ends_in_the_same_bytes(fitted, texts, model_folder, tmp_path):
    command = [sys.executable, "-c", KILLED, str(model_folder), str(tmp_path / "fit"), repr(OPTIONS)]
    done = subprocess.run(command, input="\0".join(texts), text=True, capture_output=True, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "fit" / "checkpoints").is_dir() and not (tmp_path / "fit" / "model").exists()
    EnergyModel.fit(str(model_folder), texts, encoder="tiny", output=tmp_path / "fit", **OPTIONS)
    assert weights(tmp_path / "fit" / "model") == weights(fitted[1] / "model")


def test_a_live_model_is_saved_once_and_known_to_its_energy(fitted, texts, model_folder, tmp_path):
    lm = LanguageModel.from_pretrained(model_folder)
    live = LanguageModel(lm.model, lm.tokenizer)
    energy = EnergyModel.fit(live, texts, encoder="tiny", output=tmp_path / "fit", **OPTIONS)
    saved = tmp_path / "fit" / "data" / "language_model"
    assert weights_sha256(saved) == weights_sha256(model_folder)
    assert torch.equal(energy.text_energies(SHORT), fitted[0].text_energies(SHORT))
    assert "was not loaded from a folder" not in (ResidualModel(live, energy).caution(24) or "")
    written = saved.stat().st_mtime_ns
    again = LanguageModel(lm.model, lm.tokenizer)
    assert EnergyModel.fit(again, texts, encoder="tiny", output=tmp_path / "fit", **OPTIONS).report.was_finished
    assert saved.stat().st_mtime_ns == written


def test_weights_that_changed_in_memory_are_those_that_write(texts, model_folder, tmp_path):
    """Teeth: the folder that it was loaded from holds others."""
    lm = LanguageModel.from_pretrained(model_folder)
    with torch.no_grad():
        lm.model.network.get_output_embeddings().weight[7] += 1
    EnergyModel.fit(lm, texts, encoder="tiny", output=tmp_path / "fit", **OPTIONS)
    assert weights_sha256(tmp_path / "fit" / "data" / "language_model") != weights_sha256(model_folder)
    with torch.no_grad():
        lm.model.network.get_output_embeddings().weight[7] += 1
    with pytest.raises(ModelError, match="another language model; choose another output"):
        EnergyModel.fit(lm, texts, encoder="tiny", output=tmp_path / "fit", **OPTIONS)


def test_an_encoder_of_other_tokens_reads_text(texts, model_folder, bert_folder):
    options = {name: value for name, value in OPTIONS.items() if name != "network"}
    energy = EnergyModel.fit(model_folder, texts, encoder=bert_folder, **options)
    assert energy.reads == "text" and 0 <= energy.report.accuracy <= 1
    assert EnergyModel.fit(model_folder, texts, encoder=model_folder, **options).reads == "tokens"


def test_a_folder_of_no_name_lives_as_long_as_the_object(texts, model_folder):
    energy = EnergyModel.fit(model_folder, texts, encoder="tiny", **OPTIONS)
    folder = energy.report.folder
    assert (folder / "model").is_dir() and energy.report.report.is_file()
    del energy
    gc.collect()
    assert not folder.parent.exists()


def test_a_language_model_from_texts(texts, model_folder, tmp_path):
    options = {"steps": 4, "window": 16, "network": {"width": 16, "layers": 1, "heads": 2}, "vocabulary_size": 300}
    lm = LanguageModel.fit(texts, output=tmp_path / "lm", **options)
    assert lm.report.best_perplexity.value > 1 and len(lm.sample(["The clerk"], n=2, max_new_tokens=3).texts[0]) == 2
    options.pop("vocabulary_size")
    run = TrainLM(corpus=str(tmp_path / "lm" / "data" / "corpus"), **options).run(Job(output=tmp_path / "verb"))
    assert weights(run.model) == weights(tmp_path / "lm" / "model")
    tuned = LanguageModel.fit(texts, pretrained=str(model_folder), steps=2, window=16)
    assert tuned.tokenizer.get_vocab() == LanguageModel.from_pretrained(model_folder).tokenizer.get_vocab()


def test_a_detector_from_two_lists(detection_folder, bert_folder, tmp_path):
    files = [detection_folder / f"{name}.jsonl" for name in ("human", "machine")]
    human, machine = ([json.loads(line)["text"] for line in file.read_text().splitlines()] for file in files)
    options = {"encoder": bert_folder, "steps": 4, "depth": 1.0, "probe_pairs": 16, "block": 16, "fpr": 0.2}
    detector = Detector.fit(human, machine, output=tmp_path / "detector", **options)
    assert detector.report.held_out.real > 0
    assert [result.verdict for result in detector.predict(human[:2])]
    assert Detector.fit(human, machine, output=tmp_path / "detector", **options).report.was_finished
    of_files = Detector.fit(*files, **options)
    assert [each.score for each in of_files.predict(human[:2])] == [each.score for each in detector.predict(human[:2])]
    with pytest.raises(DataError, match="holds a fit of other texts"):
        Detector.fit(human[1:], machine, output=tmp_path / "detector", **options)


def lists_of(texts, scorer, *, right):
    """Two hypotheses a list; f prefers the second by 1, the scorer knows better where `right`."""
    lists = []
    for number, text in enumerate(texts):
        good, bad = sorted((text, text[::-1]), key=lambda each: -scorer.score([each])[0])
        reference = good if right else bad
        lists.append(NBest(str(number), reference, (Hypothesis(bad, 0.0), Hypothesis(good, -1e-6))))
    return lists


def test_a_reranker_is_measured_on_lists_that_its_weight_has_not_seen(model_folder):
    scorer = Scorer.from_pretrained(model_folder)
    texts = ["the clerk counts", "a sailor mends", "her sister sells", "a stranger paints", "the old miller", "lamps"]
    lists = lists_of(texts, scorer, right=True)
    reranker = Reranker.fit(lists, scorer)
    report = reranker.report
    assert report.held_out == report.tuned == 0.0 < report.first_best and report.lists == 6
    assert reranker.weights == report.weights == Reranker(scorer).tune(lists).weights
    assert reranker.rerank_lists(lists)[0].best == lists[0].reference
    assert Reranker.fit(lists[:3], str(model_folder)).report.held_out is None
    # Teeth: where the halves contradict each other, the tuned number is better than what other lists would give.
    mixed = [
        pair[index % 2] for index, pair in enumerate(zip(lists, lists_of(texts, scorer, right=False), strict=True))
    ]
    assert Reranker.fit(mixed, scorer).report.held_out >= Reranker.fit(mixed, scorer).report.tuned


def test_a_reranker_learns_from_lists(model_folder, tmp_path):
    """By the verb, from records or a file, with its scorers, terms and λ; again it does nothing. Teeth: its λ and its
    scorers are those that the verb saved, and without the energy the lists stay as they were."""
    texts = [f"the clerk counts {number} {thing}" for number in ("two", "three", "four") for thing in ("oars", "nets")]
    lists = [
        NBest(
            f"u{at}", text, (Hypothesis(text.replace("clerk", "lamp"), 0.0), Hypothesis(text, -1e-3)), "the old miller"
        )
        for at, text in enumerate(texts)
    ]
    options = {"likelihood": 0.5, "context": 2, "steps": 2, "batch": 4, "casing": "lower", "term": "words"}
    words = tmp_path / "words.txt"
    words.write_text("the clerk counts")
    others = [{"model": f"frequency:{words}", "context": 2}]
    reranker = Reranker.learn(lists, init=model_folder, output=tmp_path / "run", scorers=others, **options)
    saved = json.loads((tmp_path / "run" / "reranker.json").read_text())
    assert list(reranker.weights) == saved["weight"] and len(saved["weight"]) == 3 and reranker.terms == ("words",)
    assert reranker.context == 2 and [each.casing for each in reranker.scorers] == ["lower", "lower"]
    assert reranker.report.steps == 2 and reranker.report.folds == 3
    written = tmp_path / "run" / "data" / "lists.jsonl"
    assert read_lists(written) == lists
    by_verb = Rerank.checked({"model": str(tmp_path / "run"), "files": str(written)}).run()
    assert [each.best for each in by_verb.chosen[0]] == [each.best for each in reranker.rerank_lists(lists)]
    before = written.read_text()
    with pytest.raises(DataError, match="holds a fit of other texts"):
        Reranker.learn(lists[1:], init=model_folder, output=tmp_path / "run", scorers=others, **options)
    assert written.read_text() == before
    again = Reranker.learn(written, init=str(model_folder), output=tmp_path / "run", scorers=others, **options)
    assert again.report.was_finished and again.weights == reranker.weights
    assert again.provenance["validation"]["held_out"] == again.report.reranked.value
    assert str(tmp_path) not in json.dumps(again.provenance)  # it is saved, and sent to the hub
    again.save_pretrained(tmp_path / "saved")
    assert Reranker.from_pretrained(tmp_path / "saved").weights == reranker.weights
    with pytest.raises(ConfigError, match="read 0 and 2 words of what was heard before"):
        Reranker.learn(lists, init=model_folder, scorer=f"frequency:{words}", **options)
    with pytest.raises(ConfigError, match="did you mean 'electric'"):
        Reranker.learn(lists, init=model_folder, electrik=True)


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        ([], {}, "no texts came; give strings"),
        (["a", 3], {}, "text 2 came as 3 (int), expected a string"),
        (["a\ud800"], {}, "text 1 holds half a character"),
        ({"train": ["a"]}, {}, "give one of its splits, e.g. texts['train']"),
        (7, {}, "texts came as a int"),
        ("no-such-file.txt", {}, "no-such-file.txt does not exist"),
        (["a"], {"kk": 3}, "fit has no option 'kk'; did you mean 'k'?"),
        (["a"], {"init": "tiny"}, "fit has no option 'init'"),
        (["a"], {"k": 0}, "energylm negatives: k: Input should be greater than or equal to 1"),
        (["a"], {"format": "lines"}, "format lines came for texts that are no file"),
    ],
)
def test_a_mistake_is_one_line(model_folder, texts, options, says, tmp_path):
    with pytest.raises(EnergyLMError) as raised:
        EnergyModel.fit(model_folder, texts, encoder="tiny", output=tmp_path / "fit", **options)
    assert says in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "fit" / "data" / "corpus").exists()


def test_other_mistakes_are_one_line(model_folder, corpus_folder):
    from datasets import Dataset

    with pytest.raises(ModelError, match=r"the language model came as a int; give LanguageModel\.from_pretrained"):
        EnergyModel.fit(3, ["a"])
    with pytest.raises(ConfigError, match="is a corpus already, so valid_fraction cannot be set"):
        EnergyModel.fit(model_folder, corpus_folder, encoder="tiny", valid_fraction=0.2)
    with pytest.raises(DataError, match="no column 'text'; did you mean --field texts"):
        EnergyModel.fit(model_folder, Dataset.from_dict({"texts": ["a"]}), encoder="tiny")
    with pytest.raises(ConfigError, match="fit has no option 'kind'"):
        Detector.fit(["a"], ["b"], kind="x")


def test_every_fit_has_its_function():
    assert {name: callable(FITS.get(name)) for name in FITS.names()} == dict.fromkeys(
        ("language-model", "energy", "detector", "reranker", "list-energy", "known-model"), True
    )
