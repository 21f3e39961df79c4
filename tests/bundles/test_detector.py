"""A detector is the mean of its blocks' energies, says where they are, and keeps to what it was calibrated for."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from energylm import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, span_lengths
from energylm.bundles.energy_model import EnergyModel
from energylm.config.detect import BlockConfig
from energylm.data.text_overlap import SeenTexts
from energylm.errors import ModelError
from energylm.estimators.false_positive_threshold import false_positive_threshold

BLOCKS = BlockConfig(tokens=16, stride=6)
TEXTS = [
    "The clerk counts the boats. A sailor mends a bridge. Our neighbour sells the winter coats. " * 3,
    "Her sister paints an old map.",
    "",
    "A stranger forgets the harvest, and the council remembers seven lamps; the old miller carries a letter.",
]


@pytest.fixture(scope="module")
def energy(bert_folder):
    return EnergyModel.from_encoder(bert_folder, reads="text")


def calibration(*, shortest=8, scale=2.0, shift=0.5, threshold=0.0, rate=0.05):
    span = SpanCalibration(shortest, scale, shift, threshold, rate, 2 * rate, 100, 100)
    return DetectorCalibration((span,), rate, weights_sha256="", sources=("made up",))


def test_a_score_is_the_mean_of_blocks_read_alone(energy):
    """Two routes: all blocks of all texts in one call, and each block's own text read by the energy."""
    found = Detector(energy, blocks=BLOCKS).predict(TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        alone = [float(energy.text_energies([text[b.start : b.end]])[0]) for b in one.blocks]
        assert np.allclose([b.score for b in one.blocks], alone, atol=1e-5)
        if text:
            assert one.score == pytest.approx(np.mean(alone), abs=1e-5)
    assert found[0].tokens == found[0].tokens_used > 16 and len(found[0].blocks) > 2
    assert found[1].blocks[0].start == 0 and found[1].blocks[-1].end == len(TEXTS[1])
    assert len({round(b.score, 6) for b in found[0].blocks}) > 1


def test_what_it_reads_can_be_limited(energy):
    (one,) = Detector(energy, blocks=BLOCKS).predict(TEXTS[:1], max_tokens=10)
    assert one.tokens_used == 10 < one.tokens and len(one.blocks) == 1


def test_an_energy_that_is_not_calibrated_abstains(energy):
    one, *_ = Detector(energy, blocks=BLOCKS).predict(TEXTS)
    assert one.verdict == "abstains" and "not calibrated" in one.reason
    assert one.probability is None and one.threshold is None and one.log_odds == one.score


def test_verdicts(energy):
    """Machine above the threshold; human below it and likelier; in between it does not know; too short: the same."""
    detector = Detector(energy, blocks=BLOCKS)
    score = detector.predict(TEXTS[:1])[0].score

    def verdict(**values):
        detector.calibration = calibration(**values)
        return detector.predict(TEXTS[:1])[0]

    assert verdict(threshold=score - 0.1).verdict == "machine"
    human = verdict(threshold=score + 0.1, scale=1.0, shift=-score - 1)
    assert human.verdict == "human" and human.probability == pytest.approx(1 / (1 + np.e))
    undecided = verdict(threshold=score + 0.1, scale=1.0, shift=-score + 1)
    assert undecided.verdict == "abstains" and "undecided" in undecided.reason and undecided.probability > 0.5
    short = verdict(shortest=1000)
    assert short.verdict == "abstains" and "fewer than the 1000 it was calibrated for" in short.reason
    assert short.probability is None and short.score == score
    empty = detector.predict([""])[0]
    assert empty.verdict == "abstains" and empty.score is None and empty.reason == "the text is empty"


def test_the_threshold_flags_the_asked_share_of_human_text_and_a_flipped_one_nearly_all(energy):
    """40 human texts give the threshold. The mistake: the direction flipped, as if low scores meant machine."""
    chooser = random.Random(0)
    texts = [" ".join(chooser.choices(TEXTS[0].split() + TEXTS[3].split(), k=30)) for _ in range(40)]
    detector = Detector(energy, blocks=BLOCKS)
    scores = detector.scores(detector.reader.encode(texts))

    def flagged(threshold):
        detector.calibration = calibration(threshold=threshold, rate=0.1)
        return np.mean([one.verdict == "machine" for one in detector.predict(texts)])

    assert 0 < flagged(false_positive_threshold(scores, 0.1).threshold) <= 0.1
    assert flagged(-false_positive_threshold(-scores, 0.1).threshold) >= 0.8


def test_spans_follow_the_length():
    assert span_lengths(160) == [40, 80, 160, 320, 640]
    spans = tuple(replace(calibration().spans[0], shortest=s) for s in (40, 160))
    found = DetectorCalibration(spans, 0.05, "", ())
    assert [found.at(tokens).shortest for tokens in (10, 40, 159, 160, 9999)] == [40, 40, 40, 160, 160]
    assert found.shortest == 40


def test_it_comes_back_from_its_folder_as_it_was(energy, tmp_path):
    seen = SeenTexts.of(TEXTS[:1])
    before = Detector(energy, blocks=BLOCKS, calibration=calibration(), seen=seen)
    before.save_pretrained(tmp_path / "detector")
    after = Detector.from_pretrained(tmp_path / "detector")
    assert after.blocks == BLOCKS and after.calibration == before.calibration
    assert after.seen.has(TEXTS[0]) and not after.seen.has(TEXTS[3])
    assert [one.to_json() for one in after.predict(TEXTS)] == [one.to_json() for one in before.predict(TEXTS)]
    json.dumps([one.to_json() for one in after.predict(TEXTS)], allow_nan=False)
    assert EnergyModel.from_pretrained(tmp_path / "detector").name == energy.name  # it is still an energy
    with pytest.raises(ModelError, match="blocks of 16 tokens by 6, as it was trained"):
        Detector.from_pretrained(tmp_path / "detector", blocks=BlockConfig(tokens=32, stride=16))


def test_damage_and_mix_ups_are_found(energy, tmp_path):
    folder = tmp_path / "detector"
    Detector(energy, blocks=BLOCKS, calibration=calibration()).save_pretrained(folder)
    good = (folder / "calibration.json").read_text()
    (folder / "calibration.json").write_text(good.replace('"threshold": 0.0', '"threshold": 9.0'))
    with pytest.raises(ModelError, match=r"calibration\.json is damaged"):
        Detector.from_pretrained(folder)
    (folder / "calibration.json").unlink()
    with pytest.raises(ModelError, match=r"calibration\.json is missing"):
        Detector.from_pretrained(folder)
    with pytest.raises(ModelError, match="is no calibration"):
        DetectorCalibration.from_json({"spans": []}, origin="x.json")
    with pytest.raises(ModelError, match="holds no energy"):
        Detector.from_pretrained(tmp_path)
    folder.rename(tmp_path / "model")
    with pytest.raises(ModelError, match=r"folder of a training run; give its detector, .*/model"):
        Detector.from_pretrained(tmp_path)


def test_the_calibration_of_other_weights_is_refused(energy, bert_folder, tmp_path):
    Detector(energy, blocks=BLOCKS, calibration=calibration()).save_pretrained(tmp_path / "one")
    other = EnergyModel.from_encoder(bert_folder, reads="text", seed=5)
    Detector(other, blocks=BLOCKS, calibration=calibration()).save_pretrained(tmp_path / "two")
    manifest = json.loads((tmp_path / "two" / "energylm.json").read_text())
    manifest["detector"] = json.loads((tmp_path / "one" / "energylm.json").read_text())["detector"]
    (tmp_path / "two" / "energylm.json").write_text(json.dumps(manifest))
    (tmp_path / "two" / "calibration.json").write_text((tmp_path / "one" / "calibration.json").read_text())
    with pytest.raises(ModelError, match="belongs to other weights"):
        Detector.from_pretrained(tmp_path / "two")


def test_blocks_that_the_encoder_cannot_hold(energy):
    with pytest.raises(ModelError, match=r"holds 96; lower blocks\.tokens"):
        Detector(energy, blocks=BlockConfig())
