"""Moses n-best lists of a translator: `id ||| hypothesis ||| features ||| score`, maybe with more fields after.

Ids are the numbers of the source sentences, counted from 0. References lie in a file of their own, a line a sentence.
"""

from itertools import groupby

from energylm.data.formats.nbest import Hypothesis, Lines, NBest, hypothesis, nbest
from energylm.errors import DataError

SEPARATOR = "|||"
FIELDS = 4


def read_nbest_moses(lines: Lines, name: str) -> list[NBest]:
    rows: list[tuple[int, Hypothesis]] = []
    for number, line in lines:
        if not line.strip():
            continue
        place, fields = f"{name} line {number}", [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) < FIELDS or not fields[0].isdecimal():
            raise DataError(f"{place} is not `id ||| hypothesis ||| features ||| score`: {line:.60}")
        if rows and int(fields[0]) < rows[-1][0]:
            raise DataError(f"{place}: id {fields[0]} comes after {rows[-1][0]}; sort the file by id")
        rows.append((int(fields[0]), hypothesis(fields[1], fields[3], place=place)))
    return [
        nbest(str(sentence), None, (one for _, one in members), place=f"{name}, id {sentence}")
        for sentence, members in groupby(rows, key=lambda row: row[0])
    ]
