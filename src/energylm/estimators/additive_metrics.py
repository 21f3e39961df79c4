"""Word error rate and BLEU of a set of texts as functions of statistics that add up over the texts.

    WER  = Σ errors / Σ words of the references                          errors by jiwer's alignment
    BLEU = f(Σ matching n-grams, Σ n-grams, Σ lengths)                   counts and f by sacrebleu

Whatever texts a set is made of, its value follows from a sum: of the chosen hypotheses for each λ, of a resample of
utterances for a bootstrap. So statistics are taken once for every hypothesis, and everything after is arithmetic.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from energylm.config.cloze import MetricName

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
        from sacrebleu.metrics.bleu import BLEU

        self._sentence, self._corpus = BLEU(effective_order=True), BLEU()
        self._corpus.corpus_score(["a"], [["a"]])  # a signature names what the last score was made of
        self.convention = f"BLEU by sacrebleu ({self._corpus.get_signature()})"

    def statistics(self, references: Sequence[str], hypotheses: Sequence[str]) -> Floats:
        """(N, 10): matching 1- to 4-grams, all 1- to 4-grams, length, reference length."""
        rows = []
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            one = self._sentence.sentence_score(hypothesis, [reference])
            rows.append([*one.counts, *one.totals, one.sys_len, one.ref_len])
        return np.array(rows, float).reshape(-1, 10)

    def value(self, totals: Floats) -> Floats:
        return self._score(totals, effective_order=False)

    def worth(self, statistics: Floats) -> Floats:
        return self._score(statistics, effective_order=True)

    def _score(self, statistics: Floats, *, effective_order: bool) -> Floats:
        found = [
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
        return np.array(found).reshape(statistics.shape[:-1])


def metric_called(name: MetricName) -> AdditiveMetric:
    return WordErrorRate() if name == "wer" else Bleu()
