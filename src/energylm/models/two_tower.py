"""The two-tower cloze model: one transformer reads forwards, one backwards, and neither sees the token in between.

    q(x_t | x_∖t) = softmax( W [→h_{t−1} ; ←h_{t+1}] )        Baevski et al. 2019; Clark et al. 2020, §2.4

→h_0 and ←h_{n+1} are the towers' states at a learnt begin and a learnt end vector, which stand before the first token
of each tower's reading, so nothing is ever taken from the other end of the sequence. The backward tower reads each
sequence reversed *within its length*: padding stands behind everything it reads. All n distributions come out of one
pass, exactly normalised, and q_t is the same to the bit whatever x_t is.

W has the form of ELECTRA's generator: a layer to the embeddings' width, then the token embeddings themselves. Both
towers share one table of token embeddings; where `embedding_size` is not a tower's width, a projection lies between.
Thus a quarter-size noise model can share the table of a full-size encoder (clark2020 app. A).

Use it     as the noise of Electric and ELECTRA-TT (quarter size), or by itself as a bidirectional scorer (two thirds).
Relations  training is plain `objectives.cross_entropy` at every position; a masked LM needs a pass for each token.
"""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import AutoConfig, AutoModel, ElectraConfig, ElectraModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from energylm.models.causal import reversed_within


class TwoTowerConfig(PreTrainedConfig):
    """Sizes under transformers' names; `hidden_size` is the width of both towers side by side, each has half of it."""

    model_type = "energylm_two_tower"

    vocab_size: int = 30522
    embedding_size: int = 768
    hidden_size: int = 384
    num_hidden_layers: int = 12
    num_attention_heads: int = 3
    intermediate_size: int = 768
    dropout: float = 0.1
    max_position_embeddings: int = 512  # tokens of a sequence; the begin and end vectors have a place of their own
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True


class TwoTowerPreTrainedModel(PreTrainedModel):
    config_class = TwoTowerConfig
    base_model_prefix = "towers"
    main_input_name = "input_ids"
    _supports_sdpa = True  # each tower has attention of its own


class TwoTowerModel(TwoTowerPreTrainedModel):
    """Both towers. `last_hidden_state` is [→h_t ; ←h_t], which have read x_t: the representation for other uses."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {  # type: ignore[misc]  # transformers leaves ClassVar out
        "right.embeddings.word_embeddings.weight": "left.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: TwoTowerConfig) -> None:
        super().__init__(config)
        self.left, self.right = ElectraModel(_tower_config(config)), ElectraModel(_tower_config(config))
        self.edges = nn.Embedding(2, config.embedding_size)  # what stands before the first token of each reading
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.left.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        table = cast(nn.Embedding, value)  # transformers promises no more than a module
        self.left.embeddings.word_embeddings = self.right.embeddings.word_embeddings = table

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """States (B, T, D) of right-padded sequences."""
        forward_BSD, backward_BSD, lengths_B = self._read(input_ids, attention_mask)
        backward_BTD = _turned_round(backward_BSD[:, 1:], lengths_B)
        states_BTD = torch.cat([forward_BSD[:, 1:], backward_BTD], dim=-1)
        return BaseModelOutput(last_hidden_state=states_BTD)

    def cloze_states(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, T, D): [→h_{t−1} ; ←h_{t+1}] of every position of right-padded sequences."""
        forward_BSD, backward_BSD, lengths_B = self._read(input_ids, attention_mask)
        # Reversed, token t stands at n + 1 − t; the state before it, at n − t, has read x_n … x_{t+1}.
        backward_BTD = _turned_round(backward_BSD[:, :-1], lengths_B)
        return torch.cat([forward_BSD[:, :-1], backward_BTD], dim=-1)

    def _read(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The states (B, 1 + T, D/2) of both towers in the order of their reading, the edge first; the lengths (B,)."""
        lengths_B = None if attention_mask is None else attention_mask.sum(-1)
        embedded_BTE = self.get_input_embeddings()(input_ids)
        states = []
        for tower, reading_BTE, edge_E in (
            (self.left, embedded_BTE, self.edges.weight[0]),
            (self.right, _turned_round(embedded_BTE, lengths_B), self.edges.weight[1]),
        ):
            edge_B1E = edge_E.to(reading_BTE.dtype).expand(len(reading_BTE), 1, -1)
            inputs_BSE = torch.cat([edge_B1E, reading_BTE], dim=1)
            states.append(tower(inputs_embeds=inputs_BSE, use_cache=False).last_hidden_state)
        return states[0], states[1], lengths_B


class TwoTowerForCloze(TwoTowerPreTrainedModel):
    """The towers under a softmax over the vocabulary."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {  # type: ignore[misc]  # transformers leaves ClassVar out
        "decoder.weight": "towers.left.embeddings.word_embeddings.weight",
        "towers.right.embeddings.word_embeddings.weight": "towers.left.embeddings.word_embeddings.weight",
    }

    def __init__(self, config: TwoTowerConfig) -> None:
        super().__init__(config)
        self.towers = TwoTowerModel(config)
        self.narrow = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.decoder = value

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
        """Logits (B, T, V) of every token given all others; those of padding mean nothing."""
        states_BTD = self.towers.cloze_states(input_ids, attention_mask)
        return MaskedLMOutput(logits=self.decoder(self.norm(gelu(self.narrow(states_BTD)))))


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(TwoTowerConfig.model_type, TwoTowerConfig, exist_ok=True)
    AutoModel.register(TwoTowerConfig, TwoTowerModel, exist_ok=True)


def _tower_config(config: TwoTowerConfig) -> ElectraConfig:
    return ElectraConfig(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size // 2,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        max_position_embeddings=config.max_position_embeddings + 1,
        type_vocab_size=1,
        initializer_range=config.initializer_range,
        layer_norm_eps=config.layer_norm_eps,
        pad_token_id=config.pad_token_id,
        is_decoder=True,  # causal attention
    )


def _turned_round(states_BTD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The first `lengths` positions in reverse order, the rest in place; all of them where no lengths are given."""
    if lengths_B is None:
        return states_BTD.flip(1)
    return reversed_within(states_BTD.transpose(1, 2), lengths_B[:, None]).transpose(1, 2)
