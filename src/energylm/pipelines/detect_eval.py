"""Judge a detector on labelled texts: `energylm detect eval`.

AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, with bootstrap intervals by text; the same for every
machine source, and for pieces of several lengths; its verdicts, and false positives beside what was promised for each
length; TF-IDF with logistic regression where training texts are given. Texts that the detector was trained on are found
by their hashes and said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from energylm.bundles.detector import Detector
from energylm.bundles.detector_results import Detection
from energylm.config.detect import DetectEvalConfig
from energylm.data.detection import DetectionData, LabelledText, read_detection
from energylm.data.text_blocks import EncodedText
from energylm.data.text_overlap import SeenTexts
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.evaluation.detector_baseline import tfidf_scores
from energylm.evaluation.detector_report import Verdicts, evaluation_sections, measures_table
from energylm.pipelines.detect_run import detections
from energylm.progress import say
from energylm.randomness import derive_seed
from energylm.report.report import write_report
from energylm.tables import Table

FEWEST_FOR_A_LENGTH = 10  # texts of each class


@dataclass(frozen=True)
class DetectEvalRun:
    detector: Discrimination
    baseline: Discrimination | None
    sources: dict[str, Discrimination]
    lengths: dict[int, Discrimination]
    verdicts: dict[str, Verdicts]
    coverage: dict[int, Verdicts]  # of human texts, by the shortest length of their span
    overlap: int  # texts that the detector was trained on
    left_out: int  # of those, without whom the numbers are
    asked_rate: float | None
    report: Path | None = None

    @property
    def table(self) -> Table:
        rows = {"detector": self.detector}
        if self.baseline is not None:
            rows["TF-IDF"] = self.baseline
        return measures_table(rows | self.sources)

    def to_json(self) -> dict[str, Any]:
        return {
            "detector": self.detector.to_json(),
            "baseline": self.baseline.to_json() if self.baseline is not None else None,
            "sources": {name: measured.to_json() for name, measured in self.sources.items()},
            "lengths": {str(length): measured.to_json() for length, measured in self.lengths.items()},
            "verdicts": {name: shares.to_json() for name, shares in self.verdicts.items()},
            "coverage": {str(shortest): shares.to_json() for shortest, shares in self.coverage.items()},
            "overlap": self.overlap,
            "left_out": self.left_out,
            "false_positive_rate": self.asked_rate,
        }


def open_inputs(config: DetectEvalConfig) -> tuple[Detector, DetectionData, DetectionData | None]:
    """The detector, the texts to judge and those of the baseline, all checked."""
    data = read_detection(config.data)
    data.require_both("an evaluation")
    train = None if config.train.is_empty else read_detection(config.train)
    if train is not None:
        train.require_both("the TF-IDF baseline")
    say(data.describe())
    return Detector.from_pretrained(config.detector), data, train


def evaluate(config: DetectEvalConfig, *, output: Path | None = None) -> DetectEvalRun:
    """Measure; with `output` also write results.json, results.md, plots and report.html into that folder."""
    detector, data, train = open_inputs(config)
    seen = _seen(detector, train)
    data, overlap, left_out = _without_overlap(data, seen, drop=config.drop_overlap)
    found = detections(detector, [text.text for text in data.texts])
    log_odds = np.array([np.nan if one.log_odds is None else one.log_odds for one in found])
    baseline = None
    if train is not None:
        scores = tfidf_scores(train.texts, [text.text for text in data.texts], seed=config.seed)
        baseline = _measured(config, data.texts, scores)
    run = DetectEvalRun(
        detector=_measured(config, data.texts, log_odds),
        baseline=baseline,
        sources=_by_source(config, data.texts, log_odds),
        lengths=_by_length(config, detector, data),
        verdicts=_verdicts(data.texts, found),
        coverage=_coverage(detector, data.texts, found),
        overlap=overlap,
        left_out=left_out,
        asked_rate=detector.calibration.asked_rate if detector.calibration is not None else None,
    )
    if output is None:
        return run
    overall = {"detector": run.detector} | ({"TF-IDF": run.baseline} if run.baseline is not None else {})
    page = write_report(
        output,
        title=f"Detection by {detector.energy.name}",
        sections=evaluation_sections(
            about=_about(detector, data, overlap, left_out),
            overall=overall,
            sources=run.sources,
            verdicts=run.verdicts,
            calibration=detector.calibration,
            coverage=run.coverage,
            curve=run.lengths,
        ),
    )
    return replace(run, report=page)


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


def _measured(config: DetectEvalConfig, texts: Sequence[LabelledText], scores: np.ndarray) -> Discrimination:
    """Texts that belong together (an original and its sample) are resampled together."""
    finite = np.isfinite(scores)
    is_human = np.array([text.label == "human" for text in texts])
    groups = np.array([text.group for text in texts])
    human, machine = finite & is_human, finite & ~is_human
    return discrimination(
        scores[human],
        scores[machine],
        real_groups=groups[human],
        machine_groups=groups[machine],
        resamples=config.resamples,
        seed=config.seed,
    )


def _by_source(
    config: DetectEvalConfig, texts: Sequence[LabelledText], scores: np.ndarray
) -> dict[str, Discrimination]:
    """Each machine source against the human texts of its own file or, if that has none, against all."""
    found = {}
    for source in sorted({text.source for text in texts if text.label == "machine"}):
        has_humans = any(text.source == source and text.label == "human" for text in texts)
        chosen = [
            number
            for number, text in enumerate(texts)
            if text.source == source or (text.label == "human" and not has_humans)
        ]
        found[source] = _measured(config, [texts[number] for number in chosen], scores[chosen])
    return found


def _by_length(config: DetectEvalConfig, detector: Detector, data: DetectionData) -> dict[int, Discrimination]:
    """At each length, a piece of that many tokens of every text that has as many."""
    if not config.lengths:
        return {}
    classes = []
    for texts in (data.human, data.machine):
        places = np.unique(np.linspace(0, len(texts) - 1, min(len(texts), config.lengths_texts)).round().astype(int))
        classes.append(detector.reader.encode([texts[place].text for place in places]))
    curve = {}
    for length in config.lengths:
        seed = derive_seed(config.seed, "cuts", length)
        pieces = [cut_texts(texts, length, seed=seed) for texts in classes]
        if min(map(len, pieces)) < FEWEST_FOR_A_LENGTH:
            continue
        human, machine = (detector.log_odds(detector.scores(part), [length] * len(part)) for part in pieces)
        curve[length] = discrimination(human, machine, resamples=config.resamples, seed=config.seed)
    return curve


def cut_texts(texts: Sequence[EncodedText], length: int, *, seed: int) -> list[EncodedText]:
    """Of each text that has so many tokens, a piece at a random place."""
    rng = np.random.default_rng(seed)
    return [text.cut(int(rng.random() * (len(text) - length + 1)), length) for text in texts if len(text) >= length]


def _coverage(detector: Detector, texts: Sequence[LabelledText], found: Sequence[Detection]) -> dict[int, Verdicts]:
    """Verdicts on human texts by span; too short ones are in the first, where the detector abstains on them."""
    by_span: dict[int, list[Detection]] = {}
    for text, one in zip(texts, found, strict=True):
        if detector.calibration is not None and text.label == "human":
            by_span.setdefault(detector.calibration.at(one.tokens_used).shortest, []).append(one)
    return {shortest: Verdicts.of(by_span[shortest]) for shortest in sorted(by_span)}


def _verdicts(texts: Sequence[LabelledText], found: Sequence[Detection]) -> dict[str, Verdicts]:
    by_source: dict[str, list[Detection]] = {}
    for text, one in zip(texts, found, strict=True):
        by_source.setdefault(f"{text.label}: {text.source}", []).append(one)
    return {name: Verdicts.of(by_source[name]) for name in sorted(by_source)}


def _about(detector: Detector, data: DetectionData, overlap: int, left_out: int) -> str:
    trained = ", ".join(detector.energy.provenance.get("sources", [])) or "unknown texts"
    said = f"The detector {detector.energy.name}, trained on {trained}, judges {data.describe()}."
    if overlap:
        fate = "they are left out" if left_out else "none of them is left out"
        said += f"\n\n{overlap:,} texts overlap its training texts; {fate}."
    return said
