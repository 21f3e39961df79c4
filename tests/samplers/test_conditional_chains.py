"""Metropolis-Hastings on a real conditional masked network, small enough that every translation is enumerated.

Two sources, three words, translations of three tokens: p(y | x) ∝ exp(−E(y, x)) for each x. The kernel is the
production step with rows of both sources in one batch, run through all its decisions.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from energylm.config.sampling import LOCAL, RAW, Truncation
from energylm.contracts import Choices
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM
from energylm.models.masked import ConditionalMaskedNetwork
from energylm.samplers.chains import ChainState
from energylm.samplers.degenerate_gibbs import DegenerateGibbs
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.samplers.metropolis_hastings import MetropolisHastings
from energylm.testing import assert_stationary, enumerate_sequences, exact_transition_matrix, is_reversible

V, T, MASK = 4, 3, 3  # three words and the mask
STATES_ST = enumerate_sequences(V - 1, T)
S = len(STATES_ST)
LENGTHS_S = torch.full((S,), T)
WORDS_V = torch.arange(V) != MASK


def build() -> ConditionalMaskedNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        config = ConditionalMaskedConfig(
            vocab_size=V,
            hidden_size=8,
            num_attention_heads=2,
            intermediate_size=8,
            encoder_layers=1,
            max_position_embeddings=4,
            reach=2,
        )
        network = ConditionalMaskedLM(config).double().eval()
        for parameter in network.parameters():
            parameter.data += 0.5 * torch.randn_like(parameter)
    return ConditionalMaskedNetwork(network, [[0, 1], [2, 0, 1, 1]], mask_token_id=MASK)


MODEL = build()


def target_of(kind: str, source: int, temperature: float = 1.0) -> Tensor:
    energy = MaskedLMEnergy(MODEL, kind=kind)
    return (-energy.energies(STATES_ST, LENGTHS_S, source_R=torch.full((S,), source)) / temperature).softmax(0)


def kernel_of(
    sampler: MetropolisHastings | DegenerateGibbs, block: tuple[int, ...], *, source: int
) -> Callable[[Tensor, Choices], Tensor]:
    hidden_T = torch.isin(torch.arange(T), torch.tensor(block))

    def kernel(states_RT: Tensor, choices: Choices) -> Tensor:
        rows = len(states_RT)
        state = sampler.init(states_RT, torch.full((rows,), T), source_R=torch.full((rows,), source))
        return sampler.step(state, hidden_T.expand(rows, T), choices)[0].tokens_RT

    return kernel


def matrix(sampler: MetropolisHastings | DegenerateGibbs, block: tuple[int, ...], *, source: int) -> Tensor:
    return exact_transition_matrix(STATES_ST, kernel_of(sampler, block, source=source))


@pytest.mark.parametrize("block", [(1,), (0, 2)])
@pytest.mark.parametrize("kind", [RAW, LOCAL])
def test_each_source_keeps_its_own_target(kind: str, block: tuple[int, ...]) -> None:
    sampler = MetropolisHastings(MaskedLMEnergy(MODEL, kind=kind), MaskedProposal(WORDS_V))
    for source in (0, 1):
        transition_SS = matrix(sampler, block, source=source)
        assert_stationary(target_of(kind, source), transition_SS)
        assert is_reversible(target_of(kind, source), transition_SS)
        with pytest.raises(AssertionError, match="not stationary"):  # a source that is taken for another
            assert_stationary(target_of(kind, 1 - source), transition_SS)


def test_truncated_proposals_of_an_annealed_target_keep_it_and_gibbs_keeps_none() -> None:
    proposal = MaskedProposal(WORDS_V, Truncation(temperature=0.8, top_p=0.8), full_support=0.2)
    sampler = MetropolisHastings(MaskedLMEnergy(MODEL), proposal, temperature=0.5)
    assert_stationary(target_of(LOCAL, 1, 0.5), matrix(sampler, (0, 1), source=1))
    gibbs_SS = matrix(DegenerateGibbs(MODEL, MaskedProposal(WORDS_V)), (1,), source=1)
    for kind in (RAW, LOCAL):
        with pytest.raises(AssertionError, match="not stationary"):
            assert_stationary(target_of(kind, 1), gibbs_SS)


def test_energies_that_forget_the_source_of_a_proposal_are_caught() -> None:
    """The mistake of a state that keeps its source while the energy reads row numbers instead."""

    class Forgetful(MaskedLMEnergy):
        def energies(self, tokens_RT: Tensor, lengths_R: Tensor, **options: Tensor | None) -> Tensor:
            options["source_R"] = torch.zeros_like(lengths_R)
            return super().energies(tokens_RT, lengths_R, **options)

    sampler = MetropolisHastings(Forgetful(MODEL), MaskedProposal(WORDS_V))
    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(target_of(LOCAL, 1), matrix(sampler, (1,), source=1))


def test_rows_of_different_sources_travel_together() -> None:
    """One step of a mixed batch is, row by row, the step of each source alone."""
    from energylm.randomness import row_keys
    from energylm.samplers.choices import ChainChoices

    sampler = MetropolisHastings(MaskedLMEnergy(MODEL), MaskedProposal(WORDS_V))
    tokens_RT, source_R = STATES_ST[[0, 5, 9, 20, 26, 3]], torch.tensor([0, 1, 1, 0, 1, 0])
    keys_R = row_keys(7, torch.arange(6), torch.zeros(6, dtype=torch.int64))
    hidden_RT = torch.tensor([True, False, True]).expand(6, T)

    def stepped(rows: Tensor) -> ChainState:
        state = sampler.init(tokens_RT[rows], torch.full((len(rows),), T), source_R=source_R[rows])
        return sampler.step(state, hidden_RT[rows], ChainChoices(keys_R[rows]))[0]

    together = stepped(torch.arange(6))
    for row in range(6):
        alone = stepped(torch.tensor([row]))
        assert torch.equal(alone.tokens_RT[0], together.tokens_RT[row])
        assert alone.energy_R[0] == pytest.approx(float(together.energy_R[row]), abs=1e-10)
