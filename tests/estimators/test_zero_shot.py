"""Zero-shot scores against their definitions, written out in plain Python over the whole vocabulary of a tiny language;
curvature against all texts that its moments are of. Beside each, a mistake that the same comparison refuses."""

import itertools
import math
from typing import get_args

import pytest
import torch
from torch.testing import assert_close

from energylm.config.models import ZeroShotScore
from energylm.errors import ConfigError, VocabularyMismatch
from energylm.estimators.zero_shot import SCORES, SIGNS, TokenStatistics, binoculars, curvature, token_statistics
from energylm.models.causal import CausalLanguageModel
from energylm.testing import TabularLanguageModel, enumerate_sequences

VOCABULARY, LENGTH = 4, 3
PERFORMER = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1)
OBSERVER = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=2)
TEXTS = enumerate_sequences(VOCABULARY, LENGTH)


def logits_of(model):
    """(B, T, V) of every text of the language."""
    return torch.stack([torch.stack([model.next_log_probs(row[:t]) for t in range(LENGTH)]) for row in TEXTS.tolist()])


def statistics_of(performer=PERFORMER, observer=OBSERVER):
    fields = token_statistics(logits_of(performer), TEXTS, logits_of(observer))
    return TokenStatistics(*fields[:4], torch.full((len(TEXTS),), LENGTH), fields[4])


def by_definition(text, *, rank_of=lambda p, token: 1 + sum(other > p[token] for other in p)):
    """The six scores of one text, token by token and word by word of the vocabulary."""
    log_p = log_r = entropy = variance = cross = 0.0
    for t, token in enumerate(text):
        p = PERFORMER.next_log_probs(text[:t]).exp().tolist()
        q = OBSERVER.next_log_probs(text[:t]).exp().tolist()
        mean = sum(each * math.log(each) for each in p)
        log_p += math.log(p[token])
        log_r += math.log(rank_of(p, token))
        entropy -= mean
        variance += sum(each * (math.log(each) - mean) ** 2 for each in p)
        cross -= sum(theirs * math.log(ours) for theirs, ours in zip(q, p, strict=True))
    return {
        "log-likelihood": log_p / LENGTH,
        "log-rank": log_r / LENGTH,
        "entropy": entropy / LENGTH,
        "lrr": -log_p / max(log_r, math.log(2)),
        "curvature": (log_p + entropy) / math.sqrt(variance),
        "binoculars": -log_p / cross,
    }


def test_every_score_is_its_definition():
    assert set(SCORES) == set(SIGNS) == set(get_args(ZeroShotScore))
    statistics, expected = statistics_of(), [by_definition(text) for text in TEXTS.tolist()]
    for name, score in SCORES.items():
        assert_close(score(statistics), torch.tensor([of[name] for of in expected], dtype=torch.float64))
    # teeth: ranks that count from 0 with the token itself as a rival, swapped models
    from_the_other_end = [
        by_definition(text, rank_of=lambda p, x: sum(v <= p[x] for v in p)) for text in TEXTS.tolist()
    ]
    for name in ("log-rank", "lrr"):
        wrong = torch.tensor([of[name] for of in from_the_other_end], dtype=torch.float64)
        assert not torch.allclose(SCORES[name](statistics), wrong)
    swapped = statistics_of(OBSERVER, PERFORMER)
    assert not torch.allclose(binoculars(swapped), binoculars(statistics))


def test_curvature_has_the_moments_of_all_texts_drawn_beside_the_given_one():
    """Bao et al. draw every token anew given the *given* text's prefix: all V^T such texts are summed over here."""
    statistics = statistics_of()
    for number, text in enumerate(TEXTS.tolist()):
        rows = [PERFORMER.next_log_probs(text[:t]) for t in range(LENGTH)]
        log_prob = torch.tensor(
            [
                sum(float(rows[t][v]) for t, v in enumerate(other))
                for other in itertools.product(range(VOCABULARY), repeat=LENGTH)
            ],
            dtype=torch.float64,
        )
        weight = log_prob.exp()
        mean = float((weight * log_prob).sum())
        deviation = math.sqrt(float((weight * (log_prob - mean) ** 2).sum()))
        own = sum(float(rows[t][v]) for t, v in enumerate(text))
        assert float(curvature(statistics)[number]) == pytest.approx((own - mean) / deviation, abs=1e-9)
        assert float(curvature(statistics)[number]) != pytest.approx((own - mean) / deviation**2, abs=1e-3)  # teeth


def test_certain_tokens_and_tokens_that_cannot_come_are_no_trouble():
    logits = torch.tensor([[[0.0, -math.inf, -math.inf], [1.0, 1.0, -math.inf]]], dtype=torch.float64)
    fields = token_statistics(logits, torch.tensor([[0, 1]]))
    assert_close(fields[:, 0, 0], torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    assert_close(fields[:, 0, 1], torch.tensor([-math.log(2), 0.0, math.log(2), 0.0], dtype=torch.float64))
    certain = TokenStatistics(*fields[:, :, :1], torch.tensor([1]))
    assert [float(SCORES[name](certain)) for name in ("log-likelihood", "lrr", "curvature")] == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="give an observer"):
        binoculars(certain)


@pytest.fixture(scope="module")
def networks():
    from transformers import GPT2Config, GPT2LMHeadModel

    made = []
    for seed in (0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2, initializer_range=0.5)
            made.append(GPT2LMHeadModel(config).double().eval())
    return made


@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
@pytest.mark.parametrize("first", [0, 2])
def test_the_pass_over_a_batch_gives_what_each_text_gives_alone(networks, direction, first, monkeypatch):
    """Unequal lengths, micro-batches, slices of logits, and an observer change nothing; the log-probabilities are those
    of the other method, the rest comes from the network's own logits."""
    performer, observer = (
        CausalLanguageModel(network, start_token_id=10, eos_token_id=None, direction=direction) for network in networks
    )
    generator = torch.Generator().manual_seed(3)
    tokens, lengths = torch.randint(0, 10, (5, 9), generator=generator), torch.tensor([9, 7, 5, 9, 6])
    monkeypatch.setattr("energylm.models.causal.LOGITS_PER_REDUCTION", 23)
    together = performer.token_statistics(tokens, lengths, first=first, observer=observer)
    assert_close(together.log_prob_BT, performer.token_log_probs(tokens, lengths, first=first))
    assert together.tokens_B.tolist() == [length - first for length in lengths.tolist()]
    assert torch.equal(together.real, together.log_prob_BT != 0)
    for number, length in enumerate(lengths.tolist()):
        row = tokens[number, :length]
        read = torch.cat([torch.tensor([10]), row if direction == "left-to-right" else row.flip(0)])
        if first:
            read = read[1:]
        given = max(first, 1)
        with torch.no_grad():
            logits = [network(read[None, :-1]).logits[:, given - 1 :] for network in networks]
        fields = token_statistics(logits[0], read[None, given:], logits[1])[:, 0]
        alone = torch.stack(
            [
                together.log_prob_BT,
                together.log_rank_BT,
                together.entropy_BT,
                together.variance_BT,
                together.cross_entropy_BT,
            ]
        )[:, number, : length - first]
        assert_close(alone, fields if direction == "left-to-right" else fields.flip(-1))
        assert not torch.allclose(alone, fields.roll(1, -1))  # teeth: off by one position


def test_models_of_two_vocabularies_are_refused(networks):
    from transformers import GPT2Config, GPT2LMHeadModel

    other = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_positions=16, n_embd=8, n_layer=1, n_head=2)).eval()
    one, two = (CausalLanguageModel(network, start_token_id=0, eos_token_id=None) for network in (networks[0], other))
    with pytest.raises(VocabularyMismatch, match="take two models of one tokenizer"):
        one.token_statistics(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([3]), observer=two)
