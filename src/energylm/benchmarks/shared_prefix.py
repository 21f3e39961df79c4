"""Shared-prefix sampling against `generate(num_return_sequences=…)` and against the machine's matrix-multiply rate.

A GPT-2 of 4 × 256 with a vocabulary of 8,192 continues one context of 120 tokens 1,024 times by 40 tokens. `generate`
runs at the chunk size that suits it best on this machine, found first. Counted operations are those of the matrix
products a continuation token needs (projections, attention over its context and itself, output layer), nothing else.

Peak memory is that of ten times as many continuations, of 1,000 and 10,000 of them, with `--full` of 10,000 and
100,000 (until November 2026 always these, which took as long as all the rest).
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    interleaved,
    matmul_flops_per_second,
    peak_megabytes,
    print_peak_megabytes,
    seconds_of,
)
from energylm.benchmarks.inputs import gpt2
from energylm.config.sampling import Truncation
from energylm.models.decoders import decoder_for
from energylm.progress import say
from energylm.samplers.continuations import sample_continuations

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 8192
CONTEXT, NEW, N = 120, 40, 1024
CHUNKS = (32, 128, 256, 512, 1024)
TOP_K = 10
MEMORY_N, MEMORY_N_FULL = 1_000, 10_000


def run(options: Options) -> BenchmarkResult:
    n = 32 if options.quick else N
    network = make_network()
    context = list(range(1, CONTEXT + 1))
    decoder = decoder_for(network)
    ours = partial(sample_continuations, decoder, [context], n=n, max_new_tokens=NEW)
    chunks = [chunk for chunk in CHUNKS if chunk <= n]
    best_chunk = {top_k: best_chunk_of_generate(network, context, chunks, top_k) for top_k in (TOP_K, 0)}
    # `generate` works off n in calls of one chunk, all alike, so one call a round gives its rate.
    drawing: dict[str, tuple[int, Callable[[], object]]] = {
        "ours top-k": (n, partial(ours, truncation=Truncation(top_k=TOP_K))),
        "generate top-k": (best_chunk[TOP_K], partial(generate, network, context, best_chunk[TOP_K], TOP_K)),
        "ours full": (n, ours),
        "generate full": (best_chunk[0], partial(generate, network, context, best_chunk[0], 0)),
    }
    contenders: dict[str, Callable[[], float]] = {
        name: partial(_tokens_per_second, count, draw) for name, (count, draw) in drawing.items()
    }
    contenders["limit"] = lambda: matmul_flops_per_second(repeats=3) / flops_per_token()
    rate = interleaved(contenders, options, unit="tokens/s", share=0.8)
    few = 100 if options.quick else MEMORY_N_FULL if options.full else MEMORY_N
    memory = [peak_megabytes(__name__, str(count)) for count in (few, 10 * few)]
    return BenchmarkResult(
        name="shared-prefix",
        bars=[
            Bar.on("times generate, top-k 10", rate["ours top-k"] / rate["generate top-k"], 6.0),
            Bar.on("times generate, untruncated", rate["ours full"] / rate["generate full"], 5.0),
            Bar.on("fraction of the matrix-multiply limit, top-k 10", rate["ours top-k"] / rate["limit"], 0.55),
            Bar(f"peak memory, {10 * few:,} over {few:,} continuations", memory[1] / memory[0], 1.2, at_least=False),
        ],
        details={f"tokens/s, {name}": value for name, value in rate.items()}
        | {
            "limit, GFLOP/s": flops_per_token() / 1e9 * rate["limit"],
            "MFLOP a token": flops_per_token() / 1e6,
            "best chunk of generate, top-k": best_chunk[TOP_K],
            "best chunk of generate, untruncated": best_chunk[0],
            f"peak megabytes, {few:,} and {10 * few:,}": memory,
        },
    )


def make_network(*, layers: int = LAYERS, width: int = WIDTH) -> GPT2LMHeadModel:
    return gpt2(layers=layers, width=width, heads=HEADS, positions=CONTEXT + NEW, vocabulary_size=VOCABULARY)


def flops_per_token() -> float:
    """Multiplications and additions of the matrix products of one continuation token, averaged over the 40."""
    keys = CONTEXT + (NEW + 1) / 2
    layer = 2 * 12 * WIDTH**2 + 2 * 2 * WIDTH * keys
    return LAYERS * layer + 2 * WIDTH * VOCABULARY


def _tokens_per_second(count: int, draw: Callable[[], object]) -> float:
    return count * NEW / seconds_of(draw)


def generate(network: GPT2LMHeadModel, context: list[int], chunk: int, top_k: int) -> Tensor:
    """(chunk, T): transformers' own continuations, the context included; top_k = 0 is untruncated."""
    ids = torch.tensor([context])
    writer: Any = network  # transformers types `generate` for a protocol that its own GPT-2 does not meet
    sequences: Tensor = writer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=top_k,
        num_return_sequences=chunk,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        eos_token_id=None,
    )
    return sequences


def best_chunk_of_generate(network: GPT2LMHeadModel, context: list[int], chunks: list[int], top_k: int) -> int:
    """The chunk with the most continuations a second, by one call each."""
    say(f"finding the best chunk of generate, top-k {top_k}")
    generate(network, context, chunks[0], top_k)  # warm up
    return max(chunks, key=lambda chunk: chunk / seconds_of(partial(generate, network, context, chunk, top_k)))


def _draw(n: int) -> None:
    """n continuations by a small network: a larger one would only add the same constant for any n, and hide growth."""
    drawn = sample_continuations(
        decoder_for(make_network(layers=1, width=64)),
        [list(range(1, CONTEXT + 1))],
        n=n,
        max_new_tokens=NEW,
        truncation=Truncation(top_k=TOP_K),
    )
    assert drawn.tokens.shape == (1, n, NEW)


if __name__ == "__main__":
    _draw(int(sys.argv[1]))
    print_peak_megabytes()
