"""CausalLanguageModel: normalised in both directions, equal to a plain forward pass, whatever the batch."""

import functools

import pytest
import torch
from torch.testing import assert_close

from energylm.contracts import CausalModel
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.models import causal
from energylm.models.causal import CausalLanguageModel, reversed_within
from energylm.models.presets import build_network
from energylm.samplers.continuations import sample_continuations
from energylm.testing import assert_same_distribution, enumerate_sequences

VOCABULARY, START = 5, 0
DIRECTIONS = ("left-to-right", "right-to-left")


def make(direction="left-to-right", preset="tiny", start=START, **overrides):
    sizes = {"layers": 2, "width": 16} | ({"heads": 2} if preset == "tiny" else {"embedding_width": 8}) | overrides
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = build_network(
            preset, vocabulary_size=VOCABULARY, max_length=12, eos_token_id=START, overrides=sizes
        ).double()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    return CausalLanguageModel(network.eval(), start_token_id=start, eos_token_id=START, direction=direction)


def by_hand(model, sequence, first):
    """Log-probabilities in natural order from one plain forward pass over [start] + the sequence in reading order, or
    over the sequence alone where a context of `first` ≥ 1 tokens is given."""
    backwards = model.direction == "right-to-left"
    reading = sequence[::-1] if backwards else list(sequence)
    given, skip = ([START, *reading], 1) if first == 0 else (reading, first)
    with torch.no_grad():
        log_prob = model.network(input_ids=torch.tensor([given])).logits[0].log_softmax(-1)
    values = [float(log_prob[t - 1, given[t]]) for t in range(skip, len(given))]
    return values[::-1] if backwards else values


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_probabilities_of_all_sequences_sum_to_one(direction, preset):
    """All 5^4 sequences; and, given the two tokens that are read first, all 5^2 rests."""
    model = make(direction, preset)
    tokens = enumerate_sequences(VOCABULARY, 4)
    lengths = torch.full((len(tokens),), 4)
    assert isinstance(model, CausalModel)
    assert float(model.token_log_probs(tokens, lengths).sum(1).exp().sum()) == pytest.approx(1, abs=1e-12)
    given = tokens[:, :2] if direction == "left-to-right" else tokens[:, 2:]
    rest = model.token_log_probs(tokens, lengths, first=2).sum(1).exp()
    for context in enumerate_sequences(VOCABULARY, 2):
        assert float(rest[(given == context).all(1)].sum()) == pytest.approx(1, abs=1e-12)


def test_the_wrong_direction_does_not_sum_to_one():
    """Teeth: summing over rests at the wrong end is no distribution."""
    model = make("right-to-left")
    tokens = enumerate_sequences(VOCABULARY, 4)
    rest = model.token_log_probs(tokens, torch.full((len(tokens),), 4), first=2).sum(1).exp()
    total = float(rest[(tokens[:, :2] == torch.tensor([1, 2])).all(1)].sum())
    assert abs(total - 1) > 1e-3


SEQUENCES = [[1, 2, 3, 4, 1, 2, 3], [4], [2, 2, 0, 1, 3], [3, 1], [1, 1, 4, 4, 2, 0, 3]]


def padded(value):
    tokens = torch.full((len(SEQUENCES), 9), value)
    for row, sequence in enumerate(SEQUENCES):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    return tokens, torch.tensor([len(sequence) for sequence in SEQUENCES])


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_unequal_lengths_equal_plain_forward_passes(direction, preset, first):
    """Natural order, zeros past the end, padding of any value, sequences no longer than the context left at zero."""
    model = make(direction, preset)
    expected = torch.zeros(len(SEQUENCES), 9 - first, dtype=torch.float64)
    for row, sequence in enumerate(SEQUENCES):
        values = by_hand(model, sequence, first)
        expected[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
    for value in (0, 4, -100):
        got = model.token_log_probs(*padded(value), first=first)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_micro_batches_and_slices_change_nothing(direction, monkeypatch):
    model = make(direction)
    whole = model.token_log_probs(*padded(0))
    seen = []
    forward = model.network.forward
    monkeypatch.setattr(model.network, "forward", spy_on(forward, seen))
    monkeypatch.setattr(causal, "LOGITS_PER_MICRO_BATCH", 16 * VOCABULARY)
    monkeypatch.setattr(causal, "LOGITS_PER_REDUCTION", VOCABULARY)
    torch.testing.assert_close(model.token_log_probs(*padded(0)), whole, atol=1e-12, rtol=0)
    assert seen == [(2, 7), (2, 5), (1, 1)]  # similar lengths together, each no more than 16 tokens


def spy_on(forward, seen):
    @functools.wraps(forward)
    def spy(input_ids, **options):
        seen.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **options)

    return spy


def test_logits_of_a_context_are_not_computed(monkeypatch):
    model = make()
    kept = []
    head = model.network.lm_head.forward
    monkeypatch.setattr(model.network.lm_head, "forward", lambda hidden: kept.append(hidden.shape[1]) or head(hidden))
    model.token_log_probs(torch.ones(1, 9, dtype=torch.int64), torch.tensor([9]), first=6)
    assert kept == [3]


def test_reversed_within():
    values, lengths = torch.tensor([[1, 2, 3, 9], [4, 5, 9, 9]]), torch.tensor([3, 2])
    assert reversed_within(values, lengths).tolist() == [[3, 2, 1, 9], [5, 4, 9, 9]]
    assert reversed_within(values[None], lengths[None])[0].tolist() == [[3, 2, 1, 9], [5, 4, 9, 9]]


def test_mistakes_name_the_cure():
    tokens, lengths = torch.ones(1, 13, dtype=torch.int64), torch.tensor([13])
    with pytest.raises(ModelError, match=r"no start token.*prefix_tokens=1"):
        make(start=None).token_log_probs(tokens[:, :3], torch.tensor([3]))
    assert make(start=None).token_log_probs(tokens[:, :3], torch.tensor([3]), first=1).shape == (1, 2)
    with pytest.raises(ModelError, match=r"13 tokens is longer than the 12.*windows"):
        make().token_log_probs(tokens, lengths)
    assert make(preset="conv-tiny").token_log_probs(tokens, lengths).shape == (1, 13)
    with pytest.raises(VocabularyMismatch, match="token id 7 came but the model knows ids 0 to 4"):
        make().token_log_probs(torch.tensor([[1, 7]]), torch.tensor([2]))
    with pytest.raises(ModelError, match="direction must be"):
        make(direction="up")
    training = make()
    training.network.train()
    with pytest.raises(ModelError, match="training mode"):
        training.token_log_probs(*padded(0))


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_forbidden_tokens_leave_a_distribution_over_the_others(direction, preset):
    """All 5^3 sequences: those with a forbidden token are refused, the 3^3 others sum to one, and each conditional is
    P(v | x_<t) / (1 − P(0 | x_<t) − P(3 | x_<t)), derived from the plain model's own log-probabilities."""
    plain = make(direction, preset)
    model = plain.without([START, 3])
    assert model.eos_token_id is None
    tokens = enumerate_sequences(VOCABULARY, 3)
    allowed = ~torch.isin(tokens, torch.tensor([START, 3])).any(1)
    lengths = torch.full((int(allowed.sum()),), 3)
    log_prob = model.token_log_probs(tokens[allowed], lengths)
    assert float(log_prob.sum(1).exp().sum()) == pytest.approx(1, abs=1e-12)
    for sequence, values in zip(tokens[allowed].tolist(), log_prob, strict=True):
        reading = sequence[::-1] if direction == "right-to-left" else sequence
        read = [START, *reading]
        with torch.no_grad():
            probability = plain.network(input_ids=torch.tensor([read])).logits[0].softmax(-1)
        expected = [
            float((probability[t, reading[t]] / (1 - probability[t, START] - probability[t, 3])).log())
            for t in range(3)
        ]
        expected = expected[::-1] if direction == "right-to-left" else expected
        assert values.tolist() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(DataError, match="special token 3"):
        model.token_log_probs(torch.tensor([[1, 3, 1]]), torch.tensor([3]))


def test_forbidding_in_scores_alone_would_not_sum_to_one():
    """Teeth: leaving the forbidden token's probability where it is loses mass."""
    plain = make()
    tokens = enumerate_sequences(VOCABULARY, 3)
    allowed = tokens[~torch.isin(tokens, torch.tensor([START])).any(1)]
    mass = plain.token_log_probs(allowed, torch.full((len(allowed),), 3)).sum(1).exp().sum()
    assert float(mass) < 0.99


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
def test_a_model_without_tokens_draws_from_what_it_scores(preset):
    """No forbidden token is drawn, a drawn log-probability equals the score, and the law is the exact one."""
    model = make(preset=preset).without([START])
    drawn = sample_continuations(model.decoder(), [[1, 2]], n=4000, max_new_tokens=2, seed=5)
    tokens = drawn.tokens[0]
    assert not (tokens == START).any()
    whole = torch.cat([torch.tensor([[1, 2]]).expand(len(tokens), 2), tokens], dim=1)
    scored = model.token_log_probs(whole, torch.full((len(whole),), 4), first=2).sum(1)
    assert_close(drawn.log_prob[0], scored, atol=1e-10, rtol=0)
    assert_close(drawn.proposal_log_prob, drawn.log_prob, atol=1e-12, rtol=0)
    rests = enumerate_sequences(VOCABULARY - 1, 2) + 1
    exact = model.token_log_probs(
        torch.cat([torch.tensor([[1, 2]]).expand(len(rests), 2), rests], dim=1), torch.full((len(rests),), 4), first=2
    )
    counts = (tokens[:, None, :] == rests[None]).all(2).sum(0)
    assert_same_distribution(counts, exact.sum(1).exp(), false_alarm=1e-4)
