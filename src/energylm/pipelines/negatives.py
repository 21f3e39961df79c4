"""Generate k continuations of many contexts, in blocks: `energylm negatives`. Resumable; a second run is a no-op.

A block of contexts becomes a Parquet shard, whole or not at all, and is then listed in the draft; a killed run goes on
after the last one and ends in the same bytes, on any engine. The random numbers of a continuation depend on (seed,
window, copy) only: neither the size of blocks nor the cap on contexts changes what is drawn for a window.

Relations  `negatives_worker` draws; `data.negatives` reads the folder; `pipelines.train_energy` learns from it.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.known_models import absolute_place, locate
from energylm.bundles.model_folder import MANIFEST as MODEL_MANIFEST
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.engine import HERE, EngineConfig
from energylm.config.negatives import NegativesConfig
from energylm.data.affix import cut_lengths, split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives_draft import (
    State,
    abandon_draft,
    begin_draft,
    finish_draft,
    found_negatives,
    recorded_negatives,
)
from energylm.data.negatives_manifest import DRAFT_FILE, CorpusRecord, GeneratorRecord, NegativesManifest
from energylm.data.negatives_shards import write_shard
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import DataError, EnergyLMError
from energylm.files import disk_full_is_said, folder_lock, read_json
from energylm.jobs.engine import Pool, open_engine
from energylm.pipelines.negatives_worker import ContextBlock, NegativesWorker, other_tokens
from energylm.progress import progress, say

__all__ = ["NegativesConfig", "NegativesPlan", "NegativesRun", "make_negatives", "plan_negatives"]


@dataclass(frozen=True)
class NegativesRun:
    """What came of it. Tokens per second are those of this session; None if it had nothing to do."""

    folder: Path
    manifest: NegativesManifest
    seconds: float
    tokens_per_second: float | None

    @property
    def was_finished(self) -> bool:
        return self.tokens_per_second is None

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "contexts": self.manifest.contexts,
            "tokens": self.manifest.tokens,
            "identity": self.manifest.identity,
            "generator_sha256": self.manifest.generator.sha256,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "was_finished": self.was_finished,
        }


@dataclass(frozen=True)
class NegativesPlan:
    """What would be generated, and what is found at the output."""

    manifest: NegativesManifest  # without the shards that are yet to be made
    state: State
    tokens: int  # to generate, all blocks together, at most
    blocks: int

    @property
    def finished_blocks(self) -> int:
        return len(self.manifest.shards)

    def describe(self, config: NegativesConfig, output: Path) -> str:
        what = {
            "new": "would generate",
            "interrupted": f"would go on after {self.finished_blocks} of {self.blocks} blocks of",
            "finished": "is up to date: would do nothing:",
            "damaged": f"is damaged: would repair {self.blocks - self.finished_blocks} of {self.blocks} blocks of",
            "other": "holds other negatives: would need --overwrite for",
        }[self.state]
        lengths = " or ".join(map(str, config.context_lengths))
        return (
            f"{output}: {what} {config.k} continuations of {self.manifest.contexts:,} contexts of {lengths} tokens up "
            f"to {config.length} ({config.split} of {config.corpus}), at most {self.tokens:,} tokens, by {config.lm}"
        )


def plan_negatives(config: NegativesConfig, *, output: Path | str) -> NegativesPlan:
    """Check the inputs and look at the output. Writes nothing and loads no network."""
    corpus = Corpus.open(config.corpus)
    location = locate(config.lm)
    if tokenizer_sha256(load_tokenizer(location)) != corpus.manifest.tokenizer.sha256:
        raise other_tokens(config)
    contexts = _Contexts(config, corpus)
    planned = NegativesManifest.planned(
        config,
        generator=GeneratorRecord(name=_name(location), sha256=weights_sha256(config.lm)),
        corpus=CorpusRecord(
            name=corpus.folder.name, identity=corpus.manifest.identity, end_token_id=corpus.end_token_id
        ),
        contexts=len(contexts.window_N),
    )
    manifest, state = found_negatives(planned, Path(output))
    return NegativesPlan(manifest, state, tokens=sum(contexts.block_tokens), blocks=len(contexts.blocks))


def make_negatives(
    config: NegativesConfig, *, output: Path | str, overwrite: bool = False, engine: EngineConfig = HERE
) -> NegativesRun:
    """Make the negatives folder `output`, or finish it. `overwrite` replaces negatives that were made otherwise."""
    output = Path(output)
    plan = plan_negatives(config, output=output)
    if plan.state == "finished":
        say(f"{output} is up to date: nothing to do")
        return NegativesRun(output, plan.manifest, seconds=0.0, tokens_per_second=None)
    if plan.state == "other" and not overwrite:
        changed = plan.manifest.changes_to(recorded_negatives(output))
        raise DataError(
            f"{output} holds negatives made otherwise (changed: {changed}); choose another --output, or say --overwrite"
        )
    corpus, place = Corpus.open(config.corpus), absolute_place(config.lm)
    tokens = {"tokenizer": corpus.manifest.tokenizer.sha256, "end_token_id": corpus.end_token_id}
    load = partial(NegativesWorker, place, config, **tokens)
    with open_engine(engine) as opened, opened.pool(load, models=[place]) as pool:
        pool.facts()  # what is wrong with the model is said before anything is written
        if not config.truncation.is_identity:
            say(
                "these negatives come from a narrowed proposal: an energy trained on them corrects that proposal, "
                "not the language model; leave out top-k, top-p and temperature for a residual energy"
            )
        with disk_full_is_said(output), folder_lock(output):
            plan = plan_negatives(config, output=output)  # another process may have worked here before we held it
            return _generate(plan, _Contexts(config, corpus), pool, output)


def _generate(plan: NegativesPlan, contexts: "_Contexts", pool: Pool, output: Path) -> NegativesRun:
    """Make the blocks that are missing. The draft lists what is finished until the manifest takes its place."""
    started, before = time.perf_counter(), plan.manifest
    if before.shards:
        say(f"going on after {plan.finished_blocks} of {plan.blocks} blocks")
    begin_draft(before, output)
    finished = {shard.file for shard in before.shards}
    missing = [number for number in range(plan.blocks) if _shard_name(number) not in finished]
    manifest = before
    try:
        with progress("generating", total=sum(contexts.block_tokens[n] for n in missing), unit="token") as bar:
            for number, rows in zip(missing, pool.run(map(contexts.block, missing), progress=bar), strict=True):
                shard = write_shard(output / _shard_name(number), rows, identity=manifest.identity)
                manifest = manifest.with_shard(shard)
                manifest.save(output, file=DRAFT_FILE)
    except EnergyLMError:
        abandon_draft(output)
        raise
    finish_draft(manifest, output)
    seconds = time.perf_counter() - started
    return NegativesRun(output, manifest, seconds, tokens_per_second=(manifest.tokens - before.tokens) / seconds)


def _shard_name(number: int) -> str:
    return f"block-{number:05}.parquet"


class _Contexts:
    """Which windows are continued, in which blocks."""

    def __init__(self, config: NegativesConfig, corpus: Corpus) -> None:
        self._config = config
        self.windows = Windows(
            corpus, config.split, length=config.length, stride=config.stride, documents=config.documents
        )
        wanted = len(self.windows) if config.contexts is None else min(config.contexts, len(self.windows))
        # Ascending, so that a block reads a stretch of the corpus, not all of it.
        self.window_N = np.sort(self.windows.choose(wanted, seed=config.seed))
        starts = range(0, wanted, config.block_contexts)
        self.blocks = [slice(start, min(start + config.block_contexts, wanted)) for start in starts]
        new_tokens_N = (config.length - _cuts(self.window_N, config)) * config.k
        self.block_tokens = [int(new_tokens_N[block].sum()) for block in self.blocks]

    def block(self, number: int) -> ContextBlock:
        window_B = self.window_N[self.blocks[number]]
        cut_B = _cuts(window_B, self._config)
        return ContextBlock(
            window_B, cut_B, split_affix(self.windows.gather(window_B), cut_B, side=self._config.side).contexts
        )


def _cuts(window_B: NDArray[np.int64], config: NegativesConfig) -> NDArray[np.int64]:
    return cut_lengths(window_B, seed=config.seed, choices=config.context_lengths)


def _name(location: Path | str) -> str:
    """What a model calls itself, or else the name of its folder, file or hub entry."""
    manifest = Path(location) / MODEL_MANIFEST
    named = read_json(manifest) if manifest.is_file() else {}
    return str(named.get("name", Path(location).name))
