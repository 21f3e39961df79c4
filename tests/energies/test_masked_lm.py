"""Energies of masked models: by hand, by brute force, by two routes, and how many masked passes they cost."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from energylm.contracts import SequenceEnergy
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError
from energylm.estimators import pseudo_log_likelihood
from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods
from energylm.randomness import row_keys
from energylm.samplers.choices import ChainChoices
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.samplers.metropolis_hastings import MetropolisHastings
from energylm.testing import TabularMaskedModel, enumerate_sequences

V, T = 3, 4
MODEL = TabularMaskedModel.random(V, T, seed=0)


@dataclass
class Counting:
    """Counts the masked sequences that a model reads."""

    model: TabularMaskedModel
    read: list[int] = field(default_factory=list)
    vocabulary_size: int = V
    mask_token_id: int = V

    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        self.read.append(len(tokens_RT))
        return self.model.masked_logits(tokens_RT, lengths_R, hidden_RT, source_R=source_R)


def by_hand(tokens: list[int], kind: str) -> float:
    """Σ over positions, each copy read alone from the table: base-(V+1) code with V for hidden or missing tokens."""
    total = 0.0
    for place, token in enumerate(tokens):
        read = [V if t == place else tokens[t] if t < len(tokens) else V for t in range(T)]
        code = sum(symbol * (V + 1) ** (T - 1 - t) for t, symbol in enumerate(read))
        logits_V = MODEL.table[0, place, code]
        total -= float(logits_V[token] if kind == "raw" else logits_V.log_softmax(0)[token])
    return total


@pytest.mark.parametrize("kind", ["raw", "local"])
def test_energies_are_sums_over_copies_with_one_token_hidden(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_log_likelihood, "LOGITS_A_CALL", 7 * V)  # seven copies at a time
    tokens_RT = torch.tensor([[0, 1, 2, 0], [2, 2, 0, 0], [1, 0, 2, 0]])
    lengths_R = torch.tensor([4, 2, 3])
    energy = MaskedLMEnergy(MODEL, kind=kind)
    assert isinstance(energy, SequenceEnergy)
    expected = [by_hand(row[:length].tolist(), kind) for row, length in zip(tokens_RT, lengths_R, strict=True)]
    torch.testing.assert_close(energy.energies(tokens_RT, lengths_R), torch.tensor(expected, dtype=torch.float64))
    assert energy.terms(tokens_RT, lengths_R)[1].tolist()[2:] == [0.0, 0.0]


def test_local_energy_is_minus_the_pseudo_log_likelihood() -> None:
    states_ST = enumerate_sequences(V, T)
    lengths_S = torch.full((len(states_ST),), T)
    scores_ST = token_pseudo_log_likelihoods(MODEL, states_ST, lengths_S)
    torch.testing.assert_close(MaskedLMEnergy(MODEL).terms(states_ST, lengths_S), -scores_ST)


def test_shifting_all_logits_of_a_context_changes_raw_energies_only() -> None:
    """c(y_\\t) leaves every conditional as it is: the masked model is the same, E_raw is not."""
    shift = torch.linspace(-1, 1, MODEL.table.shape[2], dtype=torch.float64)[:, None]
    shifted = TabularMaskedModel(MODEL.table + shift, vocabulary_size=V, length=T)
    states_ST, lengths_S = enumerate_sequences(V, T), torch.full((V**T,), T)
    for kind, same in (("local", True), ("raw", False)):
        old_S, new_S = (MaskedLMEnergy(model, kind=kind).energies(states_ST, lengths_S) for model in (MODEL, shifted))
        difference_S = new_S - old_S
        assert torch.allclose(difference_S, torch.zeros_like(difference_S)) is same
        if not same:
            assert difference_S.std() > 0.1  # not a constant either: another distribution


def test_known_terms_are_not_computed_again() -> None:
    counting = Counting(MODEL)
    energy = MaskedLMEnergy(counting)
    tokens_RT, lengths_R = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]]), torch.tensor([4, 2])
    whole_RT = energy.terms(tokens_RT, lengths_R)
    assert sum(counting.read) == 6
    counting.read.clear()
    known_RT = whole_RT.clone()
    known_RT[0, 1:] = known_RT[1, 0] = float("nan")
    torch.testing.assert_close(energy.terms(tokens_RT, lengths_R, known_RT=known_RT), whole_RT)
    assert sum(counting.read) == 4


@pytest.mark.parametrize(("block", "passes_of_a_new_proposal"), [((1,), T - 1), ((0, 2), T)])
def test_a_step_reads_what_it_must_and_no_more(block: tuple[int, ...], passes_of_a_new_proposal: int) -> None:
    """One masked pass a row to propose; then T for each new proposal, one less where a single position was hidden;
    none for proposals of the old tokens."""
    rows = 60
    counting = Counting(MODEL)
    sampler = MetropolisHastings(MaskedLMEnergy(counting), MaskedProposal(torch.ones(V, dtype=torch.bool)))
    state = sampler.init(enumerate_sequences(V, T)[:rows], torch.full((rows,), T))
    hidden_RT = torch.isin(torch.arange(T), torch.tensor(block)).expand(rows, T)
    choices = ChainChoices(row_keys(0, torch.arange(rows), torch.zeros(rows, dtype=torch.int64)))
    logits_NV = MODEL.masked_logits(state.tokens_RT, state.lengths_R, hidden_RT)
    again = ChainChoices(row_keys(0, torch.arange(rows), torch.zeros(rows, dtype=torch.int64)))
    proposed = sampler.proposal.draw(state.tokens_RT, hidden_RT, logits_NV, again)
    new = int((proposed.tokens_RT != state.tokens_RT).any(1).sum())
    assert 0 < new < rows
    counting.read.clear()
    after, _ = sampler.step(state, hidden_RT, choices)
    assert sum(counting.read) == rows + new * passes_of_a_new_proposal
    torch.testing.assert_close(after.energy_R, MaskedLMEnergy(MODEL).energies(after.tokens_RT, after.lengths_R))


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="'raw' or 'local'"):
        MaskedLMEnergy(MODEL, kind="norm")
