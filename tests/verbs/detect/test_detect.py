"""From labelled texts to a calibrated detector, its evaluation and its verdicts; overlap and too few texts are said."""

import json
from dataclasses import replace

import numpy as np
import pytest

from energylm import Detector
from energylm.bundles.detector import logistic
from energylm.bundles.energy_model import EnergyModel
from energylm.errors import ConfigError, DataError, ModelError
from energylm.estimators.discrimination import discrimination
from energylm.files import sha256_of_file
from energylm.jobs.job import Job
from energylm.verbs import CalibrateDetector, EvaluateDetector, RunDetector, TrainDetector
from energylm.verbs.detect.calibrating import CalibrationResult
from energylm.verbs.detect.evaluating import DetectorEvaluation, cut_texts
from energylm.verbs.detect.judging import Detections
from energylm.verbs.detect.training import DetectorRun

SMALL = {"text_blocks": {"tokens": 32, "stride": 16}, "fpr": 0.1}


@pytest.fixture(scope="module")
def sources(detection_folder):
    return {"human": [str(detection_folder / "human.jsonl")], "machine": [str(detection_folder / "machine.jsonl")]}


def detector(bert_folder, sources, **values):
    training = {
        "steps": 30,
        "global_batch": 4,
        "threads": 1,
        "optimizer": {"learning_rate": 1e-2},
        "validation": {"every_steps": 15},
    }
    return TrainDetector.checked(
        {"data": sources, "init": str(bert_folder), "training": training | values.pop("training", {}), **SMALL} | values
    )


@pytest.fixture(scope="module")
def trained(bert_folder, sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("detect")
    return detector(bert_folder, sources).run(Job(folder / "run"))


def test_a_detector_learns_is_calibrated_and_reported(trained, bert_folder, sources, capsys):
    assert trained.held_out.auroc.value > 0.95 and not trained.was_finished
    assert trained.report.exists() and "Calibration by length" in (trained.folder / "results.md").read_text()
    assert trained.texts["train human"] + trained.texts["valid human"] + trained.texts["calibration human"] == 120
    spans = trained.calibration.spans
    assert [span.shortest for span in spans] == [8, 16, 32, 64, 128]
    assert [span.promise for span in spans] == [*["none"] * 3, "length", "none"]  # the texts have about 110 tokens
    assert all(span.scale > 0 for span in spans) and spans[3].false_positive_rate <= 0.1
    assert DetectorRun.from_json(json.loads(json.dumps(trained.to_json()))) == trained
    assert trained.held_out.tpr_at_1 is None and "99 human ones would show" in trained.summary()
    again = detector(bert_folder, sources).run(Job(trained.folder))
    assert again.was_finished and again.held_out == trained.held_out and "nothing to do" in capsys.readouterr().err
    provenance = EnergyModel.from_pretrained(trained.model).provenance
    assert provenance["loss"] == "binary cross-entropy of blocks" and provenance["sources"]


def test_the_dry_run_says_what_would_happen(bert_folder, sources, tmp_path):
    said = detector(bert_folder, sources).check(Job(tmp_path / "run"))
    assert "would train: detector from" in said and "blocks of 32 tokens by 16" in said
    assert not (tmp_path / "run").exists()


def test_evaluation_on_other_texts_with_the_baseline_beside_it(trained, detection_folder, sources, tmp_path):
    values = {"detector": str(trained.model), "data": {"pairs": [str(detection_folder / "pairs.json")]}}
    verb = EvaluateDetector.checked({**values, "train": sources, "lengths": [8, 32, 5000], "resamples": 200})
    run = verb.run(Job(tmp_path / "report"))
    assert run.detector.auroc.value > 0.95 and run.baseline.auroc.value > 0.9 and run.overlap == 0
    assert run.detector.real == run.detector.machine == 40
    assert set(run.sources) == {"pairs.json"} and list(run.lengths) == [8, 32]
    assert run.lengths[8].auroc.value <= run.lengths[32].auroc.value + 0.05
    assert set(run.verdicts) == {"human: pairs.json", "machine: pairs.json"}
    flagged = run.verdicts["human: pairs.json"].machine
    assert flagged <= 0.1 + 4 * np.sqrt(0.1 * 0.9 / 40)
    assert run.coverage.keys() == {64} and run.coverage[64].texts == 40 and run.coverage[64].machine == flagged
    written = json.loads((tmp_path / "report" / "results.json").read_text())
    expected = {"detection", "by-machine-source", "verdicts", "false-positives-by-length", "by-length"}
    assert expected <= written["sections"].keys()
    assert run.table.rows[0][4] == "needs 99 human texts" and run.table.rows[0][5].startswith("1.000 [")
    assert [row[0] for row in run.table.rows] == ["detector", "TF-IDF", "pairs.json"]
    saved = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert replace(DetectorEvaluation.from_json(saved), report=run.report) == run
    assert saved["detector"]["balanced_accuracy"]["percent"] == 100 * run.detector.balanced_accuracy.value
    assert saved["verdict_percent"]["human"]["machine"] == pytest.approx(100 * flagged)


def test_test_texts_that_were_trained_on_are_found_and_said(trained, detection_folder, sources, capsys):
    everything = sources | {"pairs": [str(detection_folder / "pairs.json")]}
    values = {"detector": str(trained.model), "data": everything, "lengths": [], "resamples": 20}
    run = EvaluateDetector.checked(values).run()
    said = capsys.readouterr().err
    assert run.overlap == 240 and "240 of 320 test texts overlap" in said and "--drop-overlap" in said
    run = EvaluateDetector.checked(values | {"drop_overlap": True}).run()
    assert run.left_out == 240 and run.detector.real == 40
    with pytest.raises(DataError, match="one class only: after the overlap was left out"):
        EvaluateDetector.checked(values | {"data": sources, "drop_overlap": True}).run()


def test_by_text_not_by_block():
    """The mistake: blocks of one text taken for independent evidence. 40 texts of 9 blocks whose scores agree within a
    text: the interval by block is about a third as wide, √9 times too narrow."""
    numbers = np.random.default_rng(0)
    human, machine = (np.repeat(numbers.normal(mean, 1, 40), 9) + numbers.normal(0, 0.05, 360) for mean in (0, 1))
    texts = np.repeat(np.arange(40), 9)
    widths = {}
    for name, groups in (("text", texts), ("block", np.arange(360))):
        found = discrimination(
            human, machine, real_groups=[f"h{g}" for g in groups], machine_groups=[f"m{g}" for g in groups]
        )
        widths[name] = found.auroc.upper - found.auroc.lower
    assert 2.3 < widths["text"] / widths["block"] < 3.9


def test_evaluation_is_by_text(trained, detection_folder):
    """As many groups as texts, though every text has many blocks; an original and its sample would be one group."""
    values = {"detector": str(trained.model), "data": {"pairs": [str(detection_folder / "pairs.json")]}, "lengths": []}
    run = EvaluateDetector.checked(values).run()
    assert run.detector.real_groups == 40 and run.detector.machine_groups == 40


def test_a_threshold_on_ones_own_human_text_keeps_the_probabilities(trained, detection_folder, sources, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(trained.model, folder)
    before = Detector.from_pretrained(folder).calibration
    values = {"detector": str(folder), "data": {"human": [str(detection_folder / "human.jsonl")]}}
    run = CalibrateDetector.checked(values | {"fpr": 0.02}).run()
    after = Detector.from_pretrained(folder).calibration
    assert after == run.calibration and after.asked_rate == 0.02
    assert [(s.scale, s.shift) for s in after.spans] == [(s.scale, s.shift) for s in before.spans]
    assert [s.human for s in after.spans] == [0, 0, 0, 120, 0]
    with pytest.raises(DataError, match=r"a false-positive rate of 0\.005 needs at least 199, came 120"):
        CalibrateDetector.checked(values | {"fpr": 0.005}).run()
    both = CalibrateDetector.checked(values | {"data": sources, "fpr": 0.05}).run()
    assert both.machine == 120 and both.calibration.spans[0].scale != before.spans[0].scale
    beginnings = CalibrateDetector.checked(values | {"max_tokens": 20, "fpr": 0.05}).run()
    assert beginnings.calibration.max_tokens == 20 and beginnings.calibration.at(20).human == 120
    assert "beginnings" in beginnings.table.convention
    assert CalibrationResult.from_json(json.loads(json.dumps(beginnings.to_json()))) == beginnings
    texts = json.loads((detection_folder / "pairs.json").read_text())["original"]
    found = Detector.from_pretrained(folder).predict(texts)
    assert {one.tokens_used for one in found} == {20} and not any("calibrated on" in one.reason for one in found)


def test_a_detector_of_an_earlier_version_is_calibrated_anew_with_both_classes(trained, sources, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(trained.model, folder)
    calibration = json.loads((folder / "calibration.json").read_text())
    names = ("spans", "asked_rate", "weights_sha256", "sources")
    (folder / "calibration.json").write_text(json.dumps({name: calibration[name] for name in names}))
    manifest = json.loads((folder / "energylm.json").read_text())
    manifest["detector"]["calibration_sha256"] = sha256_of_file(folder / "calibration.json")
    (folder / "energylm.json").write_text(json.dumps(manifest))
    values = {"detector": str(folder), "fpr": 0.05}
    for data in ({"human": sources["human"]}, None):
        with pytest.raises(ModelError, match="is of an earlier version"):
            if data is None:
                Detector.from_pretrained(folder)
            else:
                CalibrateDetector.checked(values | {"data": data}).run()
    CalibrateDetector.checked(values | {"data": sources}).run()
    assert Detector.from_pretrained(folder).calibration.asked_rate == 0.05


def test_a_plain_energy_becomes_a_detector_by_calibration(bert_folder, sources, tmp_path):
    EnergyModel.from_encoder(bert_folder, reads="text").save_pretrained(tmp_path / "energy")
    values = {"detector": str(tmp_path / "energy"), "fpr": 0.05, "text_blocks": SMALL["text_blocks"]}
    with pytest.raises(DataError, match="one class only: the first calibration"):
        CalibrateDetector.checked(values | {"data": {"human": sources["human"]}}).run()
    CalibrateDetector.checked(values | {"data": sources}).run()
    found = Detector.from_pretrained(tmp_path / "energy")
    assert found.blocks.tokens == 32 and found.calibration.asked_rate == 0.05
    # 8 tokens from one class only, or too few machine texts, are refused as well
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "The clerk counts the boats."}\n')
    with pytest.raises(DataError, match="1 machine texts came"):
        CalibrateDetector.checked(values | {"data": sources | {"machine": [str(few)]}}).run()


def test_probabilities_are_calibrated_on_texts_that_were_not_used(trained, detection_folder):
    """Among 80 new texts the mean probability of machine is near the share of machine, one half."""
    texts = json.loads((detection_folder / "pairs.json").read_text())
    found = Detector.from_pretrained(trained.model).predict(texts["original"] + texts["sampled"])
    assert np.mean([logistic(one.log_odds) for one in found]) == pytest.approx(0.5, abs=0.1)


def test_texts_are_cut_at_random_places(trained):
    detector = Detector.from_pretrained(trained.model)
    encoded = detector.reader.encode(["The clerk counts the boats. " * 20, "A sailor mends a bridge.", "A map."])
    cuts = [cut_texts(encoded, 5, seed=seed) for seed in range(60)]
    assert {len(piece) for cut in cuts for piece in cut} == {5}
    assert all(len(cut) == 2 for cut in cuts)  # the third is too short
    assert len({int(cut[0].offsets[0, 0]) for cut in cuts}) > 20
    assert cuts[0][1].text in "A sailor mends a bridge."


def test_mistakes(bert_folder, sources, trained, tmp_path):
    with pytest.raises(DataError, match="one class only: training"):
        detector(bert_folder, {"human": sources["human"]}).run(Job(tmp_path / "run"))
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "The clerk counts the boats."}\n{"text": "A sailor mends a bridge."}\n')
    with pytest.raises(DataError, match=r"too few texts: .* machine texts fell into the part for train"):
        detector(bert_folder, sources | {"machine": [str(few)]}).run(Job(tmp_path / "run"))
    with pytest.raises(ConfigError, match="pools by 'mean', not 'first'"):
        detector(trained.model, sources, pooling="first").check(Job(tmp_path / "run"))
    assert "detector from" in detector(trained.model, sources).check(Job(tmp_path / "run"))
    with pytest.raises(DataError, match="no text came"):
        RunDetector(detector=str(trained.model), text=["  "]).run()


def test_run_writes_verdicts_and_a_page(trained, tmp_path, capsys):
    (tmp_path / "essay.txt").write_text("The old miller paints the boats 123. " * 11)
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    verb = RunDetector(detector=str(trained.model), files=str(tmp_path), text="A map.", html=tmp_path / "page.html")
    run = verb.run()
    said = capsys.readouterr().err
    assert "1 of 3 texts are empty and left out" in said and "1 file of the folders cannot be read" in said
    assert [*run.to_json()["unreadable"]] == [str(tmp_path / "latin.txt")]
    short, essay = run.texts
    assert short.name == "text 1" and short.verdict == "abstains" and "fewer than" in short.reason
    assert essay.verdict == "machine" and essay.probability > 0.5
    assert essay.name.endswith("essay.txt") and len(run.table.rows) == len(run.reasons) == 2
    assert [row[-1] for row in run.table.rows] == [1, 2] and run.reasons[1] == essay.reason
    saved = run.to_json()
    assert "text" not in saved["texts"][0] and Detections.from_json(saved).to_json() == saved
    assert "machine" in (tmp_path / "page.html").read_text()
