"""The masked model given by a table."""

import pytest
import torch

from energylm.contracts import MaskedModel
from energylm.testing import TabularMaskedModel


def test_logits_depend_on_what_is_seen_only() -> None:
    model = TabularMaskedModel.random(3, 3, seed=0, sources=2)
    assert isinstance(model, MaskedModel)
    tokens_RT = torch.tensor([[0, 1, 2], [0, 2, 2]])
    hidden_RT = torch.tensor([[False, True, False]] * 2)
    logits_NV = model.masked_logits(tokens_RT, torch.tensor([3, 3]), hidden_RT)
    assert (logits_NV[0] == logits_NV[1]).all()  # the hidden token makes no difference
    assert (logits_NV[0] == model.table[0, 1, 0 * 16 + 3 * 4 + 2]).all()
    sources_NV = model.masked_logits(tokens_RT, torch.tensor([3, 3]), hidden_RT, source_R=torch.tensor([0, 1]))
    assert (sources_NV[0] == logits_NV[0]).all() and (sources_NV[1] != logits_NV[1]).any()


def test_padding_is_never_seen_and_never_hidden() -> None:
    model = TabularMaskedModel.random(3, 3, seed=0)
    hidden_RT = torch.tensor([[True, False, False]])
    short = model.masked_logits(torch.tensor([[0, 1, 2]]), torch.tensor([2]), hidden_RT)
    assert (short == model.masked_logits(torch.tensor([[0, 1]]), torch.tensor([2]), hidden_RT[:, :2])).all()
    with pytest.raises(ValueError, match="only their own tokens"):
        model.masked_logits(torch.tensor([[0, 1, 2]]), torch.tensor([2]), torch.tensor([[False, False, True]]))
    with pytest.raises(ValueError, match="table of shape"):
        TabularMaskedModel(torch.zeros(1, 2, 3, 4), vocabulary_size=3, length=3)
