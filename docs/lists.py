"""What scorers of n-best lists are worth, and what they cost: kept, drawn, and written into docs/scoring.md.

    python docs/lists.py keep "NAME=FILE.json" …    results of `energylm rerank --json` (one set each) → docs/lists.json
    python docs/lists.py draw                       docs/lists.json → docs/lists.png and the table of docs/scoring.md

Kept of a result: the set's word error rates with their intervals, the share of the way to the oracle, λ, and seconds a
list as that run took them (on one core beside other work, unless the page says otherwise).
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from energylm.files import write_json
from energylm.plots import png_of
from energylm.tables import Table, to_markdown

DOCS = Path(__file__).parent
KEPT, PAGE = DOCS / "lists.json", DOCS / "scoring.md"
OF_SET = ("lists", "metric", "one_best", "reranked", "oracle", "closed", "p_value", "weights_text")
BEGIN, END = "<!-- lists -->\n", "<!-- end of lists -->"


def kept_of(result: dict[str, Any]) -> dict[str, Any]:
    ((name, measured),) = result["sets"].items()
    return {"set": name, **{key: measured[key] for key in OF_SET}, "seconds_a_list": result["seconds_a_list"]}


def table(kept: dict[str, dict[str, Any]]) -> Table:
    columns = ["no.", "scorer", "lists", "1-best", "reranked", "oracle", "closed %", "interval", "λ", "seconds a list"]
    rows = []
    for number, (name, of) in enumerate(kept.items(), start=1):
        closed = of["closed"]
        ends = f"{closed['lower']:.1f}–{closed['upper']:.1f}"
        errors = [round(value, 2) for value in (of["one_best"]["value"], of["reranked"]["value"], of["oracle"])]
        seconds = round(of["seconds_a_list"], 2)
        rows.append([number, name, of["lists"], *errors, round(closed["value"], 1), ends, of["weights_text"], seconds])
    return Table(columns, rows, convention="word error rates of test-clean in per cent; λ of dev-clean; 95 % intervals")


def figure(kept: dict[str, dict[str, Any]]) -> Figure:
    """The share of the way, not the error rate itself: some scorers read a part of the lists. Numbers are the rows'."""
    drawn = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = drawn.add_subplot()
    for number, of in enumerate(kept.values(), start=1):
        closed, seconds = of["closed"], of["seconds_a_list"]
        around = [[closed["value"] - closed["lower"]], [closed["upper"] - closed["value"]]]
        axes.errorbar(seconds, closed["value"], yerr=around, fmt="o", markersize=4, color="#0072b2", alpha=0.6)
        axes.annotate(str(number), (seconds, closed["value"]), xytext=(5, 3), textcoords="offset points")
    axes.set(xscale="log", xlabel="seconds a list of ten hypotheses", ylabel="% of the way from 1-best to oracle")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return drawn


def page(text: str, kept: dict[str, dict[str, Any]]) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{to_markdown(table(kept)).strip()}\n{END}{rest.partition(END)[2]}"


def read() -> dict[str, dict[str, Any]]:
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        added = (given.partition("=") for given in sys.argv[2:])
        results = {name: kept_of(json.loads(Path(path).read_text(encoding="utf-8"))) for name, _, path in added}
        write_json(KEPT, read() | results)
    else:
        (DOCS / "lists.png").write_bytes(png_of(figure(read())))
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
