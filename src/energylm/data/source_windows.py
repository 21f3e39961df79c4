"""Windows of a corpus (chosen at random) or of a text file (evenly spaced), as token ids of a language model.

Every verb that measures or continues windows takes them from here, so that the same source, length and seed mean the
same windows everywhere.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from energylm.data.corpus import Corpus
from energylm.data.text_files import existing, read_whole
from energylm.data.tokenizer import plain_encoder, tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import DataError, VocabularyMismatch
from energylm.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class SourceWindows:
    source: str  # a corpus folder, or a text or JSONL file
    length: int
    contexts: int  # windows
    seed: int
    split: str = "test"
    field: str = "text"
    documents: Literal["packed", "within"] = "within"

    @property
    def is_corpus(self) -> bool:
        return Path(self.source).is_dir()

    def check(self) -> str:
        """Find the windows without loading a model; which they are, in words."""
        existing(self.source)
        if not self.is_corpus:
            return f"{self.contexts} windows of {self.source}"
        available = len(self._of_corpus())
        return f"{min(self.contexts, available)} of {available:,} windows of {self.source} ({self.split})"

    def load(self, tokenizer: "PreTrainedTokenizerFast", *, model: str) -> list[list[int]]:
        """Token ids of each window. `model` is the language model's name, for messages."""
        if not self.is_corpus:
            path = Path(self.source)
            tokens = plain_encoder(tokenizer).encode(read_whole(path, field=self.field), add_special_tokens=False).ids
            return even_windows(tokens, windows=self.contexts, length=self.length, file=path)
        corpus = Corpus.open(self.source)
        if corpus.manifest.tokenizer.sha256 != tokenizer_sha256(tokenizer):
            raise VocabularyMismatch(
                f"{self.source} is tokenised with {corpus.vocabulary_size:,} tokens of its own but {model} reads its "
                f"{len(tokenizer):,}; build the corpus with --tokenizer {shlex.quote(model)}, or give a text file"
            )
        windows = self._of_corpus()
        chosen = windows.choose(self.contexts, seed=self.seed)
        if len(chosen) < self.contexts:
            say(
                f"energylm: {self.source} has {len(chosen)} windows of {self.length} tokens, {self.contexts} were "
                "asked for"
            )
        ids: list[list[int]] = windows.gather(chosen).tolist()
        return ids

    def describe(self, count: int) -> str:
        """Which `count` windows were measured, for the convention of a table."""
        how = f"{self.split}, documents {self.documents}" if self.is_corpus else "evenly spaced"
        return f"{count} windows of {self.length} tokens of {Path(self.source).name} ({how})"

    def _of_corpus(self) -> Windows:
        return Windows(Corpus.open(self.source), self.split, length=self.length, documents=self.documents)


def even_windows(tokens: Sequence[int], *, windows: int, length: int, file: Path | str) -> list[list[int]]:
    """Windows that do not overlap, from the very beginning to the very end of `tokens`."""
    if len(tokens) < windows * length:
        raise DataError(
            f"{file} has {len(tokens):,} tokens, {windows} windows of {length} need {windows * length:,}; "
            "ask for fewer or shorter windows"
        )
    starts = [number * (len(tokens) - length) // max(windows - 1, 1) for number in range(windows)]
    return [list(tokens[start : start + length]) for start in starts]
