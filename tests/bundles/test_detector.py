"""A detector is the mean of its blocks' energies, says where they are, and keeps to what it was calibrated for."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from energylm import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, span_lengths
from energylm.bundles.energy_model import EnergyModel
from energylm.config.texts import BlockConfig
from energylm.data.overlap import SeenTexts
from energylm.errors import DataError, ModelError
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
    assert "at most 0.05 of human texts like the 100 calibration texts of 8 tokens or more exceed" in human.reason
    assert "too few to tell whether this text is like them" in human.reason
    undecided = verdict(threshold=score + 0.1, scale=1.0, shift=-score + 1)
    assert undecided.verdict == "abstains" and "undecided" in undecided.reason and undecided.probability > 0.5
    short = verdict(shortest=1000)
    assert short.verdict == "abstains" and "fewer than the 1000 it was calibrated for" in short.reason
    assert short.probability is None and short.score == score
    empty = detector.predict([""])[0]
    assert empty.verdict == "abstains" and empty.score is None and empty.reason == "the text is empty"


def test_where_too_few_texts_promise_anything_it_abstains_and_lengths_together_are_named(energy):
    detector = Detector(energy, blocks=BLOCKS)
    score = detector.predict(TEXTS[:1])[0].score
    first = calibration(threshold=score - 0.1).spans[0]
    together = replace(first, promise="together", human=34, false_positive_upper=None)
    none = replace(first, promise="none", human=3, threshold=None, false_positive_rate=None, false_positive_upper=None)

    def verdict(*spans):
        detector.calibration = DetectorCalibration(spans, 0.05, "", ())
        return detector.predict(TEXTS[:1])[0]

    assert "the 34 calibration texts of all lengths together exceed" in verdict(together).reason
    both = verdict(replace(first, shortest=4), together)
    assert (
        both.verdict == "machine" and "34 calibration texts of lengths that few of them have, together" in both.reason
    )
    unknown = verdict(none)
    assert unknown.verdict == "abstains" and unknown.probability is None and unknown.threshold is None
    assert "too few texts of 8 tokens or more calibrated it for 0.05 false positives (3 with" in unknown.reason
    assert "19 are needed" in unknown.reason


def test_a_beginning_is_judged_only_by_a_calibration_on_beginnings(energy):
    """The score of a text's first tokens is none of a text that ends there."""
    detector = Detector(energy, blocks=BLOCKS, calibration=calibration(threshold=-9.0))
    assert detector.predict(TEXTS[:1])[0].verdict == "machine"
    cut = detector.predict(TEXTS[:1], max_tokens=20)[0]
    assert cut.verdict == "abstains" and "20 of" in cut.reason and "calibrated on whole texts" in cut.reason
    whole = detector.predict(TEXTS[3:], max_tokens=1000)[0]
    assert whole.verdict == "machine" and whole.tokens_used == whole.tokens
    detector.calibration = replace(detector.calibration, max_tokens=20)
    (of_itself,) = detector.predict(TEXTS[:1])
    assert of_itself.tokens_used == 20 < of_itself.tokens and of_itself.verdict == "machine"
    other = detector.predict(TEXTS[:1], max_tokens=12)[0]
    assert other.verdict == "abstains" and "calibrated on the first 20" in other.reason


def test_one_string_is_no_list_of_texts(energy):
    """Each character would be judged."""
    with pytest.raises(DataError, match=r"one string came where several texts are read; give a list: \[text\]"):
        Detector(energy, blocks=BLOCKS).predict(TEXTS[0])


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
        DetectorCalibration.read({"spans": []}, origin="x.json")
    with pytest.raises(ModelError, match="it is no model folder"):
        Detector.from_pretrained(tmp_path)


def test_a_calibration_of_an_earlier_version_is_refused_with_its_cure(energy, tmp_path):
    """Its thresholds came from whole texts and pieces, and kept no promise. Calibrating anew must be possible."""
    folder = tmp_path / "detector"
    Detector(energy, blocks=BLOCKS, calibration=calibration()).save_pretrained(folder)
    now = json.loads((folder / "calibration.json").read_text())
    assert now.pop("format") == 2
    earlier = {name: now[name] for name in ("spans", "asked_rate", "weights_sha256", "sources")}
    with pytest.raises(ModelError, match=r"earlier version, .* calibrate again: `energylm detect calibrate` with"):
        DetectorCalibration.read(earlier, origin="calibration.json")
    (folder / "calibration.json").unlink()
    assert Detector.from_pretrained(folder, calibrated=False).calibration is None


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
    with pytest.raises(ModelError, match=r"holds 96; give shorter blocks"):
        Detector(energy, blocks=BlockConfig())
