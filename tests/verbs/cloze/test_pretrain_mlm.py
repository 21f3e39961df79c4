"""From a corpus folder to a masked model that transformers and energies read; finished, continued, refused."""

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from energylm.bundles.energy_model import EnergyModel, bind
from energylm.bundles.language_model import LanguageModel
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError
from energylm.jobs.job import Job
from energylm.training.language_model_task import MaskedLMTask
from energylm.verbs import BuildCorpus, PretrainMLM
from energylm.verbs.cloze.pretraining import MaskedPretraining


def config(corpus, **values):
    training = {
        "steps": 40,
        "global_batch": 8,
        "threads": 1,
        "optimizer": {"learning_rate": 5e-3},
        "validation": {"every_steps": 20},
        "checkpoint": {"every_steps": 20},
    }
    changed = values.pop("training", {})
    network = {"network": {"width": 32, "layers": 1}}
    return PretrainMLM.checked(
        {"corpus": str(corpus), "preset": "bit-tiny", "window": 24, "training": training | changed, **network, **values}
    )


@pytest.fixture(scope="module")
def run(corpus_folder, tmp_path_factory):
    return config(corpus_folder).run(Job(output=tmp_path_factory.mktemp("mlm") / "run"))


def test_a_corpus_becomes_a_model_that_others_read(run, corpus_folder):
    assert run.steps == 40 and run.tokens == 40 * 8 * 24 and not run.was_finished
    assert run.validation["loss"] < 5 < torch.tensor(300.0).log()  # it learnt
    assert 0 < run.validation["accuracy"] < 1 and f"{run.validation['accuracy']:.1%} predicted right" in run.summary()
    masked = AutoModelForMaskedLM.from_pretrained(run.model)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    assert tokenizer.mask_token_id is not None and masked.config.vocab_size == len(tokenizer) == 300
    tokens = torch.tensor([tokenizer("The clerk counts the boats.")["input_ids"]])
    base = AutoModel.from_pretrained(run.model, add_pooling_layer=False)
    assert torch.equal(base(tokens).last_hidden_state, masked.base_model(tokens).last_hidden_state)


def test_it_starts_an_energy_over_a_language_model_of_the_same_corpus(run, model_folder, corpus_folder):
    energy = EnergyModel.from_encoder(run.model, kind="bit")
    assert energy.name == "run" and energy.provenance["encoder"]["weights"]
    lm = LanguageModel.from_pretrained(model_folder)
    assert bind(energy, lm) is energy
    assert energy.text_energies(["The clerk counts the boats."]).abs().max() < 0.1
    with pytest.raises(ModelError, match="kind 'masked-lm', no language model"):
        LanguageModel.from_pretrained(run.model)


def test_a_second_run_does_nothing_and_other_settings_are_refused(run, corpus_folder, capsys):
    again = config(corpus_folder).run(Job(output=run.folder))
    assert again.was_finished and again.validation["loss"] == run.validation["loss"]
    assert "nothing to do" in capsys.readouterr().err
    assert "is finished" in config(corpus_folder).check(Job(output=run.folder))
    with pytest.raises(CheckpointError, match=r"task\.masking\.rate \(was 0\.15, now 0\.3\)"):
        config(corpus_folder, masking={"rate": 0.3}).run(Job(output=run.folder))


def test_an_interrupted_run_continues_to_the_same_bits(run, corpus_folder, tmp_path, monkeypatch):
    whole_batch = MaskedLMTask.batch

    def interrupted_batch(self, step, rows):
        if step == 27:
            raise KeyboardInterrupt
        return whole_batch(self, step, rows)

    monkeypatch.setattr(MaskedLMTask, "batch", interrupted_batch)
    with pytest.raises(KeyboardInterrupt):
        config(corpus_folder).run(Job(output=tmp_path / "run"))
    assert "would continue from step-00000020" in config(corpus_folder).check(Job(output=tmp_path / "run"))
    monkeypatch.undo()
    second = config(corpus_folder).run(Job(output=tmp_path / "run"))
    assert (second.model / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()


def test_a_plan_counts_and_writes_nothing(corpus_folder, tmp_path):
    """Width 32, one layer: embeddings, norm; 12·32² + 13·32 in the block; the output's transform, norm and bias."""
    embeddings = (300 + 24 + 1) * 32 + 2 * 32
    assert MaskedPretraining(config(corpus_folder)).parameters == embeddings + 12 * 32**2 + 13 * 32 + (
        32 * 32 + 32 + 2 * 32 + 300
    )
    text = config(corpus_folder).check(Job(output=tmp_path / "run"))
    assert "would train: masked-lm bit-tiny" in text and "15% masked" in text and not (tmp_path / "run").exists()


def test_special_tokens_are_never_hidden(corpus_folder, tmp_path, monkeypatch):
    seen = []
    whole_batch = MaskedLMTask.batch

    def watched_batch(self, step, rows):
        seen.append(whole_batch(self, step, rows))
        return seen[-1]

    monkeypatch.setattr(MaskedLMTask, "batch", watched_batch)
    settings = config(corpus_folder, masking={"rate": 0.9}, training={"steps": 3, "validation": {"every_steps": None}})
    run = settings.run(Job(output=tmp_path / "run"))
    assert not run.validation and "not validated" in run.summary()
    targets, inputs = (torch.cat([batch[name] for batch in seen]) for name in ("targets_BT", "inputs_BT"))
    special = Corpus.open(corpus_folder).tokenizer.all_special_ids
    assert not torch.isin(targets, torch.tensor(special)).any()
    assert (inputs == Corpus.open(corpus_folder).end_token_id).any()  # there were some to hide


def test_a_tokenizer_without_a_mask_token_is_refused(texts_folder, corpus_folder, tmp_path):
    tokenizer = load_tokenizer(corpus_folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    BuildCorpus(sources=(str(texts_folder),), tokenizer=str(tmp_path / "tokenizer"), valid_fraction=0.2).run(
        Job(output=tmp_path / "corpus")
    )
    for action in (PretrainMLM.check, PretrainMLM.run):
        with pytest.raises(ModelError, match="has no mask token; build the corpus with"):
            action(config(tmp_path / "corpus"), Job(output=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"window": 100_000}, DataError, "no window of 100000 tokens fits"),
        ({"preset": "bit-tinny"}, ConfigError, "did you mean 'bit-tiny'"),
        ({"network": {"layer": 1}}, ConfigError, "did you mean 'layers'"),
    ],
)
def test_refusals(corpus_folder, tmp_path, values, error, said):
    with pytest.raises(error) as raised:
        config(corpus_folder, **values).run(Job(output=tmp_path / "run"))
    assert said in str(raised.value) and "\n" not in str(raised.value) and not (tmp_path / "run").exists()
