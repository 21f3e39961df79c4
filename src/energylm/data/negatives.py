"""A folder of pre-generated negatives, opened: continuations of corpus windows by a language model, read by row.

Deng et al. 2020 §4.1 generate 16 or 128 continuations of each context once and draw from them in training. A row is a
context: the window it comes from, how much of it was given, and its k continuations. Only the manifest is read on
opening; a shard is compared with its SHA-256 before it is first read, once in a process; row groups are decoded when
touched and kept within a budget of memory.

Relations  `negatives_manifest` is the provenance, `negatives_shards` the files, `contrast` puts real text beside the
           generated; `verbs.joint.negatives` makes a folder.
"""

import shlex
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from energylm.config.texts import NegativesSettings
from energylm.data.corpus import Corpus
from energylm.data.manifest import TOKENIZER_FOLDER, check_shard
from energylm.data.negatives_manifest import NegativesManifest, NegativesShard, read_negatives_manifest
from energylm.data.negatives_shards import ROWS_PER_GROUP, NegativeRows, read_group, read_windows
from energylm.data.windows import Windows
from energylm.errors import ConfigError, DataError, VocabularyMismatch

CACHE_BYTES = 256 << 20
_CURE = "run the same `energylm negatives` to repair it"


class Negatives:
    """`Negatives.open(folder)`; `len()` contexts; `rows(indices)`."""

    def __init__(self, folder: Path, manifest: NegativesManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._begins = np.concatenate([[0], np.cumsum([shard.contexts for shard in manifest.shards], dtype=np.int64)])
        self._groups: OrderedDict[tuple[int, int], NegativeRows] = OrderedDict()  # decoded, least recently used first
        self._cached_bytes = 0

    @classmethod
    def open(cls, folder: Path | str) -> "Negatives":
        """Open finished negatives; a missing shard is noticed here, a changed byte when its shard is first read."""
        folder = Path(folder)
        manifest = read_negatives_manifest(folder)
        for shard in manifest.shards:
            if not (folder / shard.file).is_file():
                raise DataError(f"{folder / shard.file} is missing; {_CURE}")
        return cls(folder, manifest)

    def __len__(self) -> int:
        return self.manifest.contexts

    @property
    def k(self) -> int:
        """Continuations of each context."""
        return self.config.k

    @cached_property
    def config(self) -> NegativesSettings:
        return self.manifest.config

    @cached_property
    def windows(self) -> NDArray[np.int64]:
        """(N,): the window number of every row."""
        return np.concatenate([read_windows(self._checked(shard)) for shard in self.manifest.shards])

    def corpus_windows(self, corpus: Corpus) -> Windows:
        """The windows that `window_B` counts."""
        own = self.config
        return Windows(corpus, own.split, length=own.length, stride=own.stride, documents=own.documents)

    def rows(self, indices: NDArray[np.int64]) -> NegativeRows:
        """The rows `indices`, in any order."""
        indices_B = np.asarray(indices, dtype=np.int64)
        if indices_B.size and (indices_B.min() < 0 or indices_B.max() >= len(self)):
            raise IndexError(f"rows must lie in [0, {len(self)})")
        shard_B = np.searchsorted(self._begins, indices_B, side="right") - 1
        group_B, within_B = np.divmod(indices_B - self._begins[shard_B], ROWS_PER_GROUP)
        wanted, which_B = np.unique(np.stack([shard_B, group_B]), axis=1, return_inverse=True)
        members = [np.flatnonzero(which_B == number) for number in range(wanted.shape[1])]
        parts = [
            self._group(shard, group).take(within_B[of_group])
            for of_group, (shard, group) in zip(members, wanted.T.tolist(), strict=True)
        ]
        return NegativeRows.joined(parts).take(np.argsort(np.concatenate(members)))

    def check(self, *, corpus: Corpus | None = None, generator_sha256: str | None = None) -> None:
        """Whether these negatives belong to `corpus` and to the language model with these weights."""
        made_from, made_by = self.manifest.corpus, self.manifest.generator
        if corpus is not None and corpus.manifest.identity != made_from.identity:
            raise DataError(
                f"the negatives in {self.folder} continue texts of a corpus {made_from.name!r} with identity "
                f"{made_from.identity}, but {corpus.folder} has {corpus.manifest.identity}; give the corpus they were "
                "made from, or make them again: energylm negatives"
            )
        if generator_sha256 is not None and generator_sha256 != made_by.sha256:
            raise DataError(
                f"the negatives in {self.folder} were written by {made_by.name!r} with weights {made_by.sha256}, but "
                f"the language model given has {generator_sha256}; give the model that wrote them, or make them again: "
                "energylm negatives"
            )

    def verify(self) -> None:
        """Read every shard, again if need be, and compare its SHA-256 with the manifest."""
        for shard in self.manifest.shards:
            self._checked(shard, again=True)

    def _checked(self, shard: NegativesShard, *, again: bool = False) -> Path:
        check_shard(self.folder / shard.file, shard.sha256, cure=_CURE, again=again)
        return self.folder / shard.file

    def _group(self, shard: int, group: int) -> NegativeRows:
        key = (shard, group)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        rows = read_group(self._checked(self.manifest.shards[shard]), group)
        self._groups[key] = rows
        self._cached_bytes += rows.bytes
        while self._cached_bytes > CACHE_BYTES and len(self._groups) > 1:
            self._cached_bytes -= self._groups.popitem(last=False)[1].bytes
        return rows


class NegativesSource(NamedTuple):
    """Negatives, and the corpus of their real texts."""

    negatives: Negatives
    corpus: Corpus


def paired_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[NegativesSource, ...]:
    """Folders of negatives with the corpus of each (or one for all)."""
    if len(corpora) not in (1, len(negatives)):
        raise ConfigError(
            f"{len(corpora)} corpora came for {len(negatives)} folders of negatives; give one for all, or one for each "
            "in the same order"
        )
    opened = {folder: Corpus.open(folder) for folder in corpora}
    of_each = corpora if len(corpora) == len(negatives) else list(corpora) * len(negatives)
    return tuple(
        NegativesSource(Negatives.open(folder), opened[corpus])
        for folder, corpus in zip(negatives, of_each, strict=True)
    )


def open_negatives_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[NegativesSource, ...]:
    """Different folders of negatives, each with the corpus that they were made from, all of one tokenizer."""
    sources = paired_sources(negatives, corpora)
    opened = [source.corpus for source in sources]
    for corpus in opened[1:]:
        if corpus.manifest.tokenizer.sha256 != opened[0].manifest.tokenizer.sha256:
            raise VocabularyMismatch(
                f"the corpora {opened[0].folder} and {corpus.folder} have different tokenizers, but one energy reads "
                "one; build the second, and then its negatives, with "
                f"--tokenizer {shlex.quote(str(opened[0].folder / TOKENIZER_FOLDER))}"
            )
    for source in sources:
        source.negatives.check(corpus=source.corpus)
    for first, second in combinations([source.negatives for source in sources], 2):
        if first.manifest.identity == second.manifest.identity:
            raise ConfigError(f"{first.folder} and {second.folder} are the same negatives; name them once")
    return sources
