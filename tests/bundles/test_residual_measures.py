"""What a ResidualModel measures, against enumeration of tiny languages through the model itself.

A language of 4 tokens, 5 positions: after a context of 2 there are 64 continuations, so log Z, the joint probability of
a text and every conditional are sums. Statistical checks say their false alarm.
"""

import gc
import math
import weakref
from itertools import product

import pytest
import torch

from energylm.bundles import joint_texts, weighted_draws
from energylm.bundles.residual_measures import sample_counts
from energylm.bundles.residual_model import ResidualModel
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_mean,
    enumerate_expectation,
    exact_joint,
    exact_language_model,
)

VOCABULARY, LENGTH, PREFIX = 4, 5, 2
LM = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1, concentration=2.0)
ENERGY = TabularEnergy.random(VOCABULARY, LENGTH, seed=2, scale=0.8)
JOINT = ResidualModel(LM, ENERGY)
TEXTS = [[0, 1, 2, 3, 0], [3, 3, 1, 0, 2], [2, 0, 0, 1, 1]]
NEW = LENGTH - PREFIX


def exact(text, energy=ENERGY):
    return exact_joint(LM, energy, text[:PREFIX], max_new_tokens=NEW)


def exact_log_prob(text, energy=ENERGY):
    joint = exact(text, energy)
    return float(joint.log_prob[joint.index(torch.tensor([text[PREFIX:]]))])


def base_log_prob(text):
    return float(LM.token_log_probs(torch.tensor([text]), torch.tensor([LENGTH]), first=PREFIX).sum())


def pools(joint, text, *, copies, n, **options):
    """Estimates from `copies` independent pools of one context: the context repeated, each with numbers of its own."""
    return joint.log_partition([text[:PREFIX]] * copies, n=n, max_new_tokens=NEW, **options)


def test_log_partition_agrees_with_enumeration():
    """exp T_n is an unbiased estimate of Z: 2,000 pools of 50, false alarm 1e-4. The mean of T_n itself lies below."""
    estimate = pools(JOINT, TEXTS[0], copies=2_000, n=50)
    assert_mean(estimate.lower.exp(), math.exp(exact(TEXTS[0]).log_partition))
    assert float(estimate.lower.mean()) < exact(TEXTS[0]).log_partition < float(estimate.upper.mean())
    assert (estimate.lower <= estimate.upper).all()


def test_a_flipped_sign_of_the_energy_is_caught():
    """Deliberate mistake: weights exp(+E)."""
    flipped = TabularEnergy(-ENERGY.table, vocabulary_size=VOCABULARY, length=LENGTH)
    estimate = pools(ResidualModel(LM, flipped), TEXTS[0], copies=2_000, n=50)
    with pytest.raises(AssertionError, match="mean"):
        assert_mean(estimate.lower.exp(), math.exp(exact(TEXTS[0]).log_partition))


def test_the_interval_closes_on_the_exact_perplexity():
    """40,000 samples a context: both ends within four sampling errors of the enumerated perplexity."""
    result = JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=40_000)
    nats = -sum(map(exact_log_prob, TEXTS)) / (len(TEXTS) * NEW)
    assert result.lower == pytest.approx(math.exp(nats), abs=4 * result.sampling_error)
    assert result.upper == pytest.approx(math.exp(nats), abs=4 * result.sampling_error)
    assert 0 < result.sampling_error < 0.02 * result.lower
    assert result.lower <= result.upper and result.warning is None
    assert result.base.value == pytest.approx(math.exp(-sum(map(base_log_prob, TEXTS)) / (len(TEXTS) * NEW)))
    assert result.lower != pytest.approx(result.base.value, rel=0.02)  # teeth: the energy does something


def test_the_lower_end_uses_the_lower_log_partition():
    """A higher log Z is a higher perplexity: T_n makes the optimistic end. By hand from the parts of the result."""
    result = JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=8)
    unnormalised = JOINT.log_weights(TEXTS, prefix_tokens=PREFIX)
    torch.testing.assert_close(unnormalised, result.lm_log_prob - result.energy)
    for end, estimate in ((result.lower, result.log_partition.lower), (result.upper, result.log_partition.upper)):
        assert end == pytest.approx(math.exp(-float((unnormalised - estimate).sum()) / (len(TEXTS) * NEW)))
    assert result.lower < result.upper
    assert "worth fewer than 20 independent ones" in result.warning


@pytest.mark.parametrize("n", [2, 3])
def test_certified_perplexity_bounds_the_samplers_own(n):
    """The sampler's density by enumeration: q_n(x) = n P(x) Σ over companions of P(companions) w(x)/(w(x) + Σ w). The
    mean certificate over 4,000 pools lies below it, four standard errors allowed (false alarm 4e-5)."""
    base = exact_language_model(LM, TEXTS[1][:PREFIX], max_new_tokens=NEW)
    whole = torch.cat([torch.tensor(TEXTS[1][:PREFIX]).expand(len(base.tokens), -1), base.tokens], dim=1)
    weight = (-ENERGY.energies(whole, torch.full((len(whole),), LENGTH))).exp()
    row = int(weight.argmax())  # where few draws fall furthest behind the joint model

    def kept(companions):
        return weight[row] / (weight[row] + weight[companions].sum(1))

    sampler = math.log(n * float(base.probabilities[row] * enumerate_expectation(base.probabilities, kept, n=n - 1)))
    copies = 4_000
    result = JOINT.perplexity([whole[row].tolist()] * copies, prefix_tokens=PREFIX, n=n)
    certified = -result.certified.nats_per_token * NEW
    error = result.certified.standard_error / result.certified.value * NEW
    assert certified <= sampler + 4 * error
    assert certified > sampler - 0.5  # a bound worth having
    assert result.certified.bound == pytest.approx(math.exp((-certified * copies + math.log(20)) / (NEW * copies)))
    assert math.log(result.certified.bound) * NEW >= -sampler  # fails in one seed of twenty at most
    # Teeth: the joint model's density, normalised by the pool alone, is more than the sampler with n draws has.
    assert -math.log(result.lower) * NEW > sampler + 4 * error


def test_samples_of_a_context_depend_on_nothing_but_seed_and_index(monkeypatch):
    """Blocks, micro-batches, neighbours and a larger n leave the samples alone."""
    whole = JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=64, seed=5).log_partition
    monkeypatch.setattr(weighted_draws, "WEIGHTS_AT_ONCE", 64)
    narrow = ResidualModel(LM, ENERGY, memory_budget_bytes=2_000)
    pieces = narrow.perplexity(TEXTS, prefix_tokens=PREFIX, n=64, seed=5).log_partition
    later = narrow.perplexity(TEXTS[1:], prefix_tokens=PREFIX, n=64, seed=5, first_context=1).log_partition
    assert whole.lower.equal(pieces.lower) and whole.lower[1:].equal(later.lower)
    other = JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=64, seed=6).log_partition
    assert not whole.lower.equal(other.lower)


def test_fewer_samples_are_a_part_of_more():
    counts = sample_counts(100)
    assert counts == [2, 5, 10, 20, 50, 100]
    results = JOINT.perplexity_by_samples(TEXTS, counts=counts, prefix_tokens=PREFIX, seed=3)
    assert len(results) == len(counts) and results.to_pandas()["samples"].tolist() == list(counts)
    assert results.plot().series[1].y == [result.lower for result in results] and "<img" in results._repr_html_()
    assert [result.n for result in results] == counts
    for result in results:
        alone = JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=result.n, seed=3)
        assert (result.lower, result.upper) == (alone.lower, alone.upper)
        assert result.certified.value == alone.certified.value
    gaps = [result.upper - result.lower for result in results]
    assert gaps[-1] < gaps[0]


def test_texts_of_several_lengths_have_horizons_of_their_own():
    texts = [TEXTS[0], TEXTS[1][:4], TEXTS[2][:4], TEXTS[0]]
    result = JOINT.perplexity(texts, prefix_tokens=PREFIX, n=20_000)
    assert result.base.tokens == 3 + 2 + 2 + 3
    for row, text in enumerate(texts):
        log_z = exact_joint(LM, ENERGY, text[:PREFIX], max_new_tokens=len(text) - PREFIX).log_partition
        error = float(result.log_partition.standard_error[row])
        assert float(result.log_partition.lower[row]) == pytest.approx(log_z, abs=4 * error)


def test_varying_length_with_an_end_token():
    """EOS is token 0: texts that ended count it, longer ones are cut at the cap; log Z sums over both kinds."""
    lm = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1, concentration=2.0, eos_token_id=0)
    joint = ResidualModel(lm, ENERGY)
    texts = [[1, 2, 3], [1, 2, 3, 0], [2, 2, 1, 3, 1, 1]]  # ended by us, ended by itself, cut to 3 new tokens
    result = joint.perplexity(texts, prefix_tokens=PREFIX, n=20_000, max_new_tokens=NEW)
    assert result.base.tokens == 2 + 2 + 3
    assert float(result.lm_log_prob[0]) == float(result.lm_log_prob[1])
    for row, text in enumerate(texts):
        context = text[:PREFIX]
        exactly = exact_joint(lm, ENERGY, context, max_new_tokens=NEW)
        error = float(result.log_partition.standard_error[row])
        assert float(result.log_partition.lower[row]) == pytest.approx(exactly.log_partition, abs=4 * error)
    # Teeth: at fixed length nothing ends early, so an energy of early ends alone has log Z = 0 there, and less here.
    early = TabularEnergy.from_function(lambda x: 2.0 * (len(x) < LENGTH), vocabulary_size=VOCABULARY, length=LENGTH)
    estimates = [
        ResidualModel(lm, early).log_partition([[2, 2]], n=1_000, max_new_tokens=NEW, stop_at_eos=stops)
        for stops in (False, True)
    ]
    assert float(estimates[0].lower) == pytest.approx(0, abs=1e-12) and float(estimates[1].lower) < -0.1
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, max_new_tokens=NEW)


def test_the_model_of_varying_length_sums_to_one_and_nothing_follows_its_end(monkeypatch):
    """EOS is token 0. All texts that end with their first EOS or have 3 new tokens without one: their joint
    probabilities sum to one. A text that goes on after EOS has none and is refused. Deliberate mistake: scored all the
    same, such texts add to a sum that is one already."""
    lm = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1, concentration=2.0, eos_token_id=0)
    joint, context = ResidualModel(lm, ENERGY), [0, 2]  # an end within what is given is another document's
    log_z = exact_joint(lm, ENERGY, context, max_new_tokens=NEW).log_partition
    every = [list(text) for size in range(1, NEW + 1) for text in product(range(VOCABULARY), repeat=size)]
    going_on = [text for text in every if 0 in text[:-1]]
    valid = [text for text in every if 0 not in text[:-1] and (text[-1] == 0 or len(text) == NEW)]

    def total(texts):
        log_weights = joint.log_weights([context + text for text in texts], prefix_tokens=PREFIX, max_new_tokens=NEW)
        return float((log_weights - log_z).exp().sum())

    assert total(valid) == pytest.approx(1, abs=1e-10)
    for text in going_on:
        with pytest.raises(
            DataError, match=rf"text 2 has the end-of-sequence token 0 at position {text.index(0) + 3} of"
        ):
            total([valid[0], text])
    assert joint.perplexity([[*context, 1, 2, 0, 3]], prefix_tokens=PREFIX, n=5, max_new_tokens=2).base.tokens == 2
    monkeypatch.setattr(joint_texts.JointTexts, "_refuse_inner_end", lambda *_, **__: None)
    assert total(valid + going_on) > 1.1


def test_steps_are_the_joint_models_conditionals_and_the_last_is_exact():
    """20,000 samples a position: each interval holds the enumerated perplexity within four sampling errors; the last
    position by enumeration equals it to rounding."""
    result = JOINT.stepwise(TEXTS, prefix_tokens=PREFIX, n=20_000)
    assert result.positions == (3, 4, 5)
    for place, position in enumerate(range(NEW)):
        steps = [
            float(exact(text).next_token_log_probs(text[PREFIX : PREFIX + position])[text[PREFIX + position]])
            for text in TEXTS
        ]
        expected = math.exp(-sum(steps) / len(steps))
        error = result.sampling_error[place]
        assert result.optimistic[place].value - 4 * error <= expected <= result.pessimistic[place].value + 4 * error
        if position == NEW - 1:
            assert result.last_exact.value == pytest.approx(expected, rel=1e-9)
            assert result.base[place].value != pytest.approx(expected, rel=1e-3)  # teeth: the base is no answer
    low, high = result.gain[0]
    assert low == result.base[0].value - result.pessimistic[0].value <= high
    assert len(result.to_json()["gain_lower"]) == NEW


def test_the_last_step_does_not_need_the_whole_vocabulary_at_once(monkeypatch):
    from energylm.bundles import residual_measures

    whole = JOINT.stepwise(TEXTS, prefix_tokens=PREFIX, n=2).last_exact
    monkeypatch.setattr(residual_measures, "LAST_TOKENS_AT_ONCE", 3)
    assert JOINT.stepwise(TEXTS, prefix_tokens=PREFIX, n=2).last_exact == whole


class Alive:
    """Counts the drawn tokens that are alive at once, by watching every piece that the sampler hands out."""

    def __init__(self):
        self.now = self.most = 0

    def watching(self, stream):
        def watched(*arguments, **options):
            for piece in stream(*arguments, **options):
                size = piece.continuations.tokens.numel()
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(piece.continuations.tokens, self._gone, size)
                yield piece
                del piece

        return watched

    def _gone(self, size):
        self.now -= size


def most_alive(monkeypatch, n, *, hoard=False):
    alive, original = Alive(), weighted_draws.stream_continuations
    with monkeypatch.context() as patch:
        stream = alive.watching(original)
        patch.setattr(
            weighted_draws, "stream_continuations", (lambda *a, **o: iter(list(stream(*a, **o)))) if hoard else stream
        )
        ResidualModel(LM, ENERGY, memory_budget_bytes=20_000).log_partition([[0, 1]], n=n, max_new_tokens=NEW)
    gc.collect()
    assert alive.now == 0
    return alive.most


def test_a_hundred_times_the_samples_need_no_more_continuations_in_memory(monkeypatch):
    """What grows with n is one scalar a sample. Deliberate mistake: hoarding the pieces is seen at once."""
    few, many = most_alive(monkeypatch, 1_000), most_alive(monkeypatch, 100_000)
    assert many <= 1.2 * few
    assert most_alive(monkeypatch, 10_000, hoard=True) > 5 * few


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: JOINT.log_partition([[0, 1]], n=1, max_new_tokens=2),
            ConfigError,
            "at least 2 samples a context, came 1",
        ),
        (lambda: JOINT.perplexity(TEXTS, prefix_tokens=PREFIX, n=1), ConfigError, "at least 2 samples"),
        (lambda: JOINT.stepwise(TEXTS, prefix_tokens=PREFIX, n=1), ConfigError, "at least 2 samples"),
        (lambda: JOINT.perplexity(TEXTS, prefix_tokens=5), DataError, "text 1 has 5 tokens, none to score"),
        (lambda: JOINT.perplexity([], prefix_tokens=2), DataError, "no text came"),
        (lambda: JOINT.stepwise([[0, 1, 2], [0, 1, 2, 3]], prefix_tokens=2), DataError, "one length, came 1 to 2"),
        (lambda: JOINT.perplexity(["a string"], prefix_tokens=2), DataError, "no tokenizer; pass lists of token ids"),
        (
            lambda: ResidualModel(LM, TabularEnergy.random(3, 3, seed=0)),
            VocabularyMismatch,
            "a vocabulary of 3 tokens but the language model writes 4; train the energy on",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_energies_that_are_not_finite_are_named():
    table = ENERGY.table.clone()
    table[-VOCABULARY:] = math.nan
    broken = ResidualModel(LM, TabularEnergy(table, vocabulary_size=VOCABULARY, length=LENGTH))
    with pytest.raises(ModelError, match=r"energies are not finite .* retrain or recalibrate"):
        broken.log_partition([[3, 3]], n=500, max_new_tokens=NEW)


@pytest.mark.parametrize("shift", [-100.0, 100.0])
def test_a_shift_of_the_energy_cancels(shift):
    """Energies around ±100 are no trouble, and move log Z alone."""
    shifted = ResidualModel(LM, TabularEnergy(ENERGY.table + shift, vocabulary_size=VOCABULARY, length=LENGTH))
    here, there = (model.perplexity(TEXTS, prefix_tokens=PREFIX, n=100) for model in (JOINT, shifted))
    assert (there.lower, there.upper) == (pytest.approx(here.lower), pytest.approx(here.upper))
    assert there.certified.value == pytest.approx(here.certified.value)
    torch.testing.assert_close(there.log_partition.lower, here.log_partition.lower - shift)


def test_a_weak_estimate_is_said_once(capsys):
    model = ResidualModel(LM, ENERGY)
    model.log_partition([[0, 1]], n=1_000, max_new_tokens=NEW)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        model.log_partition([[0, 1]], n=4, max_new_tokens=NEW)
    assert capsys.readouterr().err.count("independent ones") == 1
