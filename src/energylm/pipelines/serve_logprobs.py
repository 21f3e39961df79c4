"""Log-probabilities of a text's tokens as completions tell them: pieces of text, where each begins, what was likeliest.

Some tokens write half a character: their piece is empty, and the token that completes the character has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from energylm import contracts
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.token_alternatives import TokenAlternatives


@dataclass(frozen=True)
class TokenLogProbs:
    """Under the untruncated model at temperature 1, in nats. The pieces add up to the text, but for the end token's:
    that is its name."""

    pieces: list[str]
    offsets: list[int]
    log_probs: list[float]
    likeliest: list[dict[str, float]]

    def before(self, end: int) -> "TokenLogProbs":
        """Of the tokens that begin before character `end`."""
        count = sum(offset < end for offset in self.offsets)
        return TokenLogProbs(self.pieces[:count], self.offsets[:count], self.log_probs[:count], self.likeliest[:count])


def token_log_probs(
    lm: contracts.LanguageModel,
    texts: JointTexts,
    context: Context,
    tokens: list[int],
    thoughts: TokenAlternatives,
    *,
    likeliest: int,
) -> TokenLogProbs:
    """What `thoughts` say of `tokens` after `context`, with so many of the likeliest tokens beside each."""
    whole, ends = texts.new_text(context, tokens), [0]
    for count in range(1, len(tokens) + 1):
        so_far = texts.new_text(context, tokens[:count])
        ends.append(max(len(so_far), ends[-1]) if whole.startswith(so_far) else ends[-1])
    pieces = [whole[start:stop] for start, stop in pairwise(ends)]
    if tokens[-1] == lm.eos_token_id:
        pieces[-1] = _name(lm, tokens[-1])
    names = [_named(lm, of_token[:likeliest]) for of_token in thoughts.likeliest]
    return TokenLogProbs(pieces, ends[:-1], thoughts.log_probs, names)


def _named(lm: contracts.LanguageModel, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Ids by what they write; of two that look the same the likelier stays."""
    names: dict[str, float] = {}
    for token, log_prob in likeliest:
        names.setdefault(_name(lm, token), log_prob)
    return names


def _name(lm: contracts.LanguageModel, token: int) -> str:
    """What a token writes; the name in the vocabulary of one that writes nothing by itself."""
    if not isinstance(lm, LanguageModel):
        return str(token)
    written = lm.decode([token])
    return written if written and "\ufffd" not in written else str(lm.tokenizer.convert_ids_to_tokens(token))
