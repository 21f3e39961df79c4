"""`detect combine` on a tiny language model: sets by patterns, what is kept, what is refused; `detect run` without a
detector takes its first path for a text."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from energylm import Detector, LanguageModel
from energylm.bundles.combined_energy import FeatureWeights
from energylm.bundles.detector import DEFAULT_FOLDER
from energylm.errors import ConfigError, DataError
from energylm.estimators.surprise_features import GROUPS
from energylm.files import read_json
from energylm.jobs.job import Job
from energylm.training.feature_weights import auroc
from energylm.verbs import CombineFeatures, RunDetector
from energylm.verbs.detect import combining

DOCS = Path(__file__).parents[3] / "docs"
TOKENS = 48  # of a text that are read
WORDS = "the clerk a sailor mends counts paints boats letters lamps bridge council harvest and of winter".split()


def made_texts(lm, count, *, seed):
    """As many human as machine texts: the machine writes what the model finds likely, people what it does not."""
    chooser = random.Random(seed)
    texts = [" ".join(chooser.choice(WORDS) for _ in range(40)) + "." for _ in range(2 * count)]
    scores = lm.score([lm.encode(text)[:TOKENS] for text in texts])
    ranked = sorted(range(len(texts)), key=lambda number: scores[number].log_prob / scores[number].tokens)
    return [texts[number] for number in ranked[:count]], [texts[number] for number in ranked[count:]]


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def pairs(lm, tmp_path_factory):
    folder, paths = tmp_path_factory.mktemp("pairs"), []
    for seed, name in enumerate(("news_a", "news_b", "tales_a")):
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(dict(zip(("original", "sampled"), made_texts(lm, 14, seed=seed), strict=True))))
    return [str(path) for path in paths]


def options(model_folder, files, **more):
    sets = {"domain": ["news=news*", "tales=*"], "generator": ["A=*_a*", "B=*_b*"]}
    few = {"language_model": str(model_folder), "max_tokens": TOKENS, "resamples": 10, "calibration_fraction": 0.4}
    return {"pairs": files, "fpr": 0.2, **sets, **few, **more}


def test_weighed_measured_kept_and_used(lm, model_folder, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("energylm.training.feature_weights.STRENGTHS", (1e-3, 1e-1))
    assert "5 features" in CombineFeatures.checked(options(model_folder, pairs)).check()
    verb = CombineFeatures.checked(options(model_folder, pairs, features=["zero-shot", "later"]))
    assert "10 features" in verb.check() and "news_A, news_B, tales_A" in verb.check()
    result = verb.run(Job(output=tmp_path))
    assert list(result.generator_left_out) == list(result.domain_left_out) == ["news_A", "news_B", "tales_A"]
    assert min(result.lowest["generator_left_out"], result.lowest["domain_left_out"]) > 0.8 and result.report.is_file()
    assert set(result.zero_shot["news_B"]) == {"log_likelihood", "log_rank", "entropy", "lrr", "curvature"}
    assert "lowest" in verb.shown(result) and "mean AUROC" in result.summary()
    detector = Detector.from_pretrained(result.model)
    human, machine = ([each.score for each in detector.predict(texts)] for texts in made_texts(lm, 12, seed=5))
    assert auroc(np.array(human + machine), np.array([False] * 12 + [True] * 12)) > 0.8
    assert detector.calibration.max_tokens == TOKENS and detector.seen.has(
        json.loads(Path(pairs[0]).read_text())["original"][0]
    )

    monkeypatch.setattr(combining.FeatureWorker, "__call__", None)  # nothing is read again
    again = CombineFeatures.checked(options(model_folder, pairs, features=["curvature"])).run(Job(output=tmp_path))
    assert again.features == ("curvature",) and again.zero_shot == result.zero_shot


def test_the_page_tells_what_the_default_detector_was_measured_by():
    """The first table of docs/detection.md is `combined.json`, what it says of new texts is docs/detection.json."""
    page = (DOCS / "detection.md").read_text(encoding="utf-8")
    measured = read_json(DEFAULT_FOLDER / combining.OUTCOME_FILE)
    columns = ("log_rank", "log_likelihood", "curvature", "domain_left_out", "generator_left_out")
    expected = [[f"{measured[kind][column]:.3f}" for kind in ("means", "lowest")] for column in columns]
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row[3:5]] for row in rows[1:6]] == expected
    told = " ".join(page.split())
    tables = read_json(DOCS / "results" / "bakhtin2019-unseen_generators-mini.json")["sections"].values()
    (left_out,) = (table["rows"] for table in tables if table["title"].startswith("A language model's surprise"))
    mean, lowest = ([row[f"combined, {group} left out"] for group in ("domain", "generator")] for row in left_out[-2:])
    said = "mean {:.3f} and lowest {:.3f} with the domain left out, {:.3f} and {:.3f} with the generator"
    assert said.format(mean[0], lowest[0], mean[1], lowest[1]) in told
    trial = read_json(DOCS / "detection.json")
    for group, sets in trial["auroc"].items():
        aurocs = [each["auroc"] for each in sets.values()]
        assert f"{np.mean(aurocs):.3f}" in told and f"{min(aurocs):.3f}" in told, group
    for domain, places in trial["other_places"].items():
        shares = [(each["called_machine"], each["human"]) for each in (places["plain"], places["like"])]
        assert f"| {domain} | " + " | ".join(f"{k} of {n} ({k / n:.0%})" for k, n in shares) in told
    weights = FeatureWeights.from_json(read_json(DEFAULT_FOLDER / "weights.json"))
    assert weights.features == tuple(measured["features"]) == GROUPS["later"]


def test_one_set_alone_says_that_nothing_is_known_of_others(model_folder, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("energylm.training.feature_weights.STRENGTHS", (1e-3, 1e-1))
    alone = options(model_folder, pairs[:1], domain=[], generator=[], features=["zero-shot"])
    result = CombineFeatures.checked(alone).run(Job(output=tmp_path))
    assert result.generator_left_out == result.domain_left_out == {}
    assert "how far it carries is not known" in result.summary()


def test_what_cannot_be_is_said(model_folder, pairs):
    def check(**more):
        return CombineFeatures.checked(options(model_folder, pairs, **more)).check()

    with pytest.raises(ConfigError, match=r"no NAME=PATTERN; write e\.g\. news="):
        check(domain=["news"])
    with pytest.raises(ConfigError, match=r"news_b.json matches none of A=\*_a\*; give a pattern for it"):
        check(generator=["A=*_a*"])
    with pytest.raises(ConfigError, match="features surprise are unknown; known are zero-shot"):
        check(features=["surprise"])
    with pytest.raises(DataError, match="has 0 human and 14 machine texts, 10 of each are needed"):
        check(pairs=pairs[:1], machine=pairs[1:2])


def test_detect_run_takes_its_first_path_for_a_text_where_it_is_no_model(model_folder, tmp_path):
    essay = tmp_path / "essay.txt"
    essay.write_text("An essay.")

    def read(**values):
        verb = RunDetector.checked(values)
        return verb.detector, list(verb.files)

    assert read(detector=str(essay)) == ("default", [str(essay)])
    assert read(detector=str(tmp_path)) == ("default", [str(tmp_path)])  # a folder of texts
    assert read(detector="-") == ("default", ["-"])
    assert read(detector=str(essay), files=["b.txt"]) == ("default", [str(essay), "b.txt"])
    assert read(detector=str(model_folder), files=["b.txt"]) == (str(model_folder), ["b.txt"])
    assert read(files=["b.txt"]) == ("default", ["b.txt"]) and read(text=["A text."]) == ("default", [])
    with pytest.raises(ConfigError, match="no text came"):
        read(detector=str(model_folder))
