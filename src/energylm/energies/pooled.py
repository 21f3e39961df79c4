"""An energy from a transformer encoder: its last hidden states, pooled and projected to one number.

    E(x) = w · (1/T) Σ_t h_t(x) + b        mean     Deng et al. 2020 §4.1: UniT (causal) and BiT (bidirectional)
    E(x) = w · h_1(x) + b                  first    Bakhtin et al. 2019, BiTransf

The mean runs over the real tokens of context and continuation alike; padding never changes an energy. The projection
starts near zero, so that E ≈ 0: the joint model begins as the language model itself.

Use it     with any base model of transformers: a language model's (UniT), a masked model's or a sentence encoder (BiT).
Relations  `objectives.residual_nce` trains it; `bundles.energy_model` adds tokenizer, calibration and folders.
"""

import inspect

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.config.energy import FIRST, MEAN, UNIT, EnergyKind, Pooling
from energylm.errors import ConfigError
from energylm.randomness import generator

INITIAL_ENERGY = 0.01  # standard deviation of the first energies, for hidden states of unit variance


class PooledEnergy(nn.Module):
    """`kind` says which attention the encoder has (`attends_causally` finds out); `seed` names the first projection."""

    def __init__(self, encoder: PreTrainedModel, *, kind: EnergyKind, pooling: Pooling = MEAN, seed: int = 0) -> None:
        super().__init__()
        if pooling == FIRST and kind == UNIT:
            raise ConfigError(
                "pooling 'first' came for a causal encoder, whose first position sees one token only; use 'mean'"
            )
        self.encoder, self.kind, self.pooling = encoder, kind, pooling
        width = encoder.config.get_text_config().hidden_size
        # float32 at least: energies are differences of nats, and 16 bits leave them three digits.
        dtype = torch.promote_types(encoder.dtype, torch.float32)
        weight_1D = torch.randn(1, width, generator=generator(seed, "energy head"), dtype=torch.float64)
        self.head = nn.utils.skip_init(nn.Linear, width, 1, device=encoder.device, dtype=dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight_1D * INITIAL_ENERGY / width**0.5)
            self.head.bias.zero_()
        # Keys and values of past positions are of no use here; not every encoder knows the switch.
        knows_cache = "use_cache" in inspect.signature(encoder.forward).parameters
        self._options = {"use_cache": False} if knows_cache else {}

    @property
    def vocabulary_size(self) -> int:
        return int(self.encoder.get_input_embeddings().weight.shape[0])

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the encoder's positions hold; None where nothing limits it."""
        limit = getattr(self.encoder.config.get_text_config(), "max_position_embeddings", None)
        if limit is None:
            return None
        # RoBERTa's relatives count positions from their padding index on.
        reserved = [
            module.padding_idx + 1
            for name, module in self.encoder.named_modules()
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        ]
        return int(limit) - max(reserved, default=0)

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) energies of right-padded sequences of at least one token."""
        real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        # With padding on the right every family's own positions are right for the real tokens.
        hidden_BTD = self.encoder(
            input_ids=tokens_BT.masked_fill(~real_BT, 0), attention_mask=real_BT.long(), **self._options
        ).last_hidden_state
        if self.pooling == FIRST:
            return self.project(hidden_BTD[:, 0])
        return self.project(self.sum_real(hidden_BTD, lengths_B) / lengths_B[:, None])

    def sum_real(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) sums over the first `lengths` positions, in the projection's precision."""
        real_BT = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device) < lengths_B[:, None]
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.to(self.head.weight.dtype)
            return torch.einsum("bt,btd->bd", real_BT.to(hidden_BTD.dtype), hidden_BTD)

    def project(self, pooled_BD: Tensor) -> Tensor:
        """(B,) energies of pooled hidden states; mixed precision ends here."""
        with torch.autocast(pooled_BD.device.type, enabled=False):
            energy_B1: Tensor = self.head(pooled_BD.to(self.head.weight.dtype))
            return energy_B1[:, 0]


@torch.no_grad()
def attends_causally(encoder: PreTrainedModel) -> bool:
    """Whether the first position is blind to the last token: tried out, since many families exist in both kinds."""
    vocabulary = encoder.get_input_embeddings().weight.shape[0]
    first, last, other = ((vocabulary - place) % vocabulary for place in (1, 2, 3))
    was_training = encoder.training
    encoder.eval()
    states = [
        encoder(
            input_ids=torch.tensor([[first, end]], device=encoder.device),
            attention_mask=torch.ones(1, 2, dtype=torch.int64, device=encoder.device),
        ).last_hidden_state[0, 0]
        for end in (last, other)
    ]
    encoder.train(was_training)
    difference = (states[0] - states[1]).abs().max()
    return bool(difference <= 1e-6 * states[0].abs().max())
