"""Options that many verbs share, so that they look and read the same everywhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from energylm.config.base import ConfigType

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file with any keys of the configuration.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration, inner ones as a.b; repeatable."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the inputs and print what would be done; write nothing.")
]

TYPED = {  # keys whose options have other names
    "comparisons": "--compare",
    "data.human": "--human",
    "data.machine": "--machine",
    "design.qualification.items": "--qualification",
    "false_positive_rate": "--fpr",
    "blocks.tokens": "--block",
    "k": "-k",
    "language_model": "--lm",
    "lengths": "--length",
    "long_texts": "--refuse-long",
    "margins": "--margin",
    "max_edits": "--edits",
    "models": "--model",
    "n": "-n",
    "objective.alpha.start": "--alpha",
    "objective.kind": "--objective",
    "prefix": "--prefix-tokens",
    "prompts": "--prompt",
    "references": "--reference-file",
    "run.annealing.block": "--anneal-block",
    "run.annealing.target": "--anneal",
    "sampling.n": "-n",
    "scorers": "MODEL",
    "sets": "FILE",
    "sources": "--source",
    "texts": "--init",
    "training.global_batch": "--batch",
    "training.validation.patience_evaluations": "--patience",
    "weights": "--weight",
    "windows.prefix": "--prefix-tokens",
}


def load_config(
    config_class: "type[ConfigType]",
    file: Path | None = None,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    positions: Mapping[str, str] | None = None,
) -> "ConfigType":
    """`config.load_config`, whose mistakes name options as they are typed; `positions` has those without a flag."""
    from energylm.config import load_config as load

    flags = {key: TYPED.get(key, f"--{key.rpartition('.')[2].replace('_', '-')}") for key in overrides or {}}
    return load(config_class, file, settings=settings, overrides=overrides, names=flags | dict(positions or {}))


def write_result(json: Path | None, result: Any) -> None:
    """`result.to_json()` into the file that --json names, if it does."""
    if json is not None:
        from energylm.files import write_json

        write_json(json, result.to_json())
