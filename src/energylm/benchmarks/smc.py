"""Forking and resampling of particles against plain drawing of as many tokens, and what they are worth by length.

A GPT-2 of 4 × 256 with a vocabulary of 8,192 continues one context of 120 tokens 256 times by 64 tokens: once plainly,
once as particles that are resampled every 8 tokens, by values that cost nothing to read and that let about half of the
particles die each time. What a lookahead costs comes on top, and is the energy's own.

The details show how effective samples and the error of log Z go with the length, at equal tokens drawn, for an energy
that is a sum over tokens, as the same 64 draws a run are weighed at the end alone (resampling) or on the way as well.
"""

import torch
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, seconds_of
from energylm.benchmarks.inputs import gpt2
from energylm.contracts import Decoder
from energylm.models.decoders import decoder_for
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.continuations import sample_continuations
from energylm.samplers.sequential_monte_carlo import (
    Particles,
    Written,
    family_sample_size,
    sequential_monte_carlo,
)
from energylm.samplers.written_rows import ReadContexts

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 8192
CONTEXT, NEW, N, BLOCK = 120, 64, 256, 8
MOST_OVERHEAD = 0.15
LENGTHS, CURVE_N, RUNS = (16, 64, 256), 64, 8
NATS_A_TOKEN = 0.3  # of the energy whose curve is shown


def run(options: Options) -> BenchmarkResult:
    n, new, lengths = (16, 16, LENGTHS[:1]) if options.quick else (N, NEW, LENGTHS)
    positions = CONTEXT + max(LENGTHS)
    network = gpt2(layers=LAYERS, width=WIDTH, heads=HEADS, positions=positions, vocabulary_size=VOCABULARY)
    decoder, context = decoder_for(network), list(range(1, CONTEXT + 1))
    seconds = interleaved(
        {
            "plain": lambda: seconds_of(lambda: sample_continuations(decoder, [context], n=n, max_new_tokens=new)),
            "particles": lambda: seconds_of(lambda: particles(decoder, [context], n=n, new=new, threshold=1.0)),
        },
        options,
        unit="s",
        share=0.6,
    )
    ratio = seconds["particles"] / seconds["plain"]
    curves = {
        f"{length} tokens, {CURVE_N} draws, {name}: effective, error of log Z": worth(
            particles(decoder, [context] * RUNS, n=CURVE_N, new=length, threshold=threshold)
        )
        for length in lengths
        for name, threshold in (("resampling", 0.0), ("smc", 0.5))
    }
    return BenchmarkResult(
        name="smc",
        bars=[Bar.on("time of particles over plain drawing", ratio, 1 + MOST_OVERHEAD, at_least=False)],
        details={f"seconds, {name}": value for name, value in seconds.items()} | {"tokens of a run": n * new} | curves,
    )


def particles(decoder: Decoder, contexts: list[list[int]], *, n: int, new: int, threshold: float) -> Particles:
    """A run for each context; at threshold 0 nothing is resampled, at 1 everything at every block."""
    index_B = torch.arange(len(contexts))
    return sequential_monte_carlo(
        ReadContexts(decoder, contexts, n=n),
        RowChoices(row_keys(0, index_B.repeat_interleave(n), torch.arange(n).repeat(len(contexts)))),
        RowChoices(row_keys(1, index_B, torch.zeros_like(index_B))),
        new_tokens=new,
        block_tokens=BLOCK,
        on_the_way=token_values,
        at_the_end=token_values,
        threshold=threshold,
    )


def token_values(written: Written) -> Tensor:
    """(B, N) log-weights that go up, down, or stay with each token, by its number."""
    return NATS_A_TOKEN * (written.tokens_BNT % 3 - 1).sum(-1).double()


def worth(drawn: Particles) -> str:
    """Mean effective sample size of the runs, families counted once, and the scatter of their log Ẑ, in nats."""
    return f"{float(family_sample_size(drawn).mean()):.1f}, {float(drawn.log_partition_B.std()):.3f}"
