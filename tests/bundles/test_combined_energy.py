"""Many features as one energy: the weighted sum by another route, folders, a range that is kept, and the detector that
comes with the package."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from energylm import Detector, LanguageModel
from energylm.bundles.combined_energy import ENCODER_FEATURE, CombinedEnergy, FeatureWeights
from energylm.bundles.detector import DEFAULT_FOLDER, _block_energy, provenance_note
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.model_folder import read_manifest
from energylm.bundles.zero_shot_energy import ZeroShotEnergy, text_statistics
from energylm.config.texts import BlockConfig
from energylm.contracts import SequenceEnergy
from energylm.errors import ModelError
from energylm.estimators.surprise_features import FEATURES, surprise_features

NAMES = ("log-rank", "curvature", "entropy 50% quantile")
WEIGHTS = FeatureWeights(
    features=NAMES,
    means=(1.0, 0.0, 2.0),
    spreads=(2.0, 1.0, 0.5),
    weights=(-1.0, 0.5, 0.25),
    bias=0.1,
    precision=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    limit=1e6,
    rate=0.02,
    texts=100,
)
TEXTS = [
    "The clerk counts the boats and a letter.",
    "A sailor mends a bridge. " * 6,
    "Our neighbour sells seven lamps.",
]


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


def test_energies_are_the_weighted_sum(lm):
    energy = CombinedEnergy(lm, WEIGHTS)
    assert isinstance(energy, SequenceEnergy)
    energies = energy.text_energies(TEXTS)
    for text, value in zip(TEXTS, energies.tolist(), strict=True):
        ids = torch.tensor([lm.encode(text)])
        features = surprise_features(text_statistics(lm, ids, torch.tensor([ids.shape[1]])))[0]
        rank, curve, middle = (float(features[FEATURES.index(name)]) for name in NAMES)
        expected = -(rank - 1) / 2 + 0.5 * curve + 0.25 * (middle - 2) / 0.5 + 0.1
        assert value == pytest.approx(expected, abs=1e-4)
        assert value != pytest.approx((rank - 1) / 2 + 0.5 * curve + 0.5 * (middle - 2) + 0.1, abs=1e-3)  # teeth
    ids, lengths = energy.encode_texts(TEXTS)
    _, strangeness = energy.energies_and_strangeness(ids, lengths)
    assert torch.allclose(strangeness**2 * 3, torch.tensor(_squares(lm)), atol=1e-3)


def _squares(lm):
    ids, lengths = CombinedEnergy(lm, WEIGHTS).encode_texts(TEXTS)
    features = surprise_features(text_statistics(lm, ids, lengths)).numpy()
    columns = [FEATURES.index(name) for name in NAMES]
    return (((features[:, columns] - np.array(WEIGHTS.means)) / np.array(WEIGHTS.spreads)) ** 2).sum(1)


def calibration():
    span = SpanCalibration(4, 1.0, 0.0, -100.0, 0.05, 0.1, 100, 100)
    return DetectorCalibration((span,), 0.05, weights_sha256="", sources=("made up",), max_tokens=64)


def test_a_detector_of_it_abstains_out_of_range_and_comes_back_from_its_folder(lm, tmp_path):
    blocks = BlockConfig(tokens=64)
    detector = Detector(CombinedEnergy(lm, WEIGHTS, provenance={"texts": 7}), blocks=blocks, calibration=calibration())
    assert {each.verdict for each in detector.predict(TEXTS)} == {"machine"}
    detector.save_pretrained(tmp_path / "d")
    again = Detector.from_pretrained(tmp_path / "d")
    assert isinstance(again.energy, CombinedEnergy) and again.energy.weights == WEIGHTS
    assert [each.score for each in again.predict(TEXTS)] == [each.score for each in detector.predict(TEXTS)]
    assert {each.verdict for each in again.predict(TEXTS)} == {"machine"}
    strict = Detector(CombinedEnergy(lm, replace(WEIGHTS, limit=1e-6)), blocks=blocks, calibration=calibration())
    strange = strict.predict(TEXTS)
    assert all(each.verdict == "abstains" and each.probability is None for each in strange)
    assert "unlike that at any training text" in strange[0].reason
    file = tmp_path / "d" / "weights.json"
    file.write_text(file.read_text().replace("-1.0", "-2.0"))
    with pytest.raises(ModelError, match="is damaged"):
        Detector.from_pretrained(tmp_path / "d")


def test_an_encoder_is_a_feature_of_its_own(lm, bert_folder, tmp_path):
    encoder = Detector(EnergyModel.from_encoder(bert_folder, reads="text"), blocks=BlockConfig(tokens=16))
    weights = replace(
        WEIGHTS, features=(ENCODER_FEATURE,), means=(0.0,), spreads=(1.0,), weights=(2.0,), precision=((1.0,),)
    )
    with pytest.raises(ModelError, match="no encoder came"):
        CombinedEnergy(lm, weights)
    energy = CombinedEnergy(lm, weights, encoder=encoder)
    read = [lm.decode(lm.encode(text)) for text in TEXTS]
    expected = 2 * encoder.scores(encoder.reader.encode(read)) + 0.1
    assert np.allclose(energy.text_energies(TEXTS).numpy(), expected, atol=1e-5)
    energy.save_pretrained(tmp_path / "e")
    again = CombinedEnergy.from_pretrained(tmp_path / "e")
    assert np.allclose(again.text_energies(TEXTS).numpy(), expected, atol=1e-5)


def test_a_zero_shot_score_is_a_detector_too(lm, tmp_path):
    ZeroShotEnergy(lm, "curvature").save_pretrained(tmp_path / "z")
    detector = Detector.from_pretrained(tmp_path / "z", blocks=BlockConfig(tokens=64))
    (judged,) = detector.predict(TEXTS[:1])
    assert judged.score == pytest.approx(float(ZeroShotEnergy(lm, "curvature").text_energies(TEXTS[:1])[0]))
    assert judged.verdict == "abstains" and "not calibrated" in judged.reason
    assert isinstance(_block_energy(tmp_path / "z", device=None), ZeroShotEnergy)


def test_the_detector_that_comes_with_the_package_is_whole():
    """Weights, calibration and provenance fit together; the language model itself is no part of the package."""
    manifest = read_manifest(DEFAULT_FOLDER)  # compares hashes
    weights = FeatureWeights.from_json(json.loads((DEFAULT_FOLDER / "weights.json").read_text()))
    assert (
        set(weights.features) <= set(FEATURES) and weights.rate <= 0.05 and manifest["known_models"] == ["smollm2-135m"]
    )
    assert np.allclose(np.array(weights.precision), np.array(weights.precision).T)
    assert (np.linalg.eigvalsh(np.array(weights.precision)) > 0).all()
    calibration = DetectorCalibration.read(
        json.loads((DEFAULT_FOLDER / "calibration.json").read_text()), origin="the package"
    )
    assert calibration.asked_rate == 0.05 and any(span.threshold is not None for span in calibration.spans)
    note = provenance_note(DEFAULT_FOLDER)
    assert f"{manifest['provenance']['texts']:,} English texts" in note and "calibrate it on your own" in note
    size = sum(file.stat().st_size for file in DEFAULT_FOLDER.iterdir())
    assert size < 1 << 20
