"""Detectors as steps: trained on labelled texts, judged on others (bakhtin2019 table 6).

Sources that begin with `data:` lie in ENERGYLM_DATA. A step is identified by the content of its files, not their place.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.base import Config
from energylm.config.detect import DetectEvalConfig, DetectTrainConfig
from energylm.pipelines.recipe_steps.data_files import content_of, place_of
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

if TYPE_CHECKING:
    from energylm.evaluation.detector_report import Verdicts

_SOURCES, _PATHS = ("data", "train"), ("human", "machine", "pairs")


def _train(values: Values, folder: Path) -> Result:
    from energylm.pipelines.detect_train import train_detector

    run = train_detector(DetectTrainConfig.checked(_located(values)), output=folder)
    return {"steps": run.steps, "best_step": run.best_step, "seconds": run.seconds, "held_out": run.held_out}


def _evaluate(values: Values, folder: Path) -> Result:
    """The measures as numbers by name, accuracies in per cent as the paper prints them."""
    from energylm.pipelines.detect_eval import evaluate

    run = evaluate(DetectEvalConfig.checked(_located(values)), output=folder)
    measured = {"detector": run.detector} | ({"tfidf": run.baseline} if run.baseline is not None else {})
    found: Result = {"human": run.detector.real, "machine": run.detector.machine, "overlap": run.overlap}
    found["verdicts"] = {label: _verdict_shares(run.verdicts, label) for label in ("human", "machine")}
    for name, one in measured.items():
        found[name] = {
            "accuracy": 100 * one.balanced_accuracy.value,
            "accuracy_interval": f"{100 * one.balanced_accuracy.lower:.1f}–{100 * one.balanced_accuracy.upper:.1f}",
            "auroc": one.auroc.value,
            "auroc_interval": f"{one.auroc.lower:.3f}–{one.auroc.upper:.3f}",
            "tpr_at_1": one.tpr_at_1 and one.tpr_at_1.value,
            "tpr_at_1_interval": one.tpr_at_1 and f"{one.tpr_at_1.lower:.3f}–{one.tpr_at_1.upper:.3f}",
        }
    return found


def _verdict_shares(verdicts: "Mapping[str, Verdicts]", label: str) -> Result:
    """Per cent of all texts of a class; `verdicts` has its sources, named "label: file"."""
    of_class = [one for name, one in verdicts.items() if name.startswith(f"{label}: ")]
    texts = sum(one.texts for one in of_class)
    return {
        verdict: 100 * sum(one.texts * getattr(one, verdict) for one in of_class) / texts
        for verdict in ("machine", "human", "abstains")
    }


def _identity(config_class: type[Config]) -> Any:
    """The settings with the hashes of files in place of their names, and those of known models beside theirs."""

    def identity(values: Values) -> Result:
        settings = config_class.checked(values, origin="a detector's step").model_dump(mode="json")
        for part in _SOURCES:
            for kind in _PATHS if part in settings else ():
                settings[part][kind] = [content_of(path) for path in settings[part][kind]]
        if settings.get("init") in KNOWN_MODELS:
            settings["init"] = f"{settings['init']} {weights_sha256(settings['init'])}"
        return settings

    return identity


def _located(values: Values) -> dict[str, Any]:
    """The settings with paths of this machine."""
    found = dict(values)
    for part in _SOURCES:
        if isinstance(sources := found.get(part), Mapping):
            places = {kind: [str(place_of(path)) for path in sources.get(kind, ())] for kind in _PATHS}
            found[part] = {**sources, **places}
    return found


STEPS = {
    "detector": StepKind(DetectTrainConfig, _train, product="model", version=2, content=_identity(DetectTrainConfig)),
    "detection": StepKind(DetectEvalConfig, _evaluate, content=_identity(DetectEvalConfig)),
}
