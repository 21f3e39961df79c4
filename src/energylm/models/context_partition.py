"""The exact partition function of a BiLSTM-context energy over a language too large to hold: 39⁶ sequences in minutes.

    Z = Σ over V^T sequences of exp( Σ_t f(y_t, h(y_\\t)) )                                        Goyal 2021, §6.2.3

A sequence needs T potentials, but a potential comes with those of all V tokens in its place, and its context is a pair
of states that many sequences share: T · V^(T−1) contexts, no network pass a sequence. Sequences are summed in boxes:
the first and the last token run over the whole vocabulary, each token between over a block of it. The numbers of a box
are the only large array, V² · block^(T−2) floats; they are filled position by position,

    middle t   every left state with every right state of the box, added and rectified        P · Q · H numbers
               times the output rows of the block's tokens, added in place by one matrix product
    ends       the longest states (V^(T−1) of each direction) are read in slices, used once and forgotten

so a middle context is met V / block times (once for each block of its own token), an end context once. With V = 39,
T = 6 and blocks of 13 that is 81 boxes of 43 million sequences (174 MB), 14 · 39⁵ joined contexts in all; at H = 64,
80 · 10⁹ additions and rectifications and 2.7 · 10¹² operations in products: about two minutes on one core.

Relations  `context_universe` holds all sequences of a small language and has gradients; both agree where both can run.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from energylm.models.bilstm_context import BiLSTMContext, State, tree_states
from energylm.models.context_universe import Universe
from energylm.progress import progress

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
