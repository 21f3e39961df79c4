"""One table, three faces: what a cell looks like, and that no face loses or invents structure."""

import io
import json

import pytest

from energylm.tables import Table, format_cell, to_markdown, to_rich

TABLE = Table(
    ["model", "perplexity", "holds"],
    [["tiny", 1234.5678, True], ["a|b\\c", 12.34567, False], ["none", None, None]],
    convention="nats per token",
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (1234567, "1,234,567"),
        (1234.5678, "1,235"),
        (-1234.5678, "-1,235"),
        (12.34567, "12.35"),
        (0.000123456, "0.0001235"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ("text", "text"),
    ],
)
def test_cells_are_formatted_in_one_place(cell, text):
    assert format_cell(cell) == text


def test_markdown_by_hand():
    assert to_markdown(TABLE) == (
        "| model | perplexity | holds |\n"
        "| --- | ---: | --- |\n"
        "| tiny | 1,235 | yes |\n"
        "| a\\|b\\\\c | 12.35 | no |\n"
        "| none | – | – |\n"
        "\n"
        "*nats per token*\n"
    )


def test_a_cell_cannot_add_a_column_or_a_row_to_markdown():
    lines = to_markdown(Table(["a", "b"], [["x | y", "1\n2"]])).splitlines()
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 3


def test_rich_shows_markup_as_text():
    """Square brackets are Rich's markup: a cell holding them must be printed, not obeyed."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(Table(["what"], [["[red]not red[/red]"]], convention="[bold]"), title="[t]"))
    text = console.file.getvalue()
    assert "[red]not red[/red]" in text
    assert "[bold]" in text
    assert "[t]" in text


def test_records_keep_every_digit_and_stay_json():
    records = TABLE.records()
    assert records[1] == {"model": "a|b\\c", "perplexity": 12.34567, "holds": False}
    assert json.loads(json.dumps(Table(["x"], [[float("nan")]]).records(), allow_nan=False)) == [{"x": "nan"}]


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        Table(["a", "b"], [["only one"]])


def test_truth_values_are_not_numbers():
    assert [TABLE.is_numeric(column) for column in range(3)] == [False, True, False]
