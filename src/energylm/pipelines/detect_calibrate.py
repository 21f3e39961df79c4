"""Give a detector its probabilities and its threshold: `energylm detect calibrate`.

For each span of lengths (`bundles.detector_calibration`) every text that reaches it is read once at a length of that
span: as it is, or a piece of it cut at a random place. Human scores give the threshold, both classes the probability.
Human text alone moves the threshold of a detector that has been calibrated before, and leaves its probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, span_lengths
from energylm.config.detect import DetectCalibrateConfig
from energylm.data.detection import DetectionData, LabelledText, read_detection
from energylm.data.text_blocks import EncodedText
from energylm.errors import DataError
from energylm.estimators.false_positive_threshold import false_positive_threshold, texts_needed
from energylm.progress import say
from energylm.randomness import derive_seed
from energylm.training.calibration import fit_calibration

FEWEST_MACHINE_TEXTS = 10  # below, a probability would be a guess


@dataclass(frozen=True)
class CalibrationRun:
    folder: Path
    calibration: DetectorCalibration
    human: int
    machine: int

    def to_json(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "human": self.human, "machine": self.machine, **self.calibration.to_json()}

    def summary(self) -> str:
        spans = self.calibration.spans
        return (
            f"calibrated on {self.human:,} human and {self.machine:,} machine texts for a false-positive rate of "
            f"{self.calibration.asked_rate:.3g} (expected {spans[-1].false_positive_rate:.3g}, below "
            f"{spans[-1].false_positive_upper:.3g} with 95 % confidence); lengths from {spans[0].shortest} tokens on, "
            f"in {len(spans)} spans"
        )


def calibrate(config: DetectCalibrateConfig) -> CalibrationRun:
    """Fit the calibration and put it into the detector's folder."""
    detector, data = open_inputs(config)
    earlier = None if data.machine else detector.calibration
    calibration = fit_detector(
        detector,
        scored(detector, encoded(detector, data.human)),
        scored(detector, encoded(detector, data.machine)),
        rate=config.false_positive_rate,
        sources=sorted({text.source for text in data.texts}),
        seed=config.seed,
        earlier=earlier,
    )
    kept = detector.save_calibration(config.detector, calibration)
    return CalibrationRun(Path(config.detector), kept, len(data.human), len(data.machine))


def open_inputs(config: DetectCalibrateConfig) -> tuple[Detector, DetectionData]:
    """Check everything that can be checked without scoring a text."""
    data = read_detection(config.data)
    needed = texts_needed(config.false_positive_rate)
    if len(data.human) < needed:
        false_positive_threshold(np.zeros(len(data.human)), config.false_positive_rate)  # says how many are needed
    detector = Detector.from_pretrained(config.detector, blocks=config.blocks)
    if not data.machine and detector.calibration is None:
        raise DataError(
            "one class only: the first calibration of a detector needs machine texts too, for its probabilities; "
            "add --machine PATH"
        )
    if 0 < len(data.machine) < FEWEST_MACHINE_TEXTS:
        raise DataError(
            f"{len(data.machine)} machine texts came, a calibration of probabilities needs at least "
            f"{FEWEST_MACHINE_TEXTS}; add some, or give human text alone to set the threshold only"
        )
    if detector.seen is not None and (known := sum(detector.seen.has(text.text) for text in data.texts)):
        say(
            f"{known:,} of {len(data.texts):,} texts were trained on: their scores are too good, so the threshold will "
            "be too low for new texts; calibrate on others"
        )
    say(data.describe())
    return detector, data


@dataclass(frozen=True)
class ScoredTexts:
    texts: Sequence[EncodedText]
    scores: NDArray[np.float64]  # of the whole texts


def scored(detector: Detector, texts: Sequence[EncodedText]) -> ScoredTexts:
    return ScoredTexts(texts, detector.scores(texts))


def encoded(detector: Detector, texts: Sequence[LabelledText]) -> list[EncodedText]:
    """The tokens of texts that have any."""
    return [text for text in detector.reader.encode([text.text for text in texts]) if len(text)]


def fit_detector(
    detector: Detector,
    human: ScoredTexts,
    machine: ScoredTexts,
    *,
    rate: float,
    sources: Sequence[str],
    seed: int = 0,
    earlier: DetectorCalibration | None = None,
) -> DetectorCalibration:
    """The calibration on these texts. `earlier` gives the probabilities where no machine text came."""
    lengths = span_lengths(detector.blocks.tokens)
    spans = []
    for number, shortest in enumerate(lengths):
        longest = lengths[number + 1] - 1 if number + 1 < len(lengths) else round(1.5 * shortest)
        human_N = _span_scores(detector, human, shortest, longest, seed=derive_seed(seed, "human", number))
        machine_M = _span_scores(detector, machine, shortest, longest, seed=derive_seed(seed, "machine", number))
        if len(human_N) < texts_needed(rate) or (earlier is None and len(machine_M) < FEWEST_MACHINE_TEXTS):
            continue
        if earlier is not None:
            before = earlier.at(shortest)
            scale, shift, machines = before.scale, before.shift, before.machine
        else:
            fitted = fit_calibration(torch.from_numpy(human_N), torch.from_numpy(machine_M)[None])
            scale, shift, machines = fitted.scale, fitted.shift, len(machine_M)
            if not fitted.is_informative:
                say(f"from {shortest} tokens on: its scores do not tell machine from human text here")
        found = false_positive_threshold(human_N, rate)
        spans.append(
            SpanCalibration(
                shortest=shortest,
                scale=scale,
                shift=shift,
                threshold=found.threshold,
                false_positive_rate=found.expected_rate,
                false_positive_upper=found.upper_95,
                human=found.texts,
                machine=machines,
            )
        )
    if not spans:
        raise DataError(
            f"too few texts: a false-positive rate of {rate:.3g} needs at least {texts_needed(rate):,} human texts of "
            f"{lengths[0]} tokens or more, came {sum(len(text) >= lengths[0] for text in human.texts):,} "
            f"(and {FEWEST_MACHINE_TEXTS} machine texts of that length); add some, or ask for a higher rate"
        )
    return DetectorCalibration(tuple(spans), rate, weights_sha256="", sources=tuple(sources))


def _span_scores(
    detector: Detector, whole: ScoredTexts, shortest: int, longest: int, *, seed: int
) -> NDArray[np.float64]:
    """(N,) scores of the texts that reach `shortest` tokens, longer ones cut to a length of the span."""
    lengths_N = np.array([len(text) for text in whole.texts], dtype=np.int64)
    cut = cut_texts([text for text in whole.texts if len(text) > longest], shortest, longest, seed=seed)
    as_they_are = whole.scores[(lengths_N >= shortest) & (lengths_N <= longest)]
    return np.concatenate([as_they_are, detector.scores(cut)])


def cut_texts(texts: Sequence[EncodedText], shortest: int, longest: int, *, seed: int) -> list[EncodedText]:
    """Texts of at least `shortest` tokens; of those above `longest` a piece at a random place, of random length."""
    rng = np.random.default_rng(seed)
    pieces = []
    for text in texts:
        length_uniform, place_uniform = rng.random(2)
        if len(text) > longest:
            length = shortest + int(length_uniform * (longest - shortest + 1))
            text = text.cut(int(place_uniform * (len(text) - length + 1)), length)
        if len(text) >= shortest:
            pieces.append(text)
    return pieces
