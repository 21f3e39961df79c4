"""Weights that carry: what was left out is never learnt from, sets weigh the same, and the range keeps its rate."""

import numpy as np
import pytest

from energylm.bundles.combined_energy import FeatureWeights
from energylm.estimators.surprise_features import FEATURES
from energylm.training import feature_weights as module
from energylm.training.feature_weights import (
    FeatureTable,
    LinearFit,
    auroc,
    bounded_logistic,
    choose_strength,
    feature_weights,
    left_out,
)

CARRIES, MISLEADS = 0, 1  # columns: one tells machine text everywhere, one in all generators but "c", where it turns
COLUMNS = (CARRIES, MISLEADS)


def made_table(*, texts=40, seed=0):
    """Two domains, three generators."""
    rng, rows = np.random.default_rng(seed), []
    for domain in ("news", "stories"):
        for generator in ("a", "b", "c"):
            for is_machine in (False, True):
                for number in range(texts):
                    sign = 1 if is_machine else -1
                    features = rng.normal(size=len(FEATURES) + 1)
                    features[CARRIES] += 1.2 * sign
                    features[MISLEADS] += (-3 if generator == "c" else 3) * sign
                    rows.append((features, is_machine, domain, generator, f"{domain} {generator} {number}"))
    return FeatureTable(*(np.array(column) for column in zip(*rows, strict=True)))


def test_what_is_left_out_is_not_learnt_from(monkeypatch):
    table, learnt = made_table(texts=25), []
    monkeypatch.setattr(module, "STRENGTHS", (1e-3, 1.0))
    plain = LinearFit.of
    monkeypatch.setattr(module.LinearFit, "of", lambda given, *rest: learnt.append(given) or plain(given, *rest))
    measured = left_out(table, COLUMNS, table.generator_N, resamples=20, seed=0)
    assert list(measured) == [f"{domain}_{generator}" for domain in ("news", "stories") for generator in "abc"]
    judged = {name: measured[name].auroc.value for name in measured}
    assert min(judged["news_a"], judged["stories_b"]) > 0.8
    assert all(len(set(given.generator_N)) < 3 for given in learnt)  # not in the choice of the strength, either
    # teeth: weights of everything know which way the second feature turns for c; those without c are misled by it
    everything = plain(table, COLUMNS, 1.0)
    is_c = table.generator_N == "c"
    known = auroc(everything.scores(table, COLUMNS)[is_c], table.is_machine_N[is_c])
    assert max(judged["news_c"], judged["stories_c"]) < 0.45 < 0.6 < known


def test_texts_that_begin_alike_stay_together():
    table = made_table()
    shared = FeatureTable(*(*list(vars(table).values())[:4], np.char.replace(table.beginning_N, " c ", " a ")))
    test = shared.generator_N == "c"
    assert set(shared.apart(test).generator_N) == {"b"} and set(table.apart(test).generator_N) == {"a", "b"}


def test_sets_weigh_the_same_however_many_texts_they_have():
    table = made_table()
    more = np.repeat(np.arange(len(table.generator_N)), np.where(table.generator_N == "c", 5, 1))
    grown = FeatureTable(*(values[more] for values in vars(table).values()))
    # spreads are of all texts, so compare what the sum says of a text, not the weights
    plain, repeated = (LinearFit.of(each, COLUMNS, 1e3) for each in (table, grown))
    assert np.allclose(plain.scores(table, COLUMNS), repeated.scores(table, COLUMNS), atol=0.02)
    only_c = LinearFit.of(table.rows(table.generator_N == "c"), COLUMNS, 1e3)
    assert not np.allclose(plain.scores(table, COLUMNS), only_c.scores(table, COLUMNS), atol=0.5)  # teeth


def test_no_weight_contradicts_its_feature_and_the_rest_is_the_optimum():
    """Karush, Kuhn and Tucker: the loss' slope D on oriented features has D_j = 0 where w_j > 0, and D_j ≥ 0 elsewhere.
    The second column goes with the first and says the same, less clearly: alone it points the same way, beside it the
    other."""
    table, strength = made_table(), 0.05
    label_N = np.where(table.is_machine_N, 1.0, -1.0)
    first_N = table.features_NJ[:, CARRIES]
    margins_NJ = np.stack([first_N, 2 * (first_N - 1.2 * label_N) + 0.4 * label_N], axis=1) * label_N[:, None]
    assert (margins_NJ.mean(0) > 0.3).all()
    weights_J = bounded_logistic(margins_NJ, np.ones(len(label_N)), strength)
    slope_J = -(1 / (1 + np.exp(margins_NJ @ weights_J))) @ margins_NJ + weights_J / strength
    assert weights_J[0] > 0 and weights_J[1] == 0 and abs(slope_J[0]) < 0.05
    assert slope_J[1] > 1
    less_J = weights_J - [0, 1e-3]  # teeth: unbound, the second weight would fall below 0
    assert _loss(margins_NJ, less_J, strength) < _loss(margins_NJ, weights_J, strength)
    fitted = LinearFit.of(table, COLUMNS, strength)
    assert (fitted.weights * [1, 1] >= 0).all()


def _loss(margins_NJ, weights_J, strength):
    return np.log1p(np.exp(-margins_NJ @ weights_J)).sum() + weights_J @ weights_J / (2 * strength)


def test_scores_are_log_odds_however_strong_the_regularisation():
    """Among texts with a score near s, σ(s) are machines'. Regularised weights alone would call all of them even."""
    table = made_table(texts=400, seed=1)
    honest = table.rows(table.generator_N != "c")
    for strength in (1e-4, 1.0):
        scores_N = LinearFit.of(honest, (CARRIES,), strength).scores(honest, (CARRIES,))
        near = np.abs(scores_N - 1.5) < 0.4
        assert near.sum() > 100
        assert honest.is_machine_N[near].mean() == pytest.approx(1 / (1 + np.exp(-1.5)), abs=0.06)


def test_what_tells_sets_apart_is_not_learnt():
    """A set whose texts, people's and machines', all have higher features moves the midpoint and no weight."""
    table = made_table()
    moved = FeatureTable(table.features_NJ + 5 * (table.sets == "news_a")[:, None], *list(vars(table).values())[1:])
    plain, other = (LinearFit.of(each, COLUMNS, 0.1) for each in (table, moved))
    assert np.allclose(plain.weights, other.weights, atol=1e-4) and np.allclose(plain.spreads, other.spreads)
    assert np.allclose(other.means - plain.means, 5 / 6)
    human = ~table.is_machine_N  # teeth: where only its people's texts do, they are learnt from
    lopsided = FeatureTable(
        table.features_NJ + 5 * ((table.sets == "news_a") & human)[:, None], *list(vars(table).values())[1:]
    )
    assert not np.allclose(plain.weights, LinearFit.of(lopsided, COLUMNS, 0.1).weights, atol=0.05)


def test_a_group_whose_texts_begin_like_all_others_is_not_measured(capsys):
    table = made_table(texts=12)
    same = FeatureTable(*(*list(vars(table).values())[:4], np.char.replace(table.beginning_N, " c ", " a ")))
    pair = same.rows(np.isin(same.generator_N, ["a", "c"]))
    assert left_out(pair, COLUMNS, pair.generator_N, resamples=5, seed=0) == {}
    assert "without a there is nothing to learn from" in capsys.readouterr().err


def test_strength_follows_what_is_left_out(monkeypatch):
    """Where nothing misleads, weak regularisation is as good as any and ties go to the stronger; one set alone is cut
    by its texts' beginnings."""
    monkeypatch.setattr(module, "STRENGTHS", (1e-3, 1.0))
    table = made_table(texts=20)
    honest = table.rows(table.generator_N != "c")
    assert choose_strength(honest, (CARRIES,)) == min(module.STRENGTHS)  # one feature: all strengths rank alike
    alone = honest.rows((honest.generator_N == "a") & (honest.domain_N == "news"))
    assert len(list(alone.folds())) == module.PARTS and len(list(table.folds())) == 5
    assert choose_strength(alone, COLUMNS) in module.STRENGTHS
    assert auroc(np.zeros(3), np.array([True, True, True])) == 0.5


def test_strange_texts_are_refused_and_texts_like_those_held_out_are_not():
    columns = list(range(6))

    def plain(seed, texts=60):
        rng = np.random.default_rng(seed)
        table = made_table(texts=texts, seed=seed)
        features = rng.normal(size=table.features_NJ.shape)
        features[:, 1] = features[:, 0] + 0.1 * features[:, 1]  # two that go together
        return FeatureTable(features, *list(vars(table).values())[1:])

    learnt, held_out, new = plain(0), plain(1, texts=17), plain(2, texts=200)
    weights = feature_weights(LinearFit.of(learnt, columns, 1e-3), columns, learnt, held_out)
    assert weights.rate <= module.REFUSED_RATE and weights.texts == len(held_out.sets)
    refused = (weights.strangeness(new.features_NJ) > weights.limit).mean()
    assert refused < 0.05  # its law is Beta(k, n + 1 − k) with mean at most 0.02 and deviation 0.01
    odd = np.zeros((2, len(FEATURES) + 1))
    odd[0, :2], odd[1, :2] = (1.5, -1.5), (1.5, 1.5)  # only the first breaks what goes together
    assert list(weights.strangeness(odd) > weights.limit) == [True, False]
    assert weights == FeatureWeights.from_json(weights.to_json())
    with pytest.raises(Exception, match="not one finite weight a feature"):
        FeatureWeights.from_json(weights.to_json() | {"weights": [1.0]})
