"""Exact match and F1 of SQuAD (Rajpurkar et al. 2016, 2018), in per cent; and the best that a threshold can do.

Answers are compared after lower-casing, without punctuation, without the articles a, an, the, and with single spaces.

    exact match     whether the prediction equals one of the gold answers
    F1              2 |P ∩ G| / (|P| + |G|) over words with their counts, the best over the gold answers

A question without an answer has the empty text as its only gold answer; then, and where the prediction is empty, F1 is
exact match. Gold answers of which nothing is left after normalising do not count. With log-odds of "no answer", the
best threshold is the one whose exact match (or F1) over these very questions is highest: an upper bound, `best_…`.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
PERCENT = 100.0


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
    return float(any(normalised_answer(predicted) == normalised_answer(one) for one in _counted(gold)))


def f1(predicted: str, gold: Sequence[str]) -> float:
    """From 0 to 1."""
    return max(_overlap(normalised_answer(predicted).split(), normalised_answer(one).split()) for one in _counted(gold))


def squad_metrics(answers: Sequence[Answered], *, threshold: float | None = None) -> dict[str, float]:
    """`exact_match` and `f1` in per cent; with a threshold, predictions whose log-odds of "no answer" exceed it are
    empty, and `best_exact_match`, `best_f1` say what the best threshold gives."""
    exact_N = np.array([exact_match(one.predicted, one.gold) for one in answers])
    f1_N = np.array([f1(one.predicted, one.gold) for one in answers])
    if threshold is None:
        return {"exact_match": PERCENT * float(exact_N.mean()), "f1": PERCENT * float(f1_N.mean())}
    odds_N = np.array([one.no_answer_log_odds for one in answers])
    empty_N = np.array([float(not _has_answer(one.gold)) for one in answers])  # what an empty prediction earns
    is_empty_N = odds_N > threshold
    found: dict[str, float] = {}
    for name, value_N in (("exact_match", exact_N), ("f1", f1_N)):
        found[name] = PERCENT * float(np.where(is_empty_N, empty_N, value_N).mean())
        found[f"best_{name}"] = PERCENT * _best_threshold(value_N, empty_N, odds_N)
    return found


def by_answerability(answers: Sequence[Answered], *, threshold: float) -> Mapping[str, dict[str, float]]:
    """The metrics of questions with an answer and without one, where there are such."""
    parts = {
        "with answer": [one for one in answers if _has_answer(one.gold)],
        "without answer": [one for one in answers if not _has_answer(one.gold)],
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
    return [one for one in gold if normalised_answer(one)] or [""]


def _has_answer(gold: Sequence[str]) -> bool:
    return bool(normalised_answer(_counted(gold)[0]))


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))
