"""Turn an energy's verdict on texts by replacing a few tokens: `energylm probe attack`.

Texts are windows of a corpus, lines of a file, or a negatives folder's generated texts (towards real) and the real ones
beside them (towards fake). Edits are made in the energy's own tokens; special tokens are neither changed nor written.
The language model reads the same tokens where it shares the tokenizer, the text of them where it does not.

Relations  `search.token_replacement` is the search, `evaluation.probe_attack` the numbers (bakhtin2019 appendix F).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energylm.bundles.energy_gradients import EnergyGradients
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.config.probe import AttackConfig
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.writable_tokens import special_ids, writable_tokens
from energylm.errors import DataError
from energylm.evaluation.probe_attack import Attacked, AttackedText, TextEdit, attacked_sections, rank_correlation
from energylm.pipelines.probe_texts import ProbedText, check_texts, load_texts
from energylm.progress import progress
from energylm.randomness import generator
from energylm.report.report import write_report
from energylm.search.token_replacement import (
    SIGN,
    ReplacementPath,
    best_replacements,
    first_order_changes,
    replace_tokens,
    with_replacements,
)


@dataclass(frozen=True)
class AttackRun:
    found: Attacked
    report: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return self.found.to_json()


def run_attack(config: AttackConfig, *, output: Path | None = None) -> AttackRun:
    """Edit every text; with `output` also write a report there."""
    plan_attack(config)
    energy, lm = EnergyModel.from_pretrained(config.energy), LanguageModel.from_pretrained(config.language_model)
    texts = load_texts(config, energy, lm)
    attack = _Attack(config, energy, lm)
    with progress(f"editing towards {config.towards}", total=len(texts), unit="text") as bar:
        attacked = []
        for number, text in enumerate(texts):
            attacked.append(attack.text(text, number))
            bar.advance()
    budget = "" if config.perplexity_budget is None else f"; at most {config.perplexity_budget:g} × a text's perplexity"
    goal = f"energy {'below' if config.towards == 'real' else 'above'} {config.threshold:g}"
    found = Attacked(
        towards=config.towards,
        threshold=config.threshold,
        max_edits=config.max_edits,
        texts=tuple(attacked),
        convention=f"{len(texts)} texts towards {config.towards} ({goal}); {config.candidates} candidates scored "
        f"exactly an edit{budget}; perplexity by {lm.name}, all tokens of a text; texts that were there before any "
        "edit are left out",
    )
    if output is None:
        return AttackRun(found)
    about = (
        f"The fewest tokens of a text are replaced, one after the other, until the energy {energy.name} calls it "
        f"{config.towards}. {found.convention}. First order and exact changes of energy are compared by Spearman's "
        f"rank correlation on {config.fidelity_pairs} random replacements a text and on the candidates."
    )
    page = write_report(
        output, title=f"Token replacement against {energy.name}", sections=attacked_sections(found, about=about)
    )
    return AttackRun(found, page)


def plan_attack(config: AttackConfig) -> str:
    """Find every input without loading a model; what would be done, in words."""
    locate(config.energy)
    locate(config.language_model)
    return (
        f"would replace at most {config.max_edits} tokens in each of {check_texts(config)}, towards {config.towards}, "
        f"by the gradient of {config.energy}, with the perplexity of {config.language_model} beside it"
    )


class _Attack:
    """What all texts of a run share."""

    def __init__(self, config: AttackConfig, energy: EnergyModel, lm: LanguageModel) -> None:
        self.config, self.energy, self.gradients = config, energy, EnergyGradients(energy)
        self.nll = _nll_per_token(lm, energy)
        self.allowed_V = writable_tokens(energy.tokenizer, energy.vocabulary_size)
        self.special = torch.tensor(sorted(special_ids(energy.tokenizer)))

    def text(self, text: ProbedText, number: int) -> AttackedText:
        config, tokens_T = self.config, torch.tensor(text.tokens)
        editable_T = text.editable_T & ~torch.isin(tokens_T, self.special)
        fidelity = self._fidelity(tokens_T, editable_T, number)
        own_nll = float(self.nll(tokens_T[None])[0])
        path = replace_tokens(
            self.gradients,
            tokens_T,
            towards=config.towards,
            goal=config.threshold,
            max_edits=config.max_edits,
            candidates=config.candidates,
            allowed_V=self.allowed_V,
            editable_T=editable_T,
            nll=self.nll,
            max_nll=None if config.perplexity_budget is None else own_nll + math.log(config.perplexity_budget),
        )
        edits = tuple(
            TextEdit(
                position=edit.position + 1,
                before=self._decode([edit.before]),
                after=self._decode([edit.after]),
                predicted_change=edit.predicted_change,
                energy=edit.energy,
                perplexity=math.exp(edit.nll),
            )
            for edit in path.edits
        )
        return AttackedText(
            path.energy, math.exp(path.nll), edits, path.stopped, self._marked(path), self._reread(path), *fidelity
        )

    def _fidelity(self, tokens_T: Tensor, editable_T: Tensor, number: int) -> tuple[float | None, float | None]:
        """Rank correlations of first-order and exact changes: random replacements, and the best candidates."""
        energy, gradient_TD = self.gradients.token_gradients(tokens_T)
        change_TV = first_order_changes(gradient_TD, self.gradients.token_table, tokens_T.to(gradient_TD.device)).cpu()
        open_TV = editable_T[:, None] & self.allowed_V
        open_TV.scatter_(1, tokens_T[:, None], False)
        open_N = open_TV.flatten().nonzero()[:, 0]
        if not len(open_N):
            return None, None
        draw = generator(self.config.seed, "fidelity", number)
        flat_R = open_N[torch.randint(len(open_N), (self.config.fidelity_pairs,), generator=draw)]
        random = flat_R // change_TV.shape[1], flat_R % change_TV.shape[1]
        gain_TV = (SIGN[self.config.towards] * change_TV).masked_fill(~open_TV, -math.inf)
        best = best_replacements(gain_TV, count=self.config.candidates)
        correlations = []
        for positions_K, tokens_K in (random, best):
            copies_KT = with_replacements(tokens_T, positions_K, tokens_K)
            exact_K = self.energy.energies(copies_KT, torch.full((len(copies_KT),), len(tokens_T))).cpu() - energy
            correlations.append(rank_correlation(change_TV[positions_K, tokens_K].tolist(), exact_K.tolist()))
        return correlations[0], correlations[1]

    def _marked(self, path: ReplacementPath) -> str:
        """The text with each edit as [before→after]."""
        pieces, start = [], 0
        for edit in sorted(path.edits, key=lambda one: one.position):
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
