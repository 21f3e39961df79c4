"""What GLUE's tasks are judged by, from gold and predicted labels or scores. All in per cent, as papers print them.

    accuracy    100 · share of equal labels
    f1          100 · 2 TP / (2 TP + FP + FN)         of class 1
    mcc         100 · (c s − Σ_k p_k t_k) / √((s² − Σ p_k²)(s² − Σ t_k²))
                c right of s examples, p_k predicted and t_k true of class k; of two classes, Matthews' φ
    spearman    100 · correlation of ranks, equal values sharing their mean rank
    pearson     100 · correlation of values

A correlation with something constant is not defined; it is 0 here, as scikit-learn has it for MCC: a model that gives
everything the same label has found nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
    true_K = np.array([np.sum(gold_N == one) for one in classes], dtype=np.float64)
    told_K = np.array([np.sum(predicted_N == one) for one in classes], dtype=np.float64)
    examples, right = float(len(gold_N)), float(np.sum(gold_N == predicted_N))
    spread = (examples**2 - np.sum(told_K**2)) * (examples**2 - np.sum(true_K**2))
    return PERCENT * float((right * examples - np.sum(told_K * true_K)) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson_correlation(gold_N: Floats, predicted_N: Floats) -> float:
    gold_N, predicted_N = gold_N - np.mean(gold_N), predicted_N - np.mean(predicted_N)
    spread = float(np.sqrt(np.sum(gold_N**2) * np.sum(predicted_N**2)))
    return PERCENT * float(np.sum(gold_N * predicted_N)) / spread if spread > 0 else 0.0


def spearman_correlation(gold_N: Floats, predicted_N: Floats) -> float:
    from scipy.stats import rankdata

    return pearson_correlation(rankdata(gold_N), rankdata(predicted_N))


METRICS: dict[str, Callable[[Floats, Floats], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "mcc": matthews_correlation,
    "pearson": pearson_correlation,
    "spearman": spearman_correlation,
}
