"""Judging texts against the bare network: the same tokens in one stream of full batches, without mask or padding.

Two detectors read text, cut, sort by length, measure and judge. One is a trained encoder of all-MiniLM-L6's shape (6
layers of width 384) with random weights: 200 texts of 500 words in intersecting blocks, and as many of 20 to 980 words,
whose last blocks have all lengths. The other is the package's own, whose scores need no trained encoder: the first 256
tokens of texts of 300 words, and of 20 to 580, by the surprise of SmolLM2-135M (where it is not here, of a network of
its shape). It is compared with that network's logits alone, by transformers and by our pass with packed weights, which
it goes through itself, and turns into log-probabilities, ranks, entropies and variances over 49,152 tokens.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, Rounds, interleaved, seconds_of
from energylm.benchmarks.inputs import bit_energy, smollm2
from energylm.bundles.combined_energy import CombinedEnergy, FeatureWeights
from energylm.bundles.detector import CALIBRATION_FILE, DEFAULT_FOLDER, Detector
from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, TextRange
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import WEIGHTS_FILE
from energylm.config.texts import BlockConfig
from energylm.data.tokenizer import train_tokenizer
from energylm.files import read_json
from energylm.models.packed import why_not_packed
from energylm.models.packed_passes import causal_logits
from energylm.progress import say

Reading = Callable[[Tensor], object]
BARE, PACKED = "bare network", "bare packed network"
TEXTS, WORDS = 200, 500
SHORTEST, LONGEST = 20, 980
LAYERS, WIDTH, HEADS, VOCABULARY = 6, 384, 12, 8000
ENCODER_BATCHES, SURPRISE_BATCHES = (8, 16, 32), (2, 4, 8)  # that the bare network is tried with
BARE_SHARE = 4  # the bare network reads a quarter of the encoder's blocks: all are alike, so its rate is that of all
ENCODER_SHARE = 0.6  # of the time
SURPRISE_TEXTS, SURPRISE_WORDS, SURPRISE_TOKENS = 16, 300, 256
JOB_TEXTS = 1000


def run(options: Options) -> BenchmarkResult:
    encoder, surprise = measure_encoder(options), measure_surprise(options)
    return BenchmarkResult(name="detect", bars=encoder.bars + surprise.bars, details=encoder.details | surprise.details)


def measure_encoder(options: Options) -> BenchmarkResult:
    count = 6 if options.quick else TEXTS
    detector = make_detector(layers=1 if options.quick else LAYERS)
    texts = {"500 words": made_up_texts([WORDS] * count), "mixed lengths": made_up_texts(lengths_to(LONGEST, count))}
    energy: Any = detector.energy
    rate, batch = against_bare(
        detector, {BARE: energy.network.encoder}, texts, options, batches=ENCODER_BATCHES, share=ENCODER_SHARE
    )
    bare = rate[BARE]
    return BenchmarkResult(
        name="detect",
        bars=[
            Bar.on(f"{count} texts of {WORDS} words: tokens/s over the bare encoder's", rate["500 words"] / bare, 0.8),
            Bar.on(f"{count} texts of mixed lengths: the same", rate["mixed lengths"] / bare, 0.8),
        ],
        details={f"tokens/s, detector, {name}": rate[name] for name in texts}
        | {"tokens/s, bare encoder": bare, "best batch of the bare encoder": batch[BARE]},
    )


def measure_surprise(options: Options) -> BenchmarkResult:
    lm, origin = smollm2(small_tokenizer(), quick=options.quick)
    count = 4 if options.quick else SURPRISE_TEXTS
    texts = {
        "300 words": made_up_texts([SURPRISE_WORDS] * count),
        "mixed lengths": made_up_texts(lengths_to(2 * SURPRISE_WORDS - SHORTEST, 2 * count)),
    }
    network: Any = lm.model.network
    networks: dict[str, Reading] = {BARE: partial(network, use_cache=False)}
    if why_not_packed(network) is None:
        networks[PACKED] = lambda ids_BT: causal_logits(network, ids_BT, keep=ids_BT.shape[1])
    rate, batch = against_bare(surprise_detector(lm), networks, texts, options, batches=SURPRISE_BATCHES)
    hardest = PACKED if PACKED in networks else BARE
    bare = rate[hardest]
    return BenchmarkResult(
        name="detect",
        bars=[
            Bar.on(
                f"zero-shot, {count} texts of {SURPRISE_WORDS} words: tokens/s over the {hardest}'s",
                rate["300 words"] / bare,
                0.8,
            ),
            Bar.on(f"zero-shot, {2 * count} texts of mixed lengths: the same", rate["mixed lengths"] / bare, 0.8),
        ],
        details={f"tokens/s, zero-shot, {name}": rate[name] for name in texts}
        | {f"tokens/s, {name}, {lm.name}": rate[name] for name in networks}
        | {f"best batch of the {name}, {lm.name}": batch[name] for name in networks}
        | {
            "language model": origin,
            f"minutes, zero-shot, {JOB_TEXTS:,} texts of {SURPRISE_WORDS} words, by this rate": JOB_TEXTS
            * SURPRISE_TOKENS
            / 60
            / rate["300 words"],
        },
    )


def against_bare(
    detector: Detector,
    networks: Mapping[str, Reading],
    texts: Mapping[str, list[str]],
    options: Options,
    *,
    batches: Sequence[int],
    share: float = 1.0,
) -> tuple[dict[str, Rounds], dict[str, int]]:
    """Tokens/s of the detector on each kind of text, and of networks on full blocks of the first, each at its best
    batch, which is told, too."""
    rows_BT = block_rows(detector, next(iter(texts.values())))
    contenders = {name: partial(detector_rate, detector, some) for name, some in texts.items()}
    best = {}
    for name, network in networks.items():
        say(f"finding the best batch of the {name}")
        rates = {size: bare_rate(network, rows_BT, size) for size in batches[: 1 if options.quick else None]}
        best[name] = max(rates, key=rates.__getitem__)
        contenders[name] = partial(bare_rate, network, rows_BT, best[name])
    return interleaved(contenders, options, unit="tokens/s", share=share), best


def make_detector(*, layers: int) -> Detector:
    """A detector of random weights with a calibration, so that it does all that a real one does."""
    tokenizer = small_tokenizer()
    network = bit_energy(layers=layers, width=WIDTH, heads=HEADS, positions=512, vocabulary_size=len(tokenizer))
    span = SpanCalibration(40, 1.0, 0.0, 0.0, 0.01, 0.02, 100, 100)
    detector = Detector(EnergyModel(network, tokenizer, reads="text"), blocks=BlockConfig())
    text_range = TextRange.of(detector.reader.encode(made_up_texts([WORDS] * 60)))
    detector.calibration = DetectorCalibration((span,), 0.01, weights_sha256="", sources=(), text_range=text_range)
    return detector


def surprise_detector(lm: LanguageModel) -> Detector:
    """The package's own, with this language model."""
    weights = FeatureWeights.from_json(read_json(DEFAULT_FOLDER / WEIGHTS_FILE))
    calibration = DetectorCalibration.read(read_json(DEFAULT_FOLDER / CALIBRATION_FILE), origin=str(DEFAULT_FOLDER))
    blocks = BlockConfig(tokens=SURPRISE_TOKENS)
    return Detector(CombinedEnergy(lm, weights), blocks=blocks, calibration=calibration)


def small_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(made_up_texts([WORDS] * 20), vocabulary_size=VOCABULARY)


def made_up_texts(word_counts: Iterable[int]) -> list[str]:
    """Texts of made-up words of two or three syllables; the same in every run."""
    chooser = random.Random(0)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(chooser.choices(syllables, k=chooser.choice((1, 2, 3)))) for _ in range(3000)]
    return [" ".join(chooser.choices(words, k=count)) for count in word_counts]


def lengths_to(longest: int, count: int) -> list[int]:
    """Words of texts, evenly spread."""
    return [SHORTEST + (longest - SHORTEST) * index // max(count - 1, 1) for index in range(count)]


def block_rows(detector: Detector, texts: list[str]) -> Tensor:
    """(B, T) ids of all full blocks of the texts, as far as they are read."""
    full = [piece for piece in read_pieces(detector, texts) if len(piece) == detector.blocks.tokens]
    return detector.reader.rows(full)[0]


def read_pieces(detector: Detector, texts: list[str]) -> list[NDArray[np.int32]]:
    most = None if detector.calibration is None else detector.calibration.max_tokens
    encoded = [text if most is None else text.cut(0, most) for text in detector.reader.encode(texts)]
    return [piece for text in encoded for piece in detector.reader.pieces(text)]


def detector_rate(detector: Detector, texts: list[str]) -> float:
    """Tokens of blocks a second, from text to verdict."""
    seconds = seconds_of(partial(detector.predict, texts))
    return int(detector.reader.rows(read_pieces(detector, texts))[1].sum()) / seconds


def bare_rate(network: Reading, rows_BT: Tensor, batch: int) -> float:
    """Tokens a second of the network alone."""
    some_BT = rows_BT[: max(batch, len(rows_BT) // BARE_SHARE // batch * batch)]

    @torch.no_grad()
    def read() -> None:
        for part in some_BT.split(batch):
            network(part)

    return some_BT.numel() / seconds_of(read)
