"""Taggers and translators as steps: trained from several seeds, scored by several searches, picked on dev, and the line
of weights (goyal2021 chapters 3 to 5).

Files that begin with `data:` lie in ENERGYLM_DATA. A step is identified by the content of its files, not their place.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.config.base import Config
from energylm.config.seq2seq import LineConfig
from energylm.config.seq2seq_study import PickConfig, RestartsConfig, ScoresConfig
from energylm.errors import ConfigError
from energylm.pipelines.recipe_steps.data_files import content_of, place_of
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values, pinned

if TYPE_CHECKING:
    from energylm.pipelines.seq2seq_evaluate import Seq2SeqEvaluation

SCORES_FILE = "scores.json"
_FILES, _MODELS = ("train", "valid", "data"), ("init", "model", "other")


def _train(values: Values, folder: Path) -> Result:
    from energylm.pipelines.seq2seq_restarts import train_restarts

    return train_restarts(RestartsConfig.checked(_located(values)), output=folder).to_json()


def _score(values: Values, folder: Path) -> Result:
    """Under the names of set and search: the measures in per cent; under the set's alone, what holds for all."""
    from energylm.config.seq2seq import EvaluateSeq2SeqConfig
    from energylm.files import write_json
    from energylm.pipelines.seq2seq_evaluate import evaluate_seq2seq

    config = ScoresConfig.checked(_located(values))
    same = {"model": config.model, **config.model_dump(include={"batch", "limit", "unseen_tags", "length_bins"})}
    found: Result = {}
    for name, files in config.sets.items():
        for search, decoding in config.decodings.items():
            run = evaluate_seq2seq(EvaluateSeq2SeqConfig(**same, data=files, decoding=decoding))
            gold = {"log_z": run.log_z.to_json(), "nats": run.nats_per_symbol}
            found.setdefault(name, {"convention": run.scores.table().convention, **gold})[search] = _measures(run)
    write_json(folder / SCORES_FILE, found)
    return found


def _measures(run: "Seq2SeqEvaluation") -> Result:
    """The scores with names for what tables and claims look at one by one."""
    scores = run.to_json()["scores"]
    if "precisions" in scores:
        precisions = scores["precisions"]
        scores["ngrams"] = {f"n{n}": value for n, value in enumerate(precisions, start=1)}
        scores["ngrams_text"] = "/".join(f"{value:.1f}" for value in precisions)
        scores["bins"] = {f"b{n}": one["bleu"] for n, one in enumerate(scores["by_source_length"], start=1)}
    return scores


def _pick(values: Values, folder: Path) -> Result:
    """All scores of the model that is best on the deciding set, and its name."""
    from energylm.files import read_json

    config = PickConfig.checked(values)
    scores = {name: read_json(Path(place) / SCORES_FILE) for name, place in config.among.items()}
    deciding: dict[str, float] = {}
    for name, found in scores.items():
        try:
            deciding[name] = found[config.by][config.decoding]["quality"]
        except KeyError:
            raise ConfigError(f"{name!r} was not scored on {config.by!r} by {config.decoding!r}; score it so") from None
    best = max(deciding, key=deciding.__getitem__)
    return {"picked": best, "deciding": deciding, **scores[best]}


def _draw_line(values: Values, folder: Path) -> Result:
    """`hard`, `relaxed_1`, `relaxed_2` … each with its curve, its largest jump between points (and between points twice
    as far apart: a smooth curve's is twice as large, a discontinuity's is the same), and how far it is from `hard`."""
    from energylm.pipelines.seq2seq_line import largest_jump, objective_line

    plot = objective_line(LineConfig.checked(_located(values)), output=folder)
    hard = plot.series[0].y
    found: Result = {}
    for number, series in enumerate(plot.series):
        found["hard" if number == 0 else f"relaxed_{number}"] = {
            "name": series.name,
            "x": list(series.x),
            "y": list(series.y),
            "jump": largest_jump(series.y),
            "jump_twice_as_far": largest_jump(series.y[::2]),
            "distance": sum(abs(a - b) for a, b in zip(series.y, hard, strict=True)) / len(hard),
        }
    return found


def _identity(config_class: type[Config]) -> Callable[[Values], Result]:
    """The settings with the hashes of files in place of their names; models by their weights."""

    def identity(values: Values) -> Result:
        settings = config_class.checked(values, origin="a sequence model's step").model_dump(mode="json")
        settings |= {name: pinned(settings[name]) for name in _MODELS if name in settings}
        return _with_files(settings, content_of)

    return identity


def _located(values: Values) -> dict[str, Any]:
    """The settings with paths of this machine."""
    return _with_files(values, lambda path: str(place_of(path)))


def _with_files(values: Values, change: Callable[[str], Any]) -> dict[str, Any]:
    found = dict(values)
    for name in _FILES:  # in this order: the first file that is missing is the one that is told
        if name in found:
            found[name] = [change(path) for path in found[name]]
    if "sets" in found:
        found["sets"] = {name: [change(path) for path in paths] for name, paths in found["sets"].items()}
    return found


STEPS = {
    "seq2seq": StepKind(RestartsConfig, _train, product="model", content=_identity(RestartsConfig)),
    "seq2seq-scores": StepKind(ScoresConfig, _score, content=_identity(ScoresConfig)),
    "seq2seq-pick": StepKind(PickConfig, _pick),
    "seq2seq-line": StepKind(LineConfig, _draw_line, content=_identity(LineConfig)),
}
