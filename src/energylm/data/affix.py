"""Which part of a window is context and which is to be generated (Bakhtin et al. 2019 §3.2 and §4.2).

    suffix side   context = x_1 … x_c          target = x_{c+1} … x_T       written by a left-to-right model
    prefix side   context = x_{T−c+1} … x_T    target = x_1 … x_{T−c}       written by a right-to-left model

c is 120 or 140 of 160 with equal probability. It is a pure function of (seed, window number), so a window is cut in the
same place in every run, batch and process. Everything is in natural reading order, whichever side is generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from energylm.randomness import derive_seed, row_keys, row_uniforms

Side = Literal["suffix", "prefix"]
PAPER_CONTEXT_LENGTHS = (120, 140)


@dataclass(frozen=True)
class AffixSplit:
    """Windows cut in two: B contexts and B targets of their own lengths."""

    contexts: list[NDArray[np.int64]]
    targets: list[NDArray[np.int64]]


def cut_lengths(
    indices: NDArray[np.int64], *, seed: int, choices: Sequence[int] = PAPER_CONTEXT_LENGTHS
) -> NDArray[np.int64]:
    """(B,): the context length of each window, drawn uniformly from `choices`."""
    groups_B = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
    keys_B = row_keys(derive_seed(seed, "context length"), groups_B, torch.zeros_like(groups_B))
    picks_B = (row_uniforms(keys_B, step=0) * len(choices)).long()
    lengths_B: NDArray[np.int64] = np.asarray(choices, dtype=np.int64)[picks_B.numpy()]
    return lengths_B


def split_affix(windows_BT: NDArray[np.int64], cut_B: NDArray[np.int64], *, side: Side) -> AffixSplit:
    """Cut each window into `cut_B` tokens of context and the rest, on the given side."""
    length = windows_BT.shape[1]
    if cut_B.size and (cut_B.min() < 0 or cut_B.max() > length):
        raise ValueError(f"context lengths must lie in [0, {length}], came {cut_B.min()} to {cut_B.max()}")
    if side == "suffix":
        parts = [(row[:cut], row[cut:]) for row, cut in zip(windows_BT, cut_B, strict=True)]
    else:
        parts = [(row[length - cut :], row[: length - cut]) for row, cut in zip(windows_BT, cut_B, strict=True)]
    return AffixSplit(contexts=[context for context, _ in parts], targets=[target for _, target in parts])


def join_affix(context: NDArray[np.int64], generated: NDArray[np.int64], *, side: Side) -> NDArray[np.int64]:
    """The sequence in reading order: the inverse of `split_affix` for one window."""
    return np.concatenate([context, generated] if side == "suffix" else [generated, context])
