"""Rows cut into blocks of 64 columns, for searches that look at blocks first and inside one block after."""

from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64


def as_blocks(values_RV: Tensor, *, fill: float) -> Tensor:
    """(R, ⌈V/64⌉, 64); a last block that is not full is filled up with `fill`."""
    if remainder := values_RV.shape[1] % BLOCK:
        values_RV = pad(values_RV, (0, BLOCK - remainder), value=fill)
    return values_RV.view(values_RV.shape[0], -1, BLOCK)
