"""Turn an energy's verdict on texts by replacing a few tokens: the work of `energylm probe attack`.

Texts are windows of a corpus, lines of a file, or a negatives folder's generated texts (towards real) and the real ones
beside them (towards fake). Edits are made in the energy's own tokens; special tokens are neither changed nor written.
The language model reads the same tokens where it shares the tokenizer, the text of them where it does not.

Relations  `search.token_replacement` is the search, `attack_report` the numbers (bakhtin2019 appendix F).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from energylm.bundles.energy_model import EnergyGradients, EnergyModel, TextBoundEnergy, bind
from energylm.bundles.language_model import LanguageModel
from energylm.config.models import TEXT
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, pad
from energylm.data.source_windows import SourceWindows
from energylm.data.text_files import existing, read_texts
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.writable_tokens import special_ids, writable_tokens
from energylm.errors import ConfigError, DataError
from energylm.progress import progress
from energylm.randomness import derive_seed, generator, shuffled
from energylm.report.report import write_report
from energylm.search.token_replacement import (
    SIGN,
    ReplacementPath,
    best_replacements,
    first_order_changes,
    replace_tokens,
    with_replacements,
)
from energylm.verbs.detect.attack_report import (
    AttackedText,
    AttackResult,
    TextEdit,
    attacked_sections,
    rank_correlation,
)
from energylm.verbs.detect.probe import AttackEnergy


@dataclass(frozen=True)
class ProbedText:
    tokens: list[int]
    editable_T: Tensor  # bool


def attack(verb: AttackEnergy, *, output: Path | None = None) -> AttackResult:
    """Edit every text; with `output` also write a report there."""
    energy, lm = EnergyModel.from_pretrained(verb.energy), LanguageModel.from_pretrained(verb.language_model)
    texts = load_texts(verb, energy, lm)
    attacks = _Attack(verb, energy, lm)
    with progress(f"editing towards {verb.towards}", total=len(texts), unit="text") as bar:
        attacked = []
        for number, text in enumerate(texts):
            attacked.append(attacks.text(text, number))
            bar.advance()
    budget = "" if verb.perplexity_budget is None else f"; at most {verb.perplexity_budget:g} × a text's perplexity"
    goal = f"energy {'below' if verb.towards == 'real' else 'above'} {verb.threshold:g}"
    result = AttackResult(
        towards=verb.towards,
        threshold=verb.threshold,
        max_edits=verb.edits,
        texts=tuple(attacked),
        convention=f"{len(texts)} texts towards {verb.towards} ({goal}); {verb.candidates} candidates scored "
        f"exactly an edit{budget}; perplexity by {lm.name}, all tokens of a text; texts that were there before any "
        "edit are left out",
    )
    if output is None:
        return result
    about = (
        f"The fewest tokens of a text are replaced, one after the other, until the energy {energy.name} calls it "
        f"{verb.towards}. {result.convention}. First order and exact changes of energy are compared by Spearman's "
        f"rank correlation on {verb.fidelity_pairs} random replacements a text and on the candidates."
    )
    page = write_report(
        output, title=f"Token replacement against {energy.name}", sections=attacked_sections(result, about=about)
    )
    return replace(result, report=page)


class _Attack:
    """What all texts of a run share."""

    def __init__(self, verb: AttackEnergy, energy: EnergyModel, lm: LanguageModel) -> None:
        self.verb, self.energy, self.gradients = verb, energy, EnergyGradients(energy)
        self.nll = _nll_per_token(lm, energy)
        self.allowed_V = writable_tokens(energy.tokenizer, energy.vocabulary_size)
        self.special = torch.tensor(sorted(special_ids(energy.tokenizer)))

    def text(self, text: ProbedText, number: int) -> AttackedText:
        verb, tokens_T = self.verb, torch.tensor(text.tokens)
        editable_T = text.editable_T & ~torch.isin(tokens_T, self.special)
        fidelity = self._fidelity(tokens_T, editable_T, number)
        own_nll = float(self.nll(tokens_T[None])[0])
        path = replace_tokens(
            self.gradients,
            tokens_T,
            towards=verb.towards,
            goal=verb.threshold,
            max_edits=verb.edits,
            candidates=verb.candidates,
            allowed_V=self.allowed_V,
            editable_T=editable_T,
            nll=self.nll,
            max_nll=None if verb.perplexity_budget is None else own_nll + math.log(verb.perplexity_budget),
        )
        edits = tuple(
            TextEdit(
                position=edit.position + 1,
                before=self._decode([edit.before]),
                after=self._decode([edit.after]),
                predicted_change=edit.predicted_change,
                energy=edit.energy,
                perplexity=_perplexity(edit.nll),
            )
            for edit in path.edits
        )
        marked, reread = self._marked(path), self._reread(path)
        return AttackedText(path.energy, _perplexity(path.nll), edits, path.stopped, marked, reread, *fidelity)

    def _fidelity(self, tokens_T: Tensor, editable_T: Tensor, number: int) -> tuple[float | None, float | None]:
        """Rank correlations of first-order and exact changes: random replacements, and the best candidates."""
        energy, gradient_TD = self.gradients.token_gradients(tokens_T)
        change_TV = first_order_changes(gradient_TD, self.gradients.token_table, tokens_T.to(gradient_TD.device)).cpu()
        open_TV = editable_T[:, None] & self.allowed_V
        open_TV.scatter_(1, tokens_T[:, None], False)
        open_N = open_TV.flatten().nonzero()[:, 0]
        if not len(open_N):
            return None, None
        draw = generator(self.verb.seed, "fidelity", number)
        flat_R = open_N[torch.randint(len(open_N), (self.verb.fidelity_pairs,), generator=draw)]
        random = flat_R // change_TV.shape[1], flat_R % change_TV.shape[1]
        gain_TV = (SIGN[self.verb.towards] * change_TV).masked_fill(~open_TV, -math.inf)
        best = best_replacements(gain_TV, count=self.verb.candidates)
        correlations = []
        for positions_K, tokens_K in (random, best):
            copies_KT = with_replacements(tokens_T, positions_K, tokens_K)
            exact_K = self.energy.energies(copies_KT, torch.full((len(copies_KT),), len(tokens_T))).cpu() - energy
            correlations.append(rank_correlation(change_TV[positions_K, tokens_K].tolist(), exact_K.tolist()))
        return correlations[0], correlations[1]

    def _marked(self, path: ReplacementPath) -> str:
        """The text with each edit as [before→after]."""
        pieces, start = [], 0
        for edit in sorted(path.edits, key=lambda edit: edit.position):
            pieces.append(self._decode(path.tokens[start : edit.position]))
            pieces.append(f"[{self._decode([edit.before])}→{self._decode([edit.after])}]")
            start = edit.position + 1
        return "".join([*pieces, self._decode(path.tokens[start:])])

    def _reread(self, path: ReplacementPath) -> float | None:
        """The energy of the edited text as anyone would pass it on: written out and read again."""
        try:
            return float(self.energy.text_energies([self._decode(path.tokens_after())])[0])
        except DataError:  # written out, it takes more tokens than the energy holds
            return None

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.energy.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _perplexity(nll: float | None) -> float:
    assert nll is not None  # the language model tells it with every step
    return math.exp(nll)


def _nll_per_token(lm: LanguageModel, energy: EnergyModel) -> Callable[[Tensor], Tensor]:
    """(K, T) ids of the energy -> (K,) nats per token of the language model."""

    def of_ids(tokens_KT: Tensor) -> Tensor:
        count, length = tokens_KT.shape
        return -lm.token_log_probs(tokens_KT, torch.full((count,), length)).double().mean(1)

    def of_text(tokens_KT: Tensor) -> Tensor:
        texts = energy.tokenizer.backend_tokenizer.decode_batch(tokens_KT.tolist(), skip_special_tokens=True)
        return torch.tensor([-score.log_prob / score.tokens for score in lm.score(texts)], dtype=torch.float64)

    same = tokenizer_sha256(lm.tokenizer) == tokenizer_sha256(energy.tokenizer)
    return of_ids if same else of_text


def check_texts(verb: AttackEnergy) -> str:
    """Find the texts without loading a model; which they are, in words."""
    if verb.negatives is not None and verb.corpus is not None:
        negatives = Negatives.open(verb.negatives)
        negatives.check(corpus=Corpus.open(verb.corpus))
        kind = "generated" if verb.towards == "real" else "real"
        return f"{min(verb.texts, len(negatives))} {kind} texts of {verb.negatives}"
    if existing(_source(verb)).is_dir():
        _windows(verb).check()
        return f"{verb.texts} windows of {verb.length} tokens of {verb.source} ({verb.split})"
    return f"the first {verb.texts} texts of {verb.source}"


def load_texts(verb: AttackEnergy, energy: EnergyModel, lm: LanguageModel) -> list[ProbedText]:
    if verb.negatives is not None and verb.corpus is not None:
        return _of_negatives(verb, Negatives.open(verb.negatives), Corpus.open(verb.corpus), energy)
    if _source(verb).is_dir():
        return _own(energy, lm, _windows(verb).load(lm.tokenizer, model=verb.language_model))
    texts = list(islice(read_texts(_source(verb), field=verb.field), verb.texts))
    if not texts:
        raise DataError(f"{verb.source} holds no text; give a file with one text a line")
    return _everywhere(*energy.encode_texts(texts))


def _of_negatives(verb: AttackEnergy, negatives: Negatives, corpus: Corpus, energy: EnergyModel) -> list[ProbedText]:
    if verb.only_generated and energy.reads == TEXT:
        raise ConfigError(
            f"only_generated came, but {energy.name} reads text, in tokens that do not say which were generated; leave "
            "it out, or give an energy that reads tokens"
        )
    positions = np.arange(min(verb.texts, len(negatives)), dtype=np.int64)
    rows = shuffled(positions, len(negatives), seed=derive_seed(verb.seed, "attacked contexts"))
    contrast = Contrast(negatives, corpus, rows=rows)
    both = contrast.sequences(positions, np.zeros((len(rows), 1), dtype=np.int64))  # real, generated, real, …
    texts = _own(energy, corpus, both[1::2] if verb.towards == "real" else both[::2])
    if not verb.only_generated:
        return texts
    context_B = negatives.rows(rows).context_length_B.tolist()
    suffix = negatives.config.side == "suffix"
    for text, context in zip(texts, context_B, strict=True):
        length = len(text.tokens)
        text.editable_T[slice(0, context) if suffix else slice(length - context, length)] = False
    return texts


def _own(energy: EnergyModel, writer: LanguageModel | Corpus, sequences: list[list[int]]) -> list[ProbedText]:
    """Sequences of the writer's tokens in the energy's own."""
    bound = bind(energy, writer)
    return _everywhere(*(bound.encode(sequences) if isinstance(bound, TextBoundEnergy) else pad(sequences)))


def _everywhere(tokens_BT: Tensor, lengths_B: Tensor) -> list[ProbedText]:
    return [
        ProbedText(row[:length], torch.ones(length, dtype=torch.bool))
        for row, length in zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True)
    ]


def _source(verb: AttackEnergy) -> Path:
    assert verb.source is not None  # where there are no negatives
    return Path(verb.source)


def _windows(verb: AttackEnergy) -> SourceWindows:
    return SourceWindows(str(_source(verb)), verb.length, verb.texts, verb.seed, verb.split)
