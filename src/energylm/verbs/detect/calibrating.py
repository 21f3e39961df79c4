"""Give a detector its probabilities and its threshold: the work of `energylm detect calibrate`.

A text calibrates the span of lengths (`bundles.detector_calibration`) that it falls into by itself, read as new texts
will be: whole, or its beginning (`max_tokens`). A piece cut from a long text scores otherwise than a short text, and a
threshold from pieces would keep no promise about texts. Human scores give the thresholds, both classes the probability.
Human text alone moves the thresholds of a detector that has been calibrated before, and leaves its probabilities.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, Promise, SpanCalibration, TextRange, span_lengths
from energylm.bundles.known_models import model_of_run
from energylm.data.detection import DetectionData, LabelledText, read_detection
from energylm.data.text_blocks import EncodedText
from energylm.errors import ConfigError, DataError
from energylm.estimators.false_positive_threshold import (
    GroupThresholds,
    false_positive_threshold,
    texts_needed,
    thresholds_by_group,
)
from energylm.progress import say
from energylm.records import Record
from energylm.tables import Table
from energylm.training.calibration import Calibration, fit_calibration
from energylm.verbs.detect.detect import CalibrateDetector

FEWEST_TEXTS = 10  # of each class, below which a probability would be a guess
PROMISES = {"length": "texts of this length", "together": "with other rare lengths", "none": "none: it abstains"}


@dataclass(frozen=True)
class CalibrationResult(Record):
    folder: Path
    human: int  # texts
    machine: int
    calibration: DetectorCalibration

    def summary(self) -> str:
        checked = self.calibration.text_range
        return (
            f"calibrated on {self.human:,} human and {self.machine:,} machine texts for a false-positive rate of "
            f"{self.calibration.asked_rate:.3g} over human texts like these, from {self.calibration.shortest} tokens on"
            + ("; whether a text is like these is not checked: too few" if checked is None else "")
        )

    @property
    def table(self) -> Table:
        return calibration_table(self.calibration)


def calibration_table(calibration: DetectorCalibration) -> Table:
    """A row a span: what is promised to human texts of this length, and how many texts it rests on."""
    checked = calibration.text_range
    refused = "not checked (too few texts)" if checked is None else f"refused with probability {checked.rate:.3g}"
    return Table(
        ["length", "promise for", "human", "false positives", "below (95 %)", "threshold", "machine", "scale", "shift"],
        [
            [
                calibration.lengths(span),
                PROMISES[span.promise],
                span.human,
                span.false_positive_rate,
                span.false_positive_upper,
                span.threshold,
                span.machine,
                span.scale,
                span.shift,
            ]
            for span in calibration.spans
        ],
        convention=f"a new human text like the {'beginnings of ' if calibration.max_tokens else ''}texts of the "
        f"calibration scores above the threshold with the probability of false positives, at most "
        f"{calibration.asked_rate:.3g}, also over all lengths; 95 times in 100 these texts lead to a rate below the "
        f"next column; a text like them is taken for unlike and {refused}; log-odds of machine = scale · score + shift",
    )


def calibrate(verb: CalibrateDetector, *, output: Path | None = None) -> CalibrationResult:
    """Fit the calibration and put it into the detector's folder; with `output` into a copy's, and the detector stays as
    it is (in a recipe it is another step's product, known by a key that does not name this calibration)."""
    detector, data = open_inputs(verb)
    calibration = fit_detector(
        *(
            ScoredTexts.of(detector, encoded(detector, texts, max_tokens=verb.max_tokens))
            for texts in (data.human, data.machine)
        ),
        block_tokens=detector.blocks.tokens,
        rate=verb.fpr,
        sources=sorted({text.source for text in data.texts}),
        max_tokens=verb.max_tokens,
        earlier=None if data.machine else detector.calibration,
    )
    folder = Path(verb.detector)
    if output is not None:
        folder = shutil.copytree(model_of_run(folder), output / verb.product, dirs_exist_ok=True)
    saved = detector.save_calibration(folder, calibration)
    return CalibrationResult(folder, len(data.human), len(data.machine), saved)


def open_inputs(verb: CalibrateDetector) -> tuple[Detector, DetectionData]:
    """Check everything that can be checked without scoring a text."""
    data = read_detection(verb.data)
    if len(data.human) < texts_needed(verb.fpr):
        false_positive_threshold(np.zeros(len(data.human)), verb.fpr)  # says how many are needed
    detector = open_detector(verb.detector, blocks=verb.text_blocks, calibrated=not data.machine)
    if not data.machine and detector.calibration is None:
        raise DataError(
            "one class only: the first calibration of a detector needs machine texts too, for its probabilities; "
            "add --machine PATH"
        )
    if 0 < len(data.machine) < FEWEST_TEXTS:
        raise DataError(
            f"{len(data.machine)} machine texts came, a calibration of probabilities needs at least "
            f"{FEWEST_TEXTS}; add some, or give human text alone to set the threshold only"
        )
    if detector.seen is not None and (learnt := sum(detector.seen.has(text.text) for text in data.texts)):
        say(
            f"{learnt:,} of {len(data.texts):,} texts were trained on: their scores are too good, so the threshold "
            "will be too low for new texts; calibrate on others"
        )
    say(data.describe())
    return detector, data


def open_detector(name: str, **options: Any) -> Detector:
    """A detector whose scores can be asked for, and not its verdicts alone."""
    detector: Any = Detector.from_pretrained(name, **options)
    if not isinstance(detector, Detector):
        raise ConfigError(f"{name} ({type(detector).__name__}) only predicts; use it with `energylm detect run`")
    return detector


@dataclass(frozen=True)
class ScoredTexts:
    texts: Sequence[EncodedText]
    scores: NDArray[np.float64]

    @classmethod
    def of(cls, detector: Detector, texts: Sequence[EncodedText]) -> "ScoredTexts":
        return cls(texts, detector.scores(texts))

    def in_spans(self, shortest: Sequence[int]) -> list[NDArray[np.float64]]:
        """The scores of the texts that fall into each span, which begin at so many tokens."""
        lengths_N = np.array([len(text) for text in self.texts], dtype=np.int64)
        spans_N = np.searchsorted(np.array(shortest), lengths_N, side="right") - 1  # -1: too short for any
        return [self.scores[spans_N == number] for number in range(len(shortest))]


def encoded(detector: Detector, texts: Sequence[LabelledText], *, max_tokens: int | None = None) -> list[EncodedText]:
    """The tokens of texts that have any, as far as they are read."""
    read = detector.reader.encode([text.text for text in texts])
    return [text if max_tokens is None else text.cut(0, max_tokens) for text in read if len(text)]


def fit_detector(
    human: ScoredTexts,
    machine: ScoredTexts,
    *,
    block_tokens: int,
    rate: float,
    sources: Sequence[str],
    max_tokens: int | None = None,
    earlier: DetectorCalibration | None = None,
) -> DetectorCalibration:
    """The calibration on these texts. `earlier` gives the probabilities where no machine text came."""
    shortest = span_lengths(block_tokens)
    human_S, machine_S = human.in_spans(shortest), machine.in_spans(shortest)
    enough, enough_machine = sum(map(len, human_S)), sum(map(len, machine_S))
    if enough < texts_needed(rate) or (earlier is None and min(enough, enough_machine) < FEWEST_TEXTS):
        raise DataError(
            f"too few texts: a false-positive rate of {rate:.3g} needs at least {texts_needed(rate):,} human texts of "
            f"{shortest[0]} tokens or more, came {enough:,}, and probabilities {FEWEST_TEXTS} of each class, came "
            f"{enough_machine:,} machine texts; add some, or ask for a higher rate"
        )
    groups = [number for number, of_span in enumerate(human_S) for _ in of_span]
    thresholds = thresholds_by_group(np.concatenate(human_S), groups, rate)

    @cache
    def of_all_lengths() -> Calibration:
        return _probability(np.concatenate(human_S), np.concatenate(machine_S))

    spans = []
    for number, tokens in enumerate(shortest):
        if earlier is not None:
            before = earlier.at(tokens)
            log_odds, machines = Calibration(before.scale, before.shift), before.machine
        elif min(len(human_S[number]), len(machine_S[number])) >= FEWEST_TEXTS:
            log_odds, machines = _probability(human_S[number], machine_S[number]), len(machine_S[number])
        else:
            log_odds, machines = of_all_lengths(), enough_machine
        spans.append(_span(tokens, thresholds, number, log_odds, machines))
    return DetectorCalibration(
        tuple(spans),
        rate,
        weights_sha256="",
        sources=tuple(sources),
        text_range=TextRange.of([text for text in human.texts if len(text) >= shortest[0]]),
        max_tokens=max_tokens,
    )


def _probability(human_N: NDArray[np.float64], machine_M: NDArray[np.float64]) -> Calibration:
    return fit_calibration(torch.from_numpy(human_N), torch.from_numpy(machine_M)[None])


def _span(
    tokens: int, thresholds: GroupThresholds, number: int, log_odds: Calibration, machines: int
) -> SpanCalibration:
    own = thresholds.of(number)
    promise: Promise = "none" if own is None else "length" if number in thresholds.own else "together"
    if not log_odds.is_informative:
        say(f"from {tokens} tokens on: its scores do not tell machine from human text here")
    return SpanCalibration(
        shortest=tokens,
        scale=log_odds.scale,
        shift=log_odds.shift,
        threshold=None if own is None else own.threshold,
        false_positive_rate=None if own is None else own.expected_rate,
        false_positive_upper=own.upper_95 if own is not None and promise == "length" else None,
        human=thresholds.rest_texts if own is None else own.texts,
        machine=machines,
        promise=promise,
    )
