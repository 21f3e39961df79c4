"""A long text in pieces whose tokens, joined, are the tokens of the whole text. Bounds memory and keeps all cores busy.

A byte-level tokenizer first splits text into words by a regular expression, then merges bytes inside words; pieces give
the same tokens as the whole where the cut is a word boundary that the expression finds in both. We cut

    before a single space between two non-spaces:   "so|␣it␣goes"

Why this is exact, for the expressions of GPT-2 and of GPT-4 / Llama-3 / Qwen (`WORD_PATTERNS`): no alternative goes on
from a non-space over a space, so a word ends before the cut in the whole text as well; the only look-ahead,
`\\s+(?!\\S)`, belongs to runs of white space, and the space we cut at is a run of one that keeps its right neighbour;
nothing looks behind. The same holds after a single line break between two non-spaces. For any other tokenizer
`cuts_are_exact` is False and documents are encoded whole.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

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
