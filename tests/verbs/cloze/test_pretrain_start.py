"""Cloze models that start from an encoder: its weights, embeddings and tokens are there at step 0, a head is new; what
cannot start so is refused."""

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, ElectraForPreTraining

from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.encoder_start import EncoderStart, copy_token_embeddings
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import ConfigError, VocabularyMismatch
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.verbs.cloze.pretrain import (
    PretrainElectra,
    PretrainElectraTT,
    PretrainElectric,
    PretrainMLM,
    PretrainTwoTower,
)
from energylm.verbs.cloze.pretraining import FAMILIES

VERBS = (PretrainMLM, PretrainElectric, PretrainElectra, PretrainElectraTT, PretrainTwoTower)


@pytest.fixture(scope="module")
def encoder_folder(corpus_folder, tmp_path_factory):
    """A BERT with two token types and 40 positions that reads the tokens of the test corpus."""
    corpus, folder = Corpus.open(corpus_folder), tmp_path_factory.mktemp("start") / "encoder"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 48}
        config = BertConfig(vocab_size=corpus.vocabulary_size, max_position_embeddings=40, **sizes)
        BertModel(config).save_pretrained(folder)
    corpus.tokenizer.save_pretrained(folder)
    return folder


def verb_of(verb, corpus, start, **values):
    training = {"steps": 2, "global_batch": 4, "threads": 1, "validation": {"every_steps": None}}
    return verb.checked({"corpus": str(corpus), "start": str(start), "window": 24, "training": training, **values})


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_weights_are_the_start_s(corpus_folder, encoder_folder, verb):
    run = FAMILIES[(chosen := verb_of(verb, corpus_folder, encoder_folder)).family](chosen)
    start = AutoModel.from_pretrained(encoder_folder)
    network = run.built()
    if verb is PretrainTwoTower:
        assert torch.equal(network.get_input_embeddings().weight, start.embeddings.word_embeddings.weight)
        assert network.decoder.weight is network.get_input_embeddings().weight
        return
    main = network if verb is PretrainMLM else network["main"]
    body = getattr(main, "encoder", None) or getattr(main, "bert", None) or main.electra
    tokens = torch.arange(5, 17).view(2, 6)
    body.eval(), start.eval()
    expected = start(tokens).last_hidden_state
    assert torch.allclose(body(tokens).last_hidden_state, expected, atol=1e-6)
    if verb is not PretrainMLM:
        assert body.get_input_embeddings().weight is network["noise"].get_input_embeddings().weight
    fresh = type(body)(body.config).eval()  # the same shape, but not from there
    assert not torch.allclose(fresh(tokens).last_hidden_state, expected, atol=1e-2)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_saved_scores_and_loads(corpus_folder, encoder_folder, tmp_path, verb):
    chosen = verb_of(verb, corpus_folder, encoder_folder, network={"dropout": 0.0})
    run = chosen.run(Job(output=tmp_path / "run"))
    assert chosen.run(Job(output=tmp_path / "run")).was_finished
    if verb is PretrainMLM:
        assert MaskedLanguageModel.from_pretrained(run.model).network.config.num_hidden_layers == 2
    elif verb is PretrainElectra:
        assert ElectraForPreTraining.from_pretrained(run.model).config.max_position_embeddings == 40
    else:
        model = ClozeModel.from_pretrained(run.model)
        scores = model.token_scores(torch.tensor([[9, 10, 11]]), torch.tensor([3]))
        assert scores.isfinite().all() and model.provenance["start"] == str(encoder_folder)
        assert model.max_tokens == 40 - 2
    assert run.compute > 0 and str(encoder_folder) in chosen.check(Job(output=tmp_path / "other"))
    facts = {"networks": {}, "dataset_bytes": {}}
    assert chosen.cost(Surroundings({}, facts)).quantities["training.flops"] > 0


def test_other_tokens_shapes_and_windows_are_refused(corpus_folder, encoder_folder, tmp_path):
    with pytest.raises(ConfigError, match="preset came together with start"):
        verb_of(PretrainElectric, corpus_folder, encoder_folder, preset="bit-tiny")
    with pytest.raises(ConfigError, match=r"network.layers came together with start"):
        verb_of(PretrainElectric, corpus_folder, encoder_folder, network={"layers": 3})
    with pytest.raises(ConfigError, match="holds 40 tokens, not 64; set a shorter window"):
        verb_of(PretrainElectric, corpus_folder, encoder_folder, window=64).check(Job(output=tmp_path / "x"))
    other = tmp_path / "other"
    EncoderStart(str(encoder_folder)).encoder().save_pretrained(other)
    train_tokenizer(["other words " * 9], vocabulary_size=270).save_pretrained(other)
    with pytest.raises(VocabularyMismatch, match="--tokenizer"):
        verb_of(PretrainElectric, corpus_folder, other).check(Job(output=tmp_path / "x"))


def test_a_continued_run_has_the_same_start(corpus_folder, encoder_folder):
    opened = FAMILIES["electric"](verb_of(PretrainElectric, corpus_folder, encoder_folder))
    assert opened.task_options["fingerprint"]["start"] == EncoderStart(str(encoder_folder)).identity
    table, narrow = (
        BertModel(BertConfig(vocab_size=9, hidden_size=width, num_attention_heads=2, num_hidden_layers=1))
        for width in (8, 4)
    )
    before = narrow.get_input_embeddings().weight.clone()
    copy_token_embeddings(table, narrow)
    assert torch.equal(before, narrow.get_input_embeddings().weight)
