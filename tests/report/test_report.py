"""A report is whole, self-contained, escaped, and keeps the numbers behind its pictures."""

import base64
import errno
import json
import re
from html.parser import HTMLParser

import pytest

from energylm import files
from energylm.errors import DiskFull
from energylm.report.plots import LinePlot, Series, loss_plot
from energylm.report.report import Numbers, Plot, Sample, Samples, Text, slug, write_report
from energylm.tables import Table

EVIL = "<script>alert('x')</script> & \"quoted\""
SECTIONS = [
    Text("What this is", f"First {EVIL}.\n\nSecond."),
    Numbers("Numbers", Table([EVIL, "value"], [[EVIL, 0.123456789]], convention=EVIL)),
    Plot("Loss", loss_plot([(1, 3.0), (2, float("nan"))], [(2, 2.5)], unit="nats"), alt=f"falls {EVIL}"),
    Samples("Samples", [Sample(EVIL, EVIL, f"\n# not a heading {EVIL}")]),
]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on a tag that is closed out of order."""

    VOID = frozenset({"meta", "img"})

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self._open = [], "", []
        self.feed(source)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def written(tmp_path):
    page = write_report(tmp_path / "made" / "here", title=EVIL, sections=SECTIONS)
    return page.parent


def test_files(written):
    assert sorted(file.name for file in written.iterdir()) == ["loss.png", "report.html", "results.json", "results.md"]
    assert (written / "loss.png").read_bytes().startswith(PNG_SIGNATURE)


def test_page_is_escaped_and_well_formed(written):
    page = Page((written / "report.html").read_text(encoding="utf-8"))
    assert page.named("script") == []
    assert page.text.count(EVIL) == 9  # <title>, <h1>, text, header, cell, convention, label, prompt, continuation
    assert page.named("img")[0]["alt"] == f"falls {EVIL}"


def test_the_check_above_would_see_an_unescaped_page(written):
    """Teeth: the same page with one piece of text left raw holds a script."""
    source = (written / "report.html").read_text(encoding="utf-8")
    assert Page(source.replace("<p>Second.</p>", f"<p>{EVIL}</p>")).named("script") != []


def test_page_needs_no_other_file(written):
    source = (written / "report.html").read_text(encoding="utf-8")
    page = Page(source)
    assert page.named("link") == []
    assert not re.search(r"https?:|@import|url\(", source)
    assert page.named("html") == [{"lang": "en"}]
    assert all(header["scope"] == "col" for header in page.named("th"))
    (picture,) = page.named("img")
    kind, data = picture["src"].split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data) == (written / "loss.png").read_bytes()


def test_json_keeps_numbers_and_has_no_nan(written):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    kept = json.loads((written / "results.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert kept["order"] == ["what-this-is", "numbers", "loss", "samples"]
    assert kept["sections"]["numbers"]["rows"] == [{EVIL: EVIL, "value": 0.123456789}]
    training, validation = kept["sections"]["loss"]["plot"]["series"]
    assert training == {"name": "training", "x": [1, 2], "y": [3.0, None]}
    assert validation == {"name": "validation", "x": [2], "y": [2.5]}


def test_generated_text_stays_text_in_markdown(written):
    markdown = (written / "results.md").read_text(encoding="utf-8")
    assert [line for line in markdown.splitlines() if line.startswith("## ")] == [
        "## What this is",
        "## Numbers",
        "## Loss",
        "## Samples",
    ]
    assert not re.search(r"^# not a heading", markdown, flags=re.MULTILINE)
    assert "](loss.png)" in markdown


def test_same_numbers_same_picture():
    plot = LinePlot([Series("a", [1, 2], [1.0, 2.0])], x_label="x", y_label="y")
    assert plot.png() == plot.png()
    assert plot.png() != LinePlot([Series("a", [1, 2], [1.0, 3.0])], x_label="x", y_label="y").png()


def test_a_loss_plot_leaves_out_a_line_without_points():
    assert [series.name for series in loss_plot([(1, 1.0)], [], unit="nats").series] == ["training"]
    assert loss_plot([], [], unit="nats").png().startswith(PNG_SIGNATURE)


def test_titles_must_differ(tmp_path):
    with pytest.raises(ValueError, match="titles of their own"):
        write_report(tmp_path, title="t", sections=[Text("Same!", "a"), Text("same", "b")])
    assert list(tmp_path.iterdir()) == []


def test_series_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="1 x values but 2 y values"):
        Series("a", [1], [1.0, 2.0])


def test_slug():
    assert slug("Loss, by step (nats)") == "loss-by-step-nats"
    assert slug("…") == "section"


def test_a_full_disk_leaves_no_page(tmp_path, monkeypatch):
    """The page is written last, so a report that could not be finished has none."""

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(files, "_sync", full)
    with pytest.raises(DiskFull, match="free some space"):
        write_report(tmp_path, title="t", sections=SECTIONS)
    assert list(tmp_path.iterdir()) == []
