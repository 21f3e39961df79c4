"""What is asked of contexts and networks before they are read; how much a network holds, what it takes, and which
sequences travel together: those of similar length, which waste little on padding (training has its own batches, whose
order is a function of seed and step).

Packed weights (`packed`) round otherwise than a network does by itself, by some 1e-5 nats a token; where the very
numbers of transformers are wanted, `own_passes` asks for the network's own."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.errors import ModelError

# The widest activations of a micro-batch (the feed-forward's, 4 × width) that stay in the caches of a CPU; on a GPU
# there is no such cliff, and bigger is better.
CPU_ACTIVATION_BYTES, GPU_ACTIVATION_BYTES = 16 << 20, 256 << 20
PASS_TOKENS = 512  # a pass over fewer costs hardly less, so shorter rows may as well fill it up
LEAST_SHARE = 0.875  # of the longest row: shorter ones go into a pass of their own, rather than be padded
UNKNOWN_WIDTH = 512  # of a network that is made of others

asks_for_own_passes = ContextVar("asks_for_own_passes", default=False)


@contextmanager
def own_passes() -> Iterator[None]:
    """Within it networks are read by their own forward pass."""
    token = asks_for_own_passes.set(True)
    try:
        yield
    finally:
        asks_for_own_passes.reset(token)


def pad_contexts(contexts: Sequence[Sequence[int]], *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Contexts as right-padded ids (B, P) and lengths (B,)."""
    if not contexts or not all(map(len, contexts)):
        raise ModelError("a context is empty; give at least one token (a start token where the model has one)")
    rows = [torch.as_tensor(context, dtype=torch.int64) for context in contexts]
    lengths_B = torch.tensor([len(row) for row in rows], device=device)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device), lengths_B


def refuse_training_mode(network: PreTrainedModel) -> None:
    if network.training:
        raise ModelError(
            "the network is in training mode, so dropout would change its probabilities; call .eval() first"
        )


def check_network(network: PreTrainedModel, *, longest: int) -> None:
    """Sampling needs a network out of training mode and sequences that its positions can hold."""
    refuse_training_mode(network)
    limit = positions(network)
    if limit is not None and longest > limit:
        raise ModelError(
            f"context and continuation take {longest} tokens but the model holds {limit}; "
            "shorten the context or ask for fewer new tokens"
        )


def positions(network: PreTrainedModel) -> int | None:
    """How many positions a network's config has; None where nothing limits them."""
    limit = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def longest_input(network: PreTrainedModel) -> int | None:
    """The most tokens that a network's positions hold; None where nothing limits them."""
    limit = positions(network)
    if limit is None:
        return None
    # RoBERTa's relatives count positions from their padding index on.
    reserved = [
        module.padding_idx + 1
        for name, module in network.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    return limit - max(reserved, default=0)


def tokens_at_once(network: PreTrainedModel, logits: int | None = None) -> int:
    """How many tokens a network reads in one pass: as many as it was told (`batch_tokens`), or reads fastest; `logits`
    bounds how many of these may exist at a time."""
    config = network.config.get_text_config()
    tokens = asked_tokens(network)
    if tokens is None:
        activation_bytes = CPU_ACTIVATION_BYTES if network.device.type == "cpu" else GPU_ACTIVATION_BYTES
        tokens = activation_bytes // (16 * getattr(config, "hidden_size", UNKNOWN_WIDTH))
    return max(1, tokens if logits is None else min(tokens, logits // config.vocab_size))


def asked_tokens(network: nn.Module) -> int | None:
    """The `batch_tokens` that somebody asked of this network, by `bundles.devices.move`."""
    return getattr(network, "batch_tokens", None)


def takes(network: nn.Module, option: str) -> bool:
    """Whether the network's `forward` has a parameter of this name."""
    return option in inspect.signature(network.forward).parameters


def length_batches(lengths_B: Tensor, *, tokens_at_once: int) -> list[tuple[Tensor, int]]:
    """Rows that go through a network together, and the length of the longest of them; rows of length 0 are left out.

    `tokens_at_once` bounds rows × longest, but a row that is longer by itself still comes. Longest first, so that what
    does not fit into memory fails at once.
    """
    order_B = lengths_B.argsort(descending=True, stable=True)
    order_B = order_B[lengths_B[order_B] > 0]
    lengths = lengths_B[order_B].tolist()
    starts: list[int] = []
    for index, length in enumerate(lengths):
        padded = (index - starts[-1]) * lengths[starts[-1]] if starts else 0  # tokens of the batch so far
        if (
            not starts
            or padded + lengths[starts[-1]] > tokens_at_once
            or (padded >= PASS_TOKENS and length < LEAST_SHARE * lengths[starts[-1]])
        ):
            starts.append(index)
    ends = [*starts, len(lengths)][1:]
    return [(order_B[start:end], lengths[start]) for start, end in zip(starts, ends, strict=True)]
