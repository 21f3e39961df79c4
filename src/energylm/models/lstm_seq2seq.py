"""A recurrent encoder and decoder for tagging and translation (goyal2021 §3.3.3, 4.5, 5.4.2).

    m_1 … m_S   = LSTM(x), or the two directions side by side
    c_t         = m_t (fixed attention)  or  Σ_s softmax_s(u·tanh(W h_{t−1} + U m_s)) m_s (Bahdanau et al. 2015)
    h_t         = LSTM([e(y_{t−1}); c_t], h_{t−1})
    f(h_t, ·)   = V tanh(R [h_t; c_t])                                  raw scores of the t-th symbol

With fixed attention the first state is zero, so a decoder at step t knows of the source what m_t knows: all of it with
a bidirectional encoder, x_1 … x_t with a unidirectional one. With learned attention the first state comes from the
encoder's last ones. There is no start symbol among the outputs: the first input is a vector of its own.

`LSTMStepper` runs the decoder one step at a time, for B sources and K elements each. What depends on the source alone
(the memory's share of the gates, of the readout and of the attention keys) is computed once for all steps and elements;
a step on K elements then costs what K decoders must: their own symbols and states.

Use it     for the search-aware training of chapters 3 to 5, as they did.
Relations  `contracts.Stepper` is the promise the stepper keeps, `search.beam` and `search.continuous_beam` walk by it;
           `training.sequence_pair_task` trains the network.
"""

from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import Seq2SeqLMOutput

from energylm.contracts import State


@dataclass(frozen=True)
class Memory:
    """Sources that have been read."""

    vectors_BSD: Tensor
    mask_BS: Tensor  # true for what is no padding
    final_BD: Tensor  # what the encoder ends with


class LSTMStepper:
    """The state is (h, c), each (B, K, H). Dropout of the readout is one mask for all steps and elements of a row."""

    def __init__(self, network: "LSTMSeq2Seq", memory: Memory) -> None:
        self._network, self._memory = network, memory
        self.embedding_VE = network.embedding.weight
        embedded = network.config.embedding_size
        cell = network.decoder
        # torch makes an LSTM's weights by name, without their types.
        weight_ih, bias_ih, bias_hh = (cast(Tensor, w) for w in (cell.weight_ih_l0, cell.bias_ih_l0, cell.bias_hh_l0))
        self._hidden_weight = cast(Tensor, cell.weight_hh_l0)
        self._symbol_weight, memory_weight = weight_ih.split([embedded, network.memory_size], dim=1)
        self._gate_bias = bias_ih + bias_hh
        hidden = network.config.hidden_size
        self._readout_hidden, self._readout_memory = network.readout.weight.split([hidden, network.memory_size], dim=1)
        self._is_fixed = network.config.attention == "fixed"
        self._gates_BSG = F.linear(memory.vectors_BSD, memory_weight)
        self._reads_BSH = F.linear(memory.vectors_BSD, self._readout_memory, network.readout.bias)
        if not self._is_fixed:
            self._keys_BSH = network.key(memory.vectors_BSD)
        self._dropout_B1H = network.dropout(memory.vectors_BSD.new_ones(len(memory.mask_BS), 1, hidden))

    def start(self) -> tuple[State, Tensor]:
        network, batch = self._network, len(self._memory.mask_BS)
        zeros_B1H = self._reads_BSH.new_zeros(batch, 1, network.config.hidden_size)
        hidden_B1H = zeros_B1H if self._is_fixed else network.bridge(self._memory.final_BD).tanh()[:, None]
        return (hidden_B1H, zeros_B1H), network.start_embedding.expand(batch, 1, -1)

    def step(self, state: State, inputs_BKE: Tensor, *, position: int) -> tuple[State, Tensor]:
        state, reads_BKH = self._advance(state, inputs_BKE, position)
        return state, self._scores(state[0], reads_BKH)

    def all_scores(self, target_BT: Tensor) -> Tensor:
        """(B, T, V) scores of each symbol after the given ones before it: T calls of `step` in fewer products."""
        state, start_B1E = self.start()
        inputs_BTE = torch.cat([start_B1E, F.embedding(target_BT[:, :-1], self.embedding_VE)], dim=1)
        steps = target_BT.shape[1]
        if self._is_fixed:
            together_BTX = torch.cat([inputs_BTE, self._memory.vectors_BSD[:, :steps]], dim=-1)
            hidden_BTH, _ = self._network.decoder(together_BTX)
            return self._scores(hidden_BTH, self._reads_BSH[:, :steps])
        hidden, reads = [], []
        for t in range(steps):
            state, reads_B1H = self._advance(state, inputs_BTE[:, t : t + 1], t)
            hidden.append(state[0])
            reads.append(reads_B1H)
        return self._scores(torch.cat(hidden, dim=1), torch.cat(reads, dim=1))

    def _advance(self, state: State, inputs_BKE: Tensor, position: int) -> tuple[State, Tensor]:
        """The state after one more input, and the attended memory's share of the readout."""
        hidden_BKH, cell_BKH = state
        gates_BKG, reads_BKH = self._attended(hidden_BKH, position)
        gates_BKG = gates_BKG + F.linear(inputs_BKE, self._symbol_weight, self._gate_bias)
        gates_BKG = gates_BKG + F.linear(hidden_BKH, self._hidden_weight)
        write, forget, new, show = gates_BKG.chunk(4, dim=-1)
        cell_BKH = forget.sigmoid() * cell_BKH + write.sigmoid() * new.tanh()
        return (show.sigmoid() * cell_BKH.tanh(), cell_BKH), reads_BKH

    def _scores(self, hidden_BKH: Tensor, reads_BKH: Tensor) -> Tensor:
        readout_BKH = (F.linear(hidden_BKH, self._readout_hidden) + reads_BKH).tanh()
        scores_BKV: Tensor = self._network.output(readout_BKH * self._dropout_B1H)
        return scores_BKV

    def _attended(self, hidden_BKH: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """What the attended memory adds to the gates (B, 1 or K, 4H) and to the readout (B, 1 or K, H)."""
        if self._is_fixed:
            return self._gates_BSG[:, position : position + 1], self._reads_BSH[:, position : position + 1]
        query_BKH = self._network.query(hidden_BKH)
        energy_BKS = self._network.energy((query_BKH[:, :, None] + self._keys_BSH[:, None]).tanh())[..., 0]
        weights_BKS = energy_BKS.masked_fill(~self._memory.mask_BS[:, None], float("-inf")).softmax(-1)
        return weights_BKS @ self._gates_BSG, weights_BKS @ self._reads_BSH


FIXED: Final = "fixed"
LEARNED: Final = "learned"
IGNORED = -100


class LSTMSeq2SeqConfig(PreTrainedConfig):
    """Sizes of the network. `id2label` names the tags of a tagger."""

    model_type = "energylm_lstm_seq2seq"
    is_encoder_decoder = True

    source_vocab_size: int = 10_000
    vocab_size: int = 9  # of the output
    hidden_size: int = 64
    source_embedding_size: int = 64
    embedding_size: int = 8  # of output symbols that are fed back
    bidirectional: bool = True
    attention: Literal["fixed", "learned"] = FIXED
    dropout: float = 0.0
    initializer_range: float = 0.1
    eos_token_id: int | None = None  # None: as many symbols as the source has


class LSTMSeq2Seq(PreTrainedModel):
    config_class = LSTMSeq2SeqConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: LSTMSeq2SeqConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.memory_size = hidden * (2 if config.bidirectional else 1)
        self.source_embedding = nn.Embedding(config.source_vocab_size, config.source_embedding_size)
        self.forward_encoder = nn.LSTM(config.source_embedding_size, hidden, batch_first=True)
        self.backward_encoder = (
            nn.LSTM(config.source_embedding_size, hidden, batch_first=True) if config.bidirectional else None
        )
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.start_embedding = nn.Parameter(torch.empty(config.embedding_size))
        self.decoder = nn.LSTM(config.embedding_size + self.memory_size, hidden, batch_first=True)
        self.readout = nn.Linear(hidden + self.memory_size, hidden)
        self.output = nn.Linear(hidden, config.vocab_size)
        if config.attention == LEARNED:
            self.bridge = nn.Linear(self.memory_size, hidden)
            self.query = nn.Linear(hidden, hidden, bias=False)
            self.key = nn.Linear(self.memory_size, hidden)
            self.energy = nn.Linear(hidden, 1, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()  # type: ignore[no-untyped-call]

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """Right-padded sources, read in one direction or both; padding is seen by neither."""
        embedded_BSE = self.dropout(self.source_embedding(source_BS))
        forward_BSH, _ = self.forward_encoder(embedded_BSE)
        positions_S = torch.arange(source_BS.shape[1], device=source_BS.device)
        mask_BS = positions_S < lengths_B[:, None]
        last_B11 = (lengths_B - 1)[:, None, None]
        final_BH = forward_BSH.gather(1, last_B11.expand(-1, 1, forward_BSH.shape[-1]))[:, 0]
        if self.backward_encoder is None:
            return Memory(self.dropout(forward_BSH), mask_BS, final_BH)
        # Each row is turned around within its own length: a reversal that is its own inverse.
        turned_BS1 = torch.where(mask_BS, last_B11[..., 0] - positions_S, positions_S)[..., None]
        turned_BSE = embedded_BSE.gather(1, turned_BS1.expand_as(embedded_BSE))
        turned_BSH, _ = self.backward_encoder(turned_BSE)
        backward_BSH = turned_BSH.gather(1, turned_BS1.expand_as(turned_BSH))
        memory_BSD = self.dropout(torch.cat([forward_BSH, backward_BSH], dim=-1))
        return Memory(memory_BSD, mask_BS, torch.cat([final_BH, backward_BSH[:, 0]], dim=-1))

    def stepper(self, source_BS: Tensor, lengths_B: Tensor) -> LSTMStepper:
        """Read the sources; a `contracts.Stepper` that writes their outputs."""
        return LSTMStepper(self, self.encode(source_BS, lengths_B))

    def scores(self, source_BS: Tensor, lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """(B, T, V) raw scores of each symbol after the given ones before it, all steps at once."""
        return self.stepper(source_BS, lengths_B).all_scores(target_BT)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Seq2SeqLMOutput:
        """Scores of `labels` (−100 past their end), each after those before it; their mean cross-entropy as loss."""
        if labels is None:
            raise ValueError("forward scores given outputs: pass labels, or search with `stepper`")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        logits_BTV = self.scores(input_ids, attention_mask.sum(-1), labels.clamp(min=0))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return Seq2SeqLMOutput(loss=loss, logits=logits_BTV)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                if name.startswith("weight"):
                    initialization.uniform_(parameter, -self.config.initializer_range, self.config.initializer_range)
                else:
                    initialization.zeros_(parameter)
            hidden = module.hidden_size  # gates come as input, forget, cell, output: a cell remembers at first
            with torch.no_grad():
                initialization.ones_(cast(Tensor, module.bias_ih_l0)[hidden : 2 * hidden])
        if isinstance(module, LSTMSeq2Seq):
            initialization.normal_(module.start_embedding, std=self.config.initializer_range)


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(LSTMSeq2SeqConfig.model_type, LSTMSeq2SeqConfig, exist_ok=True)
    AutoModelForSeq2SeqLM.register(LSTMSeq2SeqConfig, LSTMSeq2Seq, exist_ok=True)
