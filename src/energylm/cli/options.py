"""Options that many verbs share, so that they look and read the same everywhere."""

from pathlib import Path
from typing import Annotated, Any

import typer

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file with any keys of the configuration.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any key of the configuration, e.g. training.micro_batch=8; repeatable."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the inputs and print what would be done; write nothing.")
]


def needs_extra(extra: str, *modules: str) -> None:
    """Say how to install what a command needs beyond the package itself, if it is not there."""
    from importlib.util import find_spec

    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        from energylm.errors import ConfigError

        raise ConfigError(f"this command needs {', '.join(absent)}: pip install 'energylm[{extra}]'")


def write_result(json: Path | None, result: Any) -> None:
    """`result.to_json()` into the file that --json names, if it does."""
    if json is not None:
        from energylm.files import write_json

        write_json(json, result.to_json())
