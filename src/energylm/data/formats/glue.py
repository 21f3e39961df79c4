"""GLUE tasks as their authors published them: CoLA and SST-2 (one sentence), MRPC and RTE (two). Labels are 0 or 1.

CoLA    source, label, author's mark, sentence                     1 = acceptable
SST-2   sentence, label                                            1 = positive
MRPC    header; label, id, id, sentence, sentence                  1 = paraphrase
RTE     XML `<pair entailment="YES|NO">` (first edition: `value="TRUE|FALSE"`) with `<t>` text and `<h>` hypothesis
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from energylm.data.text_files import decoded_lines
from energylm.errors import DataError

_RTE_LABELS = {"YES": 1, "TRUE": 1, "NO": 0, "FALSE": 0}


@dataclass(frozen=True, slots=True)
class LabelledSentence:
    text: str
    label: int


@dataclass(frozen=True, slots=True)
class LabelledPair:
    first: str
    second: str
    label: int


def read_cola(path: Path | str) -> Iterator[LabelledSentence]:
    for number, columns in _rows(path, columns=4):
        yield LabelledSentence(columns[3], _label(path, number, columns[1]))


def read_sst2(path: Path | str) -> Iterator[LabelledSentence]:
    for number, columns in _rows(path, columns=2):
        yield LabelledSentence(columns[0], _label(path, number, columns[1]))


def read_mrpc(path: Path | str) -> Iterator[LabelledPair]:
    for number, columns in _rows(path, columns=5):
        if number > 1:  # the header
            yield LabelledPair(columns[3], columns[4], _label(path, number, columns[0]))


def read_rte(path: Path | str) -> Iterator[LabelledPair]:
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f"{path} is not XML ({error}); expected <entailment-corpus> with <pair> elements") from None
    for pair in root.iter("pair"):
        judged = pair.get("entailment", pair.get("value"))
        text, hypothesis = pair.findtext("t"), pair.findtext("h")
        if judged not in _RTE_LABELS or text is None or hypothesis is None:
            raise DataError(
                f"{path}, pair {pair.get('id')}: expected <t>, <h> and entailment=YES or NO, came {judged!r}"
            )
        yield LabelledPair(text.strip(), hypothesis.strip(), _RTE_LABELS[judged])


def _rows(path: Path | str, *, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Tab-separated rows. Quotes are text: these files do not escape."""
    for number, line in decoded_lines(Path(path)):
        row = line.split("\t")
        if len(row) != columns:
            raise DataError(f"{path} line {number} has {len(row)} tab-separated columns, expected {columns}")
        yield number, row


def _label(path: Path | str, number: int, text: str) -> int:
    if text not in ("0", "1"):
        raise DataError(f"{path} line {number}: label {text!r} is neither 0 nor 1")
    return int(text)
