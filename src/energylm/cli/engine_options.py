"""`--engine` and what goes with it, for the commands whose work is cut into blocks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from energylm.config.engine import EngineConfig


def _option(text: str, *names: str) -> Any:
    """An option in the panel of its own."""
    return typer.Option(*names, help=text, show_default=False, rich_help_panel="Engine")


Engine = Annotated[
    str | None, _option("local: in this process (default); ray: by workers of a Ray cluster (the extra ray).")
]
Address = Annotated[str | None, _option("The Ray cluster (default: RAY_ADDRESS, else this machine alone).")]
Workers = Annotated[int | None, _option("Copies of the model on the cluster (default: as many as fit).")]
Threads = Annotated[
    int | None,
    _option("Threads of each copy (default: 1 on Ray, torch's choice here).", "--threads-per-worker"),
]
Gpus = Annotated[float | None, _option("GPUs of each copy, or a share of one (default: 0).", "--gpus-per-worker")]
Keep = Annotated[
    Path | None,
    typer.Option(
        "--keep",
        help="A folder for finished blocks: a killed run goes on from them when run again.",
        show_default=False,
    ),
]


def engine_config(
    engine: str | None, address: str | None, workers: int | None, threads: int | None, gpus: float | None
) -> "EngineConfig":
    from energylm.cli.options import load_config
    from energylm.config.engine import EngineConfig

    flags = {
        "engine": engine,
        "address": address,
        "workers": workers,
        "threads_per_worker": threads,
        "gpus_per_worker": gpus,
    }
    return load_config(EngineConfig, overrides=flags)
