"""What a grid found: means by hand, cells that are left out count nowhere, heat maps and tables of the report."""

import pytest

from energylm.config.texts import CellConfig
from energylm.estimators.discrimination import Discrimination, Interval
from energylm.files import read_json
from energylm.report.grid_report import GridCell, grid_sections, summarise
from energylm.report.plots import HeatMap
from energylm.report.report import Numbers, Plot, write_report


def measured(accuracy, *, upper=0.9):
    auroc, at_1, at_5 = (Interval(value, 0.0, 1.0) for value in (accuracy + 0.1, 0.2, 0.3))
    return Discrimination(Interval(accuracy, 0.1, upper), auroc, at_1, at_5, 0.0, 50, 50, 50, 50, 10)


def cell(training, test, accuracy, *, energy="unit", setting="in-domain", note="", by_context=(), generator="big"):
    stands = CellConfig(
        energy=energy,
        training="_".join(["big", *training]),
        test=f"{generator}_{test}",
        setting=setting,
        training_corpora=training,
        test_generator=generator,
        test_corpus=test,
        note=note,
    )
    if note:
        return GridCell(stands)
    lengths = dict(zip((0, 8), map(measured, by_context), strict=True)) if by_context else {}
    return GridCell(stands, measured(accuracy), lengths)


CELLS = [
    cell(["a"], "a", 0.9, by_context=[0.9, 0.7]),
    cell(["a"], "b", 0.6, setting="cross-corpus", by_context=[0.8, 0.5]),
    cell(["a", "b"], "a", 0.8),
    cell(["a", "b"], "c", 0.7, setting="cross-corpus"),
    cell(["a", "b"], "d", 0.0, note="unit has seen d before its training"),
]


def test_means_by_hand():
    found = summarise(CELLS).to_json()
    assert found["settings"]["in_domain"]["accuracy"] == pytest.approx((0.9 + 0.8) / 2)
    assert found["settings"]["cross_corpus"] == {
        "cells": 2, "accuracy": pytest.approx(0.65), "lower": pytest.approx(0.1), "auroc": pytest.approx(0.75),
    }  # fmt: skip
    assert found["settings"]["unseen"] == {"cells": 0, "accuracy": None, "lower": None, "auroc": None}
    assert found["unions"]["containing"]["accuracy"] == 0.8 and found["unions"]["lacking"]["accuracy"] == 0.7
    assert found["singles"]["containing"]["accuracy"] == 0.9 and found["singles"]["lacking"]["accuracy"] == 0.6
    # Teeth: the cell that is left out would drag the mean down.
    assert found["energies"]["unit"]["accuracy"] == pytest.approx((0.9 + 0.6 + 0.8 + 0.7) / 4)
    assert found["energies"]["unit"]["cells"] == 4 and found["generators"]["big"]["cells"] == 4
    other = summarise([*CELLS, cell(["a"], "a", 0.1, energy="linear")]).to_json()
    assert other["energies"]["unit"] == found["energies"]["unit"]
    assert other["settings"]["in_domain"]["accuracy"] == pytest.approx((0.9 + 0.8 + 0.1) / 3)


def test_accuracy_by_context_is_a_mean_where_all_cells_have_it():
    found = summarise(CELLS[:2]).to_json()["energies"]["unit"]["by_context"]
    assert found == {"context_tokens": [0, 8], "accuracy": [pytest.approx(0.85), pytest.approx(0.6)]}
    assert "by_context" not in summarise(CELLS).to_json()["energies"]["unit"]


def test_sections(tmp_path):
    sections = grid_sections(summarise(CELLS).to_json(), title="Accuracy")
    plot, settings, cells = sections
    assert isinstance(plot, Plot) and isinstance(settings, Numbers) and isinstance(cells, Numbers)
    assert plot.plot.rows == ["big_a", "big_a_b"] and plot.plot.columns == ["big_a", "big_b", "big_c", "big_d"]
    assert plot.plot.values == [[0.9, 0.6, None, None], [0.8, None, 0.7, None]]
    assert plot.plot.marks[1][3] == "not judged" and plot.plot.marks[0][1] == "cross-corpus"
    assert "big_b 60.0%" in plot.alt
    assert cells.table.rows[-1][4] is None and "has seen d" in cells.table.rows[-1][-1]
    page = write_report(tmp_path, title="Grid", sections=sections)
    kept = read_json(tmp_path / "results.json")["sections"]
    assert kept["accuracy-unit"]["plot"]["values"][0][2] is None
    assert "cross-corpus" in page.read_text() and (tmp_path / "accuracy-unit.png").stat().st_size > 1000


def test_a_single_number_is_no_heat_map():
    sections = grid_sections(summarise(CELLS[:1]).to_json(), title="Accuracy")
    assert not any(isinstance(section, Plot) for section in sections)


def test_heat_maps_are_repeatable_and_rectangular():
    chart = {"marks": [["", "x"]], "x_label": "x", "y_label": "y", "lowest": 0.5, "highest": 1.0}
    one = HeatMap(["r"], ["a", "b"], [[0.51, None]], **chart)
    assert one.png() == one.png() and one.png().startswith(b"\x89PNG")
    assert one.record()["values"] == [[0.51, None]] and not one.is_worth_drawing
    with pytest.raises(ValueError, match="1 rows of 2 columns"):
        HeatMap(["r"], ["a", "b"], [[0.5]], **chart)
