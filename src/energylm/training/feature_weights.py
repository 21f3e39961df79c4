"""Weights of features that carry to groups nobody trained on: a regularised logistic regression over *sets* of texts.

    min over w    Σ_i v_i log(1 + exp(−y_i w · (u_i − c_s(i)))) + ‖w‖² / 2C        u = features in units of their spread
    subject to    w_j d_j ≥ 0                                                      d_j = ±1, the side of machine text

A set is what one generator wrote in one domain, with the human texts beside it. v_i makes all sets, and both classes of
a set, weigh the same, however many texts they have. Each set has an intercept of its own, c_s, the midpoint of its two
classes: what tells sets apart is not learnt, only what tells people from machines within them. No weight may contradict
what its feature says alone: differences of features that go together fit the generators at hand, and turn around at
others.

C is chosen by leaving out one group at a time (all sets of a generator, all sets of a domain) and asking how well the
sets left out are told apart, the mean of their AUROC: the smallest C within one standard error of the best.

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
from energylm.progress import say

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)  # C
SCALE_STRENGTH = 100.0  # of one weight on hundreds of texts: hardly any, but finite where all are told apart
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

    @property
    def has_both(self) -> bool:
        """Whether there is a set with texts of both classes."""
        return any(len(set(self.is_machine_N[self.sets == name].tolist())) == 2 for name in np.unique(self.sets))

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

    @classmethod
    def of(cls, table: FeatureTable, columns: Sequence[int], strength: float) -> "LinearFit":
        """In which every set weighs the same, and so do its classes. Sets that lack one are left out."""
        centred = [_centred(table, columns, name) for name in np.unique(table.sets)]
        features_NJ, label_N, weight_N, midpoints = (np.concatenate(part) for part in zip(*centred, strict=True))
        weight_N = weight_N * len(weight_N) / weight_N.sum()
        spreads = np.maximum(np.sqrt(weight_N @ features_NJ**2 / len(weight_N)), SMALLEST_SPREAD)
        u_NJ = features_NJ / spreads
        side_J = np.where((weight_N * label_N) @ u_NJ < 0, -1.0, 1.0)
        margins_NJ = u_NJ * side_J * label_N[:, None]
        weights_J = bounded_logistic(margins_NJ, weight_N, strength)
        # Regularised weights are too small for log-odds, so their sum is scaled by a regression of its own.
        margin_N = margins_NJ @ weights_J
        size = max(float(np.sqrt(weight_N @ margin_N**2 / len(weight_N))), np.finfo(np.float64).tiny)
        scale = bounded_logistic(margin_N[:, None] / size, weight_N, SCALE_STRENGTH)[0] / size
        return cls(midpoints.mean(0), spreads, side_J * weights_J * scale)

    def scores(self, table: FeatureTable, columns: Sequence[int]) -> Floats:
        return np.asarray((table.features_NJ[:, columns] - self.means) / self.spreads @ self.weights)


def bounded_logistic(margins_NJ: Floats, weight_N: Floats, strength: float) -> Floats:
    """(J,) the weights ≥ 0 of least loss; a margin is a feature times its text's label, ±1."""
    with extra("detect"):
        from scipy.optimize import minimize

    def loss(weights_J: Floats) -> tuple[float, Floats]:
        margin_N = margins_NJ @ weights_J
        value = weight_N @ np.logaddexp(0, -margin_N) + weights_J @ weights_J / (2 * strength)
        slope_N = -weight_N * np.exp(-np.logaddexp(0, margin_N))
        return float(value), slope_N @ margins_NJ + weights_J / strength

    features = margins_NJ.shape[1]
    fitted = minimize(loss, np.zeros(features), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * features)
    return np.asarray(fitted.x, np.float64)


def _centred(table: FeatureTable, columns: Sequence[int], name: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Of a set: (N, J) features less the midpoint of its classes, (N,) labels ±1, (N,) weights, (1, J) the midpoint."""
    features_NJ, is_machine_N = (
        values[table.sets == name] for values in (table.features_NJ[:, columns], table.is_machine_N)
    )
    machine, human = int(is_machine_N.sum()), int((~is_machine_N).sum())
    if not machine or not human:
        return features_NJ[:0], np.zeros(0), np.zeros(0), np.zeros((0, len(columns)))
    midpoint_J = (features_NJ[is_machine_N].mean(0) + features_NJ[~is_machine_N].mean(0)) / 2
    labels_N = np.where(is_machine_N, 1.0, -1.0)
    return features_NJ - midpoint_J, labels_N, np.where(is_machine_N, 1 / machine, 1 / human), midpoint_J[None]


def auroc(scores_N: Floats, is_machine_N: Mask) -> float:
    """Mann–Whitney; 0.5 where a class is missing."""
    with extra("detect"):
        from sklearn.metrics import roc_auc_score
    return float(roc_auc_score(is_machine_N, scores_N)) if len(set(is_machine_N.tolist())) == 2 else 0.5


def choose_strength(table: FeatureTable, columns: Sequence[int]) -> float:
    """The smallest strength whose AUROC, a mean over the sets of groups that were left out, lies within one standard
    error of the highest (Breiman et al. 1984)."""
    quality = {strength: _aurocs_left_out(table, columns, strength) for strength in STRENGTHS}
    best = max(quality.values(), key=np.mean)
    enough = np.mean(best) - np.std(best, ddof=1) / np.sqrt(len(best)) if len(best) > 1 else np.mean(best)
    return min(strength for strength, aurocs in quality.items() if np.mean(aurocs) >= enough)


def _aurocs_left_out(table: FeatureTable, columns: Sequence[int], strength: float) -> list[float]:
    """Of every set, once for each group that it is left out with; 0.5 where nothing can be."""
    of_sets = []
    for test_N in table.folds():
        learnt, judged = table.apart(test_N), table.rows(test_N)
        if not learnt.has_both:
            continue
        scores_M = LinearFit.of(learnt, columns, strength).scores(judged, columns)
        sets_M = judged.sets
        of_sets += [auroc(scores_M[sets_M == each], judged.is_machine_N[sets_M == each]) for each in np.unique(sets_M)]
    return of_sets or [0.5]


def left_out(
    table: FeatureTable, columns: Sequence[int], names_N: NDArray[np.str_], *, resamples: int, seed: int
) -> dict[str, Discrimination]:
    """Every set, judged by weights and a strength that know nothing of its group (`names_N`: generator or domain)."""
    measured: dict[str, Discrimination] = {}
    for group in np.unique(names_N).tolist():
        test_N = names_N == group
        learnt, judged = table.apart(test_N), table.rows(test_N)
        if not learnt.has_both:
            say(f"without {group} there is nothing to learn from: all other texts begin like its own")
            continue
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
        bias=0.0,
        precision=tuple(tuple(row) for row in precision_JJ.precision_.tolist()),
        limit=float("inf"),
        rate=0.0,
        texts=0,
    )
    return weights.limited(held_out.features_NJ, rate=REFUSED_RATE)
