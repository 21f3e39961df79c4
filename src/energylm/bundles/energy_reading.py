"""Energies of many sequences, and their pooled states, in micro-batches that fit the machine; shared contexts are read
once.

A causal encoder (UniT) reads N continuations of a context through one copy of the context's keys and values. A
bidirectional one (BiT) has no such thing, since every hidden state depends on all tokens: context and continuation are
joined, and sequences of similar length travel together.

Relations  `energies.pooled` is the network, `models.shared_prefix` the shared reading, `models.packed_passes` that of
           whole texts; they meet here only.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from energylm.config.models import UNIT
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models.contexts import CPU_ACTIVATION_BYTES, GPU_ACTIVATION_BYTES, asked_tokens, pad_contexts
from energylm.models.packed_passes import encoder_states, prefix_encoder_for
from energylm.models.shared_prefix import can_share_prefix

MEMORY_BUDGET_BYTES = 1 << 30  # keys, values and attention scores of continuations that share a context
JOINED_ROWS = 4096  # continuations that are joined with their contexts at a time


def sequence_energies(network: PooledEnergy, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """(B,) energies of right-padded sequences; longest first, so that what does not fit into memory fails at once."""
    return _of_sequences(network, tokens_BT, lengths_B, network.project)


def sequence_states(network: PooledEnergy, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """(B, D) the pooled states that these energies are a projection of."""
    return _of_sequences(network, tokens_BT, lengths_B, _as_it_is)


def continuation_energies(
    network: PooledEnergy, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
) -> Tensor:
    """(B, N) energies of each context with each of its N right-padded continuations."""
    return _of_continuations(network, contexts, tokens_BNT, lengths_BN, network.project)


def continuation_states(
    network: PooledEnergy, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
) -> Tensor:
    """(B, N, D) the pooled states that these energies are a projection of."""
    return _of_continuations(network, contexts, tokens_BNT, lengths_BN, _as_it_is)


Kept = Callable[[Tensor], Tensor]  # pooled states (R, D) → what is kept of each row, (R,) or (R, D)


def _as_it_is(pooled_RD: Tensor) -> Tensor:
    return pooled_RD


@torch.no_grad()
def _of_sequences(network: PooledEnergy, tokens_BT: Tensor, lengths_B: Tensor, kept: Kept) -> Tensor:
    weight_1D: Tensor = network.head.weight
    tokens_BT, lengths_B = tokens_BT.to(weight_1D.device), lengths_B.to(weight_1D.device)
    tokens_BT = _readable(network, tokens_BT, lengths_B)
    order_B, tokens_at_once, start = lengths_B.argsort(descending=True, stable=True), _tokens_at_once(network), 0
    pieces = [kept(weight_1D.new_zeros(0, weight_1D.shape[1]))]
    while start < len(order_B):
        longest = int(lengths_B[order_B[start]])
        rows = order_B[start : start + max(1, tokens_at_once // longest)]
        hidden_RTD = encoder_states(network.encoder, tokens_BT[rows, :longest], lengths_B[rows], **network.options)
        pieces.append(kept(network.pool(hidden_RTD, lengths_B[rows])))
        start += len(rows)
    return torch.cat(pieces)[order_B.argsort()]


def _of_continuations(
    network: PooledEnergy, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor, kept: Kept
) -> Tensor:
    if lengths_BN.numel() and _shares_prefix(network, contexts, longest_new=int(lengths_BN.max())):
        return _with_shared_prefix(network, contexts, tokens_BNT, lengths_BN, kept)
    pieces = torch.cat([_of_sequences(network, *piece, kept) for piece in joined(contexts, tokens_BNT, lengths_BN)])
    return pieces.view(*lengths_BN.shape, *pieces.shape[1:])


def joined(
    contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor, *, rows: int = JOINED_ROWS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Contexts and continuations as whole sequences, (R, T) ids and (R,) lengths of at most so many rows each."""
    _, n, new = tokens_BNT.shape
    given_B = torch.tensor([len(context) for context in contexts], device=tokens_BNT.device)
    contexts_BP = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(context, dtype=torch.int64) for context in contexts], batch_first=True
    ).to(tokens_BNT.device)
    for rows_R in torch.arange(lengths_BN.numel(), device=tokens_BNT.device).split(rows):
        given_R = given_B[rows_R // n]
        whole_RT = torch.nn.functional.pad(contexts_BP[rows_R // n], (0, new))
        positions_RT = given_R[:, None] + torch.arange(new, device=tokens_BNT.device)
        whole_RT.scatter_(1, positions_RT, tokens_BNT.flatten(0, 1)[rows_R])
        yield whole_RT, given_R + lengths_BN.flatten()[rows_R]


def _shares_prefix(network: PooledEnergy, contexts: Sequence[Sequence[int]], *, longest_new: int) -> bool:
    """Whether the encoder can read contexts once. Rows in one pass take the longest context and continuation together,
    so where these do not fit, whole sequences are read: each of them may fit all the same."""
    if network.kind != UNIT or not can_share_prefix(network.encoder) or not all(map(len, contexts)):
        return False
    return network.max_tokens is None or max(map(len, contexts)) + longest_new <= network.max_tokens


@torch.no_grad()
def _with_shared_prefix(
    network: PooledEnergy, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor, kept: Kept
) -> Tensor:
    device = network.head.weight.device
    tokens_BNT, lengths_BN = tokens_BNT.to(device), lengths_BN.to(device)
    tokens_BNT = tokens_BNT[..., : max(1, int(lengths_BN.max()))]
    count, n, new = tokens_BNT.shape
    _readable(network, *pad_contexts(contexts, device=device))
    tokens_BNT = _known_ids(network, tokens_BNT.flatten(0, 1), lengths_BN.flatten()).view_as(tokens_BNT)
    encoder = prefix_encoder_for(network.encoder)
    blocks: list[list[Tensor]] = []  # of contexts, and of the continuations of these
    row_bytes = encoder.bytes_per_row(context_tokens=max(map(len, contexts)), new_tokens=new)
    rows = max(1, min(_tokens_at_once(network) // new, MEMORY_BUDGET_BYTES // row_bytes))
    together, copies = max(1, rows // n), min(rows, n)
    for start in range(0, count, together):
        chosen = slice(start, start + together)
        prefix, hidden_GPD = encoder.prefill(contexts[chosen])
        context_sum_GD = network.sum_real(hidden_GPD, prefix.lengths_B)
        blocks.append([])
        for first in range(0, n, copies):
            block = (chosen, slice(first, first + copies))
            lengths_R = lengths_BN[block].flatten()
            share = len(lengths_R) // len(prefix.lengths_B)
            hidden_RSD = encoder.read(prefix, tokens_BNT[block].flatten(0, 1))
            total_RD = context_sum_GD.repeat_interleave(share, dim=0) + network.sum_real(hidden_RSD, lengths_R)
            tokens_R = prefix.lengths_B.repeat_interleave(share) + lengths_R
            kept_R = kept(network.pool_sum(total_RD, tokens_R))
            blocks[-1].append(kept_R.view(-1, share, *kept_R.shape[1:]))
    return torch.cat([torch.cat(block, dim=1) for block in blocks])


def _tokens_at_once(network: PooledEnergy) -> int:
    if (asked := asked_tokens(network)) is not None:
        return asked
    weight_1D: Tensor = network.head.weight
    activation_bytes = CPU_ACTIVATION_BYTES if weight_1D.device.type == "cpu" else GPU_ACTIVATION_BYTES
    return max(1, activation_bytes // (4 * weight_1D.shape[1] * weight_1D.element_size()))


def _readable(network: PooledEnergy, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """The tokens with padding set to 0, if the network can read them at all."""
    if network.training:
        raise ModelError("the energy is in training mode, so dropout would change its energies; call .eval() first")
    if len(lengths_B) and int(lengths_B.min()) < 1:
        raise ModelError("an empty sequence came, which has no energy; give at least one token")
    longest = int(lengths_B.max()) if len(lengths_B) else 0
    if network.max_tokens is not None and longest > network.max_tokens:
        raise ModelError(
            f"context and continuation take {longest:,} tokens but the energy holds {network.max_tokens:,}; "
            "shorten the context or the continuation"
        )
    return _known_ids(network, tokens_BT, lengths_B)


def _known_ids(network: PooledEnergy, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
    """The tokens with padding set to 0, if all others have an embedding."""
    real_RT = torch.arange(tokens_RT.shape[1], device=tokens_RT.device) < lengths_R[:, None]
    tokens_RT = tokens_RT.masked_fill(~real_RT, 0)
    unknown = tokens_RT[(tokens_RT < 0) | (tokens_RT >= network.vocabulary_size)]
    if len(unknown):
        raise VocabularyMismatch(
            f"token id {int(unknown[0])} came but the energy knows ids 0 to {network.vocabulary_size - 1}; "
            "give it the tokens of its own tokenizer, or an energy that reads text"
        )
    return tokens_RT
