"""The decoder of `lstm_seq2seq` one step at a time, for B sources and K elements each: a `contracts.Stepper`.

What depends on the source alone (the memory's share of the gates, of the readout and of the attention keys) is computed
once for all steps and all elements. A step on K elements then costs what K decoders must: their own symbols and states.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.contracts import State

if TYPE_CHECKING:
    from energylm.models.lstm_seq2seq import LSTMSeq2Seq


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
