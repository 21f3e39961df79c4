"""The pages of results are generated: the committed ones equal what the kept JSON files give."""

import json
from pathlib import Path

import pytest

from energylm.errors import DataError
from energylm.report.report import Numbers, Text, write_report
from energylm.tables import Table
from energylm.verbs.recipes.claims import claims_table, judge
from energylm.verbs.recipes.recipe import load_recipe, recipe_names
from energylm.verbs.recipes.results_page import (
    NOT_JUDGED,
    claims_of,
    forest,
    pages,
    published_effect,
    with_results,
    write_pages,
)

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


def test_the_committed_pages_are_the_generated_ones():
    generated = pages(DOCS / "results")
    committed = {path: (DOCS / path).read_text(encoding="utf-8") for path in generated}
    assert committed == generated, "run `make results`"
    stray = {f"results/{file.name}" for file in (DOCS / "results").glob("*.md")} - {*generated, "results/notes.md"}
    assert stray == set() and (DOCS / "results" / "forest.png").is_file()


def test_a_benchmark_and_a_report_by_hand(tmp_path):
    (tmp_path / "bench-toy.json").write_text(json.dumps(BENCH))
    table = Table(["what", "value"], [["perplexity", 12.5]], convention="per token")
    write_report(tmp_path / "run", title="A run", sections=[Text("Words", "Made by: a command"), Numbers("Fit", table)])
    (tmp_path / "run" / "results.json").rename(tmp_path / "run.json")
    made = pages(tmp_path)
    page = made["results/benchmarks.md"]
    assert "| speed | 6.543 | ≥ 6 | yes |" in page
    assert "| memory | 1.3 | ≤ 1.2 | no |" in page  # a bar that does not hold is shown as such
    assert "- tokens/s: 1.235e+04" in page
    page = made["results/reports.md"]
    assert "### Fit\n\n| what | value |\n| --- | ---: |\n| perplexity | 12.5 |\n\n*per token*" in page
    assert "## A run\n\n`run.json`\n\nMade by: a command\n\n### Fit" in page
    assert "- [benchmarks](results/benchmarks.md)\n- [reports](results/reports.md)" in made["results.md"]
    assert "| toy | 1 | 2 |" in made["results.md"]


def test_a_benchmark_with_spreads_and_verdicts(tmp_path):
    """A bar's spread stands beside its median; kept results from before there were spreads keep their yes and no."""
    bar = {"what": "ratio", "measured": 6.5, "bar": 6, "low": 5.75, "high": 6.75, "holds": False}
    details = {"rate": {"values": [1.0, 2.0, 4.0], "median": 2.0, "low": 1.5, "high": 3.0}}
    bench = BENCH | {"bars": [bar | {"verdict": "too close to call"}, *BENCH["bars"]], "details": details}
    (tmp_path / "bench-toy.json").write_text(json.dumps(bench))
    page = pages(tmp_path)["results/benchmarks.md"]
    assert "| ratio | 6.5 (5.75 to 6.75) | ≥ 6 | too close to call |" in page and "- rate: 2 (1.5 to 3)" in page
    assert "| speed | 6.543 | ≥ 6 | yes |" in page


@pytest.fixture
def kept(tmp_path):
    """Two claims of one recipe judged by three runs, one of our own among them, and all its others not judged."""
    (first, second, *_), name = load_recipe("deng2020/pretrained").claims, "deng2020/pretrained"
    runs = [{"a": {"x": 1.0 + e}, "b": {"x": 2.0}} for e in (-0.01, 0.0, 0.01)]
    judged = [
        judge(first.says, "a.x > b.x", runs, kind=first.kind),
        judge(second.says, "a.x < b.x", runs, published="14.42 < 17.57 (CC-News)", kind=second.kind),
    ]
    write_report(tmp_path / name, title=f"{name}, scale mini: x", sections=[Numbers("Claims", claims_table(judged))])
    (tmp_path / name / "results.json").rename(tmp_path / "kept.json")
    return tmp_path


def test_findings_are_counted_by_verdict_and_the_rest_apart(kept):
    """Of the four claims of that recipe one is the paper's. Teeth: without their kinds all would be counted."""
    assert [claim.kind for claim in load_recipe("deng2020/pretrained").claims] == ["ours", "finding", "ours", "ours"]
    page = pages(kept)["results.md"]
    table = page.split("## How many hold")[1]
    assert "| deng2020 | 1 | 0 | 0 | 0 | 0 | 1 | 1 |\n| all findings | 1 |" in table
    assert "| (ours) | 0 | 1 | 0 | 0 | 2 | 3 | 1 |" in table  # certificates are not judged in this kept result
    headlines = page.split("## Headlines")[1].split("##")[0]
    row = (
        "| deng2020/pretrained, scale mini | the joint model lies below its base | holds | +50.0% (+48.8% to +51.2%) |"
    )
    assert row in headlines
    assert f"| {NOT_JUDGED} |" in headlines


def test_a_claim_that_its_recipe_has_withdrawn_is_not_counted(kept):
    result = json.loads((kept / "kept.json").read_text())
    assert len(claims_of([result])) == 4
    result["sections"]["claims"]["rows"][0]["claim"] = "said once, and never again"
    assert [claim.verdict for claim in claims_of([result])] == ["holds", *[NOT_JUDGED] * 3]


def test_hours_that_are_declared_and_not_run(kept):
    """A kept run at scale desk takes its hours out of the sum. Teeth: one at scale mini does not."""

    def left():
        table = pages(kept)["results.md"].split("what is declared and not run")[1].split("##")[0]
        return next(line for line in table.splitlines() if line.startswith("| deng2020")).split("|")[2:5]

    recipes, of_desk, hours = left()
    assert (int(recipes), int(of_desk)) == (7, 0)
    result = json.loads((kept / "kept.json").read_text())
    (kept / "kept.json").write_text(json.dumps(result | {"title": result["title"].replace("mini", "desk, news")}))
    minutes = load_recipe("deng2020/pretrained").scales["desk"].minutes
    recipes, of_desk, fewer = left()
    assert int(of_desk) == 1 and float(hours) - float(fewer) == pytest.approx(minutes / 60, abs=0.1)


def test_the_forest_has_findings_with_what_was_published(kept):
    (effect,) = forest(kept).effects
    assert effect.value == pytest.approx(0.5) and effect.reference == pytest.approx((17.57 - 14.42) / 17.57)
    low, high = effect.interval
    assert low < 0.5 < high and high - 0.5 == pytest.approx(0.5 - low)
    assert forest(kept).png().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("published", "effect"),
    [
        ("14 < 20 (test)", 0.3),
        ("30 > 20 and 1", 0.5),
        ("86.5 - 87.9 > 81.2 - 92.9", None),
        ("about 3 < 4", None),
        ("1 < 0", None),
        ("", None),
    ],
)
def test_published_effects_are_read_only_where_they_are_plain(published, effect):
    assert published_effect(published) == (None if effect is None else pytest.approx(effect))


def test_every_kept_report_is_of_a_recipe_that_there_is():
    """Else its claims would be counted without their kinds."""
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((DOCS / "results").glob("*.json"))]
    claims = claims_of(kept)
    assert len(claims) > 150 and {claim.recipe for claim in claims} <= set(recipe_names())
    assert {claim.kind for claim in claims} == {"finding", "duplicate", "accounting", "ours", "simulated"}


def test_the_paper_index_has_no_typed_result_where_one_is_kept():
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((DOCS / "results").glob("*.json"))]
    index = (DOCS / "paper_index.md").read_text(encoding="utf-8")
    assert with_results(index, kept) == index, "run `make results`"
    assert index.count("claims hold") > 20 and index.count("bars hold") > 5


def test_results_of_the_index_by_hand(kept):
    report = json.loads((kept / "kept.json").read_text())
    recipe = claims_of([report])[0].recipe
    index = (
        f"| R1 | joint | eq. 1 | `a.py` | `b.py` | `src/energylm/recipes/{recipe}.yaml` | typed: 17.4 |\n"
        "| R2 | speed | – | `a.py` | `b.py` | – | `energylm bench toy` gave 9 |\n"
        "| R3 | other | – | `a.py` | `b.py` | `energylm bench toys` | proved |\n"
    )
    filled = with_results(index, [report, BENCH])
    first, second, third = filled.splitlines()
    holding = sum(claim.verdict == "holds" for claim in claims_of([report]))
    assert first.endswith(f"| [{recipe}](results/deng2020.md): {holding} of 4 claims hold |") and "17.4" not in first
    assert second.endswith("| [bench toy](results/benchmarks.md): 1 of 2 bars hold |")
    assert third == index.splitlines()[2]  # another name
    assert with_results(filled, [report, BENCH]) == filled


def test_pages_and_picture_are_written(kept, tmp_path):
    kept.rename(tmp_path.parent / "results")
    write_pages(tmp_path.parent)
    assert (tmp_path.parent / "results.md").is_file() and (tmp_path.parent / "results" / "forest.png").is_file()
    assert (tmp_path.parent / "results" / "deng2020.md").is_file()


def test_what_readers_must_know_comes_first(tmp_path):
    """Notes stand before every number; a folder without them says nothing."""
    (tmp_path / "bench-toy.json").write_text(json.dumps(BENCH))
    assert "Mind" not in pages(tmp_path)["results.md"]
    (tmp_path / "notes.md").write_text("## Mind\n\nthis\n")
    page = pages(tmp_path)["results.md"]
    assert page.index("## Mind\n\nthis\n") < page.index("## Benchmarks")


def test_no_results_yet(tmp_path):
    assert "No results are kept yet." in pages(tmp_path)["results.md"]


@pytest.mark.parametrize("content", ["[]", "{}", "not json"])
def test_a_stray_file_is_named(tmp_path, content):
    (tmp_path / "stray.json").write_text(content)
    with pytest.raises(DataError, match=r"stray\.json"):
        pages(tmp_path)
