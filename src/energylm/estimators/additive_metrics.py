"""Word error rate, BLEU and chrF as functions of statistics that add up over texts, and which of two systems is better.

    WER  = Σ errors / Σ words of the references                          errors by jiwer's alignment
    BLEU = f(Σ matching n-grams, Σ n-grams, Σ lengths)                   counts and f by sacrebleu, likewise chrF

Whatever texts a set is made of, its value follows from a sum: of the chosen hypotheses for each λ, of a resample of
utterances for a bootstrap. So statistics are taken once for every hypothesis, and everything after is arithmetic.

    p = (1 + #resamples in which the second is not better) / (1 + #resamples)        one-sided

The paired bootstrap (Koehn 2004) draws texts anew with replacement, the same for both systems; intervals are 95 %
percentile intervals of the same resamples.

Relations  `weight_tuning` picks hypotheses by these metrics; `discrimination` bootstraps ranks, which do not add up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from energylm.config.cloze import MetricName
from energylm.errors import extra
from energylm.estimators.discrimination import TAIL
from energylm.randomness import derive_seed
from energylm.records import Record

Floats = NDArray[np.float64]


class AdditiveMetric(Protocol):
    name: str
    lower_is_better: bool
    convention: str

    def statistics(self, references: Sequence[str], hypotheses: Sequence[str]) -> Floats:
        """(N, M): M statistics of each pair."""
        ...

    def value(self, totals: Floats) -> Floats:
        """(…,) the metric in per cent, from (…, M) summed statistics."""
        ...

    def worth(self, statistics: Floats) -> Floats:
        """(…,) how good each text is by itself, higher = better: minus its errors, or its sentence BLEU."""
        ...


class WordErrorRate:
    name, lower_is_better = "WER", True
    convention = "word error rate in per cent, words by white space as they are written (jiwer)"

    def statistics(self, references: Sequence[str], hypotheses: Sequence[str]) -> Floats:
        """(N, 2): errors, and words of the reference."""
        with extra("rerank"):
            import jiwer

        if not references:
            return np.zeros((0, 2))
        output = jiwer.process_words(list(references), list(hypotheses))
        errors = [
            sum(
                max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
                for chunk in chunks
                if chunk.type != "equal"
            )
            for chunks in output.alignments
        ]
        return np.array([[count, len(words)] for count, words in zip(errors, output.references, strict=True)], float)

    def value(self, totals: Floats) -> Floats:
        words = totals[..., 1]
        return np.where(words > 0, 100 * totals[..., 0] / np.maximum(words, 1), np.nan)

    def worth(self, statistics: Floats) -> Floats:
        return -statistics[..., 0]


class Bleu:
    name, lower_is_better = "BLEU", False

    def __init__(self) -> None:
        with extra("rerank"):
            from sacrebleu.metrics.bleu import BLEU

        self._sentence, self._corpus = BLEU(effective_order=True), BLEU()
        self._corpus.corpus_score(["a"], [["a"]])  # a signature names what the last score was made of
        self.convention = f"BLEU by sacrebleu ({self._corpus.get_signature()})"

    def statistics(self, references: Sequence[str], hypotheses: Sequence[str]) -> Floats:
        """(N, 10): matching 1- to 4-grams, all 1- to 4-grams, length, reference length."""
        rows = []
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            score = self._sentence.sentence_score(hypothesis, [reference])
            rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
        return np.array(rows, float).reshape(-1, 10)

    def value(self, totals: Floats) -> Floats:
        return self._score(totals, effective_order=False)

    def worth(self, statistics: Floats) -> Floats:
        return self._score(statistics, effective_order=True)

    def _score(self, statistics: Floats, *, effective_order: bool) -> Floats:
        scores = [
            self._corpus.compute_bleu(
                correct=row[:4].tolist(),
                total=row[4:8].tolist(),
                sys_len=int(row[8]),
                ref_len=int(row[9]),
                smooth_method=self._corpus.smooth_method,
                smooth_value=self._corpus.smooth_value,
                effective_order=effective_order,
            ).score
            for row in statistics.reshape(-1, 10).astype(int)
        ]
        return np.array(scores).reshape(statistics.shape[:-1])


class CharacterFScore:
    """chrF: statistics of 1- to 6-grams of characters and their F-score, both sacrebleu's."""

    name, lower_is_better = "chrF", False

    def __init__(self) -> None:
        with extra("rerank"):
            from sacrebleu.metrics.chrf import CHRF

        self._metric = CHRF()
        self._metric.corpus_score(["a"], [["a"]])  # a signature names what the last score was made of
        self.convention = f"chrF by sacrebleu ({self._metric.get_signature()})"

    def statistics(self, references: Sequence[str], hypotheses: Sequence[str]) -> Floats:
        """(N, 18): n-grams of the hypothesis, of the reference, and of both, for each n."""
        if not references:
            return np.zeros((0, 18))
        return np.array(self._metric._extract_corpus_statistics(list(hypotheses), [list(references)]), float)

    def value(self, totals: Floats) -> Floats:
        scores = [
            self._metric._compute_f_score(row) for row in totals.reshape(-1, totals.shape[-1]).astype(int).tolist()
        ]
        return np.array(scores).reshape(totals.shape[:-1])

    def worth(self, statistics: Floats) -> Floats:
        return self.value(statistics)


def metric_called(name: MetricName) -> AdditiveMetric:
    metrics: dict[MetricName, type[AdditiveMetric]] = {"wer": WordErrorRate, "bleu": Bleu, "chrf": CharacterFScore}
    return metrics[name]()


def text_costs(statistics: Floats, metric: AdditiveMetric) -> Floats:
    """(…,) what each text costs by itself: its errors, or what it lacks of a perfect score, as a share."""
    worth = metric.worth(statistics)
    return -worth if metric.lower_is_better else 1 - worth / 100


_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class MetricInterval(Record):
    """In the metric's own unit: per cent for word error rates and BLEU."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class PairedComparison(Record):
    first: MetricInterval
    second: MetricInterval
    difference: MetricInterval  # second − first
    p_value: float  # of "the second is no better"
    texts: int
    resamples: int


def paired_bootstrap(
    first_UM: Floats, second_UM: Floats, metric: AdditiveMetric, *, resamples: int, seed: int
) -> PairedComparison:
    """Compare two systems by their statistics (U texts, M each)."""
    both_USM = np.stack([first_UM, second_UM], axis=1)
    values_RS = np.concatenate(
        [
            metric.value(np.tensordot(counts_RU, both_USM, axes=1))
            for counts_RU in _resampled_counts(len(first_UM), resamples, seed=seed)
        ]
    )
    measured_S = metric.value(both_USM.sum(0))
    change_R = values_RS[:, 1] - values_RS[:, 0]
    better_R = change_R < 0 if metric.lower_is_better else change_R > 0
    return PairedComparison(
        first=_interval(measured_S[0], values_RS[:, 0]),
        second=_interval(measured_S[1], values_RS[:, 1]),
        difference=_interval(measured_S[1] - measured_S[0], change_R),
        p_value=float((1 + (~better_R).sum()) / (1 + resamples)),
        texts=len(first_UM),
        resamples=resamples,
    )


def closed_share(
    first_UM: Floats, second_UM: Floats, oracle_UM: Floats, metric: AdditiveMetric, *, resamples: int, seed: int
) -> MetricInterval | None:
    """How much of the way from the first system to the oracle the second goes, in per cent: 0 no better than the first,
    100 as good as the oracle; resampled like `paired_bootstrap`. None where the first is the oracle's equal."""
    all_USM = np.stack([first_UM, second_UM, oracle_UM], axis=1)

    def share(values_RS: Floats) -> Floats:
        way_R = values_RS[..., 2] - values_RS[..., 0]
        gone_R = values_RS[..., 1] - values_RS[..., 0]
        return np.where(way_R != 0, 100 * gone_R / np.where(way_R != 0, way_R, 1.0), np.nan)

    values_R = np.concatenate(
        [
            share(metric.value(np.tensordot(counts_RU, all_USM, axes=1)))
            for counts_RU in _resampled_counts(len(first_UM), resamples, seed=seed)
        ]
    )
    known_R = values_R[~np.isnan(values_R)]
    measured = float(share(metric.value(all_USM.sum(0))))
    return None if np.isnan(measured) else _interval(measured, known_R)


def _resampled_counts(texts: int, resamples: int, *, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each text is drawn, (R, U), a chunk of resamples at a time."""
    generator = np.random.default_rng(derive_seed(seed, "paired bootstrap"))
    share = np.full(texts, 1 / texts)
    at_once = max(1, _CHUNK_VALUES // texts)
    for start in range(0, resamples, at_once):
        yield generator.multinomial(texts, share, size=min(at_once, resamples - start)).astype(float)


def _interval(value: float, resampled_R: Floats) -> MetricInterval:
    lower, upper = np.quantile(resampled_R, (TAIL, 1 - TAIL))
    return MetricInterval(float(value), float(lower), float(upper))
