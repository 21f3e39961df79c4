"""Records: JSON out and in to the last digit, what notebooks show, and what stays on this machine."""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from energylm.errors import ConfigError, MissingExtra
from energylm.plots import LinePlot, Series
from energylm.records import LOCAL, Record
from energylm.tables import Table


@dataclass(frozen=True)
class Inner(Record):
    values: tuple[float, ...]
    name: str | None = None


@dataclass(frozen=True)
class Outer(Record):
    inner: Inner
    by_name: dict[str, Inner]
    column: torch.Tensor
    counts: list[int]
    value: float
    file: Path
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("twice",)

    @property
    def twice(self) -> float:
        return 2 * self.value

    def summary(self) -> str:
        return "said <once>"


@pytest.fixture
def record():
    inner = Inner((0.1, 1 / 3), "a")
    column = torch.tensor([[0.1, 2.0]], dtype=torch.float64)
    return Outer(inner, {"b": Inner(())}, column, [1, 2], math.pi, Path("x/y"), report=Path("here"))


def test_json_out_and_in_is_the_same_record(record):
    text = json.dumps(record.to_json(), allow_nan=False)
    again = Outer.from_json(json.loads(text))
    assert again.inner == record.inner and again.by_name == record.by_name and again.file == record.file
    assert torch.equal(again.column, record.column) and again.column.dtype == torch.float64
    assert again.to_json() == record.to_json()
    assert again.value == math.pi and record.to_json()["twice"] == 2 * math.pi


def test_what_means_something_here_only_stays_here(record):
    assert "report" not in record.to_json() and Outer.from_json(record.to_json()).report is None


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_cannot_hold_come_back(value):
    written = json.dumps(Inner((value,)).to_json(), allow_nan=False)
    (back,) = Inner.from_json(json.loads(written)).values
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_repr_is_short_and_names_the_fields(record):
    shown = repr(record)
    assert shown.startswith("Outer(inner=Inner(") and "value=3.14159" in shown and "Tensor(1, 2)" in shown
    assert "… 100 in all" in repr(Inner(tuple(map(float, range(100)))))
    assert "twice=6.28319" in shown  # what is computed, as long as it is a number


def test_notebooks_see_the_table_and_the_summary_escaped(record):
    page = record._repr_html_()
    assert "<td>value</td><td>3.142</td>" in page and "said &lt;once&gt;" in page and "<once>" not in page


def test_a_table_of_its_own_takes_the_place_of_the_default():
    @dataclass(frozen=True)
    class Shown(Record):
        value: int

        @property
        def table(self) -> Table:
            return Table(["a<b"], [[self.value]], convention="counted")

    assert "<th>a&lt;b</th>" in Shown(7)._repr_html_() and "counted" in Shown(7)._repr_html_()


@dataclass(frozen=True)
class Drawn(Record):
    values: list[float]

    @property
    def table(self) -> Table:
        return Table(["value"], [[value] for value in self.values])

    def plot(self) -> LinePlot:
        return LinePlot([Series("values", list(range(len(self.values))), self.values)], "x", "y")


def test_a_natural_plot_stands_under_the_table_and_can_be_saved(tmp_path, record):
    drawn = Drawn([0.1 * number for number in range(20)])
    page = drawn._repr_html_()
    assert page.count("<tr>") == 13 and "… 8 rows more" in page and 'src="data:image/png;base64,iVBOR' in page
    drawn.plot().save(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes() == drawn.plot().png() == drawn.plot()._repr_png_()
    assert "<img" not in record._repr_html_()
    with pytest.raises(ConfigError, match="a Outer has no natural plot"):
        record.plot()


def test_printing_shows_the_first_rows_and_the_summary(record, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = str(record).splitlines()
    assert any("value" in line and "3.142" in line for line in lines) and lines[-1] == "said <once>"
    many = str(Drawn([0.5 * number for number in range(20)]))
    assert "5.5" in many and "9.5" not in many and "… 8 rows more" in many
    assert repr(record).startswith("Outer(")  # teeth: a repr stays one line for logs
    assert str(Inner(())) != repr(Inner(())) and "name" in str(Inner(()))


def test_a_record_of_records_is_a_table_of_them():
    @dataclass(frozen=True)
    class Several(Record):
        entries: tuple[Drawn | Inner, ...]
        about: str = "three"

    several = Several((Inner((1.0,), "a"), Inner((2.0, 3.0), "b")))
    assert several.table.columns == ["name"] and several.to_pandas()["name"].tolist() == ["a", "b"]
    assert Several(()).table.rows == [["about", "three"]]  # of none, what else it says
    assert str(Drawn([])) == "Drawn(values=[])"  # no row at all


def test_numbers_without_a_natural_plot_are_shown_without_one():
    """A class that sometimes has a plot: a notebook shows the table either way."""

    @dataclass(frozen=True)
    class Sometimes(Record):
        value: float

        def plot(self) -> LinePlot:
            if self.value < 0:
                raise ConfigError("nothing to draw")
            return LinePlot([Series("value", [0.0], [self.value])], "x", "y")

    assert "<img" in Sometimes(1.0)._repr_html_() and "<img" not in Sometimes(-1.0)._repr_html_()
    with pytest.raises(ConfigError, match="nothing to draw"):
        Sometimes(-1.0).plot()


def test_a_data_frame_has_every_digit_and_pandas_is_asked_for_by_name(monkeypatch):
    frame = Drawn([1 / 3, math.inf]).to_pandas()
    assert frame["value"].tolist() == [1 / 3, math.inf]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"needs pandas.*energylm\[data\]"):
        Drawn([1.0]).to_pandas()


@dataclass(frozen=True)
class Scored(Record):
    result: Inner | Outer | None


def test_of_a_union_the_record_with_these_names_is_read(record):
    """Inner's names are no part of Outer's; teeth: the first of the union would be Inner for both."""
    for result in (record, record.inner):
        assert type(Scored.from_json(Scored(result).to_json()).result) is type(result)
    assert Scored.from_json({"result": None}).result is None
