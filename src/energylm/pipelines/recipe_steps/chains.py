"""Masked models as energies as steps: conditional masked models, chains on them and on others (goyal2021, ch. 6).

Files that begin with `data:` lie in ENERGYLM_DATA. A step is identified by the content of its files, not their place.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from energylm.config.base import Config
from energylm.config.mcmc import MASK_PREDICT, MCMCConfig, TranslationChainsConfig
from energylm.config.pretrain_cmlm import PretrainCMLMConfig
from energylm.pipelines.recipe_steps.data_files import content_of, place_of
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

_FILES = ("train", "valid", "data")


def _pretrain(values: Values, folder: Path) -> Result:
    from energylm.pipelines.pretrain_cmlm import plan_cmlm, pretrain_cmlm

    config = PretrainCMLMConfig.checked(_located(values))
    run = pretrain_cmlm(config, output=folder)
    plan = plan_cmlm(config, output=folder)
    return {
        "parameters": plan.parameters,
        "epochs": plan.epochs,
        "steps": run.steps,
        "seconds": run.seconds,
        **run.validation,
    }


def _translate(values: Values, folder: Path) -> Result:
    from energylm.pipelines.translation_chains import translation_chains

    return translation_chains(TranslationChainsConfig.checked(_located(values)), output=folder)


def _sample(values: Values, folder: Path) -> Result:
    from energylm.pipelines.mcmc import run_mcmc
    from energylm.pipelines.translation_chains import summary

    config = MCMCConfig.checked(values)
    output = None if config.run.sampler == MASK_PREDICT else folder
    return summary(run_mcmc(config, output=output), burn_in=config.run.burn_in)


def _identity(config_class: type[Config]) -> Callable[[Values], Result]:
    """The settings with the hashes of files in place of their names."""

    def identity(values: Values) -> Result:
        settings = config_class.checked(values, origin="a step on parallel text").model_dump(mode="json")
        return settings | {name: [content_of(path) for path in settings[name]] for name in _FILES if name in settings}

    return identity


def _located(values: Values) -> dict[str, Any]:
    """The settings with paths of this machine."""
    return dict(values) | {name: [str(place_of(path)) for path in values[name]] for name in _FILES if name in values}


STEPS = {
    "cmlm": StepKind(PretrainCMLMConfig, _pretrain, product="model", content=_identity(PretrainCMLMConfig)),
    "translation-chains": StepKind(TranslationChainsConfig, _translate, content=_identity(TranslationChainsConfig)),
    "chains": StepKind(MCMCConfig, _sample),
}
