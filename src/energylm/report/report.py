"""What every evaluation leaves behind: results.json, results.md, PNG plots and one self-contained report.html.

A report is a title and a sequence of sections: `Text`, `Numbers` (a table), `Plot` and `Samples`. The JSON holds the
numbers behind tables and plots with every digit; the page is for people and needs no network, script or other file.
Files appear whole, the page last: where it is, everything is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energylm import __version__
from energylm.errors import MissingExtra
from energylm.files import atomic_file, write_json, write_text
from energylm.progress import say
from energylm.report import html_page
from energylm.report.plots import HeatMap, LinePlot
from energylm.tables import Table, to_markdown

PAGE, MARKDOWN, RESULTS = "report.html", "results.md", "results.json"


@dataclass(frozen=True)
class Text:
    """Prose; an empty line parts paragraphs."""

    title: str
    body: str


@dataclass(frozen=True)
class Numbers:
    title: str
    table: Table


@dataclass(frozen=True)
class Plot:
    """`alt` says in words what the picture shows, for readers who cannot see it."""

    title: str
    plot: LinePlot | HeatMap
    alt: str


@dataclass(frozen=True)
class Sample:
    """A piece of generated text after its prompt. `label` says how it was drawn."""

    label: str
    prompt: str
    continuation: str


@dataclass(frozen=True)
class Samples:
    title: str
    samples: Sequence[Sample]


Section = Text | Numbers | Plot | Samples


def write_report(folder: Path | str, *, title: str, sections: Sequence[Section]) -> Path:
    """Write the report's files into `folder` (made if need be; other files stay) and return the page's path."""
    folder = Path(folder)
    names = [slug(section.title) for section in sections]
    if len(set(names)) < len(names):
        raise ValueError(f"sections of one report need titles of their own, came {[s.title for s in sections]}")
    pictures = _pictures(dict(zip(names, sections, strict=True)))
    for name, picture in pictures.items():
        with atomic_file(folder / name) as temporary:
            temporary.write_bytes(picture)
    records = {name: _record(section) for name, section in zip(names, sections, strict=True)}
    write_json(folder / RESULTS, {"title": title, "energylm": __version__, "order": names, "sections": records})
    write_text(folder / MARKDOWN, _markdown(title, sections, has_pictures=bool(pictures)))
    body = [_html(section, pictures.get(f"{name}.png", b"")) for name, section in zip(names, sections, strict=True)]
    write_text(folder / PAGE, html_page.page(title=title, body="\n".join(body), footer=f"energylm {__version__}"))
    return folder / PAGE


def _pictures(sections: Mapping[str, Section]) -> dict[str, bytes]:
    """A PNG for each plot; none where nothing can draw them, since what a long run found is worth more than they."""
    try:
        return {f"{name}.png": section.plot.png() for name, section in sections.items() if isinstance(section, Plot)}
    except MissingExtra as error:
        say(f"energylm: the report is without its plots, whose numbers are in {RESULTS}; {error}")
        return {}


def slug(title: str) -> str:
    """A file name and JSON key from a title: lower-case letters and digits joined by dashes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _record(section: Section) -> dict[str, Any]:
    match section:
        case Text():
            return {"kind": "text", "title": section.title, "body": section.body}
        case Numbers(title, table):
            return {
                "kind": "table",
                "title": title,
                "columns": list(table.columns),
                "rows": table.records(),
                "convention": table.convention,
            }
        case Plot():
            return {"kind": "plot", "title": section.title, "alt": section.alt, "plot": section.plot.record()}
        case Samples(title, samples):
            return {"kind": "samples", "title": title, "samples": [asdict(sample) for sample in samples]}


def _markdown(title: str, sections: Sequence[Section], *, has_pictures: bool) -> str:
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {section.title}")
        match section:
            case Text():
                parts.append(section.body.strip())
            case Numbers():
                parts.append(to_markdown(section.table).strip())
            case Plot():
                parts.append(f"![{section.alt}]({slug(section.title)}.png)" if has_pictures else section.alt)
            case Samples():
                parts += [f"**{sample.label}**\n\n{_quoted(sample)}" for sample in section.samples]
    return "\n\n".join(parts) + "\n"


def _quoted(sample: Sample) -> str:
    """An indented block: generated text may hold any Markdown sign, and must not become one."""
    return "\n".join(f"    {line}" for line in f"[{sample.prompt}]{sample.continuation}".splitlines())


def _html(section: Section, picture: bytes) -> str:
    match section:
        case Text():
            inner = html_page.paragraphs(section.body)
        case Numbers():
            inner = html_page.table(section.table)
        case Plot():
            inner = html_page.picture(picture, alt=section.alt) if picture else html_page.paragraphs(section.alt)
        case Samples():
            inner = "\n".join(html_page.sample(s.label, s.prompt, s.continuation) for s in section.samples)
    return html_page.section(section.title, inner, identifier=slug(section.title))
