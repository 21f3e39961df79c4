"""The journal of a run, and the meter that feeds it: a JSON object a line, each with its step; TensorBoard, if wanted.

    {"step": 10, "loss": 6.1, "learning_rate": 0.0003, "tokens_per_second": 51200.0}
    {"step": 500, "validation_loss": 4.9}

A line of `journal.jsonl` is written at once. A resumed run first drops the lines past its checkpoint, so no step is
told twice.

Reading a number back stops the device until it is there, so updates only put tensors aside. `Meter.collect` fetches
them once per report, adds them up over processes, and finds the first step whose loss or gradient is not finite.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from energylm.errors import DataError, extra
from energylm.files import disk_full_is_said, write_text
from energylm.training.processes import Processes

FILE_NAME = "journal.jsonl"


class Journal:
    """`with Journal(folder, after_step=start) as journal: journal.write(10, {"loss": 6.1})`."""

    def __init__(self, folder: Path, *, after_step: int, tensorboard: bool = False) -> None:
        self.path = folder / FILE_NAME
        kept = [line for line in read_journal(self.path) if line["step"] <= after_step]
        write_text(self.path, "".join(_line(record) for record in kept))
        self._file = open(self.path, "a", encoding="utf-8")
        self._board = None
        if tensorboard:
            with extra("train"):
                from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=after_step + 1)

    def write(self, step: int, values: dict[str, Any]) -> None:
        with disk_full_is_said(self.path):
            self._file.write(_line({"step": step, **values}))
            self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, global_step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_journal(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a journal; none if there is no file. A half-written last line (of a killed process) is dropped."""
    path = Path(path)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a journal of JSON lines ({error}); move it away to go on without it") from None


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


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
