"""Texts with their blocks coloured by what a detector thinks of them: one page that needs no other file.

Blocks intersect, so a text is shown in stretches between the ends of blocks; a stretch has the mean score of the blocks
that cover it. Blue is human, orange is machine (told apart by colour-blind readers); each stretch also says its number.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from energylm import __version__
from energylm.bundles.detector_results import BlockScore, Detection, logistic
from energylm.report import html_page
from energylm.report.report import slug

_HUMAN, _MACHINE = "0, 114, 178", "213, 94, 0"  # Okabe & Ito's blue and vermilion
_STRONGEST = 0.45  # opacity, so that text stays readable on light and dark ground


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
