"""A masked model of short sequences: one LSTM reads what stands left of a token, another what stands right of it.

    log φ_t(y) = f(y_t, h(y_\\t))       f(·, h) = W relu(A→ h→(y_<t) + A← h←(y_>t) + b) + c         Goyal 2021, §6.2.1

    E_raw(y) = − Σ_t log φ_t(y)         p_mlm(· | y_\\t) = softmax(f(·, h(y_\\t)))

Nothing is ever replaced by a mask: a token is hidden from its own context because neither LSTM has read it. So all
conditionals of a sequence come out of one pass, and a context is a pair (left state, right state): many sequences share
their states, which is what makes the exact studies feasible (`context_energies`). The layer that
joins both sides lets a token depend on left *and* right together; a linear one could not say "if the ends agree".
The paper names bidirectional LSTMs as contexts and prints no sizes.

Use it     for languages of few symbols and short sequences, where exact likelihoods are wanted.
Relations  `context_energies` reads whole languages and all one-token variants; `two_tower` is its transformer.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from energylm.errors import ModelError

State = tuple[Tensor, Tensor]  # hidden and cell, each (D, ...): features lead, so that gates are contiguous pieces


class BiLSTMContextConfig(PreTrainedConfig):
    """`hidden_size` is the width D of each LSTM, `head_size` the width H of the layer that joins them."""

    model_type = "energylm_bilstm_context"

    vocab_size: int = 5
    hidden_size: int = 64
    head_size: int = 64


class Reader(nn.Module):
    """An LSTM over tokens, open to its single steps: every token has its own vector of gates (embedding, input matrix
    and bias in one), and `start` is the state of having read nothing. `project` is A in the header."""

    def __init__(self, config: BiLSTMContextConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.gates = nn.Embedding(config.vocab_size, 4 * width)  # input, forget, output, candidate
        self.recurrence = nn.Linear(width, 4 * width, bias=False)
        self.start = nn.Parameter(torch.zeros(2, width))
        self.project = nn.Linear(width, config.head_size, bias=False)

    def nothing(self, *sizes: int) -> State:
        """The state before the first token, (D, *sizes)."""
        hidden, cell = self.start.view(2, -1, *[1] * len(sizes)).expand(2, -1, *sizes)
        return hidden, cell

    def read(self, state: State, tokens_N: Tensor) -> State:
        """(D, N): the state after one more token in each row."""
        return advance(linear(self.recurrence, state[0]) + self.gates(tokens_N).T, state[1])

    def read_every(self, state: State, tokens_S: Tensor | None = None) -> State:
        """(D, S, N) states after each of the tokens, or of all; the product with the recurrence is shared by them."""
        gates_SG = self.gates.weight if tokens_S is None else self.gates.weight[tokens_S]
        sums_GN = linear(self.recurrence, state[0])
        return advance(gates_SG.T[:, :, None] + sums_GN[:, None], state[1][:, None])

    def side(self, hidden: Tensor) -> Tensor:
        """(H, ...) what a state adds to the layer that joins both sides."""
        return linear(self.project, hidden)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A layer applied to features that lead: (in, ...) to (out, ...)."""
    y = layer.weight @ x.flatten(1)
    if layer.bias is not None:
        y = y + layer.bias[:, None]
    return y.view(-1, *x.shape[1:])


def advance(gates: Tensor, cell: Tensor) -> State:
    """One step of an LSTM (Hochreiter & Schmidhuber 1997; Gers et al. 2000) from the sums at its gates (4 D, ...)."""
    width = len(cell)
    open_, forget, out = gates[: 3 * width].sigmoid().split(width)
    cell = torch.addcmul(forget * cell, open_, gates[3 * width :].tanh())
    return out * cell.tanh(), cell


class BiLSTMContext(PreTrainedModel):
    """Sequences are (B, T) without padding: those of other lengths come in another call."""

    config_class = BiLSTMContextConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: BiLSTMContextConfig) -> None:
        super().__init__(config)
        self.left, self.right = Reader(config), Reader(config)
        self.joint_bias = nn.Parameter(torch.zeros(config.head_size))  # b
        self.output = nn.Linear(config.head_size, config.vocab_size)  # W, c
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def vocabulary_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def mask_token_id(self) -> int:
        """One past the vocabulary: what stands at a hidden position is not read."""
        return self.vocabulary_size

    def get_input_embeddings(self) -> nn.Embedding:
        return self.left.gates

    def cloze_logits(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): f(·, h(y_\\t)) at every position t, token t itself unread."""
        left_HTB = _before_each_token(self.left, tokens_BT)
        right_HTB = _before_each_token(self.right, tokens_BT.flip(1)).flip(1)
        return self.head(left_HTB, right_HTB).permute(2, 1, 0)

    def head(self, left_H: Tensor, right_H: Tensor) -> Tensor:
        """(V, ...) logits from what both sides add, (H, ...)."""
        return linear(self.output, self.join(left_H, right_H))

    def join(self, left_H: Tensor, right_H: Tensor) -> Tensor:
        """(H, ...)"""
        bias_H = self.joint_bias.view(-1, *[1] * (left_H.dim() - 1))
        return F.relu((left_H + bias_H) + right_H)  # the smaller one first: left and right may broadcast

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.cloze_logits(input_ids)

    @torch.no_grad()
    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        """`contracts.MaskedModel` for one hidden token a row, the only kind of context that it knows."""
        if not bool((hidden_RT.sum(1) == 1).all()):
            raise ModelError("a BiLSTM-context model reads every token but one; hide exactly one token a row")
        position_R, tokens_RT = hidden_RT.long().argmax(1), tokens_RT.masked_fill(hidden_RT, 0)
        logits_RV = torch.empty(len(tokens_RT), self.vocabulary_size, dtype=self.dtype, device=tokens_RT.device)
        for length in lengths_R.unique().tolist():
            rows_G = (lengths_R == length).nonzero()[:, 0]
            logits_GTV = self.cloze_logits(tokens_RT[rows_G, :length])
            logits_RV[rows_G] = logits_GTV[torch.arange(len(rows_G)), position_R[rows_G]]
        return logits_RV

    def _init_weights(self, module: nn.Module) -> None:
        """As torch's LSTM of normal embeddings would start, the forget gates open (Jozefowicz et al. 2015)."""
        with torch.no_grad():
            if isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                module.weight.uniform_(-bound, bound)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, Reader):
                width = module.start.shape[1]
                module.gates.weight.normal_(std=0.5)
                module.gates.weight[:, width : 2 * width] += 1.0
                module.start.zero_()


def _before_each_token(reader: Reader, tokens_BT: Tensor) -> Tensor:
    """(H, T, B) what the states before each position add."""
    state, states = reader.nothing(len(tokens_BT)), []
    for position in range(tokens_BT.shape[1]):
        states.append(state[0])
        if position + 1 < tokens_BT.shape[1]:
            state = reader.read(state, tokens_BT[:, position])
    return reader.side(torch.stack(states, dim=1))


def tree_states(reader: Reader, choices: Sequence[Tensor | None], *, backwards: bool) -> list[State]:
    """(D, N) states after 0, 1, … tokens, for every sequence of them; None among the `choices` of tokens, one for each
    step of the reading, means all. Columns are in lexicographic order of the sequences as they are written, which a
    reader from right to left builds from their end."""
    levels = [reader.nothing(1)]
    for tokens_S in choices:
        hidden, cell = (
            part_DSN if backwards else part_DSN.transpose(1, 2) for part_DSN in reader.read_every(levels[-1], tokens_S)
        )
        levels.append((hidden.flatten(1), cell.flatten(1)))
    return levels


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(BiLSTMContextConfig.model_type, BiLSTMContextConfig, exist_ok=True)
    AutoModel.register(BiLSTMContextConfig, BiLSTMContext, exist_ok=True)
