"""Change real texts at every position and see what an energy and a language model say: `energylm probe perturb`'s work.

All copies of a text, one for each position and kind of change, go through the models in one batch. Random texts stand
beside the real ones: tokens drawn uniformly from the vocabulary, and the text's own tokens in random order.

Relations  `numerics.perturbations` makes the copies, `perturb_report` the numbers (bakhtin2019 fig. 2).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from energylm.bundles.energy_model import bind
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.log_likelihood_energy import load_energy
from energylm.contracts import Energy
from energylm.data.common_words import commonest_name, commonest_word
from energylm.data.corpus import Corpus
from energylm.data.writable_tokens import writable_tokens
from energylm.errors import ConfigError
from energylm.numerics.perturbations import replaced_at_every_position, swapped_at_every_position
from energylm.progress import progress
from energylm.randomness import generator
from energylm.report.report import write_report
from energylm.verbs.detect.perturb_report import PerturbResult, perturbed, perturbed_sections
from energylm.verbs.detect.probe import PerturbTexts

ROWS_AT_ONCE = 4096  # copies that are made at a time; the models cut them into micro-batches of their own
COUNTED_TOKENS = 1 << 21  # of a corpus, to find its commonest word and name


def perturb(verb: PerturbTexts, *, output: Path | None = None) -> PerturbResult:
    """Measure; with `output` also write a report there."""
    lm, loaded = LanguageModel.from_pretrained(verb.language_model), load_energy(verb.energy)
    energy, windows = bind(loaded, lm), verb.windows.load(lm.tokenizer, model=verb.language_model)
    tokens_BT = torch.tensor(windows)
    replacing = _replacing_tokens(verb, lm, tokens_BT)
    shown = {name: lm.decode([token]).strip() for name, token in replacing.items()}
    words = {
        "entity": f"replaced with “{shown['entity']}” (name)",
        "common": f"replaced with “{shown['common']}” (commonest)",
        "swap": "neighbours swapped",
    }
    groups = []
    with progress("perturbing", total=len(tokens_BT), unit="text") as bar:
        for group_BT in torch.split(tokens_BT, max(1, ROWS_AT_ONCE // tokens_BT.shape[1])):
            copies = {name: replaced_at_every_position(group_BT, token) for name, token in replacing.items()}
            copies["swap"] = swapped_at_every_position(group_BT)
            groups.append({name: _both(energy, lm, of_group) for name, of_group in copies.items()})
            bar.advance(len(group_BT))
    effects = {
        name: (said, torch.cat([group[name][0] for group in groups]), torch.cat([group[name][1] for group in groups]))
        for name, said in words.items()
    }
    random = {
        name: (said, *_both(energy, lm, texts_BT)) for name, (said, texts_BT) in _random(verb, lm, tokens_BT).items()
    }
    result = perturbed(
        *_both(energy, lm, tokens_BT),
        effects,
        random,
        length=verb.length,
        end_tokens=verb.ends,
        convention=f"{len(tokens_BT)} texts of {verb.length} tokens of {Path(verb.source).name}; every text "
        f"against itself, errors over texts; energies of {loaded.name} (lower = likelier), nats of whole texts by "
        f"{lm.name}; ends are {verb.ends} tokens on either side",
    )
    if output is None:
        return result
    about = (
        f"Real texts, changed at one position at a time, under the energy {loaded.name} and the language model "
        f"{lm.name}. {result.convention}."
    )
    sections = perturbed_sections(result, about=about)
    return replace(result, report=write_report(output, title=f"Perturbations of {loaded.name}", sections=sections))


def _both(energy: Energy, lm: LanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and negative log-likelihoods of texts of one length, (…, T) -> (…), float64 on the CPU."""
    tokens_RT = tokens.flatten(0, -2)
    lengths_R = torch.full((len(tokens_RT),), tokens.shape[-1])
    values = (energy.energies(tokens_RT, lengths_R), -lm.token_log_probs(tokens_RT, lengths_R).double().sum(1))
    energy_R, nll_R = (value.double().cpu().view(tokens.shape[:-1]) for value in values)
    return energy_R, nll_R


def _random(verb: PerturbTexts, lm: LanguageModel, tokens_BT: Tensor) -> dict[str, tuple[str, Tensor]]:
    draw = generator(verb.seed, "random text")
    writable_N = writable_tokens(lm.tokenizer, lm.vocabulary_size).nonzero()[:, 0]
    uniform_BT = writable_N[torch.randint(len(writable_N), tokens_BT.shape, generator=draw)]
    order_BT = torch.rand(tokens_BT.shape, generator=draw).argsort(dim=1)
    return {
        "random": ("random tokens", uniform_BT),
        "shuffled": ("its own tokens, shuffled", tokens_BT.gather(1, order_BT)),
    }


def _replacing_tokens(verb: PerturbTexts, lm: LanguageModel, tokens_BT: Tensor) -> dict[str, int]:
    """The tokens that stand for an entity and for the commonest word: those named, or found by counting."""
    counted = tokens_BT.flatten().numpy()
    if Path(verb.source).is_dir():
        counted = Corpus.open(verb.source).split_tokens("train")[:COUNTED_TOKENS]
    counts_V = np.bincount(counted, minlength=lm.vocabulary_size)
    choose = {"entity": (verb.entity, commonest_name), "common": (verb.common, commonest_word)}
    return {
        name: _one_token(name, word, lm) if word is not None else find(lm.tokenizer, counts_V)
        for name, (word, find) in choose.items()
    }


def _one_token(name: str, word: str, lm: LanguageModel) -> int:
    ids = lm.encode(word)
    if len(ids) != 1:
        raise ConfigError(
            f"{name}: {word!r} is {len(ids)} tokens of {lm.name}, but one must go in the place of one; give another "
            "word (most tokens begin with a space), or leave it out to have one chosen"
        )
    return ids[0]
