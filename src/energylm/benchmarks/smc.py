"""Forking and resampling of particles against plain drawing of as many tokens.

A GPT-2 of 4 × 256 with a vocabulary of 8,192 continues one context of 120 tokens 256 times by 64 tokens: once plainly,
once as particles that are resampled every 8 tokens, by values that cost nothing to read and that let about half of the
particles die each time. What a lookahead costs comes on top, and is the energy's own.
"""

import torch
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, seconds_of
from energylm.benchmarks.inputs import gpt2
from energylm.models.decoders import decoder_for
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.continuations import sample_continuations
from energylm.samplers.sequential_monte_carlo import Written, sequential_monte_carlo
from energylm.samplers.written_rows import ReadContexts

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 8192
CONTEXT, NEW, N, BLOCK = 120, 64, 256, 8
MOST_OVERHEAD = 0.15


def run(options: Options) -> BenchmarkResult:
    n, new = (16, 16) if options.quick else (N, NEW)
    network = gpt2(layers=LAYERS, width=WIDTH, heads=HEADS, positions=CONTEXT + NEW, vocabulary_size=VOCABULARY)
    decoder, context = decoder_for(network), list(range(1, CONTEXT + 1))
    resamplings = []

    def plain() -> float:
        return seconds_of(lambda: sample_continuations(decoder, [context], n=n, max_new_tokens=new))

    def particles() -> float:
        zeros_N, one = torch.zeros(n, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)

        def draw() -> None:
            drawn = sequential_monte_carlo(
                ReadContexts(decoder, [context], n=n),
                RowChoices(row_keys(0, zeros_N, torch.arange(n))),
                RowChoices(row_keys(1, one, one)),
                new_tokens=new,
                block_tokens=BLOCK,
                on_the_way=uneven_values,
                at_the_end=uneven_values,
                threshold=1.0,
            )
            resamplings.append(int(drawn.resamplings_B[0]))

        return seconds_of(draw)

    seconds = interleaved({"plain": plain, "particles": particles}, options, unit="s")
    ratio = seconds["particles"] / seconds["plain"]
    return BenchmarkResult(
        name="smc",
        bars=[Bar.on("time of particles over plain drawing", ratio, 1 + MOST_OVERHEAD, at_least=False)],
        details={f"seconds, {name}": value for name, value in seconds.items()}
        | {"resamplings of a run": resamplings[-1], "tokens of a run": n * new},
    )


def uneven_values(written: Written) -> Tensor:
    """(B, N) values that grow by −1 to 1 with each token, by its number: some particles are always worth little."""
    return (written.tokens_BNT % 3 - 1).sum(-1).double()
