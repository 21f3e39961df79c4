"""Judge texts of unknown writers: `energylm detect run`. Texts go through in portions, on any engine.

With `keep` finished portions are kept there, so that a killed run goes on where it stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from energylm.bundles.detector import Detector
from energylm.bundles.detector_results import Detection
from energylm.bundles.known_models import absolute_place
from energylm.bundles.weights_identity import model_identity
from energylm.config.detect import TextFormat
from energylm.config.engine import HERE, EngineConfig
from energylm.data.detection import read_unlabelled
from energylm.errors import DataError
from energylm.evaluation.detector_page import detections_page
from energylm.tables import Table
from energylm.files import folder_lock, write_text
from energylm.jobs.engine import LocalPool, Pool, open_engine
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say

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
    engine: EngineConfig = HERE,
    keep: Path | None = None,
) -> DetectRun:
    """Judge `texts` and the texts in `files`; with `html` also write a page on which blocks are coloured."""
    named = [(f"text {number}", text) for number, text in enumerate(texts, start=1)]
    named += list(read_unlabelled(files, form=form, field=field))
    if blank := sum(not text.strip() for _, text in named):
        say(f"{blank:,} of {len(named):,} texts are empty and left out")
    named = [(name, text) for name, text in named if text.strip()]
    if not named:
        raise DataError("no text came; give a file, --text, or - for standard input")
    place = absolute_place(folder)
    job = {"task": "detect", "max_tokens": max_tokens, "model": keep and model_identity(place)}
    load = partial(DetectWorker.loaded, place, max_tokens=max_tokens)
    lock = nullcontext() if keep is None else folder_lock(keep)
    with lock, open_engine(engine) as opened, opened.pool(load, models=[place]) as pool:
        found = _judged(pool, [text for _, text in named], KeptBlocks(keep, job, FORM))
    run = DetectRun([NamedDetection(name, text, one) for (name, text), one in zip(named, found, strict=True)])
    if html is not None:
        write_text(html, detections_page([(one.name, one.text, one.detection) for one in run.results], by=folder))
    return run


def detections(detector: Detector, texts: Sequence[str]) -> list[Detection]:
    """`Detector.predict` in portions, with a bar."""
    return _judged(LocalPool(lambda: DetectWorker(detector, max_tokens=None)), texts, KeptBlocks(None, {}, FORM))


class DetectWorker:
    def __init__(self, detector: Detector, *, max_tokens: int | None) -> None:
        self._detector, self._max_tokens = detector, max_tokens

    @classmethod
    def loaded(cls, place: str, *, max_tokens: int | None) -> "DetectWorker":
        return cls(Detector.from_pretrained(place), max_tokens=max_tokens)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._detector.energy.name}

    def __call__(self, block: list[str], *, progress: Progress) -> list[Detection]:
        found = self._detector.predict(block, max_tokens=self._max_tokens)
        progress.advance(len(block))
        return found


FORM = BlockForm(
    block=lambda texts: texts,
    to_json=lambda found: [one.to_json() for one in found],
    from_json=lambda records: [Detection.from_json(record) for record in records],
    size=len,
)


def _judged(pool: Pool, texts: Sequence[str], kept: KeptBlocks) -> list[Detection]:
    def portions() -> Iterator[list[str]]:
        for start in range(0, len(texts), PORTION_TEXTS):
            yield list(texts[start : start + PORTION_TEXTS])

    with progress("judging", total=len(texts), unit="text") as bar:
        return [one for found in kept.run(pool, portions(), progress=bar) for one in found]
