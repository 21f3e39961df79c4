"""A value of prefixes on languages where it is known.

Every text of a small language, weighed by its probability, with a parameter for every prefix: the least of the loss is
log E[exp(−E) | x_≤t], to six digits. Draws of languages whose tokens are independent: an energy that is the mean of its
tokens' scores has −log E[exp(−E) | x_≤t] = τ · E(x_≤t) + constant, so the slope at τ is τ; one that is their sum has
slope 1. A language whose first token decides the rest: a state that shows it is worth more than the energy.
"""

from dataclasses import replace

import pytest
import torch

from energylm import ResidualModel
from energylm.config.sampling import JointSampling
from energylm.energies import prefix_value
from energylm.energies.prefix_value import (
    FOLDS,
    HEAD_RIDGES,
    KNOTS,
    LINE_RIDGES,
    Cuts,
    PrefixValue,
    cuts,
    fit_prefix_value,
    fitted,
    hat_functions,
    least_linex,
    least_squares,
    lookahead_energies,
    values_on_the_way,
)
from energylm.errors import ConfigError, DataError
from energylm.testing import TabularEnergy, TabularLanguageModel, exact_language_model

NEW, CUTS = 8, torch.arange(1, 8) / 8
OPEN = torch.ones(1, 1, 1, dtype=torch.bool)
SCORES = torch.tensor([-1.0, 1.0])


def test_the_least_loss_is_the_expected_weight_of_every_prefix():
    lm, energy = TabularLanguageModel.random(3, 4, seed=1), TabularEnergy.random(3, 4, seed=2, scale=2.0)
    texts = exact_language_model(lm, max_new_tokens=4)
    energy_S = energy.energies(texts.tokens, texts.lengths)
    prefix_S = 3 * texts.tokens[:, 0] + texts.tokens[:, 1]
    one_hot_SP = torch.nn.functional.one_hot(prefix_S, 9).double()
    log_joint_S = texts.log_prob - energy_S
    exact_P = torch.stack(
        [log_joint_S[prefix_S == p].logsumexp(0) - texts.log_prob[prefix_S == p].logsumexp(0) for p in range(9)]
    )
    every_text = Cuts(one_hot_SP, energy_S, texts.probabilities, torch.zeros_like(prefix_S))
    squares_P = least_squares(every_text, 0.0)
    torch.testing.assert_close(-least_linex(every_text, squares_P, ridge=0.0), exact_P, atol=1e-6, rtol=0)
    # teeth: squares give the mean of −E, which lies below; texts that count alike have another law
    assert (exact_P + squares_P).min() > 0.1
    alike = Cuts(one_hot_SP, energy_S, torch.ones_like(energy_S), every_text.context_S)
    assert (-least_linex(alike, squares_P, ridge=0.0) - exact_P).abs().max() > 0.1
    # and a ridge pulls towards squares
    torch.testing.assert_close(least_linex(every_text, squares_P, ridge=1e6), squares_P, atol=1e-4, rtol=0)


def draws(*, contexts=120, k=4, seed=0):
    return torch.randint(2, (contexts, k, NEW), generator=torch.Generator().manual_seed(seed))


def energies(tokens, *, scale, mean):
    """Of prefixes (B, K, J) and of whole texts (B, K)."""
    total = scale * SCORES[tokens].double().cumsum(-1)
    if mean:
        total = total / torch.arange(1, NEW + 1)
    return total[..., :-1], total[..., -1]


@pytest.mark.parametrize(("mean", "scale"), [(True, 4.0), (False, 0.3)])
def test_the_slope_is_what_lasts_until_the_end(mean, scale):
    prefix, whole = energies(draws(), scale=scale, mean=mean)
    value = fit_prefix_value(prefix, None, OPEN, CUTS, whole)
    expected = torch.tensor(KNOTS if mean else [1.0] * len(KNOTS))
    torch.testing.assert_close(torch.tensor(value.slopes[1:]), expected[1:], atol=0.12, rtol=0)
    assert value.loss == value.loss_of_energy_alone < 0.8 * value.loss_without
    # teeth: prefixes of other texts say nothing, and are found to
    strangers = fit_prefix_value(prefix.roll(1, 1), None, OPEN, CUTS, whole)
    assert max(map(abs, strangers.slopes[1:-1])) < 0.3 and strangers.loss > value.loss


def foretold(*, contexts=80, seed=1):
    """The first token says which of the two the others are like to be; only they count."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(2, (contexts, 4, 1), generator=generator)
    others = (torch.rand(contexts, 4, NEW - 1, generator=generator) < 0.2 + 0.6 * first).long()
    return torch.cat([first, others], dim=-1)


def late_energies(tokens):
    total = 0.7 * SCORES[tokens].double().cumsum(-1) - 0.7 * SCORES[tokens[..., :1]]
    return total[..., :-1], total[..., -1]


def test_states_tell_what_the_energy_of_a_prefix_does_not():
    tokens = foretold()
    prefix, whole = late_energies(tokens)
    states = torch.stack([tokens[..., :1] * 10.0, torch.rand(*tokens.shape[:2], 1)], dim=-1)  # what is to come, noise
    states = states.expand(-1, -1, len(CUTS), -1)
    value = fit_prefix_value(prefix, states, OPEN, CUTS, whole)
    assert value.loss < 0.7 * value.loss_of_energy_alone < value.loss_without
    # A token to come is worth ±0.7 · 0.6 on average; (1 − τ) u · 10 is NEW · (1 − τ) of them.
    assert value.state_weights[0] * 10 == pytest.approx(NEW * 2 * 0.7 * 0.6, rel=0.15)
    # The centre of the states is in the offsets: at no prefix at all both first tokens together have the mean energy.
    at = value(torch.zeros(2), torch.tensor([[0.0, 0.5], [10.0, 0.5]]), torch.zeros(2), NEW)
    assert at[1] - at[0] == pytest.approx(value.state_weights[0] * 10) and at.mean().abs() < 3
    # teeth: states of other texts say nothing
    strangers = fit_prefix_value(prefix, states.roll(1, 1), OPEN, CUTS, whole)
    assert 0.9 * strangers.loss_of_energy_alone < strangers.loss < 1.1 * strangers.loss_of_energy_alone


def test_many_states_that_say_nothing_do_no_harm():
    """100 states of noise, 30 contexts: free parameters would follow every heavy weight."""
    prefix, whole = energies(draws(contexts=30), scale=0.7, mean=False)
    noise = torch.randn(*prefix.shape, 100, generator=torch.Generator().manual_seed(3))
    value = fit_prefix_value(prefix, noise, OPEN, CUTS, whole)
    assert value.loss < 1.25 * value.loss_of_energy_alone
    samples = cuts(prefix, noise, OPEN, CUTS, whole)  # teeth
    is_held = samples.context_S % 4 == 0
    free = least_linex(samples.of(~is_held), least_squares(samples.of(~is_held), 0.0), ridge=0.0)
    assert samples.of(is_held).linex(free) > 1.5 * value.loss_of_energy_alone


def stated(kind, *, contexts=24, seed):
    """Texts of `foretold` whose contexts have energies of their own. States that show the first token; or 20 numbers of
    noise for each context, by which contexts that were fitted to can be told apart, and new ones cannot."""
    tokens, generator = foretold(contexts=contexts, seed=seed), torch.Generator().manual_seed(seed)
    prefix, whole = late_energies(tokens)
    whole = whole + torch.randn(contexts, 1, generator=generator, dtype=torch.float64)
    states = SCORES[tokens[..., :1, None]] if kind == "clean" else torch.randn(contexts, 1, 1, 20, generator=generator)
    return cuts(prefix, states.expand(*prefix.shape, -1), OPEN, CUTS, whole)


def parameters_of(samples, head, line):
    return least_linex(samples, least_squares(samples, head), line, head)


def best_on_other_contexts(samples, pairs):
    """Of (head, line) ridges the pair whose fits to three contexts in four have the least loss on the fourth, in sum,
    written out."""
    losses = dict.fromkeys(pairs, 0.0)
    for fold in range(FOLDS):
        is_held = samples.context_S % FOLDS == fold
        for pair in pairs:
            residual = samples.of(is_held).residuals(parameters_of(samples.of(~is_held), *pair))
            losses[pair] += float((residual.exp() - residual - 1).mean())
    return min(losses, key=losses.get)


@pytest.mark.parametrize("kind", ["clean", "noise"])
def test_ridges_are_those_that_other_contexts_like_best(kind):
    samples = stated(kind, seed=1)
    head, _ = best_on_other_contexts(samples, [(ridge, LINE_RIDGES[-1]) for ridge in HEAD_RIDGES])
    _, line = best_on_other_contexts(samples, [(head, ridge) for ridge in LINE_RIDGES])
    assert head <= 0.1 if kind == "clean" else head >= 10.0  # noise is pulled harder
    torch.testing.assert_close(fitted(samples), parameters_of(samples, head, line), atol=1e-12, rtol=0)


def by_training_loss(ridges, samples, fit, loss):
    return min(ridges, key=lambda ridge: float(loss(samples, fit(samples, ridge))))


def by_rows(ridges, samples, fit, loss):
    """Folds that cut through contexts: what is held out has been seen, but for its last tokens."""
    return choose(ridges, replace(samples, context_S=torch.arange(len(samples.context_S))), fit, loss)


def the_smallest(ridges, samples, fit, loss):
    return ridges[0]


def the_largest(ridges, samples, fit, loss):
    return ridges[-1]


choose = prefix_value._best


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [("noise", the_smallest), ("noise", by_training_loss), ("noise", by_rows), ("clean", the_largest)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_wrong_choices_of_a_ridge_are_seen_on_new_contexts(monkeypatch, kind, mistake):
    """Deliberate mistakes: on 400 new contexts each is worse by half and more."""
    samples, new = stated(kind, seed=1), stated(kind, contexts=400, seed=2)
    right = float(new.linex(fitted(samples)))
    monkeypatch.setattr(prefix_value, "_best", mistake)
    assert float(new.linex(fitted(samples))) > 1.5 * right


def test_texts_that_have_ended_do_not_count():
    """Half of the texts end after 4 tokens, with energies that no prefix foretells."""
    tokens = draws()
    prefix, whole = energies(tokens, scale=0.3, mean=False)
    has_ended = torch.arange(tokens.shape[0])[:, None, None] % 2 == 0
    is_open = ~(has_ended & (torch.arange(1, NEW) >= 4))
    odd = torch.where(is_open, prefix, 50.0)
    told = fit_prefix_value(odd, None, is_open, CUTS, whole)
    assert told.slopes[2] == pytest.approx(1.0, abs=0.12)
    assert abs(fit_prefix_value(odd, None, OPEN, CUTS, whole).slopes[2] - 1.0) > 0.3  # teeth


def test_hats_sum_to_one_and_the_last_is_the_energy_itself():
    hats = hat_functions(torch.linspace(0, 1, 33, dtype=torch.float64))
    torch.testing.assert_close(hats.sum(-1), torch.ones(33, dtype=torch.float64))
    value = PrefixValue([0.1, 0.2, 0.3, 0.4, 1.0], [5.0, 4.0, 3.0, 2.0, 0.0], [2.0, -1.0], 9, 1.0, 1.5, 2.0)
    energy, states = torch.tensor([2.0, -1.0]).double(), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    torch.testing.assert_close(value(energy, states, torch.tensor([8, 8]), 8), energy)
    # at 1/2, and between 1/4 and 1/2
    by_hand = torch.tensor([0.3 * 2 + 3.0 + 0.5 * 2, 0.25 * -1 + 3.5 - 0.625 * 3]).double()
    torch.testing.assert_close(value(energy, states, torch.tensor([4, 3]), 8), by_hand)
    for other in (None, states[:, :1]):
        with pytest.raises(ConfigError, match="fitted to an energy with 2 states"):
            value(energy, other, torch.tensor([4, 3]), 8)


def test_ended_texts_have_their_own_energy_and_forbidden_ones_are_unlikely():
    ahead, energy = torch.tensor([1.0, 2.0, torch.inf]), torch.tensor([5.0, 6.0, 7.0])
    values = values_on_the_way(ahead, energy, torch.tensor([False, True, False]))
    assert values.tolist() == [1.0, 6.0, 7.0]


def test_folders_and_names(tmp_path):
    value = PrefixValue([0.5] * 4 + [1.0], [0.0] * 5, [0.25], 9, 1.0, 1.5, 2.0)
    value.save(tmp_path)
    assert lookahead_energies(str(tmp_path)) == value
    assert lookahead_energies("none") is None
    with pytest.raises(ConfigError, match="neither 'energy' nor 'none'"):
        lookahead_energies(str(tmp_path / "nothing"))


def test_what_cannot_be_fitted_is_told():
    prefix, whole = energies(draws(contexts=7), scale=1.0, mean=True)
    with pytest.raises(DataError, match="7 contexts came; a value needs 8"):
        fit_prefix_value(prefix, None, OPEN, CUTS, whole)
    with pytest.raises(DataError, match="not finite"):
        fit_prefix_value(prefix, None, OPEN, CUTS, torch.full_like(whole, float("inf")))


def hidden_sums(tokens):
    """(…, T − 1) sums of scores up to each cut, over what is left of the text."""
    return (SCORES[tokens].double().cumsum(-1) / (1 - torch.arange(1, NEW + 1) / NEW))[..., :-1]


class EnergyAtTheEnd(TabularEnergy):
    """0 until the last token, which shows the sum of scores; the state shows it before."""

    def energies_and_states(self, contexts, tokens_BNT, lengths_BN):
        energy_BN = self.energies(tokens_BNT.flatten(0, 1), lengths_BN.flatten()).view(lengths_BN.shape)
        return energy_BN, hidden_sums(tokens_BNT).gather(-1, lengths_BN[..., None] - 1)


def test_a_fitted_value_steadies_log_z(tmp_path):
    """100 runs of 16 particles: the scatter of log Ẑ is smaller with states than with the energy alone, beyond the
    error of two such scatters (7 % each)."""
    lm = TabularLanguageModel.from_function(lambda history: [0.5, 0.5], vocabulary_size=2, length=NEW)
    energy = EnergyAtTheEnd.from_function(
        lambda text: sum(2.0 * token - 1 for token in text) * (len(text) == NEW), vocabulary_size=2, length=NEW
    )
    tokens = draws(contexts=100)
    prefix, whole = torch.zeros(*tokens.shape[:2], len(CUTS)), SCORES[tokens].double().sum(-1)
    fit_prefix_value(prefix, hidden_sums(tokens)[..., None], OPEN, CUTS, whole).save(tmp_path)
    fit_prefix_value(prefix, None, OPEN, CUTS, whole).save(tmp_path / "energy")
    joint = ResidualModel(lm, energy)

    def scatter(lookahead):
        options = JointSampling(sampler="smc", n=16, max_new_tokens=NEW, block_tokens=1, lookahead=lookahead)
        samples = joint.sample_batch([[]] * 100, options, seed=1)
        return float(torch.tensor([sample.report.log_partition for sample in samples]).std())

    assert scatter(str(tmp_path)) < 0.7 * scatter(str(tmp_path / "energy"))
