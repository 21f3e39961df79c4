"""Scorers as steps: n-best lists reranked (clark2020 tables 2 and 5).

Files that begin with `data:` lie in ENERGYLM_DATA. A step is identified by the content of its files, not their place,
and of known models by their weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.base import Config
from energylm.config.rerank import RerankConfig
from energylm.pipelines.recipe_steps.data_files import content_of, place_of
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

BLIMP = "data:blimp"  # the pairs that are judged where none are named


def _rerank(values: Values, folder: Path) -> Result:
    """Numbers of every set under its file's name without ending; the metric in per cent."""
    from energylm.pipelines.rerank import rerank

    run = rerank(RerankConfig.checked(_with_files(values, lambda path: str(place_of(path)))), output=folder)
    found: Result = {
        Path(one.name).stem: {
            "lists": one.lists,
            "weight": " ".join(f"{weight:g}" for weight in one.weights),
            "one_best": one.comparison.first.value,
            "reranked": one.comparison.second.value,
            "lower": one.comparison.second.lower,
            "upper": one.comparison.second.upper,
            "oracle": one.oracle,
            "change": one.comparison.difference.value,
            "p": one.comparison.p_value,
            "changed": len(one.changes),
            "dev": None if one.tuning is None else one.tuning.value,
        }
        for one in run.outcomes
    }
    return found | {
        "hypotheses_per_second": run.hypotheses_per_second,
        "seconds": run.seconds,
        "convention": run.convention,
    }


def _identity(config_class: type[Config]) -> Callable[[Values], Result]:
    def identity(values: Values) -> Result:
        settings = config_class.checked(values, origin="a scorer's step").model_dump(mode="json")
        scorers = settings["scorers"] if "scorers" in settings else [settings]
        for scorer in scorers:
            if scorer["model"] in KNOWN_MODELS:
                scorer["model"] = f"{scorer['model']} {weights_sha256(scorer['model'])}"
        return _with_files(settings, lambda path: [Path(path).stem, *content_of(path)])

    return identity


def _with_files(values: Values, change: Callable[[str], Any]) -> dict[str, Any]:
    """The settings with every name of a file changed."""
    found = dict(values)
    if "sets" in found:
        names = ("lists", "dev", "references", "dev_references")
        found["sets"] = [
            {key: change(value) if key in names and value is not None else value for key, value in one.items()}
            for one in found["sets"]
        ]
    else:
        found["sources"] = [change(source) for source in found.get("sources") or (BLIMP,)]
    return found


STEPS = {
    "rerank": StepKind(RerankConfig, _rerank, content=_identity(RerankConfig)),
}
