"""An energy from an encoder: its last hidden states, pooled and projected to one number.

    E(x) = w · (1/T) Σ_t h_t(x) + b        mean     Deng et al. 2020 §4.1: UniT (causal) and BiT (bidirectional);
                                                    Bakhtin et al. 2019 §4.3: UniTransf and BiLSTM
    E(x) = w · h_1(x) + b                  first    Bakhtin et al. 2019 §4.3: BiTransf
    E(x) = Σ_t u[x_t]                      sum      Bakhtin et al. 2019 §4.3: Linear, whose states are its token weights
    E(x) = w · Σ_t h_t(x) + b              sum      `rerank train`: one wrong word of a long hypothesis weighs as much
                                                    as one of a short hypothesis

Mean and sum run over the real tokens of context and continuation alike; padding never changes an energy. The first
position is the encoder's own [CLS] (or <s>) where an energy that reads text has one; without such a token it is the
first token of the text, which attention in both directions lets see all others. The projection starts near zero, so
that E ≈ 0: the joint model begins as the language model itself.

Use it     with any base model of transformers: a language model's (UniT), a masked model's or a sentence encoder (BiT);
           and with the `encoder_bodies`.
Relations  `objectives.residual_energy` trains it; `bundles.energy_model` adds tokenizer, calibration and folders.
"""

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.config.models import BILSTM, BIT, FIRST, KIND_WORDS, LINEAR, POOLINGS, SUM, UNIT, EnergyKind, Pooling
from energylm.energies.encoder_bodies import BagOfTokensConfig, BiLSTMConfig
from energylm.errors import ConfigError
from energylm.randomness import generator

INITIAL_ENERGY = 0.01  # standard deviation of the first energies, for hidden states of unit variance


class PooledEnergy(nn.Module):
    """`kind` says what the encoder is (`kind_of` finds out), `pooling` how its states become one (the kind's own, if
    none is given); `seed` names the first projection."""

    def __init__(
        self, encoder: PreTrainedModel, *, kind: EnergyKind, pooling: Pooling | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.encoder, self.kind, self.pooling = encoder, kind, pooling or POOLINGS[kind][0]
        if self.pooling not in POOLINGS[kind]:
            why = ", whose first position sees one token only" if kind == UNIT and pooling == FIRST else ""
            known = " or ".join(map(repr, POOLINGS[kind]))
            raise ConfigError(f"pooling {pooling!r} came for a {KIND_WORDS[kind]} encoder{why}; use {known}")
        width = encoder.config.get_text_config().hidden_size
        # float32 at least: energies are differences of nats, and 16 bits leave them three digits.
        dtype = torch.promote_types(encoder.dtype, torch.float32)
        weight_1D = torch.randn(1, width, generator=generator(seed, "energy head"), dtype=torch.float64)
        self.head = nn.utils.skip_init(nn.Linear, width, 1, device=encoder.device, dtype=dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight_1D * INITIAL_ENERGY / width**0.5)
            self.head.bias.zero_()
            if kind == LINEAR:  # the states are the weights of the energy: a factor before them would be one too many
                self.head.weight.fill_(1.0)
                self.head.requires_grad_(False)
        # Keys and values of past positions are of no use here; not every encoder knows the switch.
        knows_cache = "use_cache" in inspect.signature(encoder.forward).parameters
        self.options: dict[str, Any] = {"use_cache": False} if knows_cache else {}

    @property
    def vocabulary_size(self) -> int:
        return int(self.get_input_embeddings().weight.shape[0])

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that token ids enter by, under the name that transformers gives it."""
        return cast(nn.Embedding, self.encoder.get_input_embeddings())  # transformers promises a module

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
            input_ids=tokens_BT.masked_fill(~real_BT, 0), attention_mask=real_BT.long(), **self.options
        ).last_hidden_state
        return self.project(self.pool(hidden_BTD, lengths_B))

    def pool(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) what the energies are a projection of."""
        if self.pooling == FIRST:
            return hidden_BTD[:, 0]
        return self.pool_sum(self.sum_real(hidden_BTD, lengths_B), lengths_B)

    def sum_real(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) sums over the first `lengths` positions, in the projection's precision."""
        real_BT = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device) < lengths_B[:, None]
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.to(self.head.weight.dtype)
            return torch.einsum("bt,btd->bd", real_BT.to(hidden_BTD.dtype), hidden_BTD)

    def pool_sum(self, total_BD: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) pooled states from the sum of the hidden states of so many tokens."""
        return total_BD if self.pooling == SUM else total_BD / lengths_B[:, None]

    def project(self, pooled_BD: Tensor) -> Tensor:
        """(B,) energies of pooled hidden states; mixed precision ends here."""
        with torch.autocast(pooled_BD.device.type, enabled=False):
            energy_B1: Tensor = self.head(pooled_BD.to(self.head.weight.dtype))
            return energy_B1[:, 0]


def kind_of(encoder: PreTrainedModel) -> EnergyKind:
    """What an encoder is: by its config where it is one of ours, else by how it attends."""
    if isinstance(encoder.config, BagOfTokensConfig):
        return LINEAR
    if isinstance(encoder.config, BiLSTMConfig):
        return BILSTM
    return UNIT if attends_causally(encoder) else BIT


@torch.no_grad()
def attends_causally(encoder: PreTrainedModel) -> bool:
    """Whether the first position is blind to the last token: tried out, since many families exist in both kinds."""
    vocabulary = cast(nn.Embedding, encoder.get_input_embeddings()).weight.shape[0]
    first, last, other = ((vocabulary - offset) % vocabulary for offset in (1, 2, 3))
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
