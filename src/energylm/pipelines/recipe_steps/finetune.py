"""Fine-tuned encoders as steps, and their summary over tasks (clark2020 tables 1 and 4).

Folders and files that begin with `data:` lie in ENERGYLM_DATA. A step is identified by the content of the files that it
reads, not by their place, and of known models by their weights.
"""

from pathlib import Path
from statistics import fmean

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.finetune import FinetuneConfig, FinetuneSummaryConfig
from energylm.files import read_json
from energylm.pipelines.recipe_steps.data_files import content_of, place_of
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

_FILES = ("train", "evaluation")


def _finetune(values: Values, folder: Path) -> Result:
    """The paper's metric as `score`, with its spread over seeds; all metrics by name; per cent."""
    from energylm.pipelines.finetune import finetune

    run = finetune(_located(values), output=folder)
    best = run.medians[run.metric]
    return {
        "score": best.value,
        "lowest": best.lowest,
        "highest": best.highest,
        "spread": f"{best.lowest:.1f}–{best.highest:.1f}",
        "seeds": list(best.values),
        "metric": run.metric,
        "medians": {name: one.value for name, one in run.medians.items()},
        "ignoring_text": run.baseline.get(run.metric),
        "trained_on": run.sizes["training"],
        "judged_on": run.sizes["evaluation"],
        "steps": run.seeds[0]["steps"],
        "seconds": sum(one["seconds"] for one in run.seeds),
        "convention": run.convention,
    }


def _summarise(values: Values, folder: Path) -> Result:
    """By model: the mean over tasks of the medians, its spread over seeds, and what ignoring the text would give."""
    from energylm.pipelines.finetune import RUN

    config = FinetuneSummaryConfig.checked(values)
    found: Result = {}
    for model, runs in config.models.items():
        outcomes = [read_json(Path(place) / RUN) for place in runs.values()]
        medians = [one["medians"][one["metric"]] for one in outcomes]
        by_seed = [fmean(of_seed) for of_seed in zip(*(one["values"] for one in medians), strict=True)]
        found[model] = {
            "mean": fmean(one["value"] for one in medians),
            "lowest": min(by_seed),
            "highest": max(by_seed),
            "ignoring_text": fmean(one["baseline"].get(one["metric"], 0.0) for one in outcomes),
            "tasks": len(medians),
        }
    return found


def _identity(values: Values) -> Result:
    from energylm.pipelines.finetune import data_files

    settings = FinetuneConfig.checked(values, origin="a fine-tuning step").model_dump(mode="json")
    for part, files in zip(_FILES, data_files(_located(values)), strict=True):
        settings[part] = [content_of(str(file)) for file in files]
    settings.pop("data")
    init = settings["init"]
    if init in KNOWN_MODELS or (Path(init).is_absolute() and Path(init).is_dir()):
        settings["init"] = f"weights {weights_sha256(init)}"
    return settings


def _located(values: Values) -> FinetuneConfig:
    """The settings with paths of this machine."""
    found = dict(values)
    if found.get("data") is not None:
        found["data"] = str(place_of(found["data"]))
    for part in _FILES:
        found[part] = [str(place_of(path)) for path in found.get(part, ())]
    return FinetuneConfig.checked(found, origin="a fine-tuning step")


STEPS = {
    "finetune": StepKind(FinetuneConfig, _finetune, content=_identity),
    "finetune-summary": StepKind(FinetuneSummaryConfig, _summarise),
}
