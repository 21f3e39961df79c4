"""Negatives on a Ray cluster of this machine: two one-thread workers against one such worker, on the same blocks.

The workers are loaded beforehand, so what is measured is work, hand-over and return. Two workers cannot be more than
twice as fast; what is missing to two is the driver, Ray, and memory that both share.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved_seconds
from energylm.benchmarks.inputs import nbest_texts, seeded, tokenizer_for
from energylm.bundles.language_model import LanguageModel
from energylm.config.environment import EngineConfig
from energylm.data.negatives_shards import NegativeRows
from energylm.data.tokenizer import tokenizer_sha256
from energylm.jobs.engine import Pool, open_engine
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network
from energylm.progress import Counter
from energylm.verbs.joint.negatives import MakeNegatives
from energylm.verbs.joint.writing_negatives import ContextBlock, NegativesWorker

LAYERS, WIDTH, HEADS = 4, 256, 4
CONTEXT, NEW, K = 120, 40, 16
CONTEXTS, BLOCKS = 16, 16  # of a block; of a run


def run(options: Options) -> BenchmarkResult:
    contexts, blocks = (2, 4) if options.quick else (CONTEXTS, BLOCKS)
    verb = MakeNegatives(language_model="a model of random weights", corpus="none", k=K, length=CONTEXT + NEW)
    with tempfile.TemporaryDirectory() as folder:
        tokens = make_model(Path(folder) / "model")
        load = partial(NegativesWorker, str(Path(folder) / "model"), verb, **tokens)
        work = [make_block(number, contexts) for number in range(blocks)]
        both = EngineConfig(engine="ray", workers=3)  # room for both pools at once
        with open_engine(both), pool_of(1, load) as single, pool_of(2, load) as pair:
            same = all(map(equal, rows_of(single, work), rows_of(pair, work)))
            contenders = {"single": partial(rows_of, single, work), "pair": partial(rows_of, pair, work)}
            seconds = interleaved_seconds(contenders, options)
    drawn = blocks * contexts * K * NEW
    return BenchmarkResult(
        name="ray",
        bars=[
            Bar.on("throughput of 2 one-thread workers / of 1", seconds["single"] / seconds["pair"], 1.6),
            Bar("runs whose rows differ", float(not same), 0, at_least=False),
        ],
        details={
            "tokens/s, 1 worker": drawn / seconds["single"],
            "tokens/s, 2 workers": drawn / seconds["pair"],
            "seconds of a block": seconds["single"] / blocks,
        },
    )


def pool_of(workers: int, load: Callable[[], NegativesWorker]) -> AbstractContextManager[Pool]:
    from energylm.jobs.ray_engine import RayEngine

    return RayEngine(EngineConfig(engine="ray", workers=workers)).pool(load)


def rows_of(pool: Pool, blocks: Sequence[ContextBlock]) -> list[NegativeRows]:
    return list(pool.run(blocks, progress=Counter()))


def equal(first: NegativeRows, second: NegativeRows) -> bool:
    return all(np.array_equal(getattr(first, field.name), getattr(second, field.name)) for field in fields(first))


def make_block(number: int, contexts: int) -> ContextBlock:
    windows = np.arange(number * contexts, (number + 1) * contexts)
    ids = np.random.default_rng(number).integers(5, 300, (contexts, CONTEXT))  # past the special tokens
    return ContextBlock(windows, np.full(contexts, CONTEXT), list(ids))


def make_model(folder: Path) -> dict[str, Any]:
    """A language model with random weights in `folder`, and what a worker must know of its corpus."""
    tokenizer = tokenizer_for([text for texts in nbest_texts(200).texts for text in texts])
    end = tokenizer.eos_token_id
    shape = {"layers": LAYERS, "width": WIDTH, "heads": HEADS}
    sizes = {"vocabulary_size": len(tokenizer), "max_length": CONTEXT + NEW}
    network = seeded(lambda: build_network("tiny", **sizes, eos_token_id=end, overrides=shape))
    model = CausalLanguageModel(network.eval(), start_token_id=end, eos_token_id=end)
    LanguageModel(model, tokenizer).save_pretrained(folder)
    return {"tokenizer": tokenizer_sha256(tokenizer), "end_token_id": end}
