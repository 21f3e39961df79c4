"""Generate k continuations of many contexts, in blocks: `energylm negatives`. Resumable; a second run is a no-op.

A block of contexts becomes a Parquet shard, whole or not at all, and is then listed in the draft; a killed run goes on
after the last one and ends in the same bytes. The random numbers of a continuation depend on (seed, window, copy) only:
neither the size of blocks nor the cap on contexts changes what is drawn for a window.

Relations  `samplers.continuations` draws; `data.negatives` reads the folder; `pipelines.train_energy` learns from it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import MANIFEST as MODEL_MANIFEST
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT
from energylm.config.negatives import NegativesConfig
from energylm.data.affix import cut_lengths, split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives_draft import State, begin_draft, finish_draft, found_negatives, recorded_negatives
from energylm.data.negatives_manifest import DRAFT_FILE, CorpusRecord, GeneratorRecord, NegativesManifest
from energylm.data.negatives_shards import NegativeRows, write_shard
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.files import disk_full_is_said, folder_lock, read_json
from energylm.models.causal import reversed_within
from energylm.progress import Progress, progress, say
from energylm.randomness import derive_seed
from energylm.samplers.continuations import Continuations, sample_continuations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
    if isinstance(location, str) or location.is_dir():  # a GGUF file shows its tokenizer only when it is converted
        _refuse_other_tokens(load_tokenizer(location), config, corpus)
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


def make_negatives(config: NegativesConfig, *, output: Path | str, overwrite: bool = False) -> NegativesRun:
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
    corpus = Corpus.open(config.corpus)
    generator = _Generator(config, LanguageModel.from_pretrained(config.lm), corpus)
    if not config.truncation.is_identity:
        say(
            "these negatives come from a narrowed proposal: an energy trained on them corrects that proposal, "
            "not the language model; leave out top-k, top-p and temperature for a residual energy"
        )
    with disk_full_is_said(output), folder_lock(output):
        plan = plan_negatives(config, output=output)  # another process may have worked here before we held the folder
        return _generate(plan, _Contexts(config, corpus), generator, output)


def _generate(plan: NegativesPlan, contexts: "_Contexts", generator: "_Generator", output: Path) -> NegativesRun:
    """Make the blocks that are missing. The draft lists what is finished until the manifest takes its place."""
    started, before = time.perf_counter(), plan.manifest
    if before.shards:
        say(f"going on after {plan.finished_blocks} of {plan.blocks} blocks")
    begin_draft(before, output)
    finished = {shard.file for shard in before.shards}
    missing = [number for number in range(plan.blocks) if _shard_name(number) not in finished]
    manifest = before
    with progress("generating", total=sum(contexts.block_tokens[n] for n in missing), unit="token") as bar:
        for number in missing:
            block = generator.continue_windows(contexts.window_N[contexts.blocks[number]], contexts.windows, bar)
            shard = write_shard(output / _shard_name(number), block, identity=manifest.identity)
            manifest = manifest.with_shard(shard)
            manifest.save(output, file=DRAFT_FILE)
    finish_draft(manifest, output)
    seconds = time.perf_counter() - started
    return NegativesRun(output, manifest, seconds, tokens_per_second=(manifest.tokens - before.tokens) / seconds)


def _shard_name(number: int) -> str:
    return f"block-{number:05}.parquet"


class _Contexts:
    """Which windows are continued, in which blocks."""

    def __init__(self, config: NegativesConfig, corpus: Corpus) -> None:
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


class _Generator:
    """The language model, and how it continues windows."""

    def __init__(self, config: NegativesConfig, lm: LanguageModel, corpus: Corpus) -> None:
        self.config, self.lm = config, lm
        _refuse_other_tokens(lm.tokenizer, config, corpus)
        wanted = LEFT_TO_RIGHT if config.side == "suffix" else RIGHT_TO_LEFT
        if lm.model.direction != wanted:
            other = "prefix" if config.side == "suffix" else "suffix"
            raise ModelError(
                f"{config.lm} writes {lm.model.direction}, so it cannot write a {config.side}; "
                f"say --side {other}, or give a {wanted} model"
            )
        if config.stop_at_eos and lm.eos_token_id != corpus.end_token_id:
            raise VocabularyMismatch(
                f"{config.lm} ends texts with token {lm.eos_token_id}, the corpus with {corpus.end_token_id}; "
                "generate a fixed length (stop_at_eos=false)"
            )
        if lm.model.max_length is not None and config.length > lm.model.max_length:
            raise ModelError(
                f"{config.lm} holds {lm.model.max_length} tokens, not the {config.length} of a window; "
                "set a shorter --length"
            )
        self.decoder = lm.decoder()

    def continue_windows(self, window_B: NDArray[np.int64], windows: Windows, bar: Progress) -> NegativeRows:
        """k continuations of each window. Windows with contexts of one length travel together."""
        config = self.config
        cut_B = _cuts(window_B, config)
        contexts = split_affix(windows.gather(window_B), cut_B, side=config.side).contexts
        shape = (len(window_B), config.k)
        tokens_BKT = np.zeros((*shape, config.length - int(cut_B.min())), dtype=np.int64)
        rows = NegativeRows(window_B, cut_B, tokens_BKT, np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))
        for cut in np.unique(cut_B):
            members = np.flatnonzero(cut_B == cut)
            drawn = self._draw([contexts[row] for row in members], window_B[members], config.length - int(cut), bar)
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
            n=self.config.k,
            max_new_tokens=new_tokens,
            truncation=self.config.truncation,
            eos_token_id=self.lm.eos_token_id if self.config.stop_at_eos else None,
            seed=derive_seed(self.config.seed, "negatives"),
            context_indices=window_B.tolist(),
            progress=bar,
        )
        return replace(drawn, tokens=reversed_within(drawn.tokens, drawn.lengths)) if backwards else drawn


def _cuts(window_B: NDArray[np.int64], config: NegativesConfig) -> NDArray[np.int64]:
    return cut_lengths(window_B, seed=config.seed, choices=config.context_lengths)


def _refuse_other_tokens(tokenizer: "PreTrainedTokenizerFast", config: NegativesConfig, corpus: Corpus) -> None:
    if tokenizer_sha256(tokenizer) != corpus.manifest.tokenizer.sha256:
        raise VocabularyMismatch(
            f"{config.lm} reads other tokens than {config.corpus} holds; build the corpus with --tokenizer {config.lm}"
        )


def _name(location: Path | str) -> str:
    """What a model calls itself, or else the name of its folder, file or hub entry."""
    manifest = Path(location) / MODEL_MANIFEST
    named = read_json(manifest) if manifest.is_file() else {}
    return str(named.get("name", Path(location).name))
