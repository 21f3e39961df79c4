"""k continuations of many contexts, in blocks: the work of `energylm negatives`. Resumable; a second run is a no-op.

A block of contexts becomes a Parquet shard, whole or not at all, and is then listed in the draft; a killed run goes on
after the last one and ends in the same bytes, on any engine. The contexts travel with the block, so a worker needs the
model and nothing else. The random numbers of a continuation depend on (seed, window, copy) only: neither the size of
blocks nor the cap on contexts changes what is drawn for a window.

Relations  `samplers.continuations` draws; `data.negatives` reads the folder; `training_energy` learns from it.
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.known_models import absolute_place, locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import MANIFEST as MODEL_MANIFEST
from energylm.bundles.model_folder import weights_sha256
from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT
from energylm.data.contrast import cut_lengths, split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives_manifest import (
    DRAFT_FILE,
    CorpusRecord,
    GeneratorRecord,
    NegativesManifest,
    State,
    abandon_draft,
    begin_draft,
    existing_negatives,
    finish_draft,
    recorded_negatives,
)
from energylm.data.negatives_shards import NegativeRows, write_shard
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import DataError, EnergyLMError, ModelError, VocabularyMismatch
from energylm.files import disk_full_is_said, folder_lock, read_json
from energylm.jobs.engine import Pool, open_engine
from energylm.jobs.job import Job
from energylm.models.causal import reversed_within
from energylm.progress import Progress, progress, say
from energylm.randomness import derive_seed
from energylm.records import LOCAL, Record
from energylm.samplers.continuations import Continuations, sample_continuations
from energylm.verbs.joint.negatives import MakeNegatives


@dataclass(frozen=True, repr=False)
class NegativesResult(Record):
    """What came of it. Tokens per second are those of this session; None if it had nothing to do."""

    contexts: int
    tokens: int  # generated, over all continuations
    identity: str  # of settings, model and corpus
    generator_sha256: str
    seconds: float
    tokens_per_second: float | None
    folder: Path | None = field(default=None, metadata=LOCAL)

    computed = ("was_finished",)

    @property
    def was_finished(self) -> bool:
        return self.tokens_per_second is None

    @classmethod
    def of(cls, folder: Path, made: NegativesManifest, *, seconds: float = 0.0, drawn: int = 0) -> "NegativesResult":
        """`drawn` tokens are of this session, the others were there."""
        speed = drawn / seconds if seconds else None
        return cls(made.contexts, made.tokens, made.identity, made.generator.sha256, seconds, speed, folder)


@dataclass(frozen=True)
class NegativesPlan:
    """What would be generated, and what there is at the output."""

    manifest: NegativesManifest  # without the shards that are yet to be made
    state: State
    tokens: int  # to generate, all blocks together, at most
    blocks: int

    @property
    def finished_blocks(self) -> int:
        return len(self.manifest.shards)

    def describe(self, verb: MakeNegatives, output: Path) -> str:
        what = {
            "new": "would generate",
            "interrupted": f"would go on after {self.finished_blocks} of {self.blocks} blocks of",
            "finished": "is up to date: would do nothing:",
            "damaged": f"is damaged: would repair {self.blocks - self.finished_blocks} of {self.blocks} blocks of",
            "other": "holds other negatives: would need --overwrite for",
        }[self.state]
        lengths = " or ".join(map(str, verb.prefix_tokens))
        return (
            f"{output}: {what} {verb.k} continuations of {self.manifest.contexts:,} contexts of {lengths} tokens up "
            f"to {verb.length} ({verb.split} of {verb.corpus}), at most {self.tokens:,} tokens, by "
            f"{verb.language_model}"
        )


def plan_negatives(verb: MakeNegatives, output: Path) -> NegativesPlan:
    """Check the inputs and look at the output. Writes nothing and loads no network."""
    corpus = Corpus.open(verb.corpus)
    location = locate(verb.language_model)
    if tokenizer_sha256(load_tokenizer(location)) != corpus.manifest.tokenizer.sha256:
        raise _other_tokens(verb)
    contexts = _Contexts(verb, corpus)
    planned = NegativesManifest.planned(
        verb,
        generator=GeneratorRecord(name=_name(location), sha256=weights_sha256(verb.language_model)),
        corpus=CorpusRecord(
            name=corpus.folder.name, identity=corpus.manifest.identity, end_token_id=corpus.end_token_id
        ),
        contexts=len(contexts.window_N),
    )
    manifest, state = existing_negatives(planned, output)
    return NegativesPlan(manifest, state, tokens=sum(contexts.block_tokens), blocks=len(contexts.blocks))


def write_negatives(verb: MakeNegatives, job: Job) -> NegativesResult:
    """Make the negatives folder, or finish it. `job.overwrite` replaces negatives that were made otherwise."""
    output = job.folder
    plan = plan_negatives(verb, output)
    if plan.state == "finished":
        say(f"{output} is up to date: nothing to do")
        return NegativesResult.of(output, plan.manifest)
    if plan.state == "other" and not job.overwrite:
        changed = plan.manifest.changes_to(recorded_negatives(output))
        raise DataError(
            f"{output} holds negatives made otherwise (changed: {changed}); choose another --output, or say --overwrite"
        )
    corpus, path = Corpus.open(verb.corpus), absolute_place(verb.language_model)
    load = partial(
        NegativesWorker, path, verb, tokenizer=corpus.manifest.tokenizer.sha256, end_token_id=corpus.end_token_id
    )
    with open_engine(job.engine) as opened, opened.pool(load, models=[path]) as pool:
        pool.facts()  # what is wrong with the model is said before anything is written
        if not verb.truncation.is_identity:
            say(
                "these negatives come from a narrowed proposal: an energy trained on them corrects that proposal, "
                "not the language model; leave out top-k, top-p and temperature for a residual energy"
            )
        with disk_full_is_said(output), folder_lock(output):
            plan = plan_negatives(verb, output)  # another process may have worked here before we held it
            return _generate(plan, _Contexts(verb, corpus), pool, output)


def _generate(plan: NegativesPlan, contexts: "_Contexts", pool: Pool, output: Path) -> NegativesResult:
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
    return NegativesResult.of(output, manifest, seconds=seconds, drawn=manifest.tokens - before.tokens)


def _shard_name(number: int) -> str:
    return f"block-{number:05}.parquet"


@dataclass(frozen=True)
class ContextBlock:
    """Windows of a corpus, cut where the generated part begins."""

    window_B: NDArray[np.int64]
    cut_B: NDArray[np.int64]
    contexts: list[NDArray[np.int64]]


class _Contexts:
    """Which windows are continued, in which blocks."""

    def __init__(self, verb: MakeNegatives, corpus: Corpus) -> None:
        self._verb = verb
        self.windows = Windows(corpus, verb.split, length=verb.length, stride=verb.stride, documents=verb.documents)
        wanted = len(self.windows) if verb.contexts is None else min(verb.contexts, len(self.windows))
        # Ascending, so that a block reads a stretch of the corpus, not all of it.
        self.window_N = np.sort(self.windows.choose(wanted, seed=verb.seed))
        starts = range(0, wanted, verb.block_contexts)
        self.blocks = [slice(start, min(start + verb.block_contexts, wanted)) for start in starts]
        new_tokens_N = (verb.length - _cuts(self.window_N, verb)) * verb.k
        self.block_tokens = [int(new_tokens_N[block].sum()) for block in self.blocks]

    def block(self, number: int) -> ContextBlock:
        window_B = self.window_N[self.blocks[number]]
        cut_B = _cuts(window_B, self._verb)
        return ContextBlock(
            window_B, cut_B, split_affix(self.windows.gather(window_B), cut_B, side=self._verb.side).contexts
        )


def _cuts(window_B: NDArray[np.int64], verb: MakeNegatives) -> NDArray[np.int64]:
    return cut_lengths(window_B, seed=verb.seed, choices=verb.prefix_tokens)


class NegativesWorker:
    """k continuations of each window of a block, as the rows of a shard."""

    def __init__(self, path: str, verb: MakeNegatives, *, tokenizer: str, end_token_id: int) -> None:
        """`path` is where the model lies; `tokenizer` (a hash) and `end_token_id` are the corpus's."""
        self.verb, self.lm = verb, LanguageModel.from_pretrained(path)
        self._check(tokenizer, end_token_id)
        if verb.documents == "within":  # the real continuations hold no special token, so neither must these
            self.lm = self.lm.without_special_tokens()
        self.decoder = self.lm.decoder()

    def facts(self) -> Mapping[str, Any]:
        return {"name": self.lm.name}

    def __call__(self, block: ContextBlock, *, progress: Progress) -> NegativeRows:
        """Windows with contexts of one length travel together."""
        length, shape = self.verb.length, (len(block.window_B), self.verb.k)
        tokens_BKT = np.zeros((*shape, length - int(block.cut_B.min())), dtype=np.int64)
        rows = NegativeRows(
            block.window_B, block.cut_B, tokens_BKT, np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        )
        for cut in np.unique(block.cut_B):
            members = np.flatnonzero(block.cut_B == cut)
            contexts = [block.contexts[row] for row in members]
            drawn = self._draw(contexts, block.window_B[members], length - int(cut), progress)
            rows.tokens_BKT[members, :, : drawn.tokens.shape[2]] = drawn.tokens.numpy()
            rows.length_BK[members] = drawn.lengths.numpy()
            rows.log_prob_BK[members] = drawn.log_prob.numpy()
            rows.proposal_log_prob_BK[members] = drawn.proposal_log_prob.numpy()
        return rows

    def _draw(
        self, contexts: Sequence[NDArray[np.int64]], window_B: NDArray[np.int64], new_tokens: int, bar: Progress
    ) -> Continuations:
        backwards = self.lm.model.direction == RIGHT_TO_LEFT
        given = [self.lm.codec.context(context.tolist()) for context in contexts]  # an empty one is the start token
        drawn = sample_continuations(
            self.decoder,
            [ids[::-1] for ids in given] if backwards else given,
            n=self.verb.k,
            max_new_tokens=new_tokens,
            truncation=self.verb.truncation,
            eos_token_id=self.lm.eos_token_id if self.verb.stop_at_eos else None,
            seed=derive_seed(self.verb.seed, "negatives"),
            context_indices=window_B.tolist(),
            progress=bar,
        )
        return replace(drawn, tokens=reversed_within(drawn.tokens, drawn.lengths)) if backwards else drawn

    def _check(self, tokenizer: str, end_token_id: int) -> None:
        verb, lm = self.verb, self.lm
        if tokenizer_sha256(lm.tokenizer) != tokenizer:
            raise _other_tokens(verb)
        wanted = LEFT_TO_RIGHT if verb.side == "suffix" else RIGHT_TO_LEFT
        if lm.model.direction != wanted:
            other = "prefix" if verb.side == "suffix" else "suffix"
            raise ModelError(
                f"{verb.language_model} writes {lm.model.direction}, so it cannot write a {verb.side}; "
                f"say --side {other}, or give a {wanted} model"
            )
        if verb.stop_at_eos and lm.eos_token_id != end_token_id:
            raise VocabularyMismatch(
                f"{verb.language_model} ends texts with token {lm.eos_token_id}, the corpus with {end_token_id}; "
                "generate a fixed length (stop_at_eos=false)"
            )
        if lm.model.max_length is not None and verb.length > lm.model.max_length:
            raise ModelError(
                f"{verb.language_model} holds {lm.model.max_length} tokens, not the {verb.length} of a window; "
                "set a shorter --length"
            )


def _other_tokens(verb: MakeNegatives) -> VocabularyMismatch:
    return VocabularyMismatch(
        f"{verb.language_model} reads other tokens than {verb.corpus} holds; build the corpus with --tokenizer "
        f"{shlex.quote(verb.language_model)}"
    )


def _name(location: Path | str) -> str:
    """What a model calls itself, or else the name of its folder, file or hub entry."""
    manifest = Path(location) / MODEL_MANIFEST
    named = read_json(manifest) if manifest.is_file() else {}
    return str(named.get("name", Path(location).name))
