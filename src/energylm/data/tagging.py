"""Tagged sentences for sequence models: words and tags from published files, as ids by what the training file holds.

    CoNLL-2003   a word a line with its part of speech, chunk and entity tag        → entities
    CoNLL-U      ten tab-separated columns a word (Universal Dependencies)          → composite tags UPOS/XPOS/FEATS

A blank line ends a sentence. The published CoNLL-2003 files tag in IOB1 (`B-` only where two entities of one type
touch); they are read in IOB2 (every entity begins with `B-`), which is what span scorers expect. Composite tags are
hundreds of fine tags, a stand-in for CCG supertags (goyal2021 ch. 4 and 5).

A word that comes less often than `least_count` is the unknown word. Tags are exactly those of the training file.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from energylm.data.text_files import decoded_lines
from energylm.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN = "<pad>", "<unk>"
_DOCUMENT_START = "-DOCSTART-"
_CONLL2003_COLUMNS, _CONLLU_COLUMNS = 4, 10


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence: as many tags as words."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.words) != len(self.tags):
            shown = " ".join(self.words[:5])
            raise DataError(
                f"the sentence {shown!r} … has {len(self.words)} words but {len(self.tags)} tags; one tag a word"
            )


def read_entities(path: Path | str) -> list[Tagged]:
    """CoNLL-2003: the entities of each sentence in IOB2; marks of documents are left out."""

    def word_and_tag(number: int, line: str) -> tuple[str, str] | None:
        columns = line.split()
        if columns[0] == _DOCUMENT_START:
            return None
        if len(columns) != _CONLL2003_COLUMNS:
            raise DataError(f"{path} line {number} has {len(columns)} columns, expected word, POS, chunk, entity")
        return columns[0], columns[3]

    return [Tagged(words, iob1_to_iob2(tags)) for words, tags in _sentences(path, word_and_tag)]


def read_composite_tags(path: Path | str) -> list[Tagged]:
    """CoNLL-U: UPOS, XPOS and FEATS of each word. Multiword spans (`3-4`) and empty nodes (`8.1`) repeat or add
    to the words of a sentence and are left out."""

    def word_and_tag(number: int, line: str) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        columns = line.split("\t")
        if len(columns) != _CONLLU_COLUMNS:
            raise DataError(
                f"{path} line {number} has {len(columns)} tab-separated columns, expected {_CONLLU_COLUMNS}"
            )
        return (columns[1], "/".join(columns[3:6])) if columns[0].isdecimal() else None

    return [Tagged(words, tags) for words, tags in _sentences(path, word_and_tag)]


def _sentences(
    path: Path | str, word_and_tag: Callable[[int, str], tuple[str, str] | None]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Words and tags of each sentence; `word_and_tag` reads a line, and gives None where it holds no word."""
    empty = True
    for is_blank, lines in groupby(decoded_lines(Path(path)), key=lambda numbered: not numbered[1].strip()):
        if not is_blank and (rows := [row for line in lines if (row := word_and_tag(*line)) is not None]):
            words, tags = zip(*rows, strict=True)
            yield words, tags
            empty = False
    if empty:
        raise DataError(f"{path} holds no sentence; give a file of tagged words")


def iob1_to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same spans with `B-` at the start of every one."""
    previous, converted = "O", []
    for tag in tags:
        starts = tag.startswith("I-") and previous[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if starts else tag)
        previous = tag
    return tuple(converted)


def word_tokenizer(sentences: Sequence[Tagged], *, least_count: int) -> "PreTrainedTokenizerFast":
    """Whole words by falling frequency (then alphabet), after the padding and the unknown word; for split input."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts = Counter(word for sentence in sentences for word in sentence.words)
    words = sorted((word for word, count in counts.items() if count >= least_count), key=lambda w: (-counts[w], w))
    vocabulary = {
        word: number for number, word in enumerate([PAD, UNKNOWN, *(w for w in words if w not in (PAD, UNKNOWN))])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, unk_token=UNKNOWN)


def tag_names(sentences: Sequence[Tagged]) -> list[str]:
    """Every tag once, by falling frequency (then alphabet)."""
    counts = Counter(tag for sentence in sentences for tag in sentence.tags)
    return sorted(counts, key=lambda tag: (-counts[tag], tag))


def refuse_unseen_tags(sentences: Sequence[Tagged], tags: Sequence[str], *, path: Path | str) -> None:
    """A model can only write the tags of its training file; a file with others would never be right about them."""
    unseen = sorted({tag for sentence in sentences for tag in sentence.tags} - set(tags))
    if unseen:
        shown = ", ".join(unseen[:3]) + (" …" if len(unseen) > 3 else "")
        raise DataError(
            f"{path} has {len(unseen)} tags that the training file has not ({shown}); give files of one tag set, or "
            "set unseen_tags to wrong, which counts them as never found"
        )
