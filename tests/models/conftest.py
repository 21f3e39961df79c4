"""What tests of several models share."""

from collections.abc import Callable

import pytest
import torch

from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig


@pytest.fixture
def context_network() -> Callable[..., BiLSTMContext]:
    """A maker of BiLSTM-context models in float64, every parameter random: nothing is right by being zero."""

    def make(vocabulary: int = 3, *, seed: int = 0, width: int = 5, head: int = 7) -> BiLSTMContext:
        network = BiLSTMContext(BiLSTMContextConfig(vocab_size=vocabulary, hidden_size=width, head_size=head)).double()
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(0.7 * torch.randn(parameter.shape, dtype=torch.float64, generator=draw))
        return network.eval().requires_grad_(False)

    return make
