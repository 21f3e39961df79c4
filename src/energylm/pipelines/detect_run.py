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
from energylm.bundles.text_codec import text_list
from energylm.bundles.weights_identity import model_identity
from energylm.config.detect import TextFormat
from energylm.config.engine import HERE, EngineConfig
from energylm.data.detection import read_unlabelled
from energylm.errors import DataError
from energylm.evaluation.detector_page import detections_page
from energylm.files import folder_lock, write_text
from energylm.jobs.engine import LocalPool, Pool, open_engine
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.tables import Table

PORTION_TEXTS = 512
SHOWN_CHARACTERS = 30  # of a name, in a table that fits into 80 columns


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
    unreadable: dict[str, str]  # file of a folder -> why it is left out

    def to_json(self) -> dict[str, Any]:
        return {"texts": [result.to_json() for result in self.results], "unreadable": self.unreadable}

    def table(self) -> Table:
        """A line a text in 80 columns; `why` is the number of a reason in `reasons`."""
        numbers = {reason: number for number, reason in enumerate(self.reasons(), start=1)}
        rows = [
            [
                _shortened(one.name),
                one.detection.verdict,
                None if one.detection.probability is None else f"{one.detection.probability:.1%}",
                one.detection.tokens_used,
                numbers[one.detection.reason],
            ]
            for one in self.results
        ]
        return Table(
            ["text", "verdict", "P(machine)", "tokens", "why"],
            rows,
            convention="P(machine) holds if human and machine are equally likely beforehand",
        )

    def reasons(self) -> list[str]:
        """Each reason once, in the order of the texts: those of one length share theirs."""
        return list(dict.fromkeys(one.detection.reason for one in self.results))


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
    named = [(f"text {number}", text) for number, text in enumerate(text_list(texts), start=1)]
    from_files = read_unlabelled(files, form=form, field=field)
    named += from_files.texts
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
    results = [NamedDetection(name, text, one) for (name, text), one in zip(named, found, strict=True)]
    run = DetectRun(results, from_files.unreadable)
    if html is not None:
        write_text(html, detections_page([(one.name, one.text, one.detection) for one in run.results], by=folder))
    return run


def _shortened(name: str) -> str:
    """The end of a long name, where file and line stand."""
    return name if len(name) <= SHOWN_CHARACTERS else f"…{name[1 - SHOWN_CHARACTERS :]}"


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
