"""Negatives on a Ray cluster of this machine: two one-thread workers against one such worker, on the same blocks.

The workers are loaded beforehand, so what is measured is work, hand-over and return. Two workers cannot be more than
twice as fast; what is missing to two is the driver, Ray, and memory that both share.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, median
from energylm.benchmarks.texts import nbest_texts, tokenizer_for

if TYPE_CHECKING:
    from energylm.data.negatives_shards import NegativeRows
    from energylm.jobs.engine import Pool
    from energylm.verbs.joint.writing_negatives import ContextBlock, NegativesWorker

LAYERS, WIDTH, HEADS = 4, 256, 4
CONTEXT, NEW, K = 120, 40, 16
CONTEXTS, BLOCKS = 16, 16  # of a block; of a run


def run(options: Options) -> BenchmarkResult:
    from energylm.config.environment import EngineConfig
    from energylm.jobs.engine import open_engine
    from energylm.verbs.joint.negatives import MakeNegatives
    from energylm.verbs.joint.writing_negatives import NegativesWorker

    contexts, blocks = (2, 4) if options.quick else (CONTEXTS, BLOCKS)
    verb = MakeNegatives(language_model="a model of random weights", corpus="none", k=K, length=CONTEXT + NEW)
    with tempfile.TemporaryDirectory() as folder:
        tokens = make_model(Path(folder) / "model")
        load = partial(NegativesWorker, str(Path(folder) / "model"), verb, **tokens)
        work = [make_block(number, contexts) for number in range(blocks)]
        both = EngineConfig(engine="ray", workers=3)  # room for both pools at once
        with open_engine(both), pool_of(1, load) as one, pool_of(2, load) as two:
            same = all(map(equal, rows_of(one, work), rows_of(two, work)))
            contenders = {"one": partial(rows_of, one, work), "two": partial(rows_of, two, work)}
            seconds = interleaved(contenders, repeats=options.repeats)
    drawn = blocks * contexts * K * NEW
    return BenchmarkResult(
        name="ray",
        bars=[
            Bar("throughput of 2 one-thread workers / of 1", median(seconds["one"]) / median(seconds["two"]), 1.6),
            Bar("runs whose rows differ", float(not same), 0, at_least=False),
        ],
        details={
            "tokens/s, 1 worker": drawn / median(seconds["one"]),
            "tokens/s, 2 workers": drawn / median(seconds["two"]),
            "seconds of a block": median(seconds["one"]) / blocks,
        },
    )


def pool_of(workers: int, load: "Callable[[], NegativesWorker]") -> "AbstractContextManager[Pool]":
    from energylm.config.environment import EngineConfig
    from energylm.jobs.ray_engine import RayEngine

    return RayEngine(EngineConfig(engine="ray", workers=workers)).pool(load)


def rows_of(pool: "Pool", blocks: "Sequence[ContextBlock]") -> "list[NegativeRows]":
    from energylm.progress import Counter

    return list(pool.run(blocks, progress=Counter()))


def equal(first: "NegativeRows", second: "NegativeRows") -> bool:
    from dataclasses import fields

    import numpy as np

    return all(np.array_equal(getattr(first, one.name), getattr(second, one.name)) for one in fields(first))


def make_block(number: int, contexts: int) -> "ContextBlock":
    import numpy as np

    from energylm.verbs.joint.writing_negatives import ContextBlock

    windows = np.arange(number * contexts, (number + 1) * contexts)
    ids = np.random.default_rng(number).integers(5, 300, (contexts, CONTEXT))  # past the special tokens
    return ContextBlock(windows, np.full(contexts, CONTEXT), list(ids))


def make_model(folder: Path) -> dict[str, Any]:
    """A language model with random weights in `folder`, and what a worker must know of its corpus."""
    import torch

    from energylm.bundles.language_model import LanguageModel
    from energylm.data.tokenizer import tokenizer_sha256
    from energylm.models.causal import CausalLanguageModel
    from energylm.models.presets import build_network

    tokenizer = tokenizer_for([text for texts in nbest_texts(200).texts for text in texts])
    end = tokenizer.eos_token_id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            "tiny",
            vocabulary_size=len(tokenizer),
            max_length=CONTEXT + NEW,
            eos_token_id=end,
            overrides={"layers": LAYERS, "width": WIDTH, "heads": HEADS},
        )
    model = CausalLanguageModel(network.eval(), start_token_id=end, eos_token_id=end)
    LanguageModel(model, tokenizer).save_pretrained(folder)
    return {"tokenizer": tokenizer_sha256(tokenizer), "end_token_id": end}
