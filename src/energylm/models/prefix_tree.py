"""Log-probabilities of lists of similar sequences over the tree of their prefixes: each shared prefix is read once.

    log P(x_t | x_<t) = logit(node of x_<t, x_t) − log Σ_v exp logit(node of x_<t, v)

The hypotheses of an n-best list differ in a few tokens; their prefixes form a tree with about half as many nodes as the
list has tokens. A tree is laid out as one row, parents first. A token sits at the position of its depth and attends to
its ancestors and itself: through transformers' attention interface, as shared-prefix sampling does, with grouped heads,
sliding windows, soft caps and attention sinks.

Use it     to score hypotheses that share prefixes; texts that have nothing in common gain nothing.
Relations  `shared_prefix` is the special case of one stem with many branches; `causal` reads every sequence by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from energylm.config.models import RIGHT_TO_LEFT
from energylm.errors import ModelError
from energylm.models import packed_passes
from energylm.models.causal import LOGITS_PER_MICRO_BATCH, CausalLanguageModel, log_totals
from energylm.models.contexts import asked_tokens, length_batches
from energylm.models.packed import why_not_packed
from energylm.models.shared_prefix import VERIFIED, why_not_shared_prefix
from energylm.models.shared_prefix_attention import switched_attention

ATTENTION_NAME = "energylm_prefix_tree"
_CHECK_TOLERANCE = 1e-3


@dataclass(frozen=True)
class PrefixTree:
    """Prefixes (nodes) that are read, and what is asked of them (edges): the probability of a token after a prefix."""

    token_N: NDArray[np.int64]
    parent_N: NDArray[np.int64]  # the root, the start token, is its own
    depth_N: NDArray[np.int64]
    edge_node_E: NDArray[np.int64]
    edge_token_E: NDArray[np.int64]
    paths: list[list[int]]  # the edges of each sequence, in reading order

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], *, start_token_id: int) -> "PrefixTree":
        tokens, parents, depths = [start_token_id], [0], [0]
        edges: dict[tuple[int, int], int] = {}
        below: dict[int, int] = {}  # edge → the node it leads to, where that is a prefix of something
        paths = []
        for sequence in sequences:
            node, path = 0, []
            for index, token in enumerate(sequence):
                edge = edges.setdefault((node, token), len(edges))
                path.append(edge)
                if index + 1 == len(sequence):
                    break  # nothing is asked after the last token, so it need not be read
                if edge not in below:
                    below[edge] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    depths.append(index + 1)
                node = below[edge]
            paths.append(path)
        edge_node_E, edge_token_E = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
        return cls(np.array(tokens), np.array(parents), np.array(depths), edge_node_E, edge_token_E, paths)

    @property
    def nodes(self) -> int:
        return len(self.token_N)

    def ancestors(self) -> NDArray[np.bool_]:
        """(N, N): whether column is an ancestor of row, or the row itself."""
        table = np.eye(self.nodes, dtype=np.bool_)
        for node in range(1, self.nodes):  # parents come first
            table[node] |= table[self.parent_N[node]]
        return table


@dataclass(frozen=True)
class TreeBatch:
    """Several trees, padded to the largest: what one pass of the network reads."""

    tokens_BN: Tensor
    depth_BN: Tensor
    visible_BNN: Tensor  # padding sees itself alone, and nobody else sees it

    @classmethod
    def of(cls, trees: Sequence[PrefixTree], *, device: torch.device) -> "TreeBatch":
        size = max(tree.nodes for tree in trees)
        tokens_BN = np.zeros((len(trees), size), dtype=np.int64)
        depth_BN = np.zeros_like(tokens_BN)
        visible_BNN = np.broadcast_to(np.eye(size, dtype=np.bool_), (len(trees), size, size)).copy()
        for row, tree in enumerate(trees):
            tokens_BN[row, : tree.nodes], depth_BN[row, : tree.nodes] = tree.token_N, tree.depth_N
            visible_BNN[row, : tree.nodes, : tree.nodes] = tree.ancestors()
        return cls(*(torch.from_numpy(part).to(device) for part in (tokens_BN, depth_BN, visible_BNN)))

    def within(self, sliding_window: int | None) -> Tensor:
        """(B, N, N) what each node sees if it looks back at most `sliding_window` tokens, itself included."""
        if sliding_window is None or int(self.depth_BN.max()) < sliding_window:
            return self.visible_BNN
        return self.visible_BNN & (self.depth_BN[:, :, None] - self.depth_BN[:, None, :] < sliding_window)


def prefix_tree_attention(
    module: nn.Module,
    query: Tensor,  # (B, H, N, D)
    key: Tensor,  # (B, H_kv, N, D)
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_tree: TreeBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    visible = prefix_tree.within(sliding_window)[:, None]
    group = query.shape[1] // key.shape[1]
    if softcap is None and s_aux is None:
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=visible, scale=scaling, enable_gqa=group > 1
        )
        return attended.transpose(1, 2), None
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    score = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.mT
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score.masked_fill(~visible, float("-inf"))
    if s_aux is not None:  # a sink takes its share of the attention and gives nothing
        sink = s_aux.view(1, -1, 1, 1).expand(*score.shape[:3], 1).to(score.dtype)
        score = torch.cat([score, sink], dim=-1)
    weight = score.softmax(-1)[..., : key.shape[2]]
    return (weight @ value).transpose(1, 2), None


def why_not_prefix_tree(model: CausalLanguageModel) -> str | None:
    """None if trees are read rightly by this model, else the reason in words. Families that the tests do not compare
    with plain reading are compared here, on a small tree."""
    if model.start_token_id is None:
        return "the model has no start token, from which a tree would grow"
    if model.network.config.model_type in VERIFIED:
        return None
    return why_not_shared_prefix(model.network) or _self_check(model)


@torch.no_grad()
def tree_log_probs(
    model: CausalLanguageModel,
    lists: Sequence[Sequence[Sequence[int]]],
    *,
    logits_at_once: int = LOGITS_PER_MICRO_BATCH,
) -> list[list[Tensor]]:
    """For each sequence of each list the log-probability of every token, as `token_log_probs` gives it.

    A list is a tree; a tree too big for one pass is cut into trees of similar sequences.
    """
    if model.network.training:
        raise ModelError("the network is in training mode, so dropout would change its probabilities; call .eval()")
    backwards = model.direction == RIGHT_TO_LEFT
    budget = asked_tokens(model.network) or max(1, logits_at_once // model.vocabulary_size)
    results: list[list[Tensor]] = [[torch.empty(0)] * len(sequences) for sequences in lists]
    pieces = [piece for number, sequences in enumerate(lists) for piece in _pieces(model, number, sequences, budget)]
    sizes = torch.tensor([tree.nodes for *_, tree in pieces], dtype=torch.int64)
    for chosen, _ in length_batches(sizes, tokens_at_once=budget):
        together = [pieces[index] for index in chosen.tolist()]
        for (number, members, tree), edges_E in zip(
            together, _read(model, [tree for *_, tree in together]), strict=True
        ):
            for member, path in zip(members, tree.paths, strict=True):
                values_T = edges_E[path]
                results[number][member] = values_T.flip(0) if backwards else values_T
    return results


def _pieces(
    model: CausalLanguageModel, number: int, sequences: Sequence[Sequence[int]], budget: int
) -> list[tuple[int, list[int], PrefixTree]]:
    """(list, members, tree): all of a list's sequences in one tree, or in several where one would not fit."""
    assert model.start_token_id is not None
    read = [sequence[::-1] if model.direction == RIGHT_TO_LEFT else sequence for sequence in sequences]
    ordered = cast("list[list[int]]", read)  # all lists or all tuples: both compare token by token
    waiting = [sorted(range(len(read)), key=lambda member: ordered[member])]  # neighbours share the longest prefixes
    trees = []
    while waiting:
        members = waiting.pop()
        tree = PrefixTree.of([read[member] for member in members], start_token_id=model.start_token_id)
        if tree.nodes > budget and len(members) > 1:
            waiting += [members[: len(members) // 2], members[len(members) // 2 :]]
        elif members:
            trees.append((number, members, tree))
    return trees


def tree_logits(network: nn.Module, batch: TreeBatch) -> Tensor:
    """(B, N, V) after every node; gradients go through."""
    AttentionInterface.register(ATTENTION_NAME, prefix_tree_attention)
    with switched_attention(cast(PreTrainedModel, network), ATTENTION_NAME):
        logits_BNV: Tensor = network(
            input_ids=batch.tokens_BN,
            attention_mask=torch.ones_like(batch.tokens_BN),  # unread; without one transformers warns of padding
            position_ids=batch.depth_BN,
            use_cache=False,
            prefix_tree=batch,
        ).logits
    return logits_BNV


def _logits(network: PreTrainedModel, batch: TreeBatch) -> Tensor:
    """`tree_logits` without gradients, through packed weights where they serve."""
    if why_not_packed(network) is None:
        return packed_passes.tree_logits(network, batch.tokens_BN, batch.depth_BN, batch.visible_BNN)
    return tree_logits(network, batch)


def _read(model: CausalLanguageModel, trees: Sequence[PrefixTree]) -> list[Tensor]:
    """The log-probability of every edge of every tree."""
    batch = TreeBatch.of(trees, device=model.network.device)
    model.check_length(int(batch.depth_BN.max()) + 1)
    model.check_ids(torch.from_numpy(np.concatenate([tree.edge_token_E for tree in trees])))
    logits_BNV = _logits(model.network, batch)
    total_BN = log_totals(logits_BNV, dtype=model.result_dtype)
    log_probs = []
    for row, tree in enumerate(trees):
        node_E, token_E = (
            torch.from_numpy(part).to(logits_BNV.device) for part in (tree.edge_node_E, tree.edge_token_E)
        )
        log_probs.append(logits_BNV[row, node_E, token_E].to(model.result_dtype) - total_BN[row, node_E])
    return log_probs


@torch.no_grad()
def _self_check(model: CausalLanguageModel) -> str | None:
    """A small tree against plain reading."""
    ids = [(number * 7 + 3) % model.vocabulary_size for number in range(9)]
    sequences = [ids[:6], ids[:3] + ids[5:9], ids[:1], ids[4:8]]
    try:
        (over_tree,) = tree_log_probs(model, [sequences])
    except Exception as error:  # whatever an unknown family raises, plain reading serves it
        return f"tree attention failed on it ({type(error).__name__})"
    tokens_BT = nn.utils.rnn.pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True)
    plain_BT = model.token_log_probs(tokens_BT, torch.tensor([len(sequence) for sequence in sequences]))
    for values_T, row_T in zip(over_tree, plain_BT, strict=True):
        if not torch.allclose(values_T, row_T[: len(values_T)], rtol=0, atol=_CHECK_TOLERANCE):
            return "log-probabilities over a tree differ from plain ones"
    return None
