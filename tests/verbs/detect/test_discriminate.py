"""Judging an energy: equal to energies of single sequences, by ids and by text; overlap is found; the baseline."""

import numpy as np
import pytest
import torch

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.zero_shot_energy import ZeroShotEnergy
from energylm.data.contrast import Contrast
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import ConfigError, DataError, VocabularyMismatch
from energylm.files import read_json
from energylm.jobs.job import Job
from energylm.verbs import Discriminate, FitLikelihood, MakeNegatives
from energylm.verbs.detect.discriminating import RESULT_FILE, DiscriminationResult, text_energies


@pytest.fixture(scope="module")
def made(corpus_folder, model_folder, tmp_path_factory):
    """Negatives of the test and of the train split, and of every window of the train split cut otherwise."""
    folder = tmp_path_factory.mktemp("negatives")

    def make(name, **settings):
        config = {
            "corpus": str(corpus_folder),
            "language_model": str(model_folder),
            "length": 24,
            "prefix_tokens": [8, 20],
            "k": 2,
        }
        MakeNegatives.checked(config | {"documents": "within"} | settings).run(Job(output=folder / name))
        return str(folder / name)

    return {
        "test": make("test", split="test", contexts=20),
        "train": make("train", contexts=40),
        "shifted": make("shifted", stride=7, seed=3),
    }


def verb(made, corpus_folder, energy_folder, **changes):
    given = {"energy": str(energy_folder), "negatives": made["test"], "corpus": str(corpus_folder), "resamples": 30}
    return Discriminate.checked(given | changes)


def test_equals_energies_of_the_sequences(made, corpus_folder, energy_folder, tmp_path):
    """Another route: every sequence by itself, without batches; accuracy counted by hand."""
    energy, corpus, negatives = (
        EnergyModel.from_pretrained(energy_folder),
        Corpus.open(corpus_folder),
        Negatives.open(made["test"]),
    )
    found = text_energies(energy, negatives, corpus)
    contrast = Contrast(negatives, corpus)
    for row in (0, 7, 19):
        texts = contrast.sequences(np.array([row]), np.array([[0, 1]]))
        alone = [float(energy.energies(torch.tensor([text]), torch.tensor([len(text)]))) for text in texts]
        assert [found.real_N[row], *found.machine_NK[row]] == pytest.approx(alone, rel=1e-4)
    assert set(found.context_tokens_N) == {8, 20}
    run = verb(made, corpus_folder, energy_folder).run(Job(output=tmp_path))
    right = ((found.real_N < 0).mean() + (found.machine_NK > 0).mean()) / 2
    assert run.measured.balanced_accuracy.value == pytest.approx(right)
    assert (run.measured.real, run.measured.machine, run.measured.real_groups) == (20, 40, 20)
    assert [of.context_tokens for of in run.by_context] == [8, 20]
    assert sum(of.measured.real for of in run.by_context) == 20
    kept = read_json(tmp_path / RESULT_FILE)
    assert DiscriminationResult.from_json(kept) == run
    # Teeth: the same energies with the labels exchanged are as far on the other side of chance.
    assert run.measured.auroc.value == pytest.approx(
        1 - float(np.mean([(found.real_N > m) + 0.5 * (found.real_N == m) for m in found.machine_NK.ravel()]))
    )


def test_windows_of_several_folders_are_one_group(made, corpus_folder, energy_folder):
    """The same windows continued twice (say, by two models) are no more texts than before."""
    twice = verb(made, corpus_folder, energy_folder, negatives=[made["test"], made["test"]]).run()
    assert (twice.measured.real, twice.measured.real_groups) == (40, 20)


def test_another_tokenizer_goes_by_text(made, corpus_folder, model_folder, tmp_path, texts_folder):
    """An energy with a tokenizer of its own reads the decoded text, real and generated alike."""
    from transformers import GPT2Config, GPT2Model

    from energylm.energies.pooled import PooledEnergy
    from energylm.verbs import BuildCorpus

    settings = {"sources": [str(texts_folder)], "vocabulary_size": 280}
    BuildCorpus.checked(settings).run(Job(output=tmp_path / "other"))
    tokenizer = Corpus.open(tmp_path / "other").tokenizer
    torch.manual_seed(0)
    body = GPT2Model(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2))
    energy = EnergyModel(PooledEnergy(body, kind="unit").eval(), tokenizer)
    corpus, negatives = Corpus.open(corpus_folder), Negatives.open(made["test"])
    found = text_energies(energy, negatives, corpus)
    (real, *_) = Contrast(negatives, corpus).sequences(np.array([3]), np.array([[0]]))
    assert found.real_N[3] == pytest.approx(float(energy.text_energies([corpus.tokenizer.decode(real)])), rel=1e-4)


def test_a_likelihood_of_another_tokenizer_goes_by_text(made, corpus_folder, model_folder):
    """A language model with other tokens judges the decoded text; what decodes to nothing is its end token alone."""
    words = train_tokenizer(["Another text altogether, quite another. "] * 9, vocabulary_size=290)
    energy = ZeroShotEnergy(LanguageModel(LanguageModel.from_pretrained(model_folder).model, words))
    corpus, negatives = Corpus.open(corpus_folder), Negatives.open(made["test"])
    result = text_energies(energy, negatives, corpus)
    (real, *_) = Contrast(negatives, corpus).sequences(np.array([3]), np.array([[0]]))
    text = corpus.tokenizer.decode(real)
    assert result.real_N[3] == pytest.approx(float(energy.text_energies([text])), rel=1e-4)
    tokens, lengths = energy.encode_texts(["", text], may_be_empty=True)
    assert tokens[0, 0] == energy.lm.eos_token_id and lengths[0] == 1


def test_texts_that_were_learnt_from_are_found(made, corpus_folder, energy_folder):
    learnt = {"trained_on": made["train"], "trained_on_corpus": str(corpus_folder)}
    clean = verb(made, corpus_folder, energy_folder, **_listed(learnt)).run()
    assert clean.overlapping == 0
    with pytest.raises(
        DataError, match=r"of 40 test texts .* stand in the texts that the energy learnt from"
    ) as refused:
        verb(made, corpus_folder, energy_folder, negatives=made["train"], **_listed(learnt)).run()
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="stand in the texts"):  # cut elsewhere, but the same texts
        verb(made, corpus_folder, energy_folder, negatives=made["shifted"], **_listed(learnt)).run()


def test_the_likelihood_baseline(made, corpus_folder, model_folder, tmp_path):
    """Sign and threshold are those that tell the validation texts apart best, so accuracy there is at least a half."""
    given = {"language_model": str(model_folder), "negatives": made["test"], "corpus": str(corpus_folder)}
    fitted = FitLikelihood.checked(given).run(Job(output=tmp_path))
    rule = ZeroShotEnergy.from_pretrained(tmp_path / "model").rule
    assert (rule.sign, rule.threshold) == (fitted.sign, fitted.threshold) and fitted.model == tmp_path / "model"
    run = verb(made, corpus_folder, tmp_path / "model").run()
    assert run.measured.balanced_accuracy.value >= 0.5


def test_mistakes(made, corpus_folder, energy_folder, model_folder, tmp_path):
    with pytest.raises(ConfigError, match="2 corpora came for 1 folders"):
        verb(made, corpus_folder, energy_folder, corpus=[str(corpus_folder)] * 2).run()
    words = train_tokenizer(["Another text altogether, quite another. "] * 9, vocabulary_size=290)
    LanguageModel(LanguageModel.from_pretrained(model_folder).model, words).save_pretrained(tmp_path / "other")
    given = {"language_model": str(tmp_path / "other"), "negatives": made["test"], "corpus": str(corpus_folder)}
    with pytest.raises(VocabularyMismatch, match="other reads other tokens than"):
        FitLikelihood.checked(given).run(Job(output=tmp_path))


def _listed(values):
    return {name: [value] for name, value in values.items()}
