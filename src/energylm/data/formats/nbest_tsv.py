"""N-best lists in tab-separated columns, a hypothesis a line: `utterance`, `score`, `text`, and maybe `reference`.

A first line with these names says which column is which (others are ignored); without one the columns are utterance,
score, text, reference, the last of which may be missing. The hypotheses of an utterance stand together, in the
recogniser's order; its reference need be written only once.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from energylm.data.formats.nbest import Hypothesis, Lines, NBest, hypothesis, nbest
from energylm.errors import DataError

COLUMNS = ("utterance", "score", "text", "reference")
NEEDED = COLUMNS[:3]


def read_nbest_tsv(lines: Lines, name: str) -> list[NBest]:
    lists = []
    seen: dict[str, int] = {}
    for utterance, rows in groupby(_rows(lines, name), key=lambda row: row[1]):
        members = list(rows)
        if utterance in seen:
            raise DataError(
                f"{name} line {members[0][0]}: utterance {utterance!r} was already there in line {seen[utterance]}; "
                "sort the file, so that the hypotheses of an utterance stand together"
            )
        seen[utterance] = members[0][0]
        references = {reference for *_, reference in members if reference is not None}
        if len(references) > 1:
            raise DataError(f"{name}, utterance {utterance!r} has {len(references)} different references, expected one")
        lists.append(
            nbest(
                utterance,
                next(iter(references), None),
                (one for _, _, one, _ in members),
                place=f"{name}, utterance {utterance!r}",
            )
        )
    return lists


def _rows(lines: Lines, name: str) -> Iterator[tuple[int, str, Hypothesis, str | None]]:
    names: Sequence[str] | None = None
    for number, line in lines:
        cells = line.split("\t")
        if number == 1 and set(NEEDED) <= set(cells):
            names = cells
            continue
        if not line.strip():
            continue
        if names is None:
            names = COLUMNS[: max(len(cells), len(NEEDED))]
        if len(cells) != len(names):
            raise DataError(
                f"{name} line {number} has {len(cells)} tab-separated columns, "
                f"expected {len(names)}: {', '.join(names)}"
            )
        row = dict(zip(names, cells, strict=True))
        one = hypothesis(row["text"], row["score"], place=f"{name} line {number}")
        yield number, row["utterance"], one, row.get("reference") or None
