"""Disguises that leave a text readable to people and not to models, and the reading that undoes those it can.

    attack         what it does to each place, with its usual probability (Dugan et al. 2024, RAID)      undone
    homoglyphs     a letter becomes a Cyrillic or Greek one of the same look                      1      yes
    zero-width     an invisible character comes after a character                                 1      yes
    whitespace     a blank comes after a character: beside another blank, or inside a word        0.2    beside blanks
    misspellings   two inner letters of a word are exchanged, one is doubled or left out          0.2    no
    case           a letter becomes upper or lower case                                           0.05   no
    swaps          two sentences, or the words around "and" and "or", change places               0.5    no

`plain` undoes: invisible characters go, compatibility forms of letters, digits and blanks (full width, mathematical,
ligatures) become plain ones, letters of another alphabet that look Latin become Latin in words of both, and everywhere
if the text has hardly any other letter of that alphabet; runs of blanks inside a line become one, but not after the end
of a sentence, where typists put two. Ordinary text in any language stays as it is.

Relations  `text_blocks` reads plain text and keeps what was undone; `energylm detect robustness` measures the attacks.
"""

import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from energylm.errors import ConfigError
from energylm.randomness import derive_seed

LOOKALIKES = {  # Cyrillic, then Greek
    **dict(zip("acehijlopqswxyd", "асеһіјӏорԛѕԝхуԁ", strict=True)),
    **dict(zip("ABCEHIJKMOPSTXYZN", "АВСЕНІЈКМОРЅТХΥΖΝ", strict=True)),
    **dict(zip("vu", "νυ", strict=True)),
}
_TO_LATIN = {other: latin for latin, other in LOOKALIKES.items()} | dict(
    zip("οΑΒΕΗΙΚΜΟΡΤΧ", "oABEHIKMOPTX", strict=True)
)
LAST_LATIN = "\u024f"
ZERO_WIDTH = "\u200b\u200c\u200d\u2060"
REAL_SHARE = 0.2  # of an alphabet's letters that do not look Latin: half of them in Russian, a third in Greek

_ALPHABETS = {"Greek": "\u0370-\u03ff", "Cyrillic": "\u0400-\u052f"}
_INVISIBLE = re.compile(
    r"[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff]|(?<=[\x00-\u052f\u2000-\u20ff])[\u200c\u200d]"
)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_OTHER_WORD = re.compile(rf"[^\W\d_]*[{''.join(_ALPHABETS.values())}][^\W\d_]*")
_BLANKS = re.compile(r"(?<![\s.!?…:;\"'”’)\]])[^\S\r\n]{2,}(?=\S)")
_WORD = re.compile(r"[^\W\d_]{4,}")
_SENTENCE_END = re.compile(r"(?<=[.!?])(\s+)")
_JOINED = re.compile(r"\b(\w+) (and|or) (\w+)\b")


@dataclass(frozen=True)
class PlainText:
    """`text` is what is read. Its character i was character `origins[i]` of the original; None = nothing was changed,
    or none moved."""

    text: str
    origins: NDArray[np.int32] | None = None
    changes: dict[str, int] = field(default_factory=dict)  # what was undone -> how often

    @property
    def said(self) -> str:
        """What was undone, in words; empty if nothing was."""
        return ", ".join(f"{count:,} {what}" for what, count in self.changes.items())


def plain(text: str) -> PlainText:
    """The text without disguises that can be undone."""
    reading = PlainText(text)
    if not text.isascii():
        reading = _substituted(reading, _INVISIBLE, lambda match: "", "invisible characters")
        reading = _substituted(reading, _NOT_ASCII, lambda match: _compatible(match[0]), "unusual forms of characters")
        alphabets = [span for span in _ALPHABETS.values() if not _is_written_in(span, reading.text)]
        other = re.compile(f"[{''.join(alphabets)}]") if alphabets else None

        def latin(match: re.Match[str]) -> str:
            """The word in Latin letters, where that is what it shows."""
            word = "".join(_TO_LATIN.get(letter, letter) for letter in match[0])
            rest = [letter for letter in match[0] if letter not in _TO_LATIN]
            is_mixed = any(letter <= LAST_LATIN for letter in rest)
            is_disguise = is_mixed or (other is not None and all(map(other.match, match[0])))
            return word if is_disguise and not _OTHER_WORD.search(word) else match[0]

        reading = _substituted(reading, _OTHER_WORD, latin, "words with letters that only look Latin")
    return _substituted(reading, _BLANKS, lambda match: " ", "runs of blanks")


def _is_written_in(span: str, text: str) -> bool:
    """Whether letters of an alphabet are there that look like no Latin ones."""
    letters = re.findall(f"[{span}]", text)
    return sum(letter not in _TO_LATIN for letter in letters) > REAL_SHARE * len(letters)


@lru_cache(maxsize=1 << 16)
def _compatible(character: str) -> str:
    """The plain form of a letter, digit or blank; signs such as … or ½ stay what they are."""
    kind = unicodedata.category(character)
    plain_form = unicodedata.normalize("NFKC", character)
    if kind == "Zs":
        return " "
    return plain_form if kind[0] in "LN" and kind != "No" and plain_form.isalnum() else character


def _substituted(
    before: PlainText, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str], what: str
) -> PlainText:
    """With every match replaced; counted are those that differ. A character of a replacement of the same length comes
    from its own place, of any other from the beginning of the match."""
    changed = [(match, new) for match in pattern.finditer(before.text) if (new := replacement(match)) != match[0]]
    if not changed:
        return before
    starts, ends = (np.array([getattr(match, name)() for match, _ in changed]) for name in ("start", "end"))
    sizes = np.array([len(new) for _, new in changed])
    gaps = np.concatenate([[0], ends]), np.concatenate([starts, [len(before.text)]])
    pieces = [before.text[first:last] for first, last in zip(*map(np.ndarray.tolist, gaps), strict=True)]
    text = "".join(piece for pair in zip(pieces, [*(new for _, new in changed), ""], strict=True) for piece in pair)
    begins, lengths, moves = np.zeros((3, 2 * len(changed) + 1), np.int64)  # of what stays and what came, by turns
    begins[::2], begins[1::2] = gaps[0], starts
    lengths[::2], lengths[1::2] = gaps[1] - gaps[0], sizes
    moves[::2], moves[1::2] = 1, sizes == ends - starts
    within = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    origins = (np.repeat(begins, lengths) + within * np.repeat(moves, lengths)).astype(np.int32)
    earlier = origins if before.origins is None else before.origins[origins]
    return PlainText(text, earlier, before.changes | {what: len(changed)})


def disguise(text: str, attack: str, *, share: float | None = None, seed: int = 0) -> str:
    """The text after an attack on a `share` of its places (none = the usual); the same for the same text and seed."""
    if attack not in ATTACKS:
        raise ConfigError(f"there is no attack {attack!r}; there are: {', '.join(ATTACKS)}")
    rule, usual = ATTACKS[attack]
    return rule(text, usual if share is None else share, random.Random(derive_seed(seed, "disguise", attack, text)))


def _each_character(change: Callable[[str, random.Random], str]) -> Callable[[str, float, random.Random], str]:
    def rule(text: str, share: float, chooser: random.Random) -> str:
        return "".join(change(character, chooser) if chooser.random() < share else character for character in text)

    return rule


def _misspelt(text: str, share: float, chooser: random.Random) -> str:
    def changed(match: re.Match[str]) -> str:
        if chooser.random() >= share:
            return match[0]
        place, kind = chooser.randrange(1, len(match[0]) - 2), chooser.randrange(3)
        first, second = match[0][place], match[0][place + 1]
        return match[0][:place] + (second + first, first + first + second, second)[kind] + match[0][place + 2 :]

    return _WORD.sub(changed, text)


def _swapped(text: str, share: float, chooser: random.Random) -> str:
    text = _JOINED.sub(
        lambda match: f"{match[3]} {match[2]} {match[1]}" if chooser.random() < share else match[0], text
    )
    parts = _SENTENCE_END.split(text)  # sentences at even places, what stands between them at odd ones
    for first in range(0, len(parts) - 2, 4):
        if chooser.random() < share:
            parts[first], parts[first + 2] = parts[first + 2], parts[first]
    return "".join(parts)


ATTACKS: dict[str, tuple[Callable[[str, float, random.Random], str], float]] = {
    "homoglyphs": (_each_character(lambda character, chooser: LOOKALIKES.get(character, character)), 1.0),
    "zero-width": (_each_character(lambda character, chooser: character + chooser.choice(ZERO_WIDTH)), 1.0),
    "whitespace": (_each_character(lambda character, chooser: f"{character} "), 0.2),
    "misspellings": (_misspelt, 0.2),
    "case": (_each_character(lambda character, chooser: character.swapcase()), 0.05),
    "swaps": (_swapped, 0.5),
}
