"""Run the tutorials and keep what they print: `make notebooks`, or `python docs/tutorials/run.py NAME …` for some.

Each notebook runs from top to bottom in a folder of its own, in this process, so that torch is loaded once. The tests
run the same cells through `run_cells`, with tiny models of the same names.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each code cell with what it printed, in order and in one namespace."""
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
        yield cell, printed.getvalue()


def execute(path: Path) -> None:
    """The notebook with its new outputs, in place."""
    notebook = read(path)
    for number, (cell, printed) in enumerate(run_cells(notebook), start=1):
        stream = {"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}
        cell |= {"execution_count": number, "outputs": [stream] if printed else []}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chosen = [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb"))
    for path in chosen:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            execute(path)
            os.chdir(FOLDER)
        print(f"{path.name}: done", file=sys.stderr)
