"""Give a detector its probabilities and its threshold: the work of `energylm detect calibrate`.

A text calibrates the span of lengths (`bundles.detector_calibration`) that it falls into by itself, read as new texts
will be: whole, or its beginning (`max_tokens`). A piece cut from a long text scores otherwise than a short text, and a
threshold from pieces would keep no promise about texts. Human scores give the thresholds, both classes the probability.
Human text alone moves the thresholds of a detector that has been calibrated before, and leaves its probabilities.

Where texts are grouped (`--group`), a span's threshold is raised until each group with enough texts in it keeps the
rate. Where unlabelled texts of another place are given (`--like`), the human texts are weighted by how much likelier
they are there than here, judged by score, length and the cheap features of `TextRange`, or by the score alone where too
few texts here are like those there; both classes say what is likely here, so machine texts among the unlabelled ones do
not pass for a shift. With both options the higher threshold holds:
what is not among the features is likelier to lie within the spread of many groups.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energylm.bundles.detector import DEFAULT_FOLDER, Detector
from energylm.bundles.detector_calibration import (
    Covariates,
    DetectorCalibration,
    Promise,
    Shift,
    SpanCalibration,
    TextRange,
    span_lengths,
)
from energylm.bundles.known_models import model_of_run
from energylm.config.models import DEFAULT_DETECTOR
from energylm.data.detection import HUMAN, DetectionData, LabelledText, read_detection, read_unlabelled
from energylm.data.text_blocks import EncodedText
from energylm.errors import ConfigError, DataError
from energylm.estimators.false_positive_threshold import (
    GroupThresholds,
    ShiftedThreshold,
    ShiftWeights,
    false_positive_threshold,
    raised_for_groups,
    rates_by_group,
    shift_weights,
    shifted_threshold,
    texts_needed,
    thresholds_by_group,
)
from energylm.progress import say
from energylm.records import Record
from energylm.tables import Table
from energylm.training.calibration import Calibration, fit_calibration
from energylm.verbs.detect.detect import CalibrateDetector

FEWEST_TEXTS = 10  # of each class, below which a probability would be a guess
PROMISES = {
    "length": "texts of this length",
    "together": "with other rare lengths",
    "none": "none: it abstains",
    "shift": "texts like the unlabelled ones",
}


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
            + (f"; {self.calibration.shift}" if self.calibration.shift is not None else "")
            + "".join(f"; of the groups, {worst.group} has the most, {worst}" for worst in self.calibration.groups[:1])
        )

    @property
    def table(self) -> Table:
        return calibration_table(self.calibration)


def calibration_table(calibration: DetectorCalibration) -> Table:
    """A row a span: what is promised to human texts of this length, and how many texts it rests on. Then a row a group
    of its human texts, the worst first."""
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
        ]
        + [
            [f"group {rate.group}", "see its lengths", rate.texts, rate.share, rate.upper, None, None, None, None]
            for rate in calibration.groups
        ],
        convention=f"a new human text like the {'beginnings of ' if calibration.max_tokens else ''}texts of the "
        f"calibration scores above the threshold with the probability of false positives, at most "
        f"{calibration.asked_rate:.3g}, also over all lengths; 95 times in 100 these texts lead to a rate below the "
        f"next column; a text like them is taken for unlike and {refused}; log-odds of machine = scale · score + shift",
    )


def calibrate(verb: CalibrateDetector, *, output: Path | None = None) -> CalibrationResult:
    """Fit the calibration and put it into the detector's folder; with `output` into a copy's, and the detector stays as
    it is (in a recipe it is another step's product, known by a key that does not name this calibration)."""
    detector, data, new = open_inputs(verb, output=output)
    calibration = fit_detector(
        *(scored(detector, texts, max_tokens=verb.max_tokens) for texts in (data.human, data.machine)),
        new=scored(detector, new, max_tokens=verb.max_tokens) if new else None,
        block_tokens=detector.blocks.tokens,
        rate=verb.fpr,
        sources=sorted({text.source for text in data.texts}),
        max_tokens=verb.max_tokens,
        earlier=None if data.machine else detector.calibration,
    )
    folder = DEFAULT_FOLDER if verb.detector == DEFAULT_DETECTOR else Path(verb.detector)
    if output is not None:
        folder = shutil.copytree(model_of_run(folder), output / verb.product, dirs_exist_ok=True)
    saved = detector.save_calibration(folder, calibration)
    return CalibrationResult(folder, len(data.human), len(data.machine), saved)


def open_inputs(verb: CalibrateDetector, *, output: Path | None) -> tuple[Detector, DetectionData, list[LabelledText]]:
    """Check everything that can be checked without scoring a text: the detector, labelled texts, those without."""
    if verb.detector == DEFAULT_DETECTOR and output is None:
        raise ConfigError("the package's own detector stays as it is; give --output FOLDER for a copy of it")
    data = read_detection(verb.data)
    new = read_unlabelled(verb.like, form=verb.data.format, field=verb.data.field).texts
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
    say(data.describe() + (f"; {len(new):,} unlabelled ones of another place" if new else ""))
    return detector, data, [LabelledText(text, HUMAN, name, name) for name, text in new if text.strip()]


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
    groups: Sequence[str] = ()  # one a text, where the user groups them

    @classmethod
    def of(cls, detector: Detector, texts: Sequence[EncodedText]) -> "ScoredTexts":
        return cls(texts, detector.scores(texts))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) in tokens."""
        return np.array([len(text) for text in self.texts], dtype=np.int64)

    def span_numbers(self, shortest: Sequence[int]) -> NDArray[np.int64]:
        """(N,) the number of each text's span, which begin at so many tokens; −1: too short for any."""
        return np.searchsorted(np.array(shortest), self.lengths, side="right") - 1

    def in_spans(self, shortest: Sequence[int]) -> list[NDArray[np.float64]]:
        """The scores of the texts that fall into each span."""
        return [self.scores[self.span_numbers(shortest) == number] for number in range(len(shortest))]

    def where(self, kept_N: NDArray[np.bool_]) -> "ScoredTexts":
        """Those of the texts."""
        numbers = np.flatnonzero(kept_N).tolist()
        groups = [self.groups[number] for number in numbers] if self.groups else ()
        return ScoredTexts([self.texts[number] for number in numbers], self.scores[numbers], groups)


def scored(detector: Detector, texts: Sequence[LabelledText], *, max_tokens: int | None) -> ScoredTexts:
    """The texts that have tokens, as far as they are read, with their scores and groups."""
    read = _read(detector, texts, max_tokens=max_tokens)
    all_scored = ScoredTexts.of(detector, read)
    return replace(all_scored, groups=[text.subgroup for text in texts]).where(all_scored.lengths > 0)


def encoded(detector: Detector, texts: Sequence[LabelledText], *, max_tokens: int | None = None) -> list[EncodedText]:
    """The tokens of texts that have any, as far as they are read."""
    return [text for text in _read(detector, texts, max_tokens=max_tokens) if len(text)]


def _read(detector: Detector, texts: Sequence[LabelledText], *, max_tokens: int | None) -> list[EncodedText]:
    read = detector.reader.encode([text.text for text in texts])
    return [text if max_tokens is None else text.cut(0, max_tokens) for text in read]


def fit_detector(
    human: ScoredTexts,
    machine: ScoredTexts,
    *,
    block_tokens: int,
    rate: float,
    sources: Sequence[str],
    max_tokens: int | None = None,
    earlier: DetectorCalibration | None = None,
    new: ScoredTexts | None = None,
) -> DetectorCalibration:
    """The calibration on these texts. `earlier` gives the probabilities where no machine text came; `new` ones, without
    labels, are from the place that the threshold is for, if it is another."""
    shortest = span_lengths(block_tokens)
    human, machine = (texts.where(texts.lengths >= shortest[0]) for texts in (human, machine))
    human_S, machine_S = human.in_spans(shortest), machine.in_spans(shortest)
    enough, enough_machine = sum(map(len, human_S)), sum(map(len, machine_S))
    if enough < texts_needed(rate) or (earlier is None and min(enough, enough_machine) < FEWEST_TEXTS):
        raise DataError(
            f"too few texts: a false-positive rate of {rate:.3g} needs at least {texts_needed(rate):,} human texts of "
            f"{shortest[0]} tokens or more, came {enough:,}, and probabilities {FEWEST_TEXTS} of each class, came "
            f"{enough_machine:,} machine texts; add some, or ask for a higher rate"
        )
    spans_N = human.span_numbers(shortest)
    thresholds = _raised(thresholds_by_group(human.scores, spans_N.tolist(), rate), human, spans_N)
    text_range, shifted, by = TextRange.of(human.texts), None, None
    if new is not None:
        new = new.where(new.lengths >= shortest[0])
        shifted, by = _shifted(human, machine, new, text_range, rate)
        text_range = TextRange.of(new.texts)

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
    if shifted is not None:
        spans = [replace(span, **_of_shift(shifted)) for span in spans]
    limits_N = np.array([np.inf if spans[s].threshold is None else spans[s].threshold for s in spans_N])
    return DetectorCalibration(
        tuple(spans),
        rate,
        weights_sha256="",
        sources=tuple(sources),
        text_range=text_range,
        max_tokens=max_tokens,
        groups=rates_by_group(human.groups, (human.scores > limits_N).tolist()) if any(human.groups) else (),
        shift=None if shifted is None or by is None else Shift(shifted.new_texts, shifted.effective_texts, by),
    )


def _raised(thresholds: GroupThresholds, human: ScoredTexts, spans_N: NDArray[np.int64]) -> GroupThresholds:
    """With the rate kept within the user's groups, too, in each large span and in the small ones together."""
    if not any(human.groups):
        return thresholds
    raised = {}
    for number, threshold in thresholds.own.items():
        of_span = human.where(spans_N == number)
        raised[number] = raised_for_groups(threshold, of_span.scores, of_span.groups)
    rest = thresholds.rest
    if rest is not None:
        sizes = np.bincount(spans_N)
        small = human.where(sizes[spans_N] <= texts_needed(rest.asked_rate))
        rest = raised_for_groups(rest, small.scores, small.groups)
    return replace(thresholds, own=raised, rest=rest)


def _shifted(
    human: ScoredTexts, machine: ScoredTexts, new: ScoredTexts, text_range: TextRange | None, rate: float
) -> tuple[ShiftedThreshold, Covariates]:
    """The threshold for texts of the place that `new` ones are from, and what the weights come from: all that is
    measured, or, where texts here and there are too different for that, the score alone."""

    def features(texts: ScoredTexts, by: Covariates) -> NDArray[np.float64]:
        columns = [texts.scores[:, None]]
        if by == "all":
            columns.append(np.log(texts.lengths)[:, None])
            if text_range is not None and len(texts.texts):
                columns.append(np.stack([text_range.deviations(text) for text in texts.texts]))
        return np.concatenate(columns, axis=1)

    here = [texts for texts in (human, machine) if len(texts.texts)]
    choices: tuple[Covariates, ...] = ("all", "score")
    for by in choices:
        weights = shift_weights(np.concatenate([features(texts, by) for texts in here]), features(new, by))
        of_human = ShiftWeights(weights.calibration[: len(human.texts)], weights.new)
        shifted = shifted_threshold(human.scores, of_human, rate)
        if shifted.threshold is not None:
            break
    if shifted.threshold is None:
        raise DataError(
            f"the calibration texts do not carry to the {len(new.texts):,} new ones: weighted by these, "
            f"{len(human.texts):,} human texts count as {shifted.effective_texts:,.0f}, too few for a false-positive "
            f"rate of {rate:.3g}; add human texts like the new ones to --human, or ask for a higher rate"
        )
    if any(human.groups):
        of_groups = thresholds_by_group(human.scores, human.groups, rate).own.values()
        highest = max([shifted.threshold, *(group.threshold for group in of_groups)])
        shifted = replace(shifted, threshold=highest)
    return shifted, by


def _of_shift(shifted: ShiftedThreshold) -> dict[str, Any]:
    """What a span says of a threshold for another place."""
    return {
        "threshold": shifted.threshold,
        "false_positive_rate": shifted.asked_rate,
        "false_positive_upper": None,
        "human": shifted.texts,
        "promise": "shift",
    }


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
