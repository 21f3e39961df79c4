r"""BiLSTM-context energies of whole languages and of all one-token variants: log Z and conditionals, exactly.

    −E(y) = Σ_t f(y_t, h(y_\t))                           log Z = log Σ over all V^T sequences of exp(−E(y))
    p(y_t = w | y_\t) = exp(−E(y with y_t = w)) / Σ_v exp(−E(y with y_t = v))         Goyal 2021, §6.2.1 to 6.2.3

`Universe` holds every sequence of a small language, with gradients. There are only T · V^(T−1) contexts: V^t left
states times V^(T−1−t) right states at position t. One pass over them says everything about the language, whatever the
number of training sequences: only looking them up grows with it. Sequences are numbered in lexicographic order, as
`testing.enumeration` lists them.

`Replacements` gives the conditionals of single sequences of larger languages, with gradients. The true conditional at
one position needs |V| sequences and all T potentials of each. Variants that differ at i share every left state up to i
and every right state down to i, so the readers branch there instead of starting again: T(T − 1)/2 · V states a
direction for all variants of a sequence, where T² · V separate readings take T³ · V.

`log_partition` sums a language too large to hold: 39⁶ sequences in minutes, without gradients. Sequences are summed in
boxes: the first and the last token run over the whole vocabulary, each token between over a block of it. The numbers of
a box are the only large array, V² · block^(T−2) floats; they are filled position by position,

    middle t   every left state with every right state of the box, added and rectified        P · Q · H numbers
               times the output rows of the block's tokens, added in place by one matrix product
    ends       the longest states (V^(T−1) of each direction) are read in slices, used once and forgotten

so a middle context comes V / block times (once for each block of its own token), an end context once. With V = 39,
T = 6 and blocks of 13 that is 81 boxes of 43 million sequences (174 MB), 14 · 39⁵ joined contexts in all; at H = 64,
80 · 10⁹ additions and rectifications and 2.7 · 10¹² operations in products: about two minutes on one core.

Use it     `reading` picks `Universe` while V^T stays below some 20,000, else `Replacements` (pseudo-likelihood only).
Relations  `bilstm_context` is the network; `objectives.sequence_likelihood` reads these numbers.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.models.bilstm_context import BiLSTMContext, Reader, State, advance, linear, tree_states
from energylm.progress import progress


class Universe:
    """What `network` says of all sequences of `length` tokens, at its present weights."""

    def __init__(self, network: BiLSTMContext, length: int) -> None:
        self.network, self.length = network, length

    @cached_property
    def logits(self) -> list[Tensor]:
        """At each position t, (V, V^t, V^(T−1−t)): f(·, h) for every left context and every right context."""
        every = [None] * (self.length - 1)
        left, right = (
            [reader.side(hidden) for hidden, _ in tree_states(reader, every, backwards=backwards)]
            for reader, backwards in ((self.network.left, False), (self.network.right, True))
        )
        return [self.network.head(left[t][:, :, None], right[self.length - 1 - t][:, None]) for t in range(self.length)]

    @cached_property
    def log_weights(self) -> Tensor:
        """(V^T,) minus the energy of every sequence."""
        return torch.stack([logits_VPQ.transpose(0, 1).flatten() for logits_VPQ in self.logits]).sum(0)

    @cached_property
    def log_partition(self) -> Tensor:
        return self.log_weights.logsumexp(0)

    def energies(self, tokens_BT: Tensor) -> Tensor:
        """(B,)"""
        index_B = _number(tokens_BT, self.network.vocabulary_size)
        return -F.embedding(index_B, self.log_weights[:, None])[:, 0]

    def replaced_energies(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): the energy of each sequence with its token t replaced by w."""
        vocabulary = self.network.vocabulary_size
        tables = [
            self.log_weights.view(vocabulary**t, vocabulary, -1).transpose(1, 2).reshape(-1, vocabulary)
            for t in range(self.length)
        ]
        return -self._at_contexts(tables, tokens_BT)

    def cloze_logits(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V)"""
        return self._at_contexts([logits_VPQ.flatten(1).T for logits_VPQ in self.logits], tokens_BT)

    def _at_contexts(self, tables: list[Tensor], tokens_BT: Tensor) -> Tensor:
        """(B, T, V) the rows of the context of every token; `F.embedding` adds up gradients in a fixed order."""
        contexts = [torch.cat([tokens_BT[:, :t], tokens_BT[:, t + 1 :]], dim=1) for t in range(self.length)]
        vocabulary = self.network.vocabulary_size
        rows = [F.embedding(_number(c, vocabulary), table) for c, table in zip(contexts, tables, strict=True)]
        return torch.stack(rows, dim=1)


def _number(tokens_BT: Tensor, vocabulary: int) -> Tensor:
    """(B,) the index of a sequence among all of its length, in lexicographic order."""
    power_T = vocabulary ** torch.arange(tokens_BT.shape[1] - 1, -1, -1, device=tokens_BT.device)
    return (tokens_BT * power_T).sum(1)


ENUMERATED = 20_000  # sequences of one length that are held at once


class Replacements:
    """What `network` says of single sequences; the face of `context_universe.Universe` without the likelihood."""

    def __init__(self, network: BiLSTMContext) -> None:
        self.network = network

    def cloze_logits(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V)"""
        return self.network.cloze_logits(tokens_BT)

    def replaced_energies(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): the energy of each sequence with its token t replaced by w."""
        network, length = self.network, tokens_BT.shape[1]
        left = _branching_sides(network.left, tokens_BT)
        right = _branching_sides(network.right, tokens_BT.flip(1))
        terms = []
        for t in range(length):
            left_HNB, right_HMB = left[t], right[length - 1 - t]  # the first is unchanged, then V a changed position
            own_V1B = network.head(left_HNB[:, :1], right_HMB[:, :1])
            # A change left of t meets the unchanged right side, and the other way round.
            by_left_HNB = network.join(left_HNB[:, 1:], right_HMB[:, :1])
            by_right_HMB = network.join(left_HNB[:, :1], right_HMB[:, 1:])
            weight_H1B = F.embedding(tokens_BT[:, t], network.output.weight).T[:, None]
            bias_B = F.embedding(tokens_BT[:, t], network.output.bias[:, None])[:, 0]
            left_IVB, right_IVB = (
                ((joined * weight_H1B).sum(0) + bias_B).unflatten(0, (-1, network.vocabulary_size))
                for joined in (by_left_HNB, by_right_HMB)
            )
            # From the right end positions count down.
            terms.append(torch.cat([left_IVB, own_V1B.transpose(0, 1), right_IVB.flip(0)]))
        return -torch.stack(terms).sum(0).permute(2, 0, 1)


def reading(network: BiLSTMContext, length: int) -> Universe | Replacements:
    """Sequences of `length` tokens by enumeration where there are few of them, else one by one."""
    few = network.vocabulary_size**length <= ENUMERATED
    return Universe(network, length) if few else Replacements(network)


def _branching_sides(reader: Reader, tokens_BT: Tensor) -> list[Tensor]:
    """For t = 0 … T − 1, (H, 1 + t · V, B): what the states after t tokens add; first of the sequence as it is, then
    with its token 0, 1, … t − 1 replaced by each token of the vocabulary."""
    hidden, cell = reader.nothing(1, len(tokens_BT))
    levels = [reader.side(hidden)]
    for t in range(tokens_BT.shape[1] - 1):
        sums_GNB = linear(reader.recurrence, hidden)
        follow = sums_GNB + reader.gates(tokens_BT[:, t]).T[:, None]
        branch = sums_GNB[:, :1] + reader.gates.weight.T[:, :, None]  # every token in the place of token t
        cells = torch.cat([cell, cell[:, :1].expand(-1, branch.shape[1], -1)], dim=1)
        hidden, cell = advance(torch.cat([follow, branch], dim=1), cells)
        levels.append(reader.side(hidden))
    return levels


BLOCK = 13  # tokens of a block; a third of the 39 phonemes
WORK_FLOATS = 1 << 18  # numbers in hand at a time: 1 MB, which stays in the second cache of a CPU core


@torch.no_grad()
def log_partition(network: BiLSTMContext, length: int, *, block: int = BLOCK) -> float:
    """log Σ exp(−E) over all sequences of `length` tokens; sums in float64, numbers within a box in the network's."""
    if length < 3:
        return float(Universe(network, length).log_partition)
    blocks = torch.arange(network.vocabulary_size).split(block)
    boxes = len(blocks) ** (length - 2)
    totals = []
    with progress(f"log Z of {length} tokens", total=boxes, unit="box") as bar:
        for middle in product(blocks, repeat=length - 2):
            totals.append(_log_sum_exp(_box_log_weights(network, middle)))
            bar.advance()
    return float(torch.tensor(totals, dtype=torch.float64).logsumexp(0))


def _box_log_weights(network: BiLSTMContext, middle: Sequence[Tensor]) -> Tensor:
    """(V, |block|, …, |block|, V) minus the energies of all sequences whose inner tokens lie in the given blocks."""
    choices = [None, *middle, None]
    last = len(choices) - 1
    box = _sum_of_biases(network, choices)
    left = tree_states(network.left, choices[: last - 1], backwards=False)
    right = tree_states(network.right, choices[:1:-1], backwards=True)
    for t in range(1, last):
        left_PH = network.left.side(left[t][0]).T + network.joint_bias
        right_HQ = network.right.side(right[last - t][0])
        view_PSQ = box.view(len(left_PH), len(middle[t - 1]), right_HQ.shape[1])
        _add_middle(view_PSQ, left_PH, right_HQ, network.output.weight[middle[t - 1]])
    # The ends, whose contexts are all other tokens: the longest states but one, read on by one token.
    _add_end(
        box.view(-1, len(middle[-1]), network.vocabulary_size).permute(1, 2, 0), left[-1], middle[-1], network, "left"
    )
    _add_end(
        box.view(network.vocabulary_size, len(middle[0]), -1).transpose(0, 1), right[-1], middle[0], network, "right"
    )
    return box


def _sum_of_biases(network: BiLSTMContext, choices: Sequence[Tensor | None]) -> Tensor:
    bias_V = network.output.bias
    box: Tensor = bias_V
    for tokens_S in choices[1:]:
        box = box[..., None] + (bias_V if tokens_S is None else bias_V[tokens_S])
    return box


def _add_middle(box_PSQ: Tensor, left_PH: Tensor, right_HQ: Tensor, weight_SH: Tensor) -> None:
    """box += W relu(left + right), for every left and every right state."""
    width = len(right_HQ)
    many_q = min(right_HQ.shape[1], max(1, WORK_FLOATS // width))
    many_p = max(1, WORK_FLOATS // (width * many_q))
    for q in _slices(right_HQ.shape[1], many_q):
        for p in _slices(len(left_PH), many_p):
            joined_PHQ = (left_PH[p, :, None] + right_HQ[None, :, q]).relu_()
            box_PSQ[p, :, q].baddbmm_(weight_SH.expand(len(joined_PHQ), -1, -1), joined_PHQ)


def _add_end(box_SVN: Tensor, states: State, tokens_S: Tensor, network: BiLSTMContext, side: str) -> None:
    """box += W relu(side + nothing on the other side), for the states of that side read on by each token of a block."""
    reader, other = (network.left, network.right) if side == "left" else (network.right, network.left)
    nothing_H = other.side(other.nothing(1)[0])[:, 0] + network.joint_bias
    weight_SVH = network.output.weight.expand(len(tokens_S), -1, -1)
    widest = max(4 * network.config.hidden_size, network.config.head_size)
    for n in _slices(box_SVN.shape[2], max(1, WORK_FLOATS // (len(tokens_S) * widest))):
        hidden_DSN, _ = reader.read_every((states[0][:, n], states[1][:, n]), tokens_S)
        joined_HSN = (reader.side(hidden_DSN) + nothing_H[:, None, None]).relu_()
        box_SVN[:, :, n].baddbmm_(weight_SVH, joined_HSN.transpose(0, 1))


def _log_sum_exp(values: Tensor) -> float:
    """Slice by slice, so that no second box is needed; slices are added in float64."""
    flat, top = values.view(-1), values.max()
    total = sum(float((piece - top).exp_().sum()) for piece in flat.split(WORK_FLOATS))
    return float(top) + math.log(total)


def _slices(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
