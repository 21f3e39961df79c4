"""What happened since the last report: losses, metrics, gradient norms, tokens; read from the device once per report.

Reading a number back stops the device until it is there, so updates only put tensors aside. `collect` fetches them all,
adds them up over processes, and finds the first step whose loss or gradient is not finite.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.training.processes import Processes


@dataclass(frozen=True)
class Report:
    """Means over the steps since the last report."""

    values: dict[str, float]  # "loss", each term where there are several, each metric, "gradient_norm"
    tokens: int
    non_finite: tuple[int, str, float] | None  # the first (step, which number, its value)
    skipped: int  # updates left out by the loss scaler of fp16


class Meter:
    def __init__(self, loss_weights: Mapping[str, float], processes: Processes) -> None:
        self._weights, self._processes = dict(loss_weights), processes
        self._clear()

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._sums: list[Tensor] = []  # (K,) per step, of this process
        self._counts: list[Tensor] = []  # (K,) per step, of all processes
        self._norms: list[Tensor] = []
        self._metrics: dict[str, list[Tensor]] = {}  # name -> (2,) sum and count, per micro-batch of this process
        self._tokens = 0

    def add_metrics(self, metrics: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (total, count) in metrics.items():
            self._metrics.setdefault(name, []).append(torch.stack([total.detach().float(), count.detach().float()]))

    def add_step(self, step: int, *, sums_K: Tensor, counts_K: Tensor, gradient_norm: Tensor, tokens: int) -> None:
        self._steps.append(step)
        self._sums.append(sums_K)
        self._counts.append(counts_K)
        self._norms.append(gradient_norm.detach())
        self._tokens += tokens

    def collect(self, *, has_scaler: bool) -> Report:
        """Report and start over. With a loss scaler a gradient that is not finite is a skipped update, no error."""
        sums_SK = self._processes.sum(torch.stack(self._sums)).double().cpu()
        counts_SK = torch.stack(self._counts).double().cpu()
        norms_S = torch.stack(self._norms).double().cpu()
        tokens = int(self._processes.sum(torch.tensor(self._tokens)))
        weights_K = torch.tensor(list(self._weights.values()), dtype=torch.float64)
        losses_S = (sums_SK / counts_SK) @ weights_K

        means_K = sums_SK.sum(0) / counts_SK.sum(0)
        values = {"loss": float(means_K @ weights_K)}
        if len(self._weights) > 1:
            values |= dict(zip(self._weights, means_K.tolist(), strict=True))
        for name, pieces in sorted(self._metrics.items()):
            total, count = self._processes.sum(torch.stack(pieces).sum(0)).tolist()
            values[name] = total / max(count, 1)
        finite_norms = norms_S[norms_S.isfinite()]
        values["gradient_norm"] = float(finite_norms.mean()) if len(finite_norms) else math.inf

        non_finite = None
        for step, loss, norm in zip(self._steps, losses_S.tolist(), norms_S.tolist(), strict=True):
            if not math.isfinite(loss):
                non_finite = (step, "loss", loss)
            elif not math.isfinite(norm) and not has_scaler:
                non_finite = (step, "gradient norm", norm)
            if non_finite:
                break
        self._clear()
        return Report(values, tokens, non_finite, skipped=len(norms_S) - len(finite_norms))
