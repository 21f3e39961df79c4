"""`energylm bench corpus`: building a corpus against a bare `encode_batch` over the same text, and its memory by size.

Speed   20 MB of lines: `BuildCorpus` (read, hash, split, encode, write, sync) against `tokenizers.encode_batch` alone,
        fed a megabyte at a time, both with the same tokenizer, taking turns.
Memory  Peak of a process that builds from 200 MB (tokenizer training included, all of it one document: the hardest
        case) less the peak for 20 MB.

The text is the default corpus with its words shuffled, so that it can be made as large as wanted.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    Rounds,
    interleaved_seconds,
    peak_megabytes,
    print_peak_megabytes,
)
from energylm.data.dataset_sources import StateOfTheUnion
from energylm.data.tokenizer import load_tokenizer, plain_encoder
from energylm.jobs.job import Job
from energylm.verbs import BuildCorpus

_WORDS_A_LINE = 700  # about 4 kB
_LINES_AT_ONCE = 256  # about 1 MB


def run(options: Options) -> BenchmarkResult:
    small, large = (1, 3) if options.quick else (20, 200)
    with tempfile.TemporaryDirectory(prefix="energylm-bench-") as name:
        folder = Path(name)
        small_file, large_file = _write(folder / "small.txt", small), _write(folder / "large.txt", large)
        seconds = _speed(folder, small_file, options)
        peaks = {
            size: peak_megabytes(__name__, str(file), str(folder / f"peak-{file.stem}"))
            for size, file in ((small, small_file), (large, large_file))
        }
    build, bare = seconds["build"], seconds["encode_batch"]
    growth = peaks[large] - peaks[small]
    return BenchmarkResult(
        "corpus",
        bars=[
            Bar.on("speed of corpus build / bare encode_batch", bare / build, 0.8),
            Bar(f"extra peak memory for {large} MB over {small} MB [MB]", growth, 150, at_least=False),
        ],
        details={
            "corpus build [MB/s]": small / build,
            "bare encode_batch [MB/s]": small / bare,
            "bare encode_batch_fast [MB/s]": small / seconds["encode_batch_fast"],
            **{f"peak memory for {size} MB [MB]": peak for size, peak in peaks.items()},
        },
    )


def _speed(folder: Path, file: Path, options: Options) -> dict[str, Rounds]:
    trained = folder / "trained"
    BuildCorpus(sources=(str(file),), format="lines").run(Job(output=trained))
    encoder = plain_encoder(load_tokenizer(trained))
    lines = file.read_text(encoding="utf-8").splitlines()
    batches = [lines[start : start + _LINES_AT_ONCE] for start in range(0, len(lines), _LINES_AT_ONCE)]
    corpus = BuildCorpus(sources=(str(file),), format="lines", tokenizer=str(trained))

    def build() -> None:
        corpus.run(Job(output=folder / "timed"))
        shutil.rmtree(folder / "timed")

    def encode(method: Callable[..., object]) -> None:
        for batch in batches:
            method(batch, add_special_tokens=False)

    names = ("encode_batch", "encode_batch_fast")
    contenders = {"build": build} | {name: partial(encode, getattr(encoder, name)) for name in names}
    return interleaved_seconds(contenders, options, share=0.5)


def _write(path: Path, megabytes: int) -> Path:
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        for line in _lines():
            written += file.write(line + "\n")
            if written >= megabytes * 1_000_000:
                return path
    raise AssertionError("the lines never end")


def _lines() -> Iterator[str]:
    """Lines of shuffled words, without end; always the same ones."""
    words = [
        word for document in StateOfTheUnion.parse("sotu").documents() for word in "".join(document.pieces).split()
    ]
    chooser = random.Random(0)
    while True:
        start = chooser.randrange(len(words) - _WORDS_A_LINE)
        line = words[start : start + _WORDS_A_LINE]
        chooser.shuffle(line)
        yield " ".join(line)


if __name__ == "__main__":
    source, corpus = sys.argv[1:]
    BuildCorpus(sources=(source,), valid_fraction=0, test_fraction=0).run(Job(output=Path(corpus)))
    print_peak_megabytes()
