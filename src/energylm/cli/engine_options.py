"""`--engine` and what goes with it, for the commands whose work is cut into blocks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from energylm.config.engine import EngineConfig

PANEL = "Engine"

Engine = Annotated[
    str | None,
    typer.Option(
        help="local: in this process (default); ray: by workers of a Ray cluster (the extra ray).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster (default: RAY_ADDRESS, else this machine alone).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Copies of the model on the cluster (default: as many as fit).", show_default=False, rich_help_panel=PANEL
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads-per-worker",
        help="Threads of each copy (default: 1 on Ray, torch's choice here).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker",
        help="GPUs of each copy, or a share of one (default: 0).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
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
    from energylm.config import load_config
    from energylm.config.engine import EngineConfig

    flags = {
        "engine": engine,
        "address": address,
        "workers": workers,
        "threads_per_worker": threads,
        "gpus_per_worker": gpus,
    }
    return load_config(EngineConfig, overrides=flags)
