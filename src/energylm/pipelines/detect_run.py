"""Judge texts of unknown writers: `energylm detect run`. Texts go through in portions, so any number of them fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.detector import Detector
from energylm.bundles.detector_results import Detection
from energylm.config.detect import TextFormat
from energylm.data.detection import read_unlabelled
from energylm.errors import DataError
from energylm.evaluation.detector_page import detections_page
from energylm.evaluation.tables import Table
from energylm.files import write_text
from energylm.progress import progress, say

PORTION_TEXTS = 512
SHOWN_CHARACTERS = 48  # of a text, in a table


@dataclass(frozen=True)
class NamedDetection:
    name: str
    text: str
    detection: Detection

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.detection.to_json()}


@dataclass(frozen=True)
class DetectRun:
    results: list[NamedDetection]

    def to_json(self) -> dict[str, Any]:
        return {"texts": [result.to_json() for result in self.results]}

    def table(self) -> Table:
        rows = [
            [
                one.name,
                " ".join(one.text[: 4 * SHOWN_CHARACTERS].split())[:SHOWN_CHARACTERS],
                one.detection.verdict,
                one.detection.probability,
                one.detection.score,
                f"{one.detection.tokens_used:,} of {one.detection.tokens:,}",
                one.detection.reason,
            ]
            for one in self.results
        ]
        return Table(
            ["name", "text", "verdict", "P(machine)", "score", "tokens used", "why"],
            rows,
            convention="P(machine) holds if human and machine are equally likely beforehand; higher score = machine",
        )


def run_detector(
    folder: str,
    *,
    files: Sequence[Path | str] = (),
    texts: Sequence[str] = (),
    form: TextFormat = "auto",
    field: str = "text",
    max_tokens: int | None = None,
    html: Path | None = None,
) -> DetectRun:
    """Judge `texts` and the texts in `files`; with `html` also write a page on which blocks are coloured."""
    named = [(f"text {number}", text) for number, text in enumerate(texts, start=1)]
    named += list(read_unlabelled(files, form=form, field=field))
    if blank := sum(not text.strip() for _, text in named):
        say(f"{blank:,} of {len(named):,} texts are empty and left out")
    named = [(name, text) for name, text in named if text.strip()]
    if not named:
        raise DataError("no text came; give a file, --text, or - for standard input")
    detector = Detector.from_pretrained(folder)
    found = detections(detector, [text for _, text in named], max_tokens=max_tokens)
    run = DetectRun([NamedDetection(name, text, one) for (name, text), one in zip(named, found, strict=True)])
    if html is not None:
        write_text(html, detections_page([(one.name, one.text, one.detection) for one in run.results], by=folder))
    return run


def detections(detector: Detector, texts: Sequence[str], *, max_tokens: int | None = None) -> list[Detection]:
    """`Detector.predict` in portions, with a bar."""
    found: list[Detection] = []
    with progress("judging", total=len(texts), unit="text") as bar:
        for start in range(0, len(texts), PORTION_TEXTS):
            portion = texts[start : start + PORTION_TEXTS]
            found += detector.predict(portion, max_tokens=max_tokens)
            bar.advance(len(portion))
    return found
