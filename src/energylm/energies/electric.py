"""Electric: an energy for every token of a text, from a bidirectional encoder that reads the text as it is.

    E(x)_t = wᵀ h(x)_t + b                                                                     Clark et al. 2020, §2.1
    p(x_t | x_∖t) = exp(−E(x)_t) / Z(x_∖t)          Z(x_∖t) = Σ_v exp(−E(REPLACE(x, t, v))_t)

−E is an unnormalised log-probability for all tokens in one pass; noise-contrastive training makes Z about 1. The bias b
(the paper has one inside h, in the encoder's last normalisation) starts at log V, so that p̂ starts as the uniform
distribution and the first steps are not spent on finding the vocabulary's size. Z itself needs |V| passes for a single
position: `exact_conditionals` is for tiny vocabularies and for checks.

Use it     to score, rerank or fine-tune: the sum of −E over a text is its pseudo-log-likelihood.
Relations  `objectives.noised_tokens` trains it; `pooled` gives one energy to a whole sequence.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.randomness import generator

INITIAL_SPREAD = 0.01  # of the first energies around log V, for hidden states of unit variance


class TokenEnergy(nn.Module):
    """`encoder` is any bidirectional base model of transformers; `seed` names the first projection."""

    def __init__(self, encoder: PreTrainedModel, *, seed: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.hidden_size
        dtype = torch.promote_types(encoder.dtype, torch.float32)  # energies are differences of nats
        self.head = nn.utils.skip_init(nn.Linear, width, 1, device=encoder.device, dtype=dtype)
        stream = generator(seed, "token energy head")
        weight_1D = torch.randn(1, width, generator=stream, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            self.head.weight.copy_(weight_1D * INITIAL_SPREAD / width**0.5)
            self.head.bias.fill_(math.log(encoder.config.vocab_size))

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """(B, T) energies of right-padded sequences, 0 past the end; without lengths all T tokens are real."""
        if lengths_B is None:
            return self.project(self.encoder(input_ids=tokens_BT).last_hidden_state)
        real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        hidden_BTD = self.encoder(
            input_ids=tokens_BT.masked_fill(~real_BT, 0), attention_mask=real_BT.long()
        ).last_hidden_state
        return self.project(hidden_BTD).where(real_BT, 0.0)

    def project(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T) energies of hidden states; mixed precision ends here."""
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            energy_BT1: Tensor = self.head(hidden_BTD.to(self.head.weight.dtype))
            return energy_BT1[..., 0]


def exact_conditionals(
    token_energies: Callable[[Tensor, Tensor], Tensor],
    tokens_BT: Tensor,
    lengths_B: Tensor,
    *,
    position: int,
    vocabulary_size: int,
) -> tuple[Tensor, Tensor]:
    """log p(v | x_∖t) as (B, V) for t = `position`, and log Z(x_∖t) as (B,): |V| passes over the batch.

    `token_energies(tokens_BT, lengths_B)` gives (B, T) energies: a `TokenEnergy`, or a table.
    """
    minus_energy = []
    for candidate in range(vocabulary_size):
        replaced_BT = tokens_BT.clone()
        replaced_BT[:, position] = candidate
        minus_energy.append(-token_energies(replaced_BT, lengths_B)[:, position])
    logit_BV = torch.stack(minus_energy, dim=1)
    log_partition_B = logit_BV.logsumexp(1)
    return logit_BV - log_partition_B[:, None], log_partition_B
