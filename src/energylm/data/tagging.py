"""Tagged sentences for sequence models: words and tags as ids, by vocabularies that the training file makes.

Entities are read in IOB2 (every entity begins with `B-`), which is what span scorers expect. A word that comes less
often than `least_count` is the unknown word. Tags are exactly those of the training file.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from energylm.data.formats.conll2003 import iob1_to_iob2, read_conll2003
from energylm.data.formats.conllu import read_conllu
from energylm.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN = "<pad>", "<unk>"


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
    """CoNLL-2003 columns."""
    return _not_empty(path, [Tagged(each.words, iob1_to_iob2(each.entities)) for each in read_conll2003(path)])


def read_composite_tags(path: Path | str) -> list[Tagged]:
    """CoNLL-U: UPOS, XPOS and FEATS together."""
    return _not_empty(path, [Tagged(each.words, each.composite_tags) for each in read_conllu(path)])


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


def tag_ids(tags: Sequence[str], numbers: dict[str, int], *, unseen: int) -> list[int]:
    return [numbers.get(tag, unseen) for tag in tags]


def _not_empty(path: Path | str, sentences: list[Tagged]) -> list[Tagged]:
    if not sentences:
        raise DataError(f"{path} holds no sentence; give a file of tagged words")
    return sentences
