"""Where chains start: texts with masks, fixed positions and phrases become rows of token ids that satisfy everything;
and the sources that are translated.

A text may hold `[MASK]` (or the tokenizer's own mask token) for every token to be filled in. Required phrases that a
text does not contain yet are put into its masks, spread evenly; a text without masks must contain them already.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel, SourcedMaskedModel
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.config.sampling import MASK, MASK_PREDICT, UNMASKED
from energylm.data.sequence_pairs import read_parallel
from energylm.errors import ConfigError, DataError
from energylm.samplers.chains import LexicalConstraint, Phrase, contains
from energylm.verbs.chains.mcmc import MCMC, STDIN

MASK_SIGN = "[MASK]"
DEFAULT_LENGTH = 20


@dataclass(frozen=True)
class Start:
    """One text to start from. Masked positions hold the mask token."""

    text: int  # its number among those given, and that of its source where there are sources
    tokens_T: Tensor
    free_T: Tensor  # bool: may change

    def masked(self, mask_token_id: int) -> Tensor:
        return self.tokens_T == mask_token_id


@dataclass(frozen=True)
class GivenTexts:
    """What was given: texts to start from and, where they are translations, a source and perhaps a reference each."""

    starts: tuple[str, ...]
    sources: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    texts: GivenTexts
    starts: list[Start]
    allowed_V: Tensor
    constraint: LexicalConstraint | None


def open_inputs(verb: MCMC) -> tuple[MaskedLanguageModel, Inputs]:
    """The masked model, which has read the sources where there are any, and everything that chains start from."""
    texts = _read_texts(verb)
    if not texts.sources:
        model = MaskedLanguageModel.from_pretrained(verb.model)
        return model, prepare(verb, model, texts)
    conditional = ConditionalMaskedModel.from_pretrained(verb.model)
    texts = _chosen(verb, conditional, texts)
    read = conditional.reading(texts.sources)
    return read, prepare(verb, read, texts)


def _read_texts(verb: MCMC) -> GivenTexts:
    starts = (*verb.init, *_lines(verb.input)) or (MASK,)
    sources, references = verb.source, verb.reference
    if verb.source_file is not None and verb.reference_file is not None:
        pairs = list(read_parallel(verb.source_file, verb.reference_file))
        sources, references = tuple(p.source for p in pairs), (*references, *(p.target for p in pairs))
    else:
        sources += _lines(verb.source_file)
    if references and len(references) != len(sources):
        raise ConfigError(f"{len(references)} references came for {len(sources)} sources; give as many")
    if sources and starts == (MASK,):
        starts *= len(sources)
    if sources and len(starts) != len(sources):
        raise ConfigError(f"{len(starts)} texts to start from came for {len(sources)} sources; give as many, or none")
    return GivenTexts(starts, sources, references)


def _chosen(verb: MCMC, model: ConditionalMaskedModel, texts: GivenTexts) -> GivenTexts:
    """The texts whose sources are not too long, as many as are wanted."""
    chosen = list(range(len(texts.sources)))
    if verb.longest_source is not None:
        longest = min(verb.longest_source, model.max_tokens)
        chosen = [i for i in chosen if 0 < len(model.source_ids(texts.sources[i])) <= longest]
        if not chosen:
            origin = verb.source_file or "those given"
            raise DataError(f"no source of {origin} has at most {longest} tokens; raise longest_source")
    starts, sources, references = (
        tuple(given[i] for i in chosen[: verb.limit]) if given else ()
        for given in (texts.starts, texts.sources, texts.references)
    )
    return GivenTexts(starts, sources, references)


def _lines(file: str | None) -> tuple[str, ...]:
    if file is None:
        return ()
    text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    lines = tuple(line for line in text.splitlines() if line.strip())
    if not lines:
        raise DataError(f"{file} holds no text; give one text a line")
    return lines


def prepare(verb: MCMC, model: MaskedLanguageModel, texts: GivenTexts) -> Inputs:
    """Everything that can be wrong with the texts is said here, before a chain runs."""
    required = tuple(_spellings(phrase, model) for phrase in verb.require)
    forbidden = tuple(_spellings(phrase, model) for phrase in verb.forbid)
    allowed_V = model.ordinary_V
    allowed_V[[spelling[0] for phrase in forbidden for spelling in phrase if len(spelling) == 1]] = False
    _check_phrases(verb, required, forbidden, allowed_V)
    starts, lengths = [], _lengths(verb, model, texts)
    for number, text in enumerate(texts.starts):
        for tokens in _tokens(text, model, lengths=lengths[number]):
            masked = [position for position, token in enumerate(tokens) if token == model.mask_token_id]
            free_T = _free(verb.fixed, tokens, masked)
            tokens = _with_phrases(tokens, free_T, required, mask=model.mask_token_id, text=number, verb=verb)
            start = Start(number, torch.tensor(tokens), free_T)
            _check(start, verb, model, allowed_V, forbidden)
            starts.append(start)
    several = tuple(phrase for phrase in forbidden if any(len(spelling) > 1 for spelling in phrase))
    constraint = LexicalConstraint(required, several) if required or several else None
    if constraint is not None and verb.sampler == MASK_PREDICT:
        raise ConfigError(
            "mask-predict knows no required words and no forbidden phrases of several tokens; use sampler mh, or fix "
            "the words' positions"
        )
    return Inputs(texts, starts, allowed_V, constraint)


def _lengths(verb: MCMC, model: MaskedLanguageModel, texts: GivenTexts) -> list[list[int]]:
    """For each text, the lengths that are tried if it is all masks."""
    tried = None if verb.sampler == MASK_PREDICT else 1
    if verb.length is None and isinstance(model, SourcedMaskedModel):
        return model.likely_lengths(verb.length_beam)
    return [list(verb.length or (DEFAULT_LENGTH,))[:tried]] * len(texts.starts)


def _tokens(text: str, model: MaskedLanguageModel, *, lengths: Sequence[int]) -> list[list[int]]:
    """The ids of a text, once for each length that is tried."""
    if text == MASK:
        return [[model.mask_token_id] * length for length in lengths]
    signs = {MASK_SIGN, str(model.tokenizer.mask_token)}
    pieces = re.split("|".join(map(re.escape, sorted(signs))), text)
    ids = []
    for number, piece in enumerate(pieces):
        # A space before a mask belongs to the word that will stand there.
        ids += model.encode(piece if number == len(pieces) - 1 else piece.rstrip(" "))
        ids += [model.mask_token_id] * (number < len(pieces) - 1)
    if not ids:
        raise DataError("an empty text came, which has nothing to change; give a text, or 'mask' and a length")
    return [ids]


def _free(fixed: str, tokens: list[int], masked: list[int]) -> Tensor:
    if fixed == UNMASKED:
        return torch.isin(torch.arange(len(tokens)), torch.tensor(masked, dtype=torch.int64))
    free_T = torch.ones(len(tokens), dtype=torch.bool)
    for part in filter(None, fixed.replace(" ", "").split(",")):
        matched = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not matched:
            raise ConfigError(f"fixed: {part!r} is neither a position nor a range; give e.g. '0-3,7', or '{UNMASKED}'")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not first <= last < len(tokens):
            raise ConfigError(f"fixed: {part!r} does not fit a text of {len(tokens)} tokens (0 to {len(tokens) - 1})")
        free_T[first : last + 1] = False
    held = [position for position in masked if not free_T[position]]
    if held:
        raise ConfigError(f"position {held[0]} is fixed but holds {MASK_SIGN}; give it a word, or leave it free")
    return free_T


def _spellings(phrase: str, model: MaskedLanguageModel) -> Phrase:
    """A phrase inside a text (after a space) and at its beginning: byte-level tokenizers write them differently."""
    both = [tuple(model.encode(f" {phrase.strip()}")), tuple(model.encode(phrase.strip()))]
    if not all(both):
        raise ConfigError("an empty phrase cannot be required or forbidden; give a word")
    return tuple(dict.fromkeys(both))


def _check_phrases(verb: MCMC, required: Sequence[Phrase], forbidden: Sequence[Phrase], allowed_V: Tensor) -> None:
    for name, phrase in zip(verb.require, required, strict=True):
        if set(phrase) & {spelling for other in forbidden for spelling in other}:
            raise ConfigError(f"{name!r} is required and forbidden at once; take one of them back")
        if not any(bool(allowed_V[list(spelling)].all()) for spelling in phrase):
            raise ConfigError(
                f"the required {name!r} cannot be reached: it needs a token that is forbidden or that this "
                "tokenizer cannot write; choose another word"
            )


def _with_phrases(
    tokens: list[int], free_T: Tensor, required: Sequence[Phrase], *, mask: int, text: int, verb: MCMC
) -> list[int]:
    """The tokens with every missing phrase put into masks, near evenly spread positions."""
    row_1T, length_1 = torch.tensor([tokens]), torch.tensor([len(tokens)])
    missing = [
        (name, phrase)
        for name, phrase in zip(verb.require, required, strict=True)
        if not any(bool(contains(row_1T, length_1, spelling)) for spelling in phrase)
    ]
    tokens = list(tokens)
    for number, (name, phrase) in enumerate(missing):
        ideal = round((number + 1) * len(tokens) / (len(missing) + 1)) - 1
        nearest = sorted(range(len(tokens)), key=lambda position: abs(position - ideal))
        options = (
            (position, spelling)
            for position in nearest
            for spelling in (phrase if position else phrase[::-1])
            if tokens[position : position + len(spelling)] == [mask] * len(spelling)
        )
        position, spelling = next(options, (None, ()))
        if position is None:
            raise ConfigError(
                f"text {text + 1} cannot reach the required {name!r}: it does not contain it and has no room of "
                f"{min(map(len, phrase))} masks left for it; put it in, or start from more masks"
            )
        tokens[position : position + len(spelling)] = spelling
    return tokens


def _check(
    start: Start, verb: MCMC, model: MaskedLanguageModel, allowed_V: Tensor, forbidden: Sequence[Phrase]
) -> None:
    name, length, free = f"text {start.text + 1}", len(start.tokens_T), int(start.free_T.sum())
    if model.max_tokens is not None and length > model.max_tokens:
        raise DataError(f"{name} has {length:,} tokens but the model holds {model.max_tokens:,}; shorten it")
    if free == 0:
        raise ConfigError(f"{name} has no free position, so nothing can change; fix fewer positions")
    if verb.block > free and verb.block_share is None and verb.sampler != MASK_PREDICT:
        raise ConfigError(
            f"block {verb.block} is larger than the {free} free positions of {name}; take a smaller block, or "
            "block_share"
        )
    row_1T, length_1 = start.tokens_T[None], torch.tensor([length])
    for words, phrase in zip(verb.forbid, forbidden, strict=True):
        if any(bool(contains(row_1T, length_1, spelling)) for spelling in phrase):
            raise ConfigError(f"{name} contains the forbidden {words!r} from the start; replace it by {MASK_SIGN}")
    stuck_T = start.free_T & ~start.masked(model.mask_token_id) & ~allowed_V[start.tokens_T]
    if stuck_T.any():
        position = int(stuck_T.nonzero()[0])
        token = model.tokenizer.convert_ids_to_tokens(int(start.tokens_T[position]))
        raise DataError(
            f"{name} has {token!r} at position {position}, which no chain can propose or leave; fix that position, or "
            f"write {MASK_SIGN} there"
        )
