"""Corpora as steps: identified by the content of their sources, wherever these lie; chosen by what is here.

A recipe names alternatives, of which the first whose data are here is taken: single corpora, which become the step
`corpus`, or sets of corpora (books, news, wiki). Of a set, `corpus` is the union, whose byte-level BPE all of them
share, and each member is a step of its own name. (Bakhtin et al. 2019 §4.1 take the vocabulary from CC-News alone.)
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS, locate
from energylm.config.corpus import CorpusConfig
from energylm.config.places import data_folder
from energylm.config.recipe import PRODUCT, StepConfig, members_of
from energylm.errors import ConfigError, DataError
from energylm.jobs.artefacts import KEY_DIGITS
from energylm.pipelines.recipe_steps.data_files import DATA
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

CORPUS = "corpus"
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
        return {CORPUS: StepConfig(make=CORPUS, config={**common, **chosen})}
    for name, settings in members.items():
        if own := [key for key in _SPLIT_SETTINGS if settings.get(key, common.get(key)) != common.get(key)]:
            raise ConfigError(
                f"corpus {name!r} has a {own[0]} of its own, but the common tokenizer learns from the training texts "
                f"of all: set {own[0]} for all of them"
            )
    union = StepConfig(make=CORPUS, config={**common, "sources": list(dict.fromkeys(_sources(chosen)))})
    return {CORPUS: union} | {
        name: StepConfig(make=CORPUS, config={**common, "tokenizer": f"{PRODUCT}{CORPUS}", **settings})
        for name, settings in members.items()
    }


def _sources(settings: Mapping[str, Any]) -> list[str]:
    members = members_of(settings)
    parts = [settings] if members is None else members.values()
    return [source for part in parts for source in part["sources"]]


def _is_here(source: str) -> bool:
    _, has_prefix, place = source.partition(DATA)
    if not has_prefix:
        return True
    try:
        return (data_folder() / place).exists()
    except DataError:
        return False


def located(values: Values) -> CorpusConfig:
    """The config with sources and tokenizer as paths of this machine; the corpus's identity does not know them."""
    settings = dict(values)
    settings["sources"] = [
        f"{form}{data_folder() / place}" if has_prefix else source
        for source in values["sources"]
        for form, has_prefix, place in [source.partition(DATA)]
    ]
    if settings.get("tokenizer") in KNOWN_MODELS:
        settings["tokenizer"] = str(locate(settings["tokenizer"]))
    return CorpusConfig.checked(settings, origin="step 'corpus'")


def _identity(values: Values) -> Result:
    from energylm.pipelines.build_corpus import plan_corpus

    if any(source.startswith("hf:") for source in values["sources"]):  # named by the hub: no need to fetch it to plan
        return {"corpus": CorpusConfig.checked(values, origin="step 'corpus'").model_dump(mode="json")}
    tokenizer = values.get("tokenizer")
    if tokenizer is not None and re.fullmatch(rf"{CORPUS}/[0-9a-f]{{{KEY_DIGITS}}}", tokenizer):  # another step's
        own = {key: value for key, value in values.items() if key not in ("tokenizer", "vocabulary_size")}
        return {"corpus": plan_corpus(located(own), output=Path()).identity, "tokenizer": tokenizer}
    return {"corpus": plan_corpus(located(values), output=Path()).identity}


def _make_corpus(values: Values, folder: Path) -> Result:
    from energylm.pipelines.build_corpus import build_corpus

    manifest = build_corpus(located(values), output=folder)
    return {
        "vocabulary_size": manifest.tokenizer.vocabulary_size,
        "tokens": {split: counts.tokens for split, counts in manifest.splits.items()},
        "licence": manifest.licence,
    }


STEPS = {CORPUS: StepKind(CorpusConfig, _make_corpus, content=_identity)}
