"""docs/results.md is generated: the committed page equals what the kept JSON files give."""

import json
from pathlib import Path

import pytest

from energylm.errors import DataError
from energylm.report.report import Numbers, Text, write_report
from energylm.tables import Table
from energylm.verbs.recipes.results_page import results_page

DOCS = Path(__file__).parents[3] / "docs"
BENCH = {
    "name": "toy",
    "machine": {"cpu_count": 2, "torch": "1"},
    "bars": [
        {"what": "speed", "measured": 6.54321, "bar": 6, "at_least": True, "holds": True},
        {"what": "memory", "measured": 1.3, "bar": 1.2, "at_least": False, "holds": False},
    ],
    "details": {"tokens/s": 12345.678, "chunk": 64},
}


def test_the_committed_page_is_the_generated_one():
    assert (DOCS / "results.md").read_text(encoding="utf-8") == results_page(DOCS / "results"), "run `make results`"


def test_a_benchmark_and_a_report_by_hand(tmp_path):
    (tmp_path / "bench-toy.json").write_text(json.dumps(BENCH))
    table = Table(["what", "value"], [["perplexity", 12.5]], convention="per token")
    write_report(tmp_path / "run", title="A run", sections=[Text("Words", "Made by: a command"), Numbers("Fit", table)])
    (tmp_path / "run" / "results.json").rename(tmp_path / "run.json")
    page = results_page(tmp_path)
    assert "| speed | 6.543 | ≥ 6 | yes |" in page
    assert "| memory | 1.3 | ≤ 1.2 | no |" in page  # a bar that does not hold is shown as such
    assert "- tokens/s: 1.235e+04" in page
    assert "### Fit\n\n| what | value |\n| --- | ---: |\n| perplexity | 12.5 |\n\n*per token*" in page
    assert "## A run\n\n`run.json`\n\nMade by: a command\n\n### Fit" in page
    assert page.index("## bench toy") < page.index("## A run")


def test_claims_and_bars_are_counted_first(tmp_path):
    (tmp_path / "bench-toy.json").write_text(json.dumps(BENCH))
    for name, verdicts in (("one", ["holds", "does not hold", "holds"]), ("two", ["does not hold"])):
        claims = Table(["claim", "here"], [[f"claim {n}", here] for n, here in enumerate(verdicts)])
        write_report(tmp_path / name, title=name, sections=[Numbers("Claims", claims)])
        (tmp_path / name / "results.json").rename(tmp_path / f"{name}.json")
    glance = results_page(tmp_path).split("## At a glance")[1].split("\n## ")[0]
    assert "| one | 2 | 3 |\n| two | 0 | 1 |\n| all | 2 | 4 |" in glance
    assert "| toy | 1 | 2 |" in glance


def test_what_readers_must_know_comes_first(tmp_path):
    """Notes stand before every number; a folder without them says nothing."""
    (tmp_path / "bench-toy.json").write_text(json.dumps(BENCH))
    assert "Mind" not in results_page(tmp_path)
    (tmp_path / "notes.md").write_text("## Mind\n\nthis\n")
    page = results_page(tmp_path)
    assert page.index("## Mind\n\nthis\n") < page.index("## At a glance") < page.index("## bench toy")


def test_no_results_yet(tmp_path):
    assert "No results are kept yet." in results_page(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", "not json"])
def test_a_stray_file_is_named(tmp_path, content):
    (tmp_path / "stray.json").write_text(content)
    with pytest.raises(DataError, match=r"stray\.json"):
        results_page(tmp_path)
