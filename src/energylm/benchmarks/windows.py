"""`energylm bench windows`: 50 million windows over 2 GB of tokens, opened and read in random order.

A corpus of random tokens in documents of 1,000 to 3,000 is written to a temporary folder and removed afterwards. A
process of its own then opens it, with windows of 160 tokens every 20 within documents (the protocol of Bakhtin et al.
2019 §4.1, four times as dense), and reads batches in the order of training. A shard is compared with its SHA-256 before
it is first read: that is timed by itself, apart from the first batch. What is said of memory is what the process holds
for itself (RssAnon); mapped pages of the files belong to the system, which may drop them.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, Rounds, interleaved, private_megabytes
from energylm.data.corpus import Corpus
from energylm.data.draft import PartWriter
from energylm.data.manifest import MANIFEST_FILE, Manifest, SplitCounts, TokenizerRecord, token_dtype
from energylm.data.windows import Windows
from energylm.files import write_json
from energylm.progress import progress
from energylm.randomness import epoch_order

VOCABULARY = 50_000
LENGTH, STRIDE = 160, 20
BATCH = 16_384  # windows read at once
PARTS = 64  # of about 34 MB: what `energylm corpus build` makes of 64 MB of text
_DOCUMENT_TOKENS = (1_000, 3_000)


def run(options: Options) -> BenchmarkResult:
    windows, at_once = (200_000, 20_000) if options.quick else (50_000_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="energylm-bench-") as name:
        corpus = write_corpus(Path(name), windows=windows)
        command = [sys.executable, "-m", __name__, name, str(options.repeats), str(at_once)]
        measured = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    rate = {name: Rounds(tuple(values)) for name, values in measured["rates"].items()}
    return BenchmarkResult(
        "windows",
        bars=[
            Bar("seconds to open", measured["open"], 1.0, at_least=False),
            Bar("seconds to the first batch", measured["first_batch"], 1.0, at_least=False),
            Bar("private memory, RssAnon [MB]", measured["megabytes"], 500, at_least=False),
            Bar.on("shuffled windows/s", rate["within documents"], 1e6),
        ],
        details={
            "windows": measured["windows"],
            "tokens [GB]": corpus.splits["train"].tokens * np.dtype(corpus.dtype).itemsize / 1e9,
            "documents": corpus.splits["train"].documents,
            "seconds to verify all shards": measured["verify"],
            "shuffled windows/s, packed": rate["packed"],
            "positions shuffled/s": rate["positions"],
        },
    )


def write_corpus(folder: Path, *, windows: int) -> Manifest:
    """A corpus of random tokens with about `windows` windows within documents, and no fewer."""
    draw = np.random.default_rng(0)
    shards = []
    with progress("writing tokens", total=PARTS, unit="part") as written:
        for part in range(PARTS):
            lengths = _documents(draw, windows=-(-windows // PARTS))
            ends = np.cumsum(lengths + 1)
            tokens = draw.integers(1, VOCABULARY, ends[-1], dtype=np.uint16)
            tokens[ends - 1] = 0
            with PartWriter(folder, part, dtype=token_dtype(VOCABULARY)) as writer:
                writer.write("train", tokens, list(zip(ends.tolist(), (4 * lengths).tolist(), strict=True)))
            shards += writer.records
            written.advance()
    counts = {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "tokens", "bytes")}
    manifest = Manifest(
        identity="random tokens",
        settings={},
        sources=(),
        tokenizer=TokenizerRecord(sha256="none", vocabulary_size=VOCABULARY, end_token_id=0),
        origin="random numbers",
        licence="none",
        dtype=str(token_dtype(VOCABULARY)),
        empty_documents=0,
        splits={"train": SplitCounts(**counts)},
        shards=tuple(shards),
    )
    write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
    return manifest


def _documents(draw: np.random.Generator, *, windows: int) -> np.ndarray:
    """Lengths of documents that hold `windows` windows together."""
    shortest, longest = _DOCUMENT_TOKENS
    lengths = draw.integers(shortest, longest, 2 + windows * STRIDE // (shortest - LENGTH))
    held = np.cumsum((lengths - LENGTH) // STRIDE + 1)
    return lengths[: int(np.searchsorted(held, windows)) + 1]


def measure(folder: Path, *, repeats: int, at_once: int) -> dict[str, Any]:
    """What a fresh process finds: seconds of opening and of the first batch, then medians over `repeats` rounds."""
    began = time.perf_counter()
    windows = Windows(Corpus.open(folder), "train", length=LENGTH, stride=STRIDE, documents="within")
    opened = time.perf_counter()
    Corpus.open(folder).verify()
    verified = time.perf_counter()
    _read(windows, range(BATCH))
    first = time.perf_counter()
    packed = Windows(Corpus.open(folder), "train", length=LENGTH, stride=STRIDE)
    private = 0.0

    def rate(read: Callable[[range], object], turns: Iterator[int]) -> float:
        """Windows a second over positions that no earlier turn has read."""
        nonlocal private
        first_position = at_once * next(turns)
        positions = range(first_position, first_position + at_once)
        start = time.perf_counter()
        for batch in range(positions.start, positions.stop, BATCH):
            read(range(batch, min(batch + BATCH, positions.stop)))
        seconds, private = time.perf_counter() - start, max(private, private_megabytes())
        return at_once / seconds

    reads = {
        "within documents": partial(_read, windows),
        "packed": partial(_read, packed),
        "positions": partial(_order, len(windows)),
    }
    contenders = {name: partial(rate, read, count(1)) for name, read in reads.items()}
    rates = interleaved(contenders, Options(repeats), unit="windows/s", share=0.5)
    return {
        "windows": len(windows),
        "open": opened - began,
        "verify": verified - opened,
        "first_batch": first - verified,
        "megabytes": private,
        "rates": {name: of_rounds.values for name, of_rounds in rates.items()},
    }


def _order(size: int, positions: range) -> np.ndarray:
    """As tasks order their windows: a new shuffle in every epoch."""
    return epoch_order(np.arange(positions.start, positions.stop), size, seed=0)[1]


def _read(windows: Windows, positions: range) -> np.ndarray:
    return windows.gather(_order(len(windows), positions))


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), repeats=int(sys.argv[2]), at_once=int(sys.argv[3]))))
