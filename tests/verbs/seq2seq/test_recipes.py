"""The tables of goyal2021 chapters 3 to 5 in small: every recipe end to end on made-up files under the real names."""

import random
import shutil
from dataclasses import replace

import pytest
import yaml

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq import DecodingConfig
from energylm.errors import CheckpointError, ConfigError, DataError
from energylm.estimators.sequence_scores import tag_scores
from energylm.files import write_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.job import Job
from energylm.objectives.cross_entropy import LogZ
from energylm.verbs import PickSeq2Seq, TrainSeq2Seq
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import plan_recipe, reproduce
from energylm.verbs.seq2seq.evaluating import SCORES_FILE, Scores, Seq2SeqEvaluation

TABLES = [
    *("fig3_1", "table3_1", "table3_2", "table4_1", "table4_2"),
    *(f"table5_{number}" for number in range(1, 7)),
]
TINY = {"steps": 2, "global_batch": 4, "threads": 1, "validation": {"every_steps": 2}}
WORDS = [("Ada", "B-PER", "PROPN"), ("saw", "O", "VERB"), ("Rome", "B-LOC", "PROPN"), ("old", "O", "ADJ")]
GERMAN = {"ada": "ada", "sah": "saw", "rom": "rome", "alt": "old", "und": "and"}


def sentences(seed, lengths):
    chooser = random.Random(seed)
    return [[chooser.choice(WORDS) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CoNLL-2003, UD-EWT and Multi30k in name and format; the test tags hold one that training never saw."""
    root, lengths = tmp_path_factory.mktemp("data"), [4, 11, 14, 17]
    for folder in ("conll2003", "ud_ewt", "multi30k"):
        (root / folder).mkdir()
    parts = {"train": ("eng.train", "train", "train"), "dev": ("eng.testa", "dev", "val")}
    parts["test"] = ("eng.testb", "test", "test_2016_flickr")
    for seed, (part, (entities, tags, translation)) in enumerate(parts.items()):
        chosen = sentences(seed, lengths * (3 if part == "train" else 1))
        rows = [[f"{word} X X {entity}" for word, entity, _ in one] for one in chosen]
        (root / "conll2003" / entities).write_text("".join("\n".join(one) + "\n\n" for one in rows))
        seen = {"ADJ": "X"} if part == "test" else {}
        rows = [
            [f"{n}\t{word}\t_\t{seen.get(tag, tag)}" + "\t_" * 6 for n, (word, _, tag) in enumerate(one, start=1)]
            for one in chosen
        ]
        (root / "ud_ewt" / f"{tags}.conllu").write_text("".join("\n".join(one) + "\n\n" for one in rows))
        chooser = random.Random(seed)
        german = [[chooser.choice(list(GERMAN)) for _ in one] for one in chosen]
        english = [[GERMAN[word] for word in one] for one in german]
        for end, texts in (("de", german), ("en", english)):
            file = root / "multi30k" / f"{translation}.{end}"
            file.write_text("".join(" ".join(text) + "\n" for text in texts))
    return root


@pytest.fixture(autouse=True)
def _here(data, monkeypatch):
    monkeypatch.setenv("ENERGYLM_DATA", str(data))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtefactStore(tmp_path_factory.mktemp("store"))


def small(name, folder):
    """The recipe of the package, in a file of its own, with everything that takes time made small."""
    values = load_recipe(f"goyal2021/{name}").model_dump(mode="json", exclude_unset=True) | {"uses": None}
    steps = values["scales"]["mini"]["steps"]
    for step, settings in steps.items():
        make = values["steps"][step]["make"]
        if make == "seq2seq train":
            settings |= {"restarts": 2 if step == "entities_ce" else 1, "training": TINY}
            if "network" in settings:
                settings["network"] |= {"hidden": 8, "embedding": 4, "source_embedding": 6}
            if "vocabulary_size" in settings:
                settings["vocabulary_size"] = 300
        elif make == "seq2seq line":
            settings |= {"points": 5, "limit": 2}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return str(folder / f"{name}.yaml")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_end_to_end(name, store, tmp_path):
    recipe = load_recipe(f"goyal2021/{name}")
    done = reproduce(small(name, tmp_path), scale="mini", output=tmp_path / "out", store=store)
    assert len(done.claims) == len(recipe.claims)
    assert all(claim.verdict != "cannot be told" for claim in done.claims), done.claims
    page = (tmp_path / "out" / "results.md").read_text()
    assert all(f"## {section.title}" in page for section in recipe.report)
    for step, artefact in done.steps.items():
        if artefact.kind == "seq2seq train":
            assert len(artefact.result["restarts"]) == (2 if step == "entities_ce" else 0)
            assert not list(artefact.folder.glob("restart-*/checkpoints"))
    again = reproduce(small(name, tmp_path), scale="mini", output=tmp_path / "again", store=store)
    assert all(artefact.reused for artefact in again.steps.values())


def test_tables_share_warm_starts_and_models(store):
    keys = {
        name: {s.name: s.key for s in plan_recipe(f"goyal2021/{name}", scale="mini", store=store).steps}
        for name in TABLES
    }
    assert len({keys[name]["entities_ce"] for name in ("fig3_1", "table3_1", "table3_2", "table4_2")}) == 1
    assert keys["table3_1"]["ner_annealed_greedy"] == keys["table3_2"]["k10"]
    assert keys["table4_1"]["tags_local"] == keys["table5_2"]["tags_local"]
    for step in ("mt_l2_global_scores", "mt_l2_local_scores", "mt_l2_scores"):
        assert len({keys[f"table5_{number}"][step] for number in (4, 5, 6)}) == 1
    assert keys["table5_1"]["mt_ce_scores"] == keys["table5_4"]["mt_ce_scores"]
    assert keys["table3_2"]["k10"] != keys["table3_2"]["k1"]


def test_settings_that_the_thesis_prints():
    """Entities at its own size; beams of 3 in chapter 4 and in translation, of 5 for tags of chapter 5; three runs."""
    warm = load_recipe("goyal2021/table4_2")
    for scale in ("mini", "paper"):
        assert warm.steps_at(scale)["entities_ce"].config["network"] == {"hidden": 64, "embedding": 8}
    tagger = TrainSeq2Seq.checked(load_recipe("goyal2021/table5_3").steps_at("paper")["uni_global"].config)
    assert (tagger.objective.beam, tagger.decoding.beam, tagger.restarts) == (5, 5, 3)
    assert tagger.objective.normalization == tagger.decoding.normalization == "global"
    direct = TrainSeq2Seq.checked(warm.steps_at("mini")["direct_annealed"].config)
    assert (direct.objective.beam, direct.objective.cost, direct.restarts) == (3, "doubled-outside", 3)
    assert direct.objective.normalization == "local" and direct.init is not None


def test_keys_follow_the_content_of_the_files(data, store, tmp_path, monkeypatch):
    def keys():
        return {s.name: s.key for s in plan_recipe("goyal2021/table5_4", scale="mini", store=store).steps}

    before = keys()
    shutil.copytree(data, tmp_path / "elsewhere")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "elsewhere"))
    assert keys() == before
    file = tmp_path / "elsewhere" / "multi30k" / "test_2016_flickr.en"
    file.write_text(file.read_text().replace("old", "new"))
    assert {name for name, key in keys().items() if key != before[name]} == {
        *("mt_ce_scores", "mt_l2_scores", "local_scores", "global_scores", "mt_l2_local_scores", "mt_l2_global_scores")
    }
    file.unlink()
    with pytest.raises(DataError, match=r"test_2016_flickr\.en does not exist; put the data set there"):
        keys()
    with pytest.raises(DataError, match=r"iwslt14/train\.de does not exist"):
        plan_recipe("goyal2021/table5_4", scale="paper", store=store)


def test_the_best_restart_is_kept(data, tmp_path):
    files = {"train": [str(data / "conll2003" / "eng.train")], "valid": [str(data / "conll2003" / "eng.testa")]}
    network = {"hidden": 8, "embedding": 4, "source_embedding": 6}
    values = {"task": "entities", **files, "network": network, "restarts": 3, "training": TINY}
    for larger in (True, False):
        validation = {"every_steps": 1, "metric": "loss", "larger_is_better": larger}
        verb = TrainSeq2Seq.checked(values | {"training": TINY | {"seed": 5, "validation": validation}})
        assert [verb.restart(number).training.seed for number in range(3)] == [5, 6, 7]
        output = tmp_path / str(larger)
        result = verb.run(Job(output=output))
        assert len(set(result.restarts)) == 3 and not result.was_finished
        assert result.kept == result.restarts.index((max if larger else min)(result.restarts))
        model = Seq2SeqModel.from_pretrained(output / "model")
        assert model.provenance["config"]["training"]["seed"] == 5 + result.kept
        assert len(model.decode(["Ada saw Rome"], DecodingConfig())[0].split()) == 3
        assert verb.run(Job(output=output)) == replace(result, was_finished=True)
        moved = output.rename(tmp_path / f"{larger} moved")
        again = verb.run(Job(output=moved))
        assert again.journal == moved / f"restart-{result.kept}" / "journal.jsonl" and again.journal.is_file()
        output = moved
        said = verb.check(Job(output=output))
        assert "is finished" in said and "the best of 3 runs" in said
        with pytest.raises(CheckpointError, match=r"restarts \(was 3, now 2\)"):
            verb.model_copy(update={"restarts": 2}).run(Job(output=output))
        with pytest.raises(CheckpointError, match=r"other settings: restarts"):
            verb.restart(0).run(Job(output=output))
    with pytest.raises(ConfigError, match="compared on the validation data"):
        TrainSeq2Seq.checked(values | {"training": TINY | {"validation": {"every_steps": None}}})


def test_restarts_are_refused_to_several_processes(data, tmp_path, monkeypatch):
    files = {"train": [str(data / "conll2003" / "eng.train")], "valid": [str(data / "conll2003" / "eng.testa")]}
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="leave out torchrun"):
        TrainSeq2Seq.checked({"task": "entities", **files, "restarts": 2}).run(Job(output=tmp_path / "run"))


def evaluation(accuracy):
    """Of a hundred tags so many are right."""
    scores = tag_scores([["a"] * 10_000], [["a"] * round(100 * accuracy) + ["b"] * round(10_000 - 100 * accuracy)])
    return Seq2SeqEvaluation("m", DecodingConfig(), scores, 1.0, LogZ(0.0, 1.0, 100))


def test_the_better_on_dev_is_picked_whatever_the_test_says(tmp_path):
    scores = {"fixed": (51.65, 55.88), "annealed": (51.43, 56.33)}  # entities, greedy, as published
    for name, (dev, test) in scores.items():
        kept = Scores({part: {"greedy": evaluation(value)} for part, value in (("dev", dev), ("test", test))})
        write_json(tmp_path / name / SCORES_FILE, kept.to_json())
    values = {"among": {name: str(tmp_path / name) for name in scores}, "decoding": "greedy"}
    picked = PickSeq2Seq.checked(values).run()
    assert "would pick fixed" in PickSeq2Seq.checked(values).check()
    assert picked.picked == "fixed" and picked.sets["test"]["greedy"].scores.quality == pytest.approx(55.88)
    assert picked.deciding == pytest.approx({"fixed": 51.65, "annealed": 51.43})
    assert PickSeq2Seq.checked(values | {"by": "test"}).run().picked == "annealed"
    with pytest.raises(ConfigError, match="was not scored on 'dev' by 'soft'"):
        PickSeq2Seq.checked(values | {"decoding": "soft"}).run()
    with pytest.raises(DataError, match=r"holds no scores\.json"):
        PickSeq2Seq.checked(values | {"among": {"none": str(tmp_path)}}).run()
