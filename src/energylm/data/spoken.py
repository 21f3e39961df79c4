"""Text as a speech recogniser writes it: upper-case words, letters and apostrophes only, one sentence a document.

What could be read aloud in several ways is left out with its sentence: numbers, currencies, formulas. Titles are
spelled out (Mr. → MISTER), accents dropped, WikiText's detached clitics joined again. Sentences end at . ! ? before a
capital letter, and at blank lines; an initial (J. Smith) ends none.

Use it     for language models that rerank recognisers' n-best lists: `style: spoken` of a corpus.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from energylm.data.document import Document, Fingerprint, Source

_TITLES = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR", "ST": "SAINT"}  # LibriSpeech's spellings
_NO_END = "".join(rf"(?<!\b{word}\.)" for word in (*(title.capitalize() for title in _TITLES), "[A-Z]"))
_BOUNDARY = re.compile(rf"""(?<=[.!?]){_NO_END}["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z])|\n\s*\n""")
_UNSPEAKABLE = re.compile(r"[0-9=<>|#%&$£€+]")
_CLITIC = re.compile(r"\s+'(?=(?:S|T|D|M|RE|VE|LL)\b)")
_WORD = re.compile(r"[A-Z]+(?:'[A-Z]+)*")


@dataclass(frozen=True)
class Spoken:
    """A source whose documents are the sentences of another's."""

    source: Source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def origin(self) -> str:
        return self.source.origin

    @property
    def licence(self) -> str:
        return self.source.licence

    @property
    def text_bytes(self) -> int | None:
        return self.source.text_bytes

    def fingerprint(self) -> Fingerprint:
        return self.source.fingerprint()

    def documents(self) -> Iterator[Document]:
        for document in self.source.documents():
            for number, sentence in enumerate(spoken_sentences(document.pieces), start=1):
                yield Document(f"{document.name}, sentence {number}", (sentence,))


def spoken_sentences(pieces: Iterable[str]) -> Iterator[str]:
    """The sentences of a text that comes in pieces, cut anywhere."""
    rest = ""
    for piece in pieces:
        *whole, rest = _BOUNDARY.split(rest + piece)
        yield from filter(None, map(as_spoken, whole))
    if last := as_spoken(rest):
        yield last


def as_spoken(sentence: str) -> str:
    """The words of a sentence; nothing where it cannot be read aloud as it stands."""
    return "" if _UNSPEAKABLE.search(sentence) else spoken_words(sentence)


def spoken_words(sentence: str) -> str:
    """The words of a sentence, whatever else stands in it."""
    decomposed = unicodedata.normalize("NFKD", sentence.replace("’", "'"))
    plain = "".join(character for character in decomposed if not unicodedata.combining(character)).upper()
    return " ".join(_TITLES.get(word, word) for word in _WORD.findall(_CLITIC.sub("'", plain)))
