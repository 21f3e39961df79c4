"""The law of what a ResidualModel draws, against enumeration: both kinds of weights, EOS, chunks, token by token.

The language has 3 tokens; after a context of 1 there are 9 continuations of 2 tokens. Frequencies are compared by
chi-square with a false alarm of 1e-4; 2,000 independent pools come from 2,000 copies of the context.
"""

import math

import pytest
import torch

from energylm.bundles.residual_model import ResidualModel
from energylm.config.sampling import JointSampling, Truncation
from energylm.errors import ConfigError
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_same_distribution,
    exact_joint,
    exact_language_model,
    exact_proposal,
)

VOCABULARY, LENGTH, CONTEXT, NEW = 3, 5, [1], 2
POOLS = 2_000


def uneven(history):
    """What top-2 cuts away depends on the first new token: a third after 0, a hundredth after 1."""
    return {(1, 0): [0.34, 0.33, 0.33], (1, 1): [0.9, 0.09, 0.01]}.get(history, [0.5, 0.4, 0.1])


LM = TabularLanguageModel.from_function(uneven, vocabulary_size=VOCABULARY, length=LENGTH)
ENERGY = TabularEnergy.random(VOCABULARY, LENGTH, seed=5, scale=1.2)
JOINT = ResidualModel(LM, ENERGY)
BASE = exact_language_model(LM, CONTEXT, max_new_tokens=NEW)
EXACT = exact_joint(LM, ENERGY, CONTEXT, max_new_tokens=NEW)


def counts(samples, exact, draw=0):
    tokens = [sample.tokens[draw] for sample in samples]
    lengths = torch.tensor([len(row) for row in tokens])
    padded = [row + [0] * (exact.tokens.shape[1] - len(row)) for row in tokens]
    return exact.counts(torch.tensor(padded), lengths)


def draw(joint=JOINT, **options):
    values = JointSampling(**({"n": 100, "max_new_tokens": NEW} | options))
    return joint.sample_batch([CONTEXT] * POOLS, values, seed=4)


def test_untruncated_sampling_has_the_joint_models_law():
    samples = draw()
    assert_same_distribution(counts(samples, EXACT), EXACT.probabilities)
    with pytest.raises(AssertionError, match="chi-square"):  # teeth: the base's law is another
        assert_same_distribution(counts(samples, EXACT), BASE.probabilities)


@pytest.mark.parametrize("weights", ["paper", "corrected"])
def test_truncated_sampling_has_the_law_that_its_weights_name(weights):
    truncation = Truncation(top_k=2)
    proposal = exact_proposal(BASE, truncation)
    energy = BASE.log_prob - EXACT.log_prob  # up to a constant
    outside = proposal.probabilities == 0
    targets = {
        name: (density.log_prob - energy).masked_fill(outside, float("-inf")).softmax(0)
        for name, density in {"paper": proposal, "corrected": BASE}.items()
    }
    drawn = counts(draw(truncation=truncation, weights=weights), BASE)
    assert_same_distribution(drawn, targets.pop(weights))
    (other,) = targets.values()
    with pytest.raises(AssertionError, match="chi-square"):  # deliberate mistake: the other kind's target
        assert_same_distribution(drawn, other)


def test_few_candidates_lie_between_the_base_and_the_joint_model():
    """n = 2 by enumeration: P(x) = Σ_y 2 P(x) P(y) w(x) / (w(x) + w(y)) over unordered pairs, once for x = y."""
    weight = (EXACT.log_prob - BASE.log_prob).exp()
    share = weight[:, None] / (weight[:, None] + weight[None, :])
    law = 2 * BASE.probabilities * (share @ BASE.probabilities)
    drawn = draw(n=2)
    assert float(law.sum()) == pytest.approx(1)
    assert_same_distribution(counts(drawn, EXACT), law)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_same_distribution(counts(drawn, EXACT), EXACT.probabilities)
    assert "lies between" in drawn[0].warning and drawn[0].ess <= 2


def test_a_warning_says_whether_candidates_are_few_or_unequal():
    even = ResidualModel(LM, TabularEnergy(torch.zeros_like(ENERGY.table), vocabulary_size=VOCABULARY, length=LENGTH))
    steep = ResidualModel(LM, TabularEnergy(9 * ENERGY.table, vocabulary_size=VOCABULARY, length=LENGTH))
    assert draw(even, n=16)[0].warning.startswith("16 candidates are few to choose from, and the text's law")
    unequal = draw(steep, n=16)[0]
    assert unequal.ess < 8 and f"worth {unequal.ess:.1f} independent ones: a few decide" in unequal.warning
    assert draw(even)[0].warning is None


def test_several_draws_are_different_candidates_and_the_first_keeps_its_law():
    samples = draw(draws=3)
    assert all(len(set(sample.pools[0].kept)) == 3 for sample in samples)
    assert_same_distribution(counts(samples, EXACT), EXACT.probabilities)
    # Without replacement the second draw is no sample of the joint model where candidates are few.
    few = draw(n=3, draws=3)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_same_distribution(counts(few, EXACT, draw=2), counts(few, EXACT).double() / POOLS)


def test_sequences_end_with_eos_and_are_weighed_as_they_are():
    """The energy reads the sequence up to and with its EOS (token 2), so lengths vary in the exact law, too."""
    lm = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=3, concentration=3.0, eos_token_id=2)
    joint, exact = ResidualModel(lm, ENERGY), exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=3)
    samples = draw(joint, max_new_tokens=3)
    assert {len(sample.tokens[0]) for sample in samples} == {1, 2, 3}
    assert_same_distribution(counts(samples, exact), exact.probabilities)
    fixed = draw(joint, max_new_tokens=3, stop_at_eos=False)
    assert {len(sample.tokens[0]) for sample in fixed} == {3}


def test_chunks_go_on_from_what_was_kept():
    """Two chunks of 2 tokens: the law is the first chunk's times the second's given the first, each its own joint."""
    samples = draw(chunks=2)
    law, sequences = [], []
    for first, probability in zip(EXACT.tokens.tolist(), EXACT.probabilities, strict=True):
        second = exact_joint(LM, ENERGY, [*CONTEXT, *first], max_new_tokens=NEW)
        law.append(probability * second.probabilities)
        sequences += [[*first, *row] for row in second.tokens.tolist()]
    whole = exact_joint(LM, ENERGY, CONTEXT, max_new_tokens=2 * NEW)
    assert whole.tokens.tolist() == sequences
    assert_same_distribution(counts(samples, whole), torch.cat(law))
    with pytest.raises(AssertionError, match="chi-square"):  # teeth: one pool of whole texts is another model
        assert_same_distribution(counts(samples, whole), whole.probabilities)
    assert len(samples[0].pools) == 2 and samples[0].text == " ".join(map(str, samples[0].tokens[0]))


def test_chunks_stop_at_eos_and_others_go_on_undisturbed():
    lm = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=3, concentration=3.0, eos_token_id=2)
    joint, options = ResidualModel(lm, ENERGY), JointSampling(n=5, max_new_tokens=1, chunks=4)
    together = joint.sample_batch([CONTEXT] * 30, options, seed=1)
    lengths = {len(sample.tokens[0]) for sample in together}
    assert min(lengths) < 4 and max(lengths) == 4
    for number, sample in enumerate(together):
        assert 2 not in sample.tokens[0][:-1] and len(sample.pools) == len(sample.tokens[0])
        (alone,) = joint.sample_batch([CONTEXT], options, seed=1, first_context=number)
        assert alone.tokens == sample.tokens


def test_the_context_can_be_kept_short():
    """With one token of context the table's rows for longer histories are never asked for."""
    options = {"n": 4, "max_new_tokens": 2, "chunks": 6, "context_tokens": 1}
    assert len(JOINT.sample(CONTEXT, **options).tokens[0]) == 12
    with pytest.raises(ValueError, match="at most 5 tokens"):
        JOINT.sample(CONTEXT, **(options | {"context_tokens": None}))


def test_a_sample_knows_its_candidates():
    sample = JOINT.sample(CONTEXT, n=50, max_new_tokens=NEW, top_k=2, weights="corrected", draws=2, seed=3)
    (pool,) = sample.pools
    assert len(sample.candidates) == 50 and sample.candidates[pool.kept[1]] == sample.texts[1]
    whole = torch.cat([torch.tensor(CONTEXT).expand(50, -1), pool.tokens], dim=1)
    torch.testing.assert_close(sample.energies, ENERGY.energies(whole, torch.full((50,), 3)))
    expected = pool.log_prob - pool.proposal_log_prob - pool.energy
    torch.testing.assert_close(sample.log_weights, expected)
    share = expected.softmax(0)
    assert sample.ess == pytest.approx(1 / float((share**2).sum()))
    assert sample.largest_share == pytest.approx(float(share.max()))
    assert sample.to_json()["pools"][0]["kept"] == pool.kept
    again, other = (JOINT.sample(CONTEXT, n=50, max_new_tokens=NEW, seed=seed) for seed in (3, 4))
    assert again.tokens != other.tokens or not again.energies.equal(other.energies)


@pytest.mark.parametrize("position", [0, 1])
def test_next_token_tables_equal_the_exact_conditionals(position):
    """All 3 candidates kept. At the last position there is no future to estimate: equal to rounding."""
    first = [0] * position
    table = JOINT.next_token_table(
        [*CONTEXT, *first], max_new_tokens=NEW - position, candidates=3, keep=3, n=40_000, seed=1
    )
    exact = EXACT.next_token_log_probs(first).exp()
    base = BASE.next_token_log_probs(first).exp()
    tolerance = 1e-12 if position == NEW - 1 else 0.02
    assert {entry.token: entry.probability for entry in table.joint} == pytest.approx(
        dict(enumerate(exact.tolist())), abs=tolerance
    )
    assert {entry.token: entry.probability for entry in table.base} == pytest.approx(dict(enumerate(base.tolist())))
    assert table.base_mass == pytest.approx(1)
    assert float((exact - base).abs().max()) > 0.03  # teeth: returning the base would be seen
    assert [row["rank"] for row in table.rows(show=2)] == [0, 1, 0, 1]


def test_next_token_tables_keep_and_renormalise():
    table = JOINT.next_token_table(CONTEXT, max_new_tokens=NEW, candidates=2, keep=1, n=10)
    assert [entry.probability for entry in table.joint] == [1.0] and table.base_mass == pytest.approx(0.9)
    assert "worth fewer than 20" in table.warning


def test_an_end_token_has_no_future():
    """EOS (token 2) first: its weight is exp(−E) of the ended sequence, exactly; the table equals enumeration."""
    lm = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=3, concentration=3.0, eos_token_id=2)
    exact = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=3).next_token_log_probs().exp()
    table = ResidualModel(lm, ENERGY).next_token_table(CONTEXT, max_new_tokens=3, candidates=3, keep=3, n=40_000)
    assert {entry.token: entry.probability for entry in table.joint} == pytest.approx(
        dict(enumerate(exact.tolist())), abs=0.02
    )


def test_token_by_token_sampling_has_the_joint_models_law():
    """300 texts, 2,000 completions a candidate: the error of a table is far below that of 300 draws."""
    samples = [
        JOINT.sample_autoregressive(CONTEXT, max_new_tokens=NEW, candidates=3, keep=3, n=2_000, seed=seed)
        for seed in range(300)
    ]
    drawn = EXACT.counts(torch.tensor([sample.tokens for sample in samples]))
    assert_same_distribution(drawn, EXACT.probabilities)
    assert len(samples[0].tables) == NEW and samples[0].warning is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 1}, "n: Input should be greater than or equal to 2"),
        ({"n": 4, "draws": 5}, "draws 5 of n 4 candidates"),
        ({"draws": 2, "chunks": 2}, "draws 2 with chunks 2"),
        ({"weights": "other"}, "weights: Input should be 'paper' or 'corrected'"),
        ({"top_p": 1.5}, r"truncation\.top_p"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        JOINT.sample(CONTEXT, **options)


def test_a_hundred_thousand_candidates():
    sample = JOINT.sample(CONTEXT, n=100_000, max_new_tokens=NEW)
    assert len(sample.energies) == 100_000 and math.isfinite(sample.ess) and sample.warning is None
