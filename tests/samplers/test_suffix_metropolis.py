"""Moves that rewrite the end of a text keep P·exp(−E) and P^α to 1e-10, by exact transition matrices.

Texts of 3 of 2 tokens (8 states), and texts that end with an end token (lengths 1 to 3), where the ratio of lengths
matters. Every path of the real `step` is walked: cut, tokens, acceptance.
"""

import pytest
import torch

from energylm.config.sampling import Truncation
from energylm.randomness import row_keys
from energylm.samplers import suffix_metropolis
from energylm.samplers.choices import ChainChoices
from energylm.samplers.resampling import importance_log_weights
from energylm.samplers.suffix_metropolis import SuffixMetropolis, block_lengths, run, tokens_of_a_chain
from energylm.samplers.written_rows import ReadContexts
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_same_distribution,
    assert_stationary,
    exact_language_model,
    exact_transition_matrix,
    index_of,
    is_reversible,
)

CONTEXT, NEW = [1], 3
LMS = {
    "three tokens": TabularLanguageModel.random(3, len(CONTEXT) + NEW, seed=3),
    "fixed length": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3),
    "end token": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3, eos_token_id=0),
}


class Language:
    """A table, its target q·w with w = P^α exp(−βE) / q, and the sampler over it."""

    def __init__(self, kind, *, power=1.0, beta=1.0, truncation=Truncation(), weights="corrected", sign=1.0):  # noqa: B008
        self.lm, self.power, self.beta, self.weights, self.sign = LMS[kind], power, beta, weights, sign
        self.truncation = truncation
        self.energy = TabularEnergy.random(self.lm.vocabulary_size, len(CONTEXT) + NEW, seed=5, scale=1.2)
        self.base = exact_language_model(self.lm, CONTEXT, max_new_tokens=NEW)
        self.target = (power * self.base.log_prob - beta * self._energy(self.base.tokens, self.base.lengths)).softmax(0)

    def _energy(self, tokens, lengths):
        context = torch.tensor(CONTEXT).expand(len(tokens), -1)
        return self.energy.energies(torch.cat([context, tokens], 1), len(CONTEXT) + lengths)

    def weigh(self, tokens, lengths, log_prob, proposal_log_prob):
        energy = self.beta * self._energy(tokens, lengths)
        log_weight = importance_log_weights(energy, log_prob, proposal_log_prob, weights=self.weights, power=self.power)
        return energy, self.sign * log_weight

    def sampler(self, rows):
        read = ReadContexts(
            self.lm.decoder(), [CONTEXT], n=rows, truncation=self.truncation, eos_token_id=self.lm.eos_token_id
        )
        return SuffixMetropolis(read, self.weigh)

    def state(self, tokens):
        """The chains' state at texts, whose log-probabilities are read off by writing them again."""
        sampler, lengths = self.sampler(len(tokens)), self.base.lengths[index_of(tokens, self.base.tokens)]
        rows = sampler.read.rows(NEW)
        everything = torch.ones_like(tokens, dtype=torch.bool)
        rows.write(NEW, Certain(), given_RT=tokens, is_given_RT=everything)
        assert rows.lengths_R.equal(lengths)
        return sampler, sampler._state(rows)

    def kernel(self, tokens, choices):
        sampler, state = self.state(tokens)
        moved, _ = sampler.step(state, choices)
        return self.padded(moved)

    def padded(self, state):
        """Ended texts as the enumeration writes them: filled up with the end token."""
        past = torch.arange(NEW) >= state.lengths_R[:, None]
        return state.tokens_RT.masked_fill(past, self.lm.eos_token_id or 0)

    def transition(self):
        # Texts that end make a batch stop early, so states travel alone there; else all in one batch.
        alone = None if self.lm.eos_token_id is None else 1
        return exact_transition_matrix(self.base.tokens, self.kernel, rows_at_once=alone)


class Certain:
    """Choices where nothing is open."""

    def categorical(self, logits):
        assert ((logits > float("-inf")).sum(-1) == 1).all()
        return logits.argmax(-1)


TARGETS = {
    "joint": {},
    "power 4": {"power": 4.0, "beta": 0.0},
    "power 4 by a cold proposal": {"power": 4.0, "beta": 0.0, "truncation": Truncation(temperature=0.25)},
    "power of a joint": {"power": 2.0, "beta": 0.7},
}


@pytest.mark.parametrize("kind", ["fixed length", "end token"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_move_keeps_the_target(kind, target):
    language = Language(kind, **TARGETS[target])
    transition = language.transition()
    assert_stationary(language.target, transition)
    assert is_reversible(language.target, transition)


def test_truncated_proposals_keep_their_own_target():
    """With weights "paper" the target is q·exp(−E) on what the proposal can draw: here the 8 texts of the two likeliest
    tokens out of three after each history."""
    language = Language("three tokens", truncation=Truncation(top_k=2), weights="paper")
    _, state = language.state(language.base.tokens)
    possible = state.proposal_log_prob_R > float("-inf")
    target = (state.proposal_log_prob_R - state.energy_R)[possible].softmax(0)
    transition = exact_transition_matrix(language.base.tokens[possible], language.kernel)
    assert len(target) == 8
    assert_stationary(target, transition)
    with pytest.raises(AssertionError, match="not stationary"):  # teeth: the corrected weights have another target
        assert_stationary((state.log_prob_R - state.energy_R)[possible].softmax(0), transition)


def test_a_flipped_weight_is_caught():
    with pytest.raises(AssertionError, match="not stationary"):
        right = Language("fixed length")
        assert_stationary(right.target, Language("fixed length", sign=-1.0).transition())


def test_forgetting_the_lengths_is_caught(monkeypatch):
    """Deliberate mistake: the cut is uniform over a text of its own length, whose ratio the acceptance must hold."""
    language = Language("end token")
    monkeypatch.setattr(suffix_metropolis, "cut_log_ratio", lambda lengths, proposed: torch.zeros(len(lengths)))
    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(language.target, language.transition())


def test_blocks_end_where_the_text_does():
    assert block_lengths(10, None) == [10]
    assert block_lengths(10, 4) == [4, 8, 10]
    assert block_lengths(8, 4) == [4, 8]
    assert block_lengths(3, 5) == [3]


@pytest.mark.parametrize("kind", ["fixed length", "end token"])
def test_chains_in_blocks_end_with_the_law_of_the_target(kind):
    """2,000 chains, grown token by token with 15 moves each; the end states by chi-square, false alarm 1e-4."""
    language, chains = Language(kind, power=2.0), 2000
    keys = row_keys(7, torch.zeros(chains, dtype=torch.int64), torch.arange(chains))
    states = [
        state
        for state, _ in run(language.sampler(chains), ChainChoices(keys), new_tokens=NEW, block_tokens=1, moves=15)
    ]
    assert len(states) == 16
    counts = torch.bincount(index_of(language.padded(states[-1]), language.base.tokens), minlength=len(language.target))
    assert_same_distribution(counts, language.target, false_alarm=1e-4)
    with pytest.raises(AssertionError):  # teeth: the law of the language model itself is another
        assert_same_distribution(counts, language.base.probabilities, false_alarm=1e-4)


def test_a_chain_goes_the_same_way_in_any_batch():
    language = Language("end token")
    keys = row_keys(3, torch.zeros(6, dtype=torch.int64), torch.arange(6))
    *_, (together, _) = run(language.sampler(6), ChainChoices(keys), new_tokens=NEW, block_tokens=2, moves=5)
    *_, (alone, _) = run(language.sampler(1), ChainChoices(keys[4:5]), new_tokens=NEW, block_tokens=2, moves=5)
    assert together.tokens_RT[4].equal(alone.tokens_RT[0])


class CountedSteps:
    """Stands for a progress bar."""

    def __init__(self):
        self.tokens = 0

    def advance(self, tokens=1):
        self.tokens += tokens


@pytest.mark.parametrize("block", [None, 2])
def test_the_steps_of_chains_are_known_beforehand(block):
    language, steps = Language("fixed length"), CountedSteps()
    sampler = SuffixMetropolis(language.sampler(5).read, language.weigh, steps)
    list(
        run(
            sampler,
            ChainChoices(row_keys(0, torch.zeros(5), torch.arange(5))),
            new_tokens=NEW,
            block_tokens=block,
            moves=4,
        )
    )
    assert steps.tokens == 5 * tokens_of_a_chain(NEW, block, 4)
    assert steps.tokens > 5 * NEW  # teeth: a draw of as many texts takes fewer
