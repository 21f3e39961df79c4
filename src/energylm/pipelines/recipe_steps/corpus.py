"""Corpora as steps: identified by the content of their sources, wherever these lie; chosen by what is here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS, locate
from energylm.config.corpus import CorpusConfig
from energylm.config.places import data_folder
from energylm.errors import ConfigError, DataError
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

CORPUS = "corpus"
DATA = "data:"  # sources that lie in ENERGYLM_DATA


def choose_corpus(corpora: Mapping[str, Mapping[str, Any]], *, wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    """The corpus called `wanted`, or the first whose sources are here, and its settings."""
    if wanted is not None:
        if wanted not in corpora:
            raise ConfigError(f"unknown corpus {wanted!r}; this recipe has: {', '.join(corpora)}")
        return wanted, corpora[wanted]
    for name, settings in corpora.items():
        if all(_is_here(source) for source in settings["sources"]):
            return name, settings
    raise DataError(f"none of the corpora {', '.join(corpora)} is here; set ENERGYLM_DATA to the folder of data sets")


def _is_here(source: str) -> bool:
    _, has_prefix, place = source.partition(DATA)
    if not has_prefix:
        return True
    try:
        return (data_folder() / place).exists()
    except DataError:
        return False


def _corpus(values: Values) -> CorpusConfig:
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
    return {"corpus": plan_corpus(_corpus(values), output=Path()).identity}


def _make_corpus(values: Values, folder: Path) -> Result:
    from energylm.pipelines.build_corpus import build_corpus

    manifest = build_corpus(_corpus(values), output=folder)
    return {
        "vocabulary_size": manifest.tokenizer.vocabulary_size,
        "tokens": {split: counts.tokens for split, counts in manifest.splits.items()},
        "licence": manifest.licence,
    }


STEPS = {CORPUS: StepKind(CorpusConfig, _make_corpus, content=_identity)}
