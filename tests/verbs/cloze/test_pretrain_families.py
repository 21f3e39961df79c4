"""From a corpus folder to Electric, ELECTRA, ELECTRA-TT and two-tower models; equal compute; finished, refused."""

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, ElectraForPreTraining

from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError
from energylm.jobs.job import Job
from energylm.models import two_tower
from energylm.models.compute import training_flops_per_step
from energylm.verbs import BuildCorpus
from energylm.verbs.cloze import pretraining
from energylm.verbs.cloze.pretrain import (
    PretrainElectra,
    PretrainElectraTT,
    PretrainElectric,
    PretrainMLM,
    PretrainTwoTower,
)
from energylm.verbs.cloze.pretraining import FAMILIES as PRETRAININGS

FAMILIES = {
    "electric": PretrainElectric,
    "electra": PretrainElectra,
    "electra-tt": PretrainElectraTT,
    "two-tower": PretrainTwoTower,
}
NETWORK = {"width": 48, "heads": 12, "layers": 1}


def config(family, corpus, **values):
    training = {
        "steps": 24,
        "global_batch": 8,
        "threads": 1,
        "optimizer": {"learning_rate": 5e-3},
        "validation": {"every_steps": 12},
    }
    if "compute" in values:  # which decides the steps
        del training["steps"]
    changed = values.pop("training", {})
    shape = {"preset": "bit-tiny", "window": 24, "network": NETWORK}
    return FAMILIES[family].checked({"corpus": str(corpus), **shape, "training": training | changed, **values})


def opened_run(verb):
    return PRETRAININGS[verb.family](verb)


@pytest.fixture(scope="module")
def runs(corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cloze")
    return {family: config(family, corpus_folder).run(Job(output=folder / family)) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_corpus_becomes_an_encoder_and_a_scorer(runs, family):
    run = runs[family]
    assert run.family == family and run.steps == 24 and run.tokens == 24 * 8 * 24 and not run.was_finished
    assert run.compute > 0 and "FLOPs" in run.summary() and "on split valid" in run.summary()
    two_tower.register()
    encoder = AutoModel.from_pretrained(run.model)
    tokens = torch.tensor([load_tokenizer(run.model)("The clerk counts the boats.")["input_ids"]])
    assert encoder(tokens).last_hidden_state.shape[:2] == tokens.shape
    if family == "electra":
        with pytest.raises(ModelError, match="pretrain electra-tt"):
            ClozeModel.from_pretrained(run.model)
        return
    model = ClozeModel.from_pretrained(run.model)
    scores = model.token_scores(tokens, torch.tensor([tokens.shape[1]]))
    assert model.kind == family and bool((scores[0] < 0).all())
    assert model.provenance["config"]["window"] == 24 and "corpus" not in model.provenance["config"]


def test_texts_are_framed_if_training_showed_where_they_end(runs, corpus_folder, monkeypatch):
    """Documents of the test corpus are a few windows long. In one book no network learns what ends a document."""
    assert ClozeModel.from_pretrained(runs["electric"].model).max_tokens == 24 - 2
    generator = MaskedLanguageModel.from_pretrained(runs["electra"].model / "noise")
    assert generator.model.prefix == generator.model.suffix == (generator.tokenizer.eos_token_id,)
    opened = opened_run(config("electric", corpus_folder))
    train = opened.corpus.manifest.splits["train"]
    boundaries = train.documents * 24 / train.tokens
    for threshold, framed in ((0.9 * boundaries, True), (1.1 * boundaries, False)):
        monkeypatch.setattr(pretraining, "BOUNDARIES_A_WINDOW", threshold)
        assert opened.framed is framed


def test_two_towers_learn(runs):
    assert runs["two-tower"].validation["loss"] < 5 < torch.tensor(300.0).log()
    assert runs["electric"].validation["noise_loss"] < 5.6


def test_electra_is_transformers_own_with_its_generator_beside(runs):
    folder = runs["electra"].model
    detector = ElectraForPreTraining.from_pretrained(folder)
    generator = AutoModelForMaskedLM.from_pretrained(folder / "noise")
    table = detector.get_input_embeddings().weight
    assert torch.equal(table, generator.get_input_embeddings().weight)  # they shared it
    assert generator.config.hidden_size == 16 and generator.config.embedding_size == 48  # a third
    tokens = torch.tensor([[9, 10, 11]])
    assert torch.equal(detector.electra(tokens).last_hidden_state, AutoModel.from_pretrained(folder)(tokens)[0])
    assert MaskedLanguageModel.from_pretrained(folder / "noise").logits(tokens, torch.tensor([3])).shape == (1, 3, 300)


@pytest.mark.parametrize("family", FAMILIES)
def test_local_shapes(corpus_folder, tmp_path, family):
    """ModernBERT's encoder over towers that share its table, or over a generator with a narrower one of its own."""
    few = {"steps": 2, "global_batch": 4, "validation": {"every_steps": None}}
    chosen = config(family, corpus_folder, preset="bit-local-tiny", training=few)
    run = chosen.run(Job(output=tmp_path / "run"))
    two_tower.register()
    encoder = AutoModel.from_pretrained(run.model)
    tokens = torch.tensor([[9, 10, 11]])
    assert EnergyModel.from_encoder(run.model, kind="bit").network.encoder.config.hidden_size == (
        64 if family == "two-tower" else 48
    )
    if family == "two-tower":
        assert encoder.config.model_type == "energylm_two_tower"  # towers are causal, so never local
        return
    assert encoder.config.model_type == "modernbert" and encoder.config.local_attention == 8
    own = encoder.get_input_embeddings().weight
    if family == "electra":
        generator = MaskedLanguageModel.from_pretrained(run.model / "noise")
        assert generator.network.get_input_embeddings().weight.shape == (300, 16) and own.shape == (300, 48)
        assert generator.logits(tokens, torch.tensor([3])).shape == (1, 3, 300)
    else:
        model = ClozeModel.from_pretrained(run.model)
        assert torch.equal(model.noise.get_input_embeddings().weight, own)
        assert bool(model.token_scores(tokens, torch.tensor([3])).isfinite().all())


def test_noise_models_have_the_papers_fractions(runs):
    noise = two_tower.TwoTowerForCloze.from_pretrained(runs["electric"].model / "noise")
    assert (noise.config.hidden_size, noise.config.num_attention_heads) == (2 * 12, 3)  # two quarters of 48
    towers = two_tower.TwoTowerForCloze.from_pretrained(runs["two-tower"].model)
    assert (towers.config.hidden_size, towers.config.embedding_size) == (2 * 32, 32)  # two times two thirds


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_run_does_nothing_and_other_settings_are_refused(runs, family, corpus_folder, capsys):
    job = Job(output=runs[family].folder)
    again = config(family, corpus_folder).run(job)
    assert again.was_finished and again.validation == runs[family].validation
    assert "nothing to do" in capsys.readouterr().err
    assert "is finished" in config(family, corpus_folder).check(job)
    changed = {"size": 0.5} if family == "two-tower" else {"noise_rate": 0.2}
    with pytest.raises(CheckpointError, match=rf"task\.{next(iter(changed))}"):
        config(family, corpus_folder, **changed).run(job)


def test_siblings_at_equal_compute(corpus_folder, tmp_path):
    """The budget of 60 steps of a masked model: each family gets the steps that it pays for, to half a step."""
    mlm = PretrainMLM.checked(
        {
            "corpus": str(corpus_folder),
            "preset": "bit-tiny",
            "window": 24,
            "network": NETWORK,
            "training": {"steps": 60, "global_batch": 8},
        }
    )
    budget = 60 * opened_run(mlm).flops_per_step
    steps = {}
    for family in FAMILIES:
        verb = config(family, corpus_folder, compute=budget)
        opened = opened_run(verb)
        own_steps = opened.training.steps
        assert abs(own_steps * opened.flops_per_step - budget) <= opened.flops_per_step / 2
        assert opened.flops_per_step == training_flops_per_step(config(family, corpus_folder), vocabulary_size=300)
        assert f"{own_steps:,} steps of 8 windows" in verb.check(Job(output=tmp_path / family))
        steps[family] = own_steps
    assert steps["electra-tt"] <= steps["electric"] < steps["electra"] < 60
    assert not list(tmp_path.iterdir())


def test_budgets_decide_the_steps_of_a_run(corpus_folder, tmp_path):
    flops = opened_run(config("two-tower", corpus_folder)).flops_per_step
    run = config("two-tower", corpus_folder, compute=3.2 * flops).run(Job(output=tmp_path / "run"))
    assert run.steps == 3 and run.compute == pytest.approx(3 * flops)


def test_parameters_count_shared_embeddings_once(corpus_folder, tmp_path):
    """Electric: encoder with its table, one energy head, and towers that bring a projection but no table."""
    plans = {family: opened_run(config(family, corpus_folder)) for family in FAMILIES}
    encoder = (300 + 24 + 1) * 48 + 2 * 48 + 12 * 48**2 + 13 * 48
    tower = (25 + 1) * 48 + 2 * 48 + (48 * 12 + 12) + 12 * 12**2 + 13 * 12
    noise = 2 * tower + 2 * 48 + (24 * 48 + 48) + 2 * 48 + 300
    assert plans["electric"].parameters == encoder + (48 + 1) + noise
    assert plans["electra-tt"].parameters == plans["electric"].parameters + 48 * 48 + 48  # the detector's extra layer


def test_the_naive_algorithm_trains(corpus_folder, tmp_path):
    chosen = config(
        "electric",
        corpus_folder,
        algorithm="naive",
        training={"steps": 2, "global_batch": 2, "validation": {"every_steps": None}},
    )
    run = chosen.run(Job(output=tmp_path / "run"))
    assert run.validation == {} and "not validated" in run.summary()
    assert ClozeModel.from_pretrained(run.model).provenance["config"]["algorithm"] == "naive"


def test_only_masking_families_need_a_mask_token(texts_folder, corpus_folder, tmp_path):
    tokenizer = load_tokenizer(corpus_folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    BuildCorpus(sources=(str(texts_folder),), tokenizer=str(tmp_path / "tokenizer"), valid_fraction=0.2).run(
        Job(output=tmp_path / "corpus")
    )
    job = Job(output=tmp_path / "run")
    for action in (PretrainElectra.check, PretrainElectra.run):
        with pytest.raises(ModelError, match="has no mask token; build the corpus with"):
            action(config("electra", tmp_path / "corpus"), job)
    assert "24 steps" in config("electric", tmp_path / "corpus").check(job)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"window": 100_000}, DataError, "no window of 100000 tokens fits"),
        ({"preset": "bit-tinny"}, ConfigError, "did you mean 'bit-tiny'"),
        ({"network": {"layer": 1}}, ConfigError, "did you mean 'layers'"),
        ({"compute": -1}, ConfigError, "greater than 0"),
    ],
)
def test_refusals(corpus_folder, tmp_path, family, values, error, said):
    with pytest.raises(error) as raised:
        config(family, corpus_folder, **values).run(Job(output=tmp_path / "run"))
    assert said in str(raised.value) and "\n" not in str(raised.value) and not (tmp_path / "run").exists()
