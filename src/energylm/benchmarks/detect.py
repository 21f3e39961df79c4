"""Judging long texts against the bare encoder: the same blocks in one stream of full batches, without mask or padding.

The detector reads text: it encodes, cuts into intersecting blocks, sorts them by length, pools, averages and judges.
200 texts of 500 words, and as many of 20 to 980 words, whose last blocks have all lengths. The network has the shape of
all-MiniLM-L6 (6 layers of width 384) and random weights.
"""

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, seconds_of
from energylm.benchmarks.inputs import bit_energy
from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, TextRange
from energylm.bundles.energy_model import EnergyModel
from energylm.config.texts import BlockConfig
from energylm.data.tokenizer import train_tokenizer
from energylm.progress import say

TEXTS, WORDS = 200, 500
SHORTEST, LONGEST = 20, 980
LAYERS, WIDTH, HEADS, VOCABULARY = 6, 384, 12, 8000
BARE_BATCHES = (8, 16, 32)
BARE_SHARE = 4  # the bare encoder reads a quarter of the blocks: all are alike, so its rate is that of all


def run(options: Options) -> BenchmarkResult:
    count = 6 if options.quick else TEXTS
    detector = make_detector(layers=1 if options.quick else LAYERS)
    texts = {"500 words": made_up_texts([WORDS] * count), "mixed lengths": made_up_texts(mixed_lengths(count))}
    rows = block_rows(detector, texts["500 words"])
    say("finding the best batch of the bare encoder")
    batch = BARE_BATCHES[0] if options.quick else max(BARE_BATCHES, key=lambda size: bare_rate(detector, rows, size))
    contenders = {name: partial(detector_rate, detector, some) for name, some in texts.items()}
    contenders["bare encoder"] = partial(bare_rate, detector, rows, batch)
    rate = interleaved(contenders, options, unit="tokens/s")
    bare = rate["bare encoder"]
    return BenchmarkResult(
        name="detect",
        bars=[
            Bar.on(f"{count} texts of {WORDS} words: tokens/s over the bare encoder's", rate["500 words"] / bare, 0.8),
            Bar.on(f"{count} texts of mixed lengths: the same", rate["mixed lengths"] / bare, 0.8),
        ],
        details={f"tokens/s, detector, {name}": rate[name] for name in texts}
        | {"tokens/s, bare encoder": bare}
        | {"blocks": len(rows), "tokens of a block": rows.shape[1], "best batch of the bare encoder": batch},
    )


def make_detector(*, layers: int) -> Detector:
    """A detector of random weights with a calibration, so that it does all that a real one does."""
    tokenizer = train_tokenizer(made_up_texts([WORDS] * 20), vocabulary_size=VOCABULARY)
    network = bit_energy(layers=layers, width=WIDTH, heads=HEADS, positions=512, vocabulary_size=len(tokenizer))
    span = SpanCalibration(40, 1.0, 0.0, 0.0, 0.01, 0.02, 100, 100)
    detector = Detector(EnergyModel(network, tokenizer, reads="text"), blocks=BlockConfig())
    text_range = TextRange.of(detector.reader.encode(made_up_texts([WORDS] * 60)))
    detector.calibration = DetectorCalibration((span,), 0.01, weights_sha256="", sources=(), text_range=text_range)
    return detector


def made_up_texts(word_counts: Iterable[int]) -> list[str]:
    """Texts of made-up words of two or three syllables; the same in every run."""
    chooser = random.Random(0)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(chooser.choices(syllables, k=chooser.choice((1, 2, 3)))) for _ in range(3000)]
    return [" ".join(chooser.choices(words, k=count)) for count in word_counts]


def mixed_lengths(count: int) -> list[int]:
    return [SHORTEST + (LONGEST - SHORTEST) * index // max(count - 1, 1) for index in range(count)]


def block_rows(detector: Detector, texts: list[str]) -> Tensor:
    """(B, T) ids of all full blocks of the texts."""
    pieces = [piece for text in detector.reader.encode(texts) for piece in detector.reader.pieces(text)]
    full = [piece for piece in pieces if len(piece) == detector.blocks.tokens]
    return detector.reader.rows(full)[0]


def detector_rate(detector: Detector, texts: list[str]) -> float:
    """Tokens of blocks a second, from text to verdict."""
    seconds = seconds_of(partial(detector.predict, texts))
    pieces = [piece for text in detector.reader.encode(texts) for piece in detector.reader.pieces(text)]
    return int(detector.reader.rows(pieces)[1].sum()) / seconds


def bare_rate(detector: Detector, rows_BT: Tensor, batch: int) -> float:
    """Tokens a second of the encoder alone."""
    some_BT = rows_BT[: max(batch, len(rows_BT) // BARE_SHARE // batch * batch)]
    energy: Any = detector.energy

    @torch.no_grad()
    def read() -> None:
        for part in some_BT.split(batch):
            energy.network.encoder(input_ids=part)

    return some_BT.numel() / seconds_of(read)
