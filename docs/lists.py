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

from energylm.files import write_json
from energylm.plots import LinePlot, Series
from energylm.tables import Table, to_markdown

DOCS = Path(__file__).parent
KEPT, PAGE = DOCS / "lists.json", DOCS / "scoring.md"
OF_SET = ("lists", "metric", "one_best", "reranked", "oracle", "closed", "p_value", "weights_text")
BEGIN, END = "<!-- lists -->\n", "<!-- end of lists -->"


def kept_of(result: dict[str, Any]) -> dict[str, Any]:
    ((name, measured),) = result["sets"].items()
    return {"set": name, **{key: measured[key] for key in OF_SET}, "seconds_a_list": result["seconds_a_list"]}


def table(kept: dict[str, dict[str, Any]]) -> Table:
    columns = ["scorer", "lists", "1-best", "reranked", "oracle", "closed %", "interval", "λ", "seconds a list"]
    rows = []
    for name, of in kept.items():
        closed = of["closed"]
        ends = f"{closed['lower']:.1f}–{closed['upper']:.1f}"
        errors = [round(value, 2) for value in (of["one_best"]["value"], of["reranked"]["value"], of["oracle"])]
        seconds = round(of["seconds_a_list"], 2)
        rows.append([name, of["lists"], *errors, round(closed["value"], 1), ends, of["weights_text"], seconds])
    return Table(columns, rows, convention="word error rates of test-clean in per cent; λ of dev-clean; 95 % intervals")


def figure(kept: dict[str, dict[str, Any]]) -> LinePlot:
    """The share of the way, not the error rate itself: some scorers read a part of the lists."""
    series = [Series(name, [of["seconds_a_list"]], [of["closed"]["value"]]) for name, of in kept.items()]
    return LinePlot(
        series, x_label="seconds a list of ten hypotheses", y_label="% of the way from 1-best to oracle", log_x=True
    )


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
        figure(read()).save(DOCS / "lists.png")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
