"""Judge texts of unknown writers: the work of `energylm detect run`. Texts go through in portions, on any engine.

With an output folder finished portions are kept there, so that a killed run goes on where it stopped.

On the page that `--html` asks for, a text is shown in stretches between the ends of its blocks, which intersect; a
stretch has the mean score of the blocks that cover it. Blue is human, orange is machine (told apart by colour-blind
readers); each stretch also says its number. The page needs no other file.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from energylm import __version__
from energylm.bundles.detector import (
    DEFAULT_FOLDER,
    BlockScore,
    Detection,
    Detector,
    logistic,
    provenance_note,
)
from energylm.bundles.known_models import absolute_place
from energylm.bundles.model_folder import model_identity
from energylm.config.models import DEFAULT_DETECTOR
from energylm.data.detection import read_unlabelled
from energylm.errors import DataError
from energylm.files import folder_lock, write_text
from energylm.jobs.engine import LocalPool, Pool, open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.records import LOCAL, Record
from energylm.registry import DETECTORS
from energylm.report import html_page
from energylm.report.report import slug
from energylm.tables import Cell, Table, to_rich
from energylm.verbs.detect.detect import RunDetector

PORTION_TEXTS = 64  # a minute or so of a language model on a CPU: what a killed run does again at most
READ_TEXTS = 16  # after which the bar moves
SHOWN_CHARACTERS = 30  # of a name, in a table that fits into 80 columns
_HUMAN, _MACHINE = "0, 114, 178", "213, 94, 0"  # Okabe & Ito's blue and vermilion
_STRONGEST = 0.45  # opacity, so that text stays readable on light and dark ground


@dataclass(frozen=True)
class NamedDetection(Detection):
    """A detection with the name of its text: the file and the line, or its number."""

    name: str
    text: str = field(default="", metadata=LOCAL)


@dataclass(frozen=True)
class Detections(Record):
    texts: tuple[NamedDetection, ...]
    unreadable: dict[str, str]  # file of a folder -> why it is left out

    @property
    def table(self) -> Table:
        """A line a text in 80 columns; `why` is the number of a reason in `reasons`."""
        numbers = {reason: number for number, reason in enumerate(self.reasons, start=1)}
        rows: list[list[Cell]] = [
            [
                _shortened(text.name),
                text.verdict,
                None if text.probability is None else f"{text.probability:.1%}",
                text.tokens_used,
                numbers[text.reason],
            ]
            for text in self.texts
        ]
        return Table(
            ["text", "verdict", "P(machine)", "tokens", "why"],
            rows,
            convention="P(machine) holds if human and machine are equally likely beforehand",
        )

    @property
    def reasons(self) -> list[str]:
        """Each reason once, in the order of the texts: those of one length share theirs."""
        return list(dict.fromkeys(text.reason for text in self.texts))


def judge(verb: RunDetector, job: Job) -> Detections:
    """Judge the texts and those in the files; with `html` also write a page on which blocks are coloured."""
    named = [(f"text {number}", text) for number, text in enumerate(verb.text, start=1)]
    from_files = read_unlabelled(verb.paths, form=verb.text_format, field=verb.field, what="texts to judge")
    named += from_files.texts
    if blank := sum(not text.strip() for _, text in named):
        say(f"{blank:,} of {len(named):,} texts are empty and left out")
    named = [(name, text) for name, text in named if text.strip()]
    if not named:
        raise DataError("no text came; give a file, --text, or - for standard input")
    is_named = DETECTORS.named(verb.detector) is not None
    path = verb.detector if is_named else absolute_place(_folder(verb.detector))
    model = path if is_named or job.output is None else model_identity(path)
    identity = {"task": "detect", "max_tokens": verb.max_tokens, "model": model}
    load = partial(DetectWorker.loaded, path, max_tokens=verb.max_tokens)
    lock = nullcontext() if job.output is None else folder_lock(job.output)
    with lock, open_engine(job.engine) as opened, opened.pool(load, models=[path]) as pool:
        detections = _judged(pool, [text for _, text in named], KeptBlocks(job.output, identity, FORM))
    texts = tuple(
        NamedDetection(**vars(detection), name=name, text=text)
        for (name, text), detection in zip(named, detections, strict=True)
    )
    if verb.html is not None:
        write_text(verb.html, detections_page([(text.name, text.text, text) for text in texts], by=verb.detector))
    return Detections(texts, from_files.unreadable)


def _folder(detector: str) -> str | Path:
    """Where a detector lies; the package's own says what it promises, and to whom."""
    if detector != DEFAULT_DETECTOR:
        return detector
    say(provenance_note(DEFAULT_FOLDER))
    return DEFAULT_FOLDER


def json_lines(result: Detections) -> str:
    """A line a text, its name first."""
    lines = [json.dumps({"name": text.name} | text.to_json(), ensure_ascii=False) for text in result.texts]
    return "".join(f"{line}\n" for line in lines)


def rich_table(result: Detections) -> str:
    """For people, as wide as the terminal, and the reasons below."""
    from rich.console import Console
    from rich.markup import escape as plain

    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(to_rich(result.table))
        for number, reason in enumerate(result.reasons, start=1):
            console.print(f"{number}  {plain(reason)}")
    return captured.get()


def _shortened(name: str) -> str:
    """The end of a long name, where file and line stand."""
    return name if len(name) <= SHOWN_CHARACTERS else f"…{name[1 - SHOWN_CHARACTERS :]}"


def detect(detector: Detector, texts: Sequence[str]) -> list[Detection]:
    """`Detector.predict` in portions, with a bar."""
    return _judged(LocalPool(lambda: DetectWorker(detector, max_tokens=None)), texts, KeptBlocks(None, {}, FORM))


class DetectWorker:
    def __init__(self, detector: Detector, *, max_tokens: int | None) -> None:
        self._detector, self._max_tokens = detector, max_tokens

    @classmethod
    def loaded(cls, path: str, *, max_tokens: int | None) -> "DetectWorker":
        return cls(Detector.from_pretrained(path), max_tokens=max_tokens)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._detector.name}

    def __call__(self, block: list[str], *, progress: Progress) -> list[Detection]:
        order = sorted(range(len(block)), key=lambda number: -len(block[number]))  # those of one length travel together
        detections: dict[int, Detection] = {}
        for start in range(0, len(order), READ_TEXTS):
            numbers = order[start : start + READ_TEXTS]
            texts = [block[number] for number in numbers]
            detections |= zip(numbers, self._detector.predict(texts, max_tokens=self._max_tokens), strict=True)
            progress.advance(len(numbers))
        return [detections[number] for number in range(len(block))]


FORM = BlockForm(
    block=lambda texts: texts,
    to_json=lambda detections: [detection.to_json() for detection in detections],
    from_json=lambda records: [Detection.from_json(record) for record in records],
    size=len,
)


def _judged(pool: Pool, texts: Sequence[str], kept: KeptBlocks) -> list[Detection]:
    def portions() -> Iterator[list[str]]:
        for start in range(0, len(texts), PORTION_TEXTS):
            yield list(texts[start : start + PORTION_TEXTS])

    with progress("judging", total=len(texts), unit="text") as bar:
        return [detection for portion in kept.run(pool, portions(), progress=bar) for detection in portion]


def detections_page(results: Sequence[tuple[str, str, Detection]], *, by: str) -> str:
    """The page about (name, text, detection) of each text; `by` names the detector."""
    counts = {
        verdict: sum(detection.verdict == verdict for _, _, detection in results)
        for verdict in ("human", "machine", "abstains")
    }
    about = (
        f"{len(results):,} texts judged by {by}: {counts['machine']:,} machine, {counts['human']:,} human, "
        f"{counts['abstains']:,} abstentions.\n\nOrange stretches look like a machine's, blue ones like a person's; "
        "the small number before a stretch is its score (higher = machine). A verdict is about a whole text: single "
        "blocks err often."
    )
    body = [html_page.section("What this is", html_page.paragraphs(about), identifier="about")]
    for number, (name, text, detection) in enumerate(results, start=1):
        title, identifier = f"{name}: {detection.verdict}", f"{number}-{slug(name)}"
        body.append(html_page.section(title, _text(text, detection), identifier=identifier))
    return html_page.page(title="Human or machine", body="\n".join(body), footer=f"energylm {__version__}")


def _text(text: str, detection: Detection) -> str:
    probability = "not calibrated" if detection.probability is None else f"P(machine) {detection.probability:.1%}"
    facts = (
        f"{probability}; {detection.reason}; {detection.tokens_used:,} of {detection.tokens:,} tokens in "
        f"{len(detection.blocks):,} blocks"
    )
    spans = "".join(_span(text[start:end], score) for start, end, score in stretches(len(text), detection.blocks))
    return f'<div class="sample"><p class="label">{escape(facts)}</p><p>{spans}</p></div>'


def stretches(characters: int, blocks: Sequence[BlockScore]) -> list[tuple[int, int, float | None]]:
    """(start, end, mean score of the blocks there) in order; None where no block reaches. They cover the whole text."""
    ends = sorted({0, characters, *(block.start for block in blocks), *(block.end for block in blocks)})
    spans: list[tuple[int, int, float | None]] = []
    for start, end in pairwise(ends):
        scores = [block.score for block in blocks if block.start <= start and end <= block.end]
        spans.append((start, end, sum(scores) / len(scores) if scores else None))
    return spans


def _span(text: str, score: float | None) -> str:
    if score is None:
        return escape(text)
    probability = logistic(score)
    colour, strength = (_MACHINE, probability) if probability > 0.5 else (_HUMAN, 1 - probability)
    opacity = _STRONGEST * (2 * strength - 1)
    return (
        f'<small>{score:+.1f} </small><span style="background: rgba({colour}, {opacity:.2f})" '
        f'title="score {score:+.2f}">{escape(text)}</span>'
    )
