"""Minimum-risk choice: the hypothesis that costs least on average if any of its rivals were the truth.

    P(j) ∝ exp(sharpness · s_j)         risk(h) = Σ_j P(j) · cost(h, j)         chosen = argmin_h risk(h)

s are totals of hypotheses in log space (f + Σ λ·score), or log-weights of joint samples (0 for draws from the model
itself); Goel & Byrne 2000 for recognisers, Kumar & Byrne 2004 for translators. As the sharpness grows, the likeliest
hypothesis is chosen; at 0 the one that is most like all others.

    wer     words to change from j to h (edits, not divided: errors add up over utterances)       rapidfuzz, in bulk
    bleu    1 − sentence BLEU of h against j / 100                                                sacrebleu
    chrf    1 − chrF of h against j / 100                                                         sacrebleu

Use it     where the metric forgives: a hypothesis that shares most words with many good rivals makes fewer errors than
           the likeliest one, which may be right or far off.
Relations  `estimators.weight_tuning` chooses the likeliest; `samplers` draw what can be chosen from.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energylm.config.cloze import MetricName
from energylm.errors import extra

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

Floats = NDArray[np.float64]


def pairwise_costs(lists: Sequence[Sequence[str]], *, utility: MetricName) -> Floats:
    """(U, H, H): in [u, h, j] what choosing h costs if j is the truth; 0 for what is not there."""
    longest = max(map(len, lists), default=1)
    costs_UHH = np.zeros((len(lists), longest, longest))
    for row, texts in enumerate(lists):
        costs_UHH[row, : len(texts), : len(texts)] = _COSTS[utility](texts)
    return costs_UHH


def expected_costs(totals_UH: Floats, costs_UHH: Floats, *, sharpness: float) -> Floats:
    """(U, H) the risk of each hypothesis; ∞ for what is not there (a total of −∞, which nobody believes either)."""
    exists_UH = np.isfinite(totals_UH)
    scaled_UH = sharpness * np.where(exists_UH, totals_UH, 0.0)
    scaled_UH = np.where(exists_UH, scaled_UH, -np.inf)
    highest_U1 = scaled_UH.max(1, keepdims=True)
    weight_UH = np.where(exists_UH, np.exp(scaled_UH - np.where(np.isfinite(highest_U1), highest_U1, 0.0)), 0.0)
    total_U1 = weight_UH.sum(1, keepdims=True)
    posterior_UH = weight_UH / np.where(total_U1 > 0, total_U1, 1.0)
    return np.where(exists_UH, np.einsum("uhj,uj->uh", costs_UHH, posterior_UH), np.inf)


def _word_edits(texts: Sequence[str]) -> Floats:
    """Every word becomes one character, so that the distance of strings is that of words."""
    with extra("rerank"):
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist

    letters: dict[str, str] = {}
    written = ["".join(letters.setdefault(word, chr(len(letters))) for word in text.split()) for text in texts]
    return np.asarray(cdist(written, written, scorer=Levenshtein.distance, dtype=np.int32), float)


def _sentence_bleu(texts: Sequence[str]) -> Floats:
    with extra("rerank"):
        from sacrebleu.metrics.bleu import BLEU

    return _unlike(BLEU(effective_order=True), texts)


def _sentence_chrf(texts: Sequence[str]) -> Floats:
    with extra("rerank"):
        from sacrebleu.metrics.chrf import CHRF

    return _unlike(CHRF(), texts)


def _unlike(metric: "BLEU | CHRF", texts: Sequence[str]) -> Floats:
    different = list(dict.fromkeys(texts))
    index = np.array([different.index(text) for text in texts])
    cost_DD = np.array([[1 - metric.sentence_score(h, [j]).score / 100 for j in different] for h in different])
    return np.asarray(cost_DD[np.ix_(index, index)])


_COSTS = {"wer": _word_edits, "bleu": _sentence_bleu, "chrf": _sentence_chrf}
