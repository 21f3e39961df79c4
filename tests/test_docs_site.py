"""The documentation site: it builds without a warning, no link on it is dead, its figures say what the code says today,
and its tutorials run."""

import importlib.util
import json
import logging
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Links(HTMLParser):
    """What a page points to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.fetched: set[str] = set()  # from elsewhere, by the browser itself
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if target := values.get("href") or values.get("src"):
            self.targets.add(target)
            if tag in ("script", "img", "link", "iframe") and values.get("rel") != "canonical":
                self.fetched |= {target} if urlsplit(target).scheme in ("http", "https") else set()


def dead_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere, page or anchor."""
    pages = {page: Links(page) for page in site.rglob("*.html")}
    dead = []
    for page, links in pages.items():
        for target in sorted(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            is_dead = not path.is_file()
            if not is_dead and parts.fragment and path in pages:
                is_dead = unquote(parts.fragment) not in pages[path].anchors
            if is_dead:
                dead.append(f"{page.relative_to(site)} → {target}")
    return sorted(dead)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it; its warnings are errors."""
    folder = tmp_path_factory.mktemp("site").resolve()
    problems: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            problems.append(record.getMessage())

    logging.getLogger("mkdocs").addHandler(listener := Listener(logging.WARNING))
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=False))
    finally:
        logging.getLogger("mkdocs").removeHandler(listener)
    assert problems == []
    return folder


def test_no_link_is_dead_and_nothing_comes_from_elsewhere(site):
    assert dead_links(site) == []
    assert {target for page in site.rglob("*.html") for target in Links(page).fetched} == set()


def test_dead_links_are_found(tmp_path):
    """Teeth: a page, an anchor and a picture that are not there."""
    (tmp_path / "a.html").write_text('<h1 id="x"></h1><a href="b.html#y"></a><a href="#x"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a><img src="d.png">')
    assert dead_links(tmp_path) == ["a.html → b.html#y", "a.html → c.html", "b.html → d.png"]


def test_every_page_is_on_the_map():
    nav = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = [
        *(page for page in DOCS.rglob("*.md") if page.parent.name != "results"),
        *NOTEBOOKS,
    ]  # its parts are inside
    assert [str(page) for page in pages if f'"{page.relative_to(DOCS).as_posix()}"' not in nav] == []


def test_the_interface_is_on_the_site(site):
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("push_to_hub", "log_partition", "predict", "assert_same_distribution"):
        assert name in page


def test_the_figures_say_what_the_code_says(tmp_path):
    """Numbers, not pixels: those differ with the version of matplotlib. All figures that the pages show are drawn."""
    figures = script(DOCS / "concepts" / "figures.py")
    kept = json.loads((DOCS / "concepts" / "figures.json").read_text(encoding="utf-8"))
    told = figures.computed()
    assert told.keys() == kept.keys()
    for name, series in told.items():
        for key, values in series.items():
            assert kept[name][key] == (values if key == "names" else pytest.approx(values, rel=1e-6)), (name, key)
    figures.draw(told, tmp_path)
    drawn = {file.name for file in tmp_path.glob("*.png")}
    assert drawn == {file.name for file in (DOCS / "concepts").glob("*.png")}
    ends = told["interval"]
    assert max(ends["lower"]) < ends["truth"][0] < ends["upper"][-1]  # as the page says


def assert_told_limits(samplers, kept, words):
    """The sentences on what a perfect value could be worth: best single cut, any cuts, widths, unseen texts."""
    rows = {(row["beta"], row["length"], row["cut"]): row for row in samplers.ceilings(kept)}

    def times(*key):
        return samplers.with_interval((1 + rows[key]["resample"]) / (1 + rows[key]["oracle"]))

    def width(*key):
        value = (rows[key]["oracle"] / rows[key]["resample"]).sqrt()
        return "{:.2f} ({:.2f} to {:.2f})".format(float(value[0]), *samplers.interval(value))

    any_128, any_256 = (1.0, 128, "any"), (1.0, 256, "any")
    assert f"at most {times(*any_128)} and {times(*any_256)} times" in words
    assert f"not narrower than {width(*any_128)} and {width(*any_256)} of" in words
    assert times(1.0, 128, 64).replace(")", "; 128 tokens)").replace(" (", " times (") in words
    assert times(1.0, 256, 128).replace(")", "; 256)").replace(" (", " times (") in words
    unseen = [samplers.most_with_unseen(kept, 1.0, length)[0] for length in (128, 256)]
    assert "would be {:.1f} and {:.1f} times: still below five".format(*unseen) in words


def test_the_tables_of_samplers_are_those_that_were_measured():
    samplers = script(DOCS / "samplers.py")
    kept = json.loads(samplers.KEPT.read_text(encoding="utf-8"))
    text = samplers.PAGE.read_text(encoding="utf-8")
    assert samplers.page(text, kept) == text
    kept["nested"][0]["learnt"][0] += 1.0  # teeth
    assert samplers.page(text, kept) != text
    kept["nested"][0]["learnt"][0] -= 1.0
    kept["smc"][0]["log_z"][0] += 1.0
    assert samplers.page(text, kept) != text
    kept["smc"][0]["log_z"][0] -= 1.0
    assert_told_limits(samplers, kept, " ".join(text.split()))
    # What a run is worth: two exact runs are n samples each, an error of 1 is less than one.
    assert samplers.worth([[2.0, 2.0]], [2.0], 32) == {"error": 0.0, "effective": 32.0, "width": 0.0}
    assert samplers.worth([[1.0, 3.0]], [2.0], 32)["effective"] == pytest.approx(32 / 33)


def test_the_table_of_rerankers_is_what_was_measured():
    lists = script(DOCS / "lists.py")
    text = lists.PAGE.read_text(encoding="utf-8")
    assert lists.page(text, lists.read()) == text
    (first, *_) = kept = lists.read()
    kept[first]["reranked"]["value"] += 1.0  # teeth
    assert lists.page(text, kept) != text
    (axes,) = lists.figure(kept).axes
    assert [(number.get_text(), number.xy) for number in axes.texts] == [
        (str(row), (of["seconds_a_list"], of["closed"]["value"])) for row, of in enumerate(kept.values(), start=1)
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch, model_folder):
    home = tmp_path / "home"
    shutil.copytree(model_folder, home / "models" / "smollm2-135m")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ENERGYLM_HOME", str(home))
    monkeypatch.chdir(tmp_path / "empty")
    run = script(DOCS / "tutorials" / "run.py")
    notebook = run.read(path)
    assert [cell for cell, _ in run.run_cells(notebook)] == run.code_cells(notebook)


def test_there_are_five_tutorials_that_show_what_they_print():
    """Kept outputs are those of `make notebooks`: of every cell that prints, and of no machine."""
    assert len(NOTEBOOKS) == 5
    assert [fault for path in NOTEBOOKS for fault in faults_of_outputs(path)] == []


def faults_of_outputs(path: Path) -> list[str]:
    """Cells that print and show nothing, and paths of somebody's machine in what is shown."""
    run, faults = script(DOCS / "tutorials" / "run.py"), []
    for number, cell in enumerate(run.code_cells(run.read(path)), start=1):
        shown = json.dumps(cell["outputs"])
        if "print(" in "".join(cell["source"]) and not cell["outputs"]:
            faults.append(f"{path.name}, cell {number}, shows nothing")
        faults += [
            f"{path.name}, cell {number}, names {name}" for name in re.findall(r"/(?:work|home|root|tmp)/", shown)
        ]
    return faults


def test_a_tutorial_without_outputs_is_seen(tmp_path):
    """Teeth: a cell whose output was not kept, and one that names a folder of a machine."""
    kept = {"output_type": "stream", "name": "stdout", "text": ["/tmp/x\n"]}
    cells = [{"cell_type": "code", "source": ["print(1)"], "outputs": outputs} for outputs in ([], [kept])]
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}))
    assert faults_of_outputs(tmp_path / "x.ipynb") == ["x.ipynb, cell 1, shows nothing", "x.ipynb, cell 2, names /tmp/"]
