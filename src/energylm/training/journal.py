"""The journal of a run: `journal.jsonl`, one JSON object a line, each with its step; and TensorBoard, if wanted.

    {"step": 10, "loss": 6.1, "learning_rate": 0.0003, "tokens_per_second": 51200.0}
    {"step": 500, "validation_loss": 4.9}

A line is written at once. A resumed run first drops the lines past its checkpoint, so no step is told twice.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from energylm.errors import DataError
from energylm.files import disk_full_is_said, write_text

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
