"""Documents → pieces of text → tokens: bounded memory, all cores, no Python work per token.

Text is cut into pieces, pieces are gathered into batches of about a megabyte, and a batch is encoded by one call into
Rust. Bookkeeping is per piece; splitting a batch over train, valid and test is array arithmetic. Of every batch a
little is read again to see whether the tokenizer has tokens for its characters at all.

The tokens of the pieces, joined, are the tokens of the whole text. A byte-level tokenizer first splits text into words
by a regular expression, then merges bytes inside words; pieces give the same tokens as the whole where the cut is a
word boundary that the expression finds in both. We cut

    before a single space between two non-spaces:   "so|␣it␣goes"

Why this is exact, for the expressions of GPT-2 and of GPT-4 / Llama-3 / Qwen (`WORD_PATTERNS`): no alternative goes on
from a non-space over a space, so a word ends before the cut in the whole text as well; the only look-ahead,
`\\s+(?!\\S)`, belongs to runs of white space, and the space we cut at is a run of one that keeps its right neighbour;
nothing looks behind. The same holds after a single line break between two non-spaces. For any other tokenizer
`cuts_are_exact` is False and documents are encoded whole.
"""

import ctypes
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energylm.data.document import LEADING_CHARACTERS, SPLITS, Document, Split
from energylm.data.draft import PartWriter
from energylm.data.tokenizer import unread_characters
from energylm.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


PIECE_CHARACTERS = 1 << 14
_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\S\n)(?=\S)")
_MARGIN = 2  # characters that a cut looks ahead

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD_PATTERNS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        _CONTRACTION + r"\p{N}{1,3}" + _REST,  # GPT-4, Llama-3
        _CONTRACTION + r"\p{N}" + _REST,  # Qwen
    }
)


def cut_exactly(blocks: Iterable[str], *, piece_characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a text, given in blocks of any size, into pieces of about `piece_characters` at exact places."""
    text, start, searched = "", 0, 0  # text[start:] is not given out yet; there is no cut to use before `searched`
    for block in blocks:
        text, searched, start = text[start:] + block, searched - start, 0
        while len(text) - start > piece_characters:
            cut = _CUT.search(text, max(start + piece_characters, searched), len(text))
            if cut is None:
                searched = max(len(text) - _MARGIN, 0)
                break
            yield text[start : cut.start()]
            start = cut.start()
            searched = start
    if start < len(text):
        yield text[start:]


def cuts_are_exact(tokenizer: "Tokenizer") -> bool:
    """Whether the proof above covers this tokenizer: its splitting, its normaliser and its added tokens."""
    pipeline = json.loads(tokenizer.to_str())
    normalizer = pipeline["normalizer"]
    if normalizer is not None and normalizer["type"] != "NFC":  # composing never crosses a space or a line break
        return False
    if any(_may_cross_a_cut(token) for token in pipeline["added_tokens"] if not token["special"]):
        return False
    steps = _steps(pipeline["pre_tokenizer"])
    return any(_splits_words(step) for step in steps) and all(_is_covered(step) for step in steps)


def _may_cross_a_cut(added_token: dict[str, Any]) -> bool:
    content = added_token["content"]
    spaces_inside = not content.isspace() and re.search(r"\s", content) is not None
    return spaces_inside or added_token["lstrip"] or added_token["rstrip"] or added_token["single_word"]


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    return pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]


def _splits_words(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return step["pattern"].get("Regex") in WORD_PATTERNS and step["behavior"] == "Isolated" and not step["invert"]
    return step["type"] == "ByteLevel" and step["use_regex"] and not step["add_prefix_space"]


def _is_covered(step: dict[str, Any]) -> bool:
    """Beside splitting words: splitting digits apart, and mapping bytes to letters."""
    plain = step["type"] == "Digits" or (step["type"] == "ByteLevel" and not step["add_prefix_space"])
    return plain or _splits_words(step)


BATCH_BYTES = 1 << 20
SAMPLE_CHARACTERS = 1 << 12  # of a batch, in pieces of SAMPLE_PIECE, to see what the tokenizer can read
SAMPLE_PIECE = 1 << 8
MOST_UNREAD = 0.5  # a larger share of characters without a token: this is no tokenizer for this text
_CODES = {split: code for code, split in enumerate(SPLITS)}


@dataclass
class EncodedBatch:
    """Pieces of text in order: p is of split `codes[p]`, has `sizes[p]` bytes, ends a document if `lasts[p]`."""

    texts: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    lasts: list[bool] = field(default_factory=list)
    bytes: int = 0

    def add(self, text: str, *, split: Split, size: int, last: bool) -> None:
        self.texts.append(text)
        self.codes.append(_CODES[split])
        self.sizes.append(size)
        self.lasts.append(last)
        self.bytes += size


class PartReader:
    """Takes documents until `part_bytes` of text are read, in batches; counts what it took."""

    def __init__(
        self, documents: Iterator[Document], *, part_bytes: int, split_of_text: Callable[[str], Split], cut: bool
    ) -> None:
        self._documents, self._part_bytes, self._split_of, self._cut = documents, part_bytes, split_of_text, cut
        self.documents_read = self.empty_documents = self.bytes = 0

    def batches(self) -> Iterator[EncodedBatch]:
        batch = EncodedBatch()
        while self.bytes < self._part_bytes and (document := next(self._documents, None)) is not None:
            self.documents_read += 1
            for piece, split, last in self._pieces(document):
                size = _utf8_size(piece, document)
                self.bytes += size
                batch.add(piece, split=split, size=size, last=last)
                if batch.bytes >= BATCH_BYTES:
                    yield batch
                    batch = EncodedBatch()
        if batch.texts:
            yield batch

    def _pieces(self, document: Document) -> Iterator[tuple[str, Split, bool]]:
        blocks = iter(document.pieces)
        first = next(blocks, "")
        if is_empty(first):
            self.empty_documents += 1
            return
        split = split_of_document(first, document, self._split_of)
        pieces = cut_exactly(chain((first,), blocks)) if self._cut else iter((first + "".join(blocks),))
        piece = next(pieces)
        for following in pieces:
            yield piece, split, False
            piece = following
        yield piece, split, True


class Encoder:
    """Writes batches as tokens. One document may be open across batches; its count so far is kept here."""

    def __init__(self, tokenizer: "Tokenizer", *, end_token_id: int, unknown_id: int | None) -> None:
        self._tokenizer, self._end, self._unknown_id = tokenizer, end_token_id, unknown_id
        self.cuts = cuts_are_exact(tokenizer)
        self._open_bytes = self._unread = self._sampled = 0

    @property
    def unread_share(self) -> float:
        """Of the sampled characters, those that no token stands for."""
        return self._unread / self._sampled if self._sampled else 0.0

    def write(self, batch: EncodedBatch, part: PartWriter) -> None:
        self._check_reading(batch)
        tokens, lengths = self._encode(batch)
        give_back_freed_memory()
        codes = np.array(batch.codes)
        ends: list[list[tuple[int, int]]] = [[] for _ in SPLITS]
        written = [0] * len(SPLITS)
        for code, length, size, last in zip(batch.codes, lengths.tolist(), batch.sizes, batch.lasts, strict=True):
            written[code] += length
            self._open_bytes += size
            if last:
                ends[code].append((written[code], self._open_bytes))
                self._open_bytes = 0
        for code in np.unique(codes):
            part.write(SPLITS[code], tokens[np.repeat(codes == code, lengths)], ends[code])

    def _check_reading(self, batch: EncodedBatch) -> None:
        step = max(1, len(batch.texts) * SAMPLE_PIECE // SAMPLE_CHARACTERS)
        sample = [text[:SAMPLE_PIECE] for text in batch.texts[::step]]
        unread, total = unread_characters(self._tokenizer, sample, unknown_id=self._unknown_id)
        self._unread, self._sampled = self._unread + unread, self._sampled + total
        if self.unread_share > MOST_UNREAD:
            raise DataError(
                f"the tokenizer ({self._tokenizer.get_vocab_size():,} tokens) has no token for {self.unread_share:.0%} "
                "of the text's characters, so the corpus would not hold the text; give another tokenizer, or none to "
                "train one"
            )

    def _encode(self, batch: EncodedBatch) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All tokens of a batch, end-of-text included, and how many each piece has."""
        flat, lengths = array("I"), np.empty(len(batch.texts), dtype=np.int64)
        encodings = self._tokenizer.encode_batch_fast(batch.texts, add_special_tokens=False)
        for number, (encoding, last) in enumerate(zip(encodings, batch.lasts, strict=True)):
            before = len(flat)
            flat.fromlist(encoding.ids)
            if last:
                flat.append(self._end)
            lengths[number] = len(flat) - before
        return np.frombuffer(flat, dtype=np.uint32), lengths


def is_empty(first_piece: str) -> bool:
    """Whether a document that begins so holds no text. A blank piece that is long has others after it."""
    return not first_piece or (len(first_piece) < LEADING_CHARACTERS and first_piece.isspace())


def split_of_document(first_piece: str, document: Document, split_of_text: Callable[[str], Split]) -> Split:
    try:
        return split_of_text(first_piece)
    except UnicodeEncodeError as error:
        raise _lone_surrogate(document, error) from None


def _utf8_size(piece: str, document: Document) -> int:
    if piece.isascii():
        return len(piece)
    try:
        return len(piece.encode())
    except UnicodeEncodeError as error:
        raise _lone_surrogate(document, error) from None


def _lone_surrogate(document: Document, error: UnicodeEncodeError) -> DataError:
    broken = error.object[error.start]
    return DataError(
        f"{document.name}: U+{ord(broken):04X} is half a character (a lone surrogate), not text; mend its escapes"
    )


def give_back_freed_memory() -> None:
    """Return free heap pages to the operating system, where the C library can (glibc); elsewhere do nothing.

    Encoding a batch makes and frees many small objects from several threads; glibc keeps the holes, and a long build
    would seem to grow by about a megabyte for each megabyte of text. Trimming after every batch costs under 1 %.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
