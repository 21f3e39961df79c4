"""One table, six faces: Markdown for files, Rich for the terminal, text for `print`, HTML for notebooks, records for
JSON, a data frame for pandas. Numbers state their convention.

A cell is text, a number, a truth value or nothing; it is formatted in one place (`format_cell`), so that a table looks
the same wherever it is shown, while JSON keeps every digit.
"""

import html
import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energylm.errors import extra

if TYPE_CHECKING:
    import rich.table

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """`convention` says how the numbers were made: span, tokenizer, start token, unit. It is shown under the table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    convention: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row!r}")

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers only (and gaps), so that it is aligned to the right."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)

    def records(self) -> list[dict[str, Any]]:
        """One JSON object a row; a number that JSON cannot hold becomes its name ("nan", "inf")."""
        return [dict(zip(self.columns, map(_json_cell, row), strict=True)) for row in self.rows]


def format_cell(cell: Cell) -> str:
    """Thousands are separated, fractions keep four significant digits, truth is yes or no, nothing is a dash."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if math.isfinite(cell) and abs(cell) >= 1000:
            return f"{cell:,.0f}"
        return f"{cell:.4g}"
    return cell


def to_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---:" if table.is_numeric(column) else "---" for column in range(len(table.columns))]
    lines = [line([_markdown_cell(name) for name in table.columns]), line(rules)]
    lines += [line([_markdown_cell(format_cell(cell)) for cell in row]) for row in table.rows]
    if table.convention:
        lines += ["", f"*{table.convention}*"]
    return "\n".join(lines) + "\n"


def to_rich(table: Table, *, title: str = "") -> "rich.table.Table":
    import rich.table
    from rich.markup import escape

    rendered = rich.table.Table(title=escape(title) or None, caption=escape(table.convention) or None)
    for column, name in enumerate(table.columns):
        rendered.add_column(escape(name), justify="right" if table.is_numeric(column) else "left")
    for row in table.rows:
        rendered.add_row(*(escape(format_cell(cell)) for cell in row))
    return rendered


def to_text(table: Table, *, most_rows: int) -> str:
    """For `print`, as wide as the terminal; at most so many rows, and how many more there are."""
    from rich.console import Console

    shown, more = Table(table.columns, table.rows[:most_rows]), len(table.rows) - most_rows
    console = Console(file=io.StringIO(), width=shutil.get_terminal_size((120, 24)).columns, color_system=None)
    with console.capture() as captured:
        console.print(to_rich(shown))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    lines += [f"… {more:,} rows more"] if more > 0 else []
    return "\n".join([*lines, *([table.convention] if table.convention else [])])


def to_html(table: Table, *, most_rows: int) -> str:
    """At most so many rows, and how many more there are."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    shown = ["".join(f"<td>{html.escape(format_cell(cell))}</td>" for cell in row) for row in table.rows[:most_rows]]
    more = len(table.rows) - len(shown)
    below = [f"… {more:,} rows more"] if more else []
    below += [table.convention] if table.convention else []
    rows = "".join(f"<tr>{row}</tr>" for row in shown)
    return f"<table><tr>{head}</tr>{rows}</table>" + "".join(
        f"<p><small>{html.escape(line)}</small></p>" for line in below
    )


def to_pandas(table: Table) -> Any:
    """A `pandas.DataFrame` with every digit."""
    with extra("data"):
        import pandas
    return pandas.DataFrame([list(row) for row in table.rows], columns=list(table.columns))


def _json_cell(cell: Cell) -> Cell:
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
