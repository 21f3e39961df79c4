"""Judge a detector on labelled texts: the work of `energylm detect eval`.

AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, with bootstrap intervals by text; the same for every
machine source, and for pieces of several lengths; its verdicts, and false positives beside what was promised for each
length; TF-IDF with logistic regression where training texts are given. Texts that the detector was trained on are found
by their hashes and said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.detector import Detector
from energylm.bundles.detector_results import Detection
from energylm.data.detection import HUMAN, MACHINE, DetectionData, Label, LabelledText, read_detection
from energylm.data.text_blocks import EncodedText
from energylm.data.text_overlap import SeenTexts
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.progress import say
from energylm.randomness import derive_seed
from energylm.records import LOCAL, Record
from energylm.report.report import write_report
from energylm.tables import Table
from energylm.verbs.detect.baseline import tfidf_scores
from energylm.verbs.detect.evaluate import EvaluateDetector
from energylm.verbs.detect.judging import detect
from energylm.verbs.detect.report import VerdictShares, evaluation_sections, measures_table

FEWEST_FOR_A_LENGTH = 10  # texts of each class


@dataclass(frozen=True)
class DetectorEvaluation(Record):
    detector: Discrimination
    baseline: Discrimination | None
    sources: dict[str, Discrimination]
    lengths: dict[int, Discrimination]
    verdicts: dict[str, VerdictShares]  # "human: FILE" or "machine: FILE" -> of its texts
    coverage: dict[int, VerdictShares]  # of human texts, by the shortest length of their span
    overlap: int  # texts that the detector was trained on
    left_out: int  # of those, without whom the numbers are
    false_positive_rate: float | None  # that the detector was calibrated for
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("verdict_percent",)

    @property
    def table(self) -> Table:
        return measures_table(self.overall | self.sources)

    @property
    def overall(self) -> dict[str, Discrimination]:
        return {"detector": self.detector} | ({} if self.baseline is None else {"TF-IDF": self.baseline})

    @property
    def verdict_percent(self) -> dict[Label, dict[str, float]]:
        """Per cent of all texts of a class, whatever their source."""
        return {label: self._percent(label) for label in (HUMAN, MACHINE)}

    def _percent(self, label: Label) -> dict[str, float]:
        of_class = [shares for name, shares in self.verdicts.items() if name.startswith(f"{label}: ")]
        texts = sum(shares.texts for shares in of_class)
        return {
            verdict: 100 * sum(shares.texts * getattr(shares, verdict) for shares in of_class) / texts
            for verdict in ("machine", "human", "abstains")
        }


def open_inputs(verb: EvaluateDetector) -> tuple[Detector, DetectionData, DetectionData | None]:
    """The detector, the texts to judge and those of the baseline, all checked."""
    data = read_detection(verb.data)
    data.require_both("an evaluation")
    train = None if verb.baseline_texts is None else read_detection(verb.baseline_texts)
    if train is not None:
        train.require_both("the TF-IDF baseline")
    say(data.describe())
    return Detector.from_pretrained(verb.detector), data, train


def evaluate(verb: EvaluateDetector, *, output: Path | None = None) -> DetectorEvaluation:
    """Measure; with `output` also write results.json, results.md, plots and report.html into that folder."""
    detector, data, train = open_inputs(verb)
    data, overlap, left_out = _without_overlap(data, _seen(detector, train), drop=verb.drop_overlap)
    detections = detect(detector, [text.text for text in data.texts])
    log_odds_N = np.array([np.nan if detection.log_odds is None else detection.log_odds for detection in detections])
    baseline = None
    if train is not None:
        scores_N = tfidf_scores(train.texts, [text.text for text in data.texts], seed=verb.seed)
        baseline = _measured(verb, data.texts, scores_N)
    result = DetectorEvaluation(
        detector=_measured(verb, data.texts, log_odds_N),
        baseline=baseline,
        sources=_by_source(verb, data.texts, log_odds_N),
        lengths=_by_length(verb, detector, data),
        verdicts=_verdicts(data.texts, detections),
        coverage=_coverage(detector, data.texts, detections),
        overlap=overlap,
        left_out=left_out,
        false_positive_rate=None if detector.calibration is None else detector.calibration.asked_rate,
    )
    if output is None:
        return result
    sections = evaluation_sections(
        about=_about(detector, data, overlap, left_out),
        overall=result.overall,
        sources=result.sources,
        verdicts=result.verdicts,
        calibration=detector.calibration,
        coverage=result.coverage,
        curve=result.lengths,
    )
    page = write_report(output, title=f"Detection by {detector.energy.name}", sections=sections)
    return replace(result, report=page)


def _seen(detector: Detector, train: DetectionData | None) -> SeenTexts | None:
    """What the detector was trained on, by its own sketch; for a plain energy, the training texts that were given."""
    if detector.seen is not None or train is None:
        return detector.seen
    return SeenTexts.of(text.text for text in train.texts)


def _without_overlap(data: DetectionData, seen: SeenTexts | None, *, drop: bool) -> tuple[DetectionData, int, int]:
    """The texts to judge, how many of them were trained on, and how many of those are left out."""
    known = [seen is not None and seen.has(text.text) for text in data.texts]
    count = sum(known)
    if not count:
        return data, 0, 0
    first = data.texts[known.index(True)].name
    say(
        f"{count:,} of {len(data.texts):,} test texts overlap the training texts (the first is {first}): "
        + ("they are left out" if drop else "these numbers are too good; --drop-overlap leaves them out")
    )
    if not drop:
        return data, count, 0
    kept = DetectionData(tuple(text for text, is_known in zip(data.texts, known, strict=True) if not is_known))
    kept.require_both("after the overlap was left out, an evaluation")
    return kept, count, count


def _measured(verb: EvaluateDetector, texts: Sequence[LabelledText], scores_N: NDArray[np.float64]) -> Discrimination:
    """Texts that belong together (an original and its sample) are resampled together."""
    finite = np.isfinite(scores_N)
    is_human = np.array([text.label == "human" for text in texts])
    groups = np.array([text.group for text in texts])
    human, machine = finite & is_human, finite & ~is_human
    return discrimination(
        scores_N[human],
        scores_N[machine],
        real_groups=groups[human],
        machine_groups=groups[machine],
        resamples=verb.resamples,
        seed=verb.seed,
    )


def _by_source(
    verb: EvaluateDetector, texts: Sequence[LabelledText], scores_N: NDArray[np.float64]
) -> dict[str, Discrimination]:
    """Each machine source against the human texts of its own file or, if that has none, against all."""
    by_source = {}
    for source in sorted({text.source for text in texts if text.label == "machine"}):
        has_humans = any(text.source == source and text.label == "human" for text in texts)
        chosen = [
            number
            for number, text in enumerate(texts)
            if text.source == source or (text.label == "human" and not has_humans)
        ]
        by_source[source] = _measured(verb, [texts[number] for number in chosen], scores_N[chosen])
    return by_source


def _by_length(verb: EvaluateDetector, detector: Detector, data: DetectionData) -> dict[int, Discrimination]:
    """At each length, a piece of that many tokens of every text that has as many."""
    if not verb.lengths:
        return {}
    classes = []
    for texts in (data.human, data.machine):
        evenly = np.linspace(0, len(texts) - 1, min(len(texts), verb.lengths_texts))
        classes.append(detector.reader.encode([texts[index].text for index in np.unique(evenly.round().astype(int))]))
    curve = {}
    for length in verb.lengths:
        seed = derive_seed(verb.seed, "cuts", length)
        pieces = [cut_texts(texts, length, seed=seed) for texts in classes]
        if min(map(len, pieces)) < FEWEST_FOR_A_LENGTH:
            continue
        human, machine = (detector.log_odds(detector.scores(part), [length] * len(part)) for part in pieces)
        curve[length] = discrimination(human, machine, resamples=verb.resamples, seed=verb.seed)
    return curve


def cut_texts(texts: Sequence[EncodedText], length: int, *, seed: int) -> list[EncodedText]:
    """Of each text that has so many tokens, a piece from a random token on."""
    rng = np.random.default_rng(seed)
    return [text.cut(int(rng.random() * (len(text) - length + 1)), length) for text in texts if len(text) >= length]


def _coverage(
    detector: Detector, texts: Sequence[LabelledText], detections: Sequence[Detection]
) -> dict[int, VerdictShares]:
    """Verdicts on human texts by span; too short ones are in the first, where the detector abstains on them."""
    by_span: dict[int, list[Detection]] = {}
    for text, detection in zip(texts, detections, strict=True):
        if detector.calibration is not None and text.label == HUMAN:
            by_span.setdefault(detector.calibration.at(detection.tokens_used).shortest, []).append(detection)
    return {shortest: VerdictShares.of(by_span[shortest]) for shortest in sorted(by_span)}


def _verdicts(texts: Sequence[LabelledText], detections: Sequence[Detection]) -> dict[str, VerdictShares]:
    by_source: dict[str, list[Detection]] = {}
    for text, detection in zip(texts, detections, strict=True):
        by_source.setdefault(f"{text.label}: {text.source}", []).append(detection)
    return {name: VerdictShares.of(by_source[name]) for name in sorted(by_source)}


def _about(detector: Detector, data: DetectionData, overlap: int, left_out: int) -> str:
    trained = ", ".join(detector.energy.provenance.get("sources", [])) or "unknown texts"
    said = f"The detector {detector.energy.name}, trained on {trained}, judges {data.describe()}."
    if overlap:
        fate = "they are left out" if left_out else "none of them is left out"
        said += f"\n\n{overlap:,} texts overlap its training texts; {fate}."
    return said
