"""Models on the hub: what is pushed comes back the same under its name, and the card says what the manifest knows.

The hub is a folder here: the calls that would go over the network copy files instead, with the arguments that the real
library takes (a call that it does not know fails the test).
"""

import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import yaml

from energylm import Detector, EnergyModel, LanguageModel, Reranker, ResidualModel, Scorer
from energylm.bundles import hub, known_models
from energylm.bundles.hub import model_card
from energylm.cli.main import run
from energylm.config.cloze import ScorerConfig
from energylm.config.texts import BlockConfig
from energylm.data.nbest import Hypothesis, NBest
from energylm.errors import ModelError
from energylm.files import read_json, write_json

REAL = {name: inspect.signature(getattr(huggingface_hub.HfApi, name)) for name in dir(huggingface_hub.HfApi)
        if name in ("create_repo", "upload_folder", "upload_file", "model_info")}  # fmt: skip
TEXTS = ["The clerk counts the boats.", "A sailor mends a bridge."]


@pytest.fixture
def fake_hub(tmp_path, monkeypatch) -> Path:
    store = tmp_path / "hub"

    def create_repo(api, name, **options):
        REAL["create_repo"].bind(api, name, **options)
        (store / name).mkdir(parents=True, exist_ok=options["exist_ok"])
        return f"hub/{name}"

    def upload_folder(api, **options):
        REAL["upload_folder"].bind(api, **options)
        ignored = shutil.ignore_patterns(*options["ignore_patterns"])
        shutil.copytree(options["folder_path"], store / options["repo_id"], ignore=ignored, dirs_exist_ok=True)

    def upload_file(api, **options):
        REAL["upload_file"].bind(api, **options)
        (store / options["repo_id"] / options["path_in_repo"]).write_bytes(options["path_or_fileobj"])

    def model_info(api, name, **options):
        REAL["model_info"].bind(api, name, **options)
        files = [file.relative_to(store / name).as_posix() for file in (store / name).rglob("*") if file.is_file()]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def snapshot_download(name, **options):
        inspect.signature(REAL_SNAPSHOT).bind(name, **options)
        assert not options["local_files_only"]
        return str(store / name)

    for call in (create_repo, upload_folder, upload_file, model_info):
        monkeypatch.setattr(huggingface_hub.HfApi, call.__name__, call)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.delenv("HF_HUB_OFFLINE")  # what our own switch reads; nothing here touches the network
    known_models._ask_hub.cache_clear()
    yield store
    known_models._ask_hub.cache_clear()


REAL_SNAPSHOT = huggingface_hub.snapshot_download


def test_a_language_model_comes_back_under_its_name(fake_hub, model_folder):
    lm = LanguageModel.from_pretrained(model_folder)
    assert lm.push_to_hub("me/lm") == "hub/me/lm"
    again = LanguageModel.from_pretrained("me/lm")
    assert again.perplexity(TEXTS).value == lm.perplexity(TEXTS).value


def test_an_energy_comes_back_and_is_not_another(fake_hub, energy_folder):
    energy = EnergyModel.from_pretrained(energy_folder)
    energy.push_to_hub("me/energy")
    again = EnergyModel.from_pretrained("me/energy")
    torch.testing.assert_close(again.text_energies(TEXTS), energy.text_energies(TEXTS), atol=0, rtol=0)
    other = EnergyModel.from_pretrained(energy_folder)
    other.scale *= 2
    other.push_to_hub("me/other")  # teeth: what differs by one number is told apart
    assert not torch.equal(EnergyModel.from_pretrained("me/other").text_energies(TEXTS), energy.text_energies(TEXTS))


def test_joint_models_and_detectors_come_back(fake_hub, model_folder, energy_folder):
    joint = ResidualModel(LanguageModel.from_pretrained(model_folder), EnergyModel.from_pretrained(energy_folder))
    joint.push_to_hub("me/joint")
    options = {"n": 4, "max_new_tokens": 3, "seed": 0}
    again = ResidualModel.from_pretrained("me/joint")
    assert again.sample("The clerk", **options).candidates == joint.sample("The clerk", **options).candidates
    detector = Detector.from_pretrained(energy_folder, blocks=BlockConfig(tokens=16))
    detector.push_to_hub("me/detector", private=True)
    assert Detector.from_pretrained("me/detector").predict(TEXTS) == detector.predict(TEXTS)


LISTS = [
    NBest(str(number), text, (Hypothesis(f"{text} the the", -1.0), Hypothesis(text, -1.5)))
    for number, text in enumerate([*TEXTS, "The council paints.", "A stranger forgets the winter coats."])
]


def test_a_reranker_comes_back_with_its_scorers_and_its_weights(fake_hub, model_folder, masked_folder, capsys):
    config = ScorerConfig(masking="within-word", casing="lower", long_texts="refuse")
    scorers = [Scorer.from_pretrained(model_folder), Scorer.from_pretrained(masked_folder, config=config)]
    reranker = Reranker.fit(LISTS, scorers, length_normalisation="word", terms=["characters"], search="exact")
    reranker.push_to_hub("me/reranker")
    again = Reranker.from_pretrained("me/reranker")
    assert again.rerank_lists(LISTS) == reranker.rerank_lists(LISTS)
    assert [scorer.saved_as()[1] for scorer in again.scorers] == [scorer.saved_as()[1] for scorer in scorers]
    plain = Reranker([scorers[0], Scorer.from_pretrained(masked_folder)], weight=(0.5, 0.5))
    plain.push_to_hub("me/plain")  # teeth: other options of a scorer, and no length, give other totals
    assert Reranker.from_pretrained("me/plain").rerank_lists(LISTS) != reranker.rerank_lists(LISTS)

    card = (fake_hub / "me/reranker/README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["energy-based-model", "reranker"]
    told = reranker.report
    for words in (
        f"| validation, tuned | {told.tuned:.4g} |",
        "| validation, lists | 4 |",
        f"| weight | {', '.join(map(str, reranker.weights))} |",
        "| scorers 2, masking | within-word |",
        "## Made from of scorer_2/",
        "tune it anew for lists of another",
        'Reranker.from_pretrained("me/reranker")',
    ):
        assert words in card
    assert "Nothing was measured" in (fake_hub / "me/plain/README.md").read_text(encoding="utf-8")


def test_a_reranker_says_what_it_cannot_save_or_read(tmp_path, model_folder, energy_folder):
    rounded = Reranker(Scorer.from_pretrained(model_folder, dtype="int8"))
    with pytest.raises(ModelError, match="cannot be saved as a scorer, since its layers are rounded to int8; build"):
        rounded.save_pretrained(tmp_path / "rounded")
    with pytest.raises(ModelError, match=r"holds no reranker \(its kind: energy\); give a folder that"):
        Reranker.from_pretrained(energy_folder)
    Reranker(Scorer.from_pretrained(str(energy_folder))).save_pretrained(tmp_path / "energy")
    (read,) = Reranker.from_pretrained(tmp_path / "energy").scorers
    assert read.score(TEXTS) == Scorer.from_pretrained(str(energy_folder)).score(TEXTS)


def test_a_dry_run_fetches_nothing_and_prints_the_card(fake_hub, energy_folder, capsys):
    run(["models", "push", str(energy_folder), "me/energy", "--dry-run"])
    assert not fake_hub.exists()
    dry = capsys.readouterr().out
    run(["models", "push", str(energy_folder), "me/energy"])
    assert capsys.readouterr().out == "hub/me/energy\n"
    assert (fake_hub / "me/energy/README.md").read_text(encoding="utf-8").strip() == dry.strip()
    with pytest.raises(ModelError, match="'energy' is no name of the hub; give OWNER/NAME"):
        run(["models", "push", str(energy_folder), "energy", "--dry-run"])


def test_an_upload_that_fails_is_one_line(monkeypatch, energy_folder):
    def refused(*_, **__):
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refused)
    with pytest.raises(ModelError, match=r"could not be pushed to 'a/b' \(nobody there\); log in with") as caught:
        hub.push_folder(energy_folder, "a/b")
    assert "\n" not in str(caught.value)


def test_a_card_says_what_the_manifest_knows_and_no_more(energy_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(energy_folder, folder)
    bare = model_card(folder, "me/energy")
    assert "Nothing was measured when it was made." in bare
    manifest = read_json(folder / hub.MANIFEST)
    manifest["provenance"] |= {
        "sources": [{"corpus": "speeches", "licence": "CC0-1.0", "generator": {"name": "small", "sha256": "abc"}}],
        "origin": "owner/base",
        "validation": {"contexts": 64, "accuracy": 0.75},
        "config": {"init": "/somebody/secret/encoder"},
    }
    write_json(folder / hub.MANIFEST, manifest)
    card = model_card(folder, "me/energy")
    header = yaml.safe_load(card.split("---")[1])
    assert header == {
        "library_name": "energylm",
        "license": "cc0-1.0",
        "tags": ["energy-based-model", "energy"],
        "base_model": ["owner/base"],
    }
    for words in ("| sources 1, corpus | speeches |", "| validation, accuracy | 0.75 |", "abc", '("me/energy")'):
        assert words in card
    assert "secret" not in card and "Nothing was measured" not in card
    assert next(iter(manifest["weights"].values())) in card


def test_what_is_not_ours_has_no_card(tmp_path):
    with pytest.raises(ModelError, match=r"holds no energylm\.json, so nothing is known"):
        model_card(tmp_path, "a/b")
