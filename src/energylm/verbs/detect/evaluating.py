"""Judge a detector on labelled texts: the work of `energylm detect eval`.

AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, with bootstrap intervals by text; the same for every
machine source, and for pieces of several lengths; its verdicts, and false positives beside what was promised for each
length; TF-IDF with logistic regression where training texts are given. Texts that the detector was trained on are found
by their hashes and said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.detector import Detection, Detector
from energylm.bundles.detector_calibration import DetectorCalibration
from energylm.config.vocabulary import LANGUAGE_MODEL
from energylm.data.detection import HUMAN, MACHINE, DetectionData, Label, LabelledText, read_detection
from energylm.data.document import split_of
from energylm.data.overlap import SeenTexts
from energylm.data.text_blocks import EncodedText
from energylm.errors import ConfigError, extra
from energylm.estimators.discrimination import FALSE_POSITIVE_RATES, Discrimination, discrimination
from energylm.estimators.false_positive_threshold import GroupRate, rates_by_group, texts_needed
from energylm.progress import say
from energylm.randomness import derive_seed
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.verbs.detect.calibrating import PROMISES, open_detector
from energylm.verbs.detect.detect import EvaluateDetector
from energylm.verbs.detect.judging import detect

FEWEST_FOR_A_LENGTH = 10  # texts of each class
CONVENTION = (
    "higher score = machine; 95 % bootstrap intervals by text; balanced accuracy at even odds; TPR = share of machine "
    "texts found where 1 % or 5 % of these human texts are called machine, where they are enough to show that"
)
COLUMN_TOKENS = 256  # of each text that a language model reads for the columns beside TF-IDF
TFIDF_FEATURES = 1 << 18
TFIDF_STRENGTHS = (0.25, 1.0, 4.0, 16.0, 64.0)  # inverse of L2; Radford & Wu search 1/64 … 64
TFIDF_HELD_OUT = 0.2


@dataclass(frozen=True)
class VerdictShares(Record):
    """Shares of the texts of one class."""

    texts: int
    machine: float
    human: float
    abstains: float

    @classmethod
    def of(cls, detections: Sequence[Detection]) -> "VerdictShares":
        count = max(len(detections), 1)
        shares = {
            verdict: sum(detection.verdict == verdict for detection in detections) / count
            for verdict in ("machine", "human", "abstains")
        }
        return cls(len(detections), **shares)


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
    groups: tuple[GroupRate, ...] = ()  # human texts called machine, by what the user groups them by; the worst first
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("verdict_percent",)

    @property
    def table(self) -> Table:
        return measures_table(self.overall | self.sources)

    def plot(self) -> LinePlot:
        """Accuracy and AUROC over the tokens that are read."""
        if not self.lengths:
            raise ConfigError("no length was asked for, so there is no curve; evaluate with lengths")
        return _lengths_plot(self.lengths)

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
    return open_detector(verb.detector), data, train


def evaluate(verb: EvaluateDetector, *, output: Path | None = None) -> DetectorEvaluation:
    """Measure; with `output` also write results.json, results.md, plots and report.html into that folder."""
    detector, data, train = open_inputs(verb)
    data, overlap, left_out = _without_overlap(data, _seen(detector, train), drop=verb.drop_overlap)
    detections, calibration = detect(detector, [text.text for text in data.texts]), detector.calibration
    log_odds_N = np.array([np.nan if detection.log_odds is None else detection.log_odds for detection in detections])
    judged = list(zip(data.texts, detections, strict=True))
    baseline = None
    if train is not None:
        columns = None
        if verb.columns:
            from energylm.verbs.detect.combining import surprise_columns

            lm = verb.language_model or LANGUAGE_MODEL
            read = partial(surprise_columns, lm, names=verb.columns, max_tokens=COLUMN_TOKENS)
            columns = tuple(read([text.text for text in texts]) for texts in (train.texts, data.texts))
        scores_N = tfidf_scores(train.texts, [text.text for text in data.texts], columns=columns, seed=verb.seed)
        baseline = _measured(verb, data.texts, scores_N)
    result = DetectorEvaluation(
        detector=_measured(verb, data.texts, log_odds_N),
        baseline=baseline,
        sources=_by_source(verb, data.texts, log_odds_N),
        lengths=_by_length(verb, detector, data),
        verdicts=_shares((f"{text.label}: {text.source}", detection) for text, detection in judged),
        coverage=_shares(  # too short texts are in the first span, where the detector abstains on them
            (calibration.at(detection.tokens_used).shortest, detection)
            for text, detection in judged
            if calibration is not None and text.label == HUMAN
        ),
        overlap=overlap,
        left_out=left_out,
        false_positive_rate=None if calibration is None else calibration.asked_rate,
        groups=_by_group([(text, detection) for text, detection in judged if text.label == HUMAN]),
    )
    if output is None:
        return result
    sections = _sections(result, calibration, about=_about(detector, data, overlap, left_out))
    page = write_report(output, title=f"Detection by {detector.energy.name}", sections=sections)
    return replace(result, report=page)


def _seen(detector: Detector, train: DetectionData | None) -> SeenTexts | None:
    """What the detector was trained on, by its own sketch; for a plain energy, the training texts that were given."""
    if detector.seen is not None or train is None:
        return detector.seen
    return SeenTexts.of(text.text for text in train.texts)


def _without_overlap(data: DetectionData, seen: SeenTexts | None, *, drop: bool) -> tuple[DetectionData, int, int]:
    """The texts to judge, how many of them were trained on, and how many of those are left out."""
    overlaps = [seen is not None and seen.has(text.text) for text in data.texts]
    count = sum(overlaps)
    if not count:
        return data, 0, 0
    first = data.texts[overlaps.index(True)].name
    say(
        f"{count:,} of {len(data.texts):,} test texts overlap the training texts (the first is {first}): "
        + ("they are left out" if drop else "these numbers are too good; --drop-overlap leaves them out")
    )
    if not drop:
        return data, count, 0
    rest = DetectionData(tuple(text for text, overlap in zip(data.texts, overlaps, strict=True) if not overlap))
    rest.require_both("after the overlap was left out, an evaluation")
    return rest, count, count


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


def _shares(verdicts: Iterable[tuple[Any, Detection]]) -> dict[Any, VerdictShares]:
    """By group, in order."""
    groups: dict[Any, list[Detection]] = {}
    for group, detection in verdicts:
        groups.setdefault(group, []).append(detection)
    return {group: VerdictShares.of(groups[group]) for group in sorted(groups)}


def _by_group(human: Sequence[tuple[LabelledText, Detection]]) -> tuple[GroupRate, ...]:
    if not any(text.subgroup for text, _ in human):
        return ()
    return rates_by_group([text.subgroup for text, _ in human], [d.verdict == "machine" for _, d in human])


def _about(detector: Detector, data: DetectionData, overlap: int, left_out: int) -> str:
    trained = ", ".join(detector.energy.provenance.get("sources", [])) or "unknown texts"
    about = f"The detector {detector.energy.name}, trained on {trained}, judges {data.describe()}."
    if overlap:
        fate = "they are left out" if left_out else "none of them is left out"
        about += f"\n\n{overlap:,} texts overlap its training texts; {fate}."
    return about


def tfidf_scores(
    train: Sequence[LabelledText],
    test: Sequence[str],
    *,
    columns: tuple[NDArray[np.float64], ...] | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(N,) scores of the test texts; higher = machine, 0 = as likely as not: the baseline to beat (Radford & Wu 2019).

    score(text) = w · tf-idf(words and pairs of words) + b, the strength of L2 chosen on training texts held out.
    `columns` are other features of the training and of the test texts, in units of their spread beside these.
    """
    with extra("detect"):
        from scipy import sparse
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, max_features=TFIDF_FEATURES, token_pattern=r"(?u)\w+|[^\w\s]"
    )
    features = vectorizer.fit_transform([text.text for text in train])
    judged = vectorizer.transform(list(test))
    if columns is not None:
        mean_J, spread_J = columns[0].mean(0), np.maximum(columns[0].std(0), 1e-6)
        beside = [sparse.csr_matrix((each - mean_J) / spread_J) for each in columns]
        features, judged = (sparse.hstack(parts).tocsr() for parts in zip((features, judged), beside, strict=True))
    is_machine = np.array([text.label == MACHINE for text in train])
    held_out = np.array(
        [split_of(text.group, valid_fraction=0.0, test_fraction=TFIDF_HELD_OUT, seed=2) == "test" for text in train]
    )

    def fitted(strength: float, rows: NDArray[np.bool_]) -> LogisticRegression:
        model = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000, random_state=seed)
        return model.fit(features[rows], is_machine[rows])

    def loss(strength: float) -> float:
        """Logistic loss of the held-out training texts, both classes weighing the same."""
        signs = np.where(is_machine[held_out], 1.0, -1.0)
        losses = np.logaddexp(0, -signs * fitted(strength, ~held_out).decision_function(features[held_out]))
        return float(losses[signs > 0].mean() + losses[signs < 0].mean())

    both = [len(set(is_machine[rows])) == 2 for rows in (held_out, ~held_out)]
    strength = min(TFIDF_STRENGTHS, key=loss) if all(both) else 1.0
    everything = np.ones(len(train), dtype=bool)
    return np.asarray(fitted(strength, everything).decision_function(judged), np.float64)


def measures_table(rows: Mapping[str, Discrimination], *, convention: str = CONVENTION) -> Table:
    """A row a detector or a source; where TPR at a rate is not known, how many human texts it needs."""
    cells: list[list[Cell]] = []
    for name, measured in rows.items():
        rates = zip(FALSE_POSITIVE_RATES, (measured.tpr_at_1, measured.tpr_at_5), strict=True)
        tpr = [f"needs {texts_needed(rate)} human texts" if value is None else str(value) for rate, value in rates]
        auroc, accuracy = str(measured.auroc), str(measured.balanced_accuracy)
        cells.append([name, measured.real, measured.machine, auroc, *tpr, accuracy])
    columns = ["", "human", "machine", "AUROC", "TPR at 1 %", "TPR at 5 %", "balanced accuracy"]
    return Table(columns, cells, convention=convention)


def _coverage_table(calibration: DetectorCalibration, human: Mapping[int, VerdictShares]) -> Table:
    """What became of the promise: human texts by span, which is named by its shortest length."""
    spans = {span.shortest: span for span in calibration.spans}
    rows: list[list[Cell]] = []
    for shortest, shares in human.items():
        span = spans[shortest]
        promise = (span.false_positive_rate, PROMISES[span.promise])
        rows.append([calibration.lengths(span), shares.texts, shares.machine, shares.abstains, *promise])
    return Table(
        ["length", "human texts", "called machine", "abstains", "promised", "promise for"],
        rows,
        convention="shares of the human texts of each length; promised: the probability of being called machine for a "
        "new human text like those of the calibration",
    )


def _lengths_plot(curve: Mapping[int, Discrimination]) -> LinePlot:
    """Accuracy and AUROC over tokens read."""
    tokens, measured = [float(length) for length in curve], list(curve.values())
    lines = [
        Series("AUROC", tokens, [m.auroc.value for m in measured]),
        Series("balanced accuracy", tokens, [m.balanced_accuracy.value for m in measured]),
    ]
    at_5 = [m.tpr_at_5.value for m in measured if m.tpr_at_5 is not None]
    if len(at_5) == len(measured):
        lines.append(Series("TPR at 5 %", tokens, at_5))
    return LinePlot(lines, x_label="tokens of each text that were read", y_label="share", log_x=True)


def _sections(result: DetectorEvaluation, calibration: DetectorCalibration | None, *, about: str) -> list[Section]:
    by_source = f"each against the human texts of its own file or, if that has none, all; {CONVENTION}"
    promised = "it is not calibrated"
    if calibration is not None:
        promised = f"calibrated for {calibration.asked_rate:.3g} false positives"
    verdicts = Table(
        ["", "texts", "called machine", "called human", "abstains"],
        [[name, each.texts, each.machine, each.human, each.abstains] for name, each in result.verdicts.items()],
        convention=f"verdicts of the detector with its own threshold; {promised}",
    )
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Detection", measures_table(result.overall)),
        Numbers("By machine source", measures_table(result.sources, convention=by_source)),
        Numbers("Verdicts", verdicts),
    ]
    if calibration is not None:
        sections.append(Numbers("False positives by length", _coverage_table(calibration, result.coverage)))
    if result.groups:
        by_group = Table(
            ["group", "human texts", "called machine", "share", "from", "to"],
            [[rate.group, rate.texts, rate.flagged, rate.share, rate.lower, rate.upper] for rate in result.groups],
            convention=f"the worst first; exact 95 % intervals of the shares; {promised}",
        )
        sections.append(Numbers("False positives by group", by_group))
    if curve := result.lengths:
        table = measures_table(
            {f"{length} tokens": measured for length, measured in curve.items()},
            convention=f"a piece of so many tokens at a random place of each text that is long enough; {CONVENTION}",
        )
        ends = [f"{curve[length].auroc.value:.2f} at {length} tokens" for length in (min(curve), max(curve))]
        plot = Plot("Accuracy over length", _lengths_plot(curve), alt=f"AUROC goes from {ends[0]} to {ends[1]}.")
        sections += [Numbers("By length", table), plot]
    return sections
