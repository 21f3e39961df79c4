"""Weights of features that carry to groups nobody trained on: a regularised logistic regression over *sets* of texts.

    min over w, b    Σ_i v_i log(1 + exp(−y_i (w · u_i + b))) + ‖w‖² / 2C         u = features in units of their spread

A set is what one generator wrote in one domain, with the human texts beside it. v_i makes all sets, and both classes of
a set, weigh the same, however many texts they have. C is chosen by leaving out one group at a time (all sets of a
generator, all sets of a domain) and asking how well the sets left out are told apart, the mean of their AUROC.

How far the result carries is measured one level up (`left_out`): a group is left out, C is chosen by leaving out groups
of what *remains*, and the sets of the first group are judged. Texts that begin alike are never on both sides.

Relations  `bundles.combined_energy` holds the weights; `verbs.detect.combining` makes features, reports and calibrates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.combined_energy import ENCODER_FEATURE, FeatureWeights, Floats
from energylm.errors import extra
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.estimators.surprise_features import FEATURES

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)  # C
PARTS = 5  # by the texts' beginnings, where there is one set alone
REFUSED_RATE = 0.02  # of texts like those held out
SMALLEST_SPREAD = 1e-6
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class FeatureTable:
    """N texts with all features; what they are and where they come from."""

    features_NJ: Floats
    is_machine_N: Mask
    domain_N: NDArray[np.str_]
    generator_N: NDArray[np.str_]
    beginning_N: NDArray[np.str_]

    @property
    def sets(self) -> NDArray[np.str_]:
        """(N,) DOMAIN_GENERATOR, which recipes can name."""
        return np.char.add(np.char.add(self.domain_N, "_"), self.generator_N)

    def rows(self, chosen_N: Mask) -> "FeatureTable":
        return FeatureTable(*(values[chosen_N] for values in vars(self).values()))

    def folds(self) -> Iterator[Mask]:
        """The texts of each generator, then of each domain; of one set alone, parts by their beginnings."""
        for names_N in (self.generator_N, self.domain_N):
            if len(groups := np.unique(names_N)) > 1:
                yield from (names_N == group for group in groups)
        if len(np.unique(self.sets)) == 1:
            parts = np.unique(self.beginning_N, return_inverse=True)[1] % PARTS
            yield from (parts == part for part in np.unique(parts))

    def apart(self, test_N: Mask) -> "FeatureTable":
        """What may be learnt from where these are judged: no text of theirs, none that begins like one of theirs."""
        return self.rows(~test_N & ~np.isin(self.beginning_N, self.beginning_N[test_N]))


@dataclass(frozen=True)
class LinearFit:
    means: Floats
    spreads: Floats
    weights: Floats
    bias: float

    @classmethod
    def of(cls, table: FeatureTable, columns: Sequence[int], strength: float) -> "LinearFit":
        """A logistic regression in which every set weighs the same, and so do its classes."""
        with extra("detect"):
            from sklearn.linear_model import LogisticRegression

        features_NJ = table.features_NJ[:, columns]
        means, spreads = features_NJ.mean(0), np.maximum(features_NJ.std(0), SMALLEST_SPREAD)
        _, cell_N = np.unique(np.char.add(table.sets, np.where(table.is_machine_N, "+", "-")), return_inverse=True)
        weight_N = 1 / np.bincount(cell_N)[cell_N]
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit(
            (features_NJ - means) / spreads, table.is_machine_N, sample_weight=weight_N * len(weight_N) / weight_N.sum()
        )
        return cls(means, spreads, np.asarray(model.coef_[0], np.float64), float(model.intercept_[0]))

    def scores(self, table: FeatureTable, columns: Sequence[int]) -> Floats:
        return np.asarray((table.features_NJ[:, columns] - self.means) / self.spreads @ self.weights + self.bias)


def auroc(scores_N: Floats, is_machine_N: Mask) -> float:
    """Mann–Whitney; 0.5 where a class is missing."""
    with extra("detect"):
        from sklearn.metrics import roc_auc_score
    return float(roc_auc_score(is_machine_N, scores_N)) if len(set(is_machine_N.tolist())) == 2 else 0.5


def choose_strength(table: FeatureTable, columns: Sequence[int]) -> float:
    """The strength with the highest mean AUROC over the sets of groups that were left out; the weaker of equals."""
    quality = {}
    for strength in STRENGTHS:
        of_sets = []
        for test_N in table.folds():
            learnt, judged = table.apart(test_N), table.rows(test_N)
            if len(set(learnt.is_machine_N.tolist())) < 2:
                continue
            scores_M = LinearFit.of(learnt, columns, strength).scores(judged, columns)
            sets_M = judged.sets
            of_sets += [auroc(scores_M[sets_M == each], judged.is_machine_N[sets_M == each]) for each in set(sets_M)]
        quality[strength] = round(float(np.mean(of_sets)), 6) if of_sets else 0.5
    return max(quality, key=lambda strength: (quality[strength], -strength))


def left_out(
    table: FeatureTable, columns: Sequence[int], names_N: NDArray[np.str_], *, resamples: int, seed: int
) -> dict[str, Discrimination]:
    """Every set, judged by weights and a strength that know nothing of its group (`names_N`: generator or domain)."""
    measured: dict[str, Discrimination] = {}
    for group in np.unique(names_N).tolist():
        test_N = names_N == group
        learnt, judged = table.apart(test_N), table.rows(test_N)
        scores_M = LinearFit.of(learnt, columns, choose_strength(learnt, columns)).scores(judged, columns)
        measured |= _by_set(judged, scores_M, resamples=resamples, seed=seed)
    return dict(sorted(measured.items()))


def _by_set(table: FeatureTable, scores_N: Floats, *, resamples: int, seed: int) -> dict[str, Discrimination]:
    measured = {}
    for name in np.unique(table.sets).tolist():
        human, machine = ((table.sets == name) & (table.is_machine_N == is_machine) for is_machine in (False, True))
        measured[name] = discrimination(
            scores_N[human],
            scores_N[machine],
            real_groups=table.beginning_N[human],
            machine_groups=table.beginning_N[machine],
            resamples=resamples,
            seed=seed,
        )
    return measured


def feature_weights(
    fit: LinearFit, columns: Sequence[int], learnt: FeatureTable, held_out: FeatureTable
) -> FeatureWeights:
    """With the range: the covariance is shrunk (Ledoit and Wolf 2004), since features go together."""
    with extra("detect"):
        from sklearn.covariance import LedoitWolf

    named = (*FEATURES, ENCODER_FEATURE)
    precision_JJ = LedoitWolf(assume_centered=True).fit((learnt.features_NJ[:, columns] - fit.means) / fit.spreads)
    weights = FeatureWeights(
        features=tuple(named[column] for column in columns),
        means=tuple(fit.means.tolist()),
        spreads=tuple(fit.spreads.tolist()),
        weights=tuple(fit.weights.tolist()),
        bias=fit.bias,
        precision=tuple(tuple(row) for row in precision_JJ.precision_.tolist()),
        limit=float("inf"),
        rate=0.0,
        texts=0,
    )
    return weights.limited(held_out.features_NJ, rate=REFUSED_RATE)
