"""What fine-tuned encoders are judged by: GLUE's metrics, SQuAD's, and the median over seeds. In per cent, as printed.

    accuracy       100 · share of equal labels
    f1             100 · 2 TP / (2 TP + FP + FN)         of class 1
    mcc            100 · (c s − Σ_k p_k t_k) / √((s² − Σ p_k²)(s² − Σ t_k²))
                   c right of s examples, p_k predicted and t_k true of class k; of two classes, Matthews' φ
    spearman       100 · correlation of ranks, equal values sharing their mean rank
    pearson        100 · correlation of values
    exact match    whether an answer equals one of the gold answers         Rajpurkar et al. 2016, 2018
    answer F1      2 |P ∩ G| / (|P| + |G|) over words with their counts, the best over the gold answers

A correlation with something constant is not defined; it is 0 here, as scikit-learn has it for MCC: a model that gives
everything the same label has learnt nothing.

Answers are compared after lower-casing, without punctuation, without the articles a, an, the, and with single spaces. A
question without an answer has the empty text as its only gold answer; then, and where the prediction is empty, F1 is
exact match. Gold answers of which nothing is left after normalising do not count. With log-odds of "no answer", the
best threshold is the one whose exact match (or F1) over these very questions is highest: an upper bound, `best_…`.

Models may differ by their seed alone (clark2020 app. D): `SeedMedian`.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from energylm.errors import extra
from energylm.records import Record

Floats = NDArray[np.float64]
PERCENT = 100.0


def accuracy(gold_N: Floats, predicted_N: Floats) -> float:
    return PERCENT * float(np.mean(gold_N == predicted_N))


def f1(gold_N: Floats, predicted_N: Floats) -> float:
    both = float(np.sum((gold_N == 1) & (predicted_N == 1)))
    either = float(np.sum(gold_N == 1) + np.sum(predicted_N == 1))
    return PERCENT * 2 * both / either if either else 0.0


def matthews_correlation(gold_N: Floats, predicted_N: Floats) -> float:
    classes = np.unique(np.concatenate([gold_N, predicted_N]))
    true_K = np.array([np.sum(gold_N == label) for label in classes], dtype=np.float64)
    told_K = np.array([np.sum(predicted_N == label) for label in classes], dtype=np.float64)
    examples, right = float(len(gold_N)), float(np.sum(gold_N == predicted_N))
    spread = (examples**2 - np.sum(told_K**2)) * (examples**2 - np.sum(true_K**2))
    return PERCENT * float((right * examples - np.sum(told_K * true_K)) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson_correlation(gold_N: Floats, predicted_N: Floats) -> float:
    gold_N, predicted_N = gold_N - np.mean(gold_N), predicted_N - np.mean(predicted_N)
    spread = float(np.sqrt(np.sum(gold_N**2) * np.sum(predicted_N**2)))
    return PERCENT * float(np.sum(gold_N * predicted_N)) / spread if spread > 0 else 0.0


def spearman_correlation(gold_N: Floats, predicted_N: Floats) -> float:
    with extra("rerank"):
        from scipy.stats import rankdata

    return pearson_correlation(rankdata(gold_N), rankdata(predicted_N))


METRICS: dict[str, Callable[[Floats, Floats], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "mcc": matthews_correlation,
    "pearson": pearson_correlation,
    "spearman": spearman_correlation,
}


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Answered:
    """A prediction beside its gold answers (none: no answer exists). `no_answer_log_odds` decides for SQuAD 2."""

    predicted: str
    gold: Sequence[str]
    no_answer_log_odds: float = -np.inf


def normalised_answer(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """1 or 0."""
    return float(any(normalised_answer(predicted) == normalised_answer(answer) for answer in _counted(gold)))


def answer_f1(predicted: str, gold: Sequence[str]) -> float:
    """From 0 to 1."""
    return max(
        _overlap(normalised_answer(predicted).split(), normalised_answer(answer).split()) for answer in _counted(gold)
    )


def squad_metrics(answers: Sequence[Answered], *, threshold: float | None = None) -> dict[str, float]:
    """`exact_match` and `f1` in per cent; with a threshold, predictions whose log-odds of "no answer" exceed it are
    empty, and `best_exact_match`, `best_f1` say what the best threshold gives."""
    exact_N = np.array([exact_match(answer.predicted, answer.gold) for answer in answers])
    f1_N = np.array([answer_f1(answer.predicted, answer.gold) for answer in answers])
    if threshold is None:
        return {"exact_match": PERCENT * float(exact_N.mean()), "f1": PERCENT * float(f1_N.mean())}
    odds_N = np.array([answer.no_answer_log_odds for answer in answers])
    empty_N = np.array([float(not _has_answer(answer.gold)) for answer in answers])  # what an empty prediction earns
    is_empty_N = odds_N > threshold
    metrics: dict[str, float] = {}
    for name, value_N in (("exact_match", exact_N), ("f1", f1_N)):
        metrics[name] = PERCENT * float(np.where(is_empty_N, empty_N, value_N).mean())
        metrics[f"best_{name}"] = PERCENT * _best_threshold(value_N, empty_N, odds_N)
    return metrics


def by_answerability(answers: Sequence[Answered], *, threshold: float) -> Mapping[str, dict[str, float]]:
    """The metrics of questions with an answer and without one, where there are such."""
    parts = {
        "with answer": [answer for answer in answers if _has_answer(answer.gold)],
        "without answer": [answer for answer in answers if not _has_answer(answer.gold)],
    }
    return {name: squad_metrics(part, threshold=threshold) for name, part in parts.items() if part}


def _best_threshold(value_N: np.ndarray, empty_N: np.ndarray, odds_N: np.ndarray) -> float:
    """The highest mean when the predictions with odds above some threshold are replaced by the empty text."""
    order = np.argsort(odds_N, kind="stable")
    sorted_odds = odds_N[order]
    # After the k-th question in order of odds, the threshold keeps k predictions; equal odds stay together.
    totals = empty_N.sum() + np.concatenate([[0.0], np.cumsum((value_N - empty_N)[order])])
    is_cut = np.concatenate([[True], sorted_odds[1:] > sorted_odds[:-1], [True]])
    return float(totals[is_cut].max() / len(value_N))


def _counted(gold: Sequence[str]) -> list[str]:
    return [answer for answer in gold if normalised_answer(answer)] or [""]


def _has_answer(gold: Sequence[str]) -> bool:
    return bool(normalised_answer(_counted(gold)[0]))


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))


@dataclass(frozen=True)
class SeedMedian(Record):
    """`deviation` is the sample standard deviation, None for a single seed."""

    value: float
    lowest: float
    highest: float
    deviation: float | None
    values: tuple[float, ...]  # by seed

    computed = ("spread",)

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.median(values)), min(values), max(values), deviation, tuple(map(float, values)))

    @property
    def spread(self) -> str:
        return f"{self.lowest:.1f}–{self.highest:.1f}"

    @property
    def index(self) -> int:
        """Which seed is the median, or the lower of the two in the middle."""
        return int(np.argsort(self.values, kind="stable")[(len(self.values) - 1) // 2])
