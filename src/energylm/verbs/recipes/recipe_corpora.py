"""The corpora of a recipe: chosen by what is here, and turned into steps.

A recipe names alternatives, of which the first whose data are here is taken: single corpora, which become the step
`corpus`, or sets of corpora (books, news, wiki). Of a set, `corpus` is the union, whose byte-level BPE all of them
share, and each member is a step of its own name. (Bakhtin et al. 2019 §4.1 take the vocabulary from CC-News alone.)
"""

from collections.abc import Mapping
from typing import Any

from energylm.config.environment import data_folder
from energylm.errors import ConfigError, DataError
from energylm.verbs.recipes.recipe import PRODUCT, StepConfig, members_of
from energylm.verbs.recipes.step_kind import DATA

CORPUS = "corpus"  # the step
BUILD = "corpus build"  # the verb that makes it
_SPLIT_SETTINGS = ("valid_fraction", "test_fraction", "split_seed")


def choose_corpus(corpora: Mapping[str, Mapping[str, Any]], *, wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    """The corpus (or set of corpora) called `wanted`, or the first whose sources are here, and its settings."""
    if wanted is not None:
        if wanted not in corpora:
            raise ConfigError(f"unknown corpus {wanted!r}; this recipe has: {', '.join(corpora)}")
        return wanted, corpora[wanted]
    for name, settings in corpora.items():
        if all(_is_here(source) for source in _sources(settings)):
            return name, settings
    raise DataError(f"none of the corpora {', '.join(corpora)} is here; set ENERGYLM_DATA to the folder of data sets")


def corpus_steps(common: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, StepConfig]:
    """The steps of a chosen corpus or set, with the settings `common` to all."""
    members = members_of(chosen)
    if members is None:
        return {CORPUS: StepConfig(make=BUILD, config={**common, **chosen})}
    for name, settings in members.items():
        if own := [key for key in _SPLIT_SETTINGS if settings.get(key, common.get(key)) != common.get(key)]:
            raise ConfigError(
                f"corpus {name!r} has a {own[0]} of its own, but the common tokenizer learns from the training texts "
                f"of all: set {own[0]} for all of them"
            )
    union = StepConfig(make=BUILD, config={**common, "sources": list(dict.fromkeys(_sources(chosen)))})
    return {CORPUS: union} | {
        name: StepConfig(make=BUILD, config={**common, "tokenizer": f"{PRODUCT}{CORPUS}", **settings})
        for name, settings in members.items()
    }


def _sources(settings: Mapping[str, Any]) -> list[str]:
    members = members_of(settings)
    parts = [settings] if members is None else members.values()
    return [source for part in parts for source in part["sources"]]


def _is_here(source: str) -> bool:
    _, is_data, path = source.partition(DATA)
    if not is_data:
        return True
    try:
        return (data_folder() / path).exists()
    except DataError:
        return False
