"""The pieces of a self-contained page. Every piece of text goes through `escape`; pictures are inlined as base64.

Light and dark by the reader's setting, readable on a phone, usable with a screen reader (headings, table headers with
scope, alternative texts, scrollable tables reachable by keyboard). No script, no network.
"""

import base64
from collections.abc import Sequence
from html import escape

from energylm.tables import Table, format_cell

_STYLE = """
:root {
  color-scheme: light dark; --ink: #1c1e21; --faint: #5a6069; --paper: #ffffff; --panel: #f4f5f7; --line: #d5d9df;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #a2a9b4; --paper: #16181c; --panel: #20242a; --line: #3a4049; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.6 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { border-bottom-width: 2px; } .number { text-align: right; }
.convention, footer, .label { color: var(--faint); font-size: .9rem; }
figure { margin: 0; } img { max-width: 100%; height: auto; background: #ffffff; border-radius: .4rem; }
.sample { background: var(--panel); border-radius: .4rem; padding: .7rem 1rem; margin: .8rem 0; }
.sample p { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; } footer { margin-top: 3rem; }
""".strip()


def page(*, title: str, body: str, footer: str) -> str:
    """The whole document; `body` is HTML made by the functions below."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
<footer>{escape(footer)}</footer>
</main>
</body>
</html>
"""


def section(title: str, inner: str, *, identifier: str) -> str:
    name = escape(identifier)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>\n{inner}\n</section>'


def paragraphs(text: str) -> str:
    return "\n".join(f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def table(contents: Table) -> str:
    kinds = [' class="number"' if contents.is_numeric(column) else "" for column in range(len(contents.columns))]
    head = _cells("th", [f' scope="col"{kind}' for kind in kinds], contents.columns)
    rows = [_cells("td", kinds, [format_cell(cell) for cell in row]) for row in contents.rows]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    note = f'\n<p class="convention">{escape(contents.convention)}</p>' if contents.convention else ""
    return (
        f'<div class="wide" tabindex="0">\n<table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>{note}"
    )


def _cells(tag: str, attributes: Sequence[str], texts: Sequence[str]) -> str:
    pairs = zip(attributes, texts, strict=True)
    return "".join(f"<{tag}{attribute}>{escape(text)}</{tag}>" for attribute, text in pairs)


def picture(png: bytes, *, alt: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>'


def sample(label: str, prompt: str, continuation: str) -> str:
    return (
        f'<div class="sample"><p class="label">{escape(label)}</p>'
        f"<p><strong>{escape(prompt)}</strong>{escape(continuation)}</p></div>"
    )
