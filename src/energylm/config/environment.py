"""The surroundings of a run: folders (`ENERGYLM_HOME`, `ENERGYLM_DATA`), whether models may be fetched, names of the
hub, and the engine of blocks.

A known model that is asked for by its name is fetched on first use, unless `ENERGYLM_OFFLINE` or `HF_HUB_OFFLINE` is
set, or the work only looks (`without_fetching`: dry runs, plans).
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.errors import DataError

LOCAL: Literal["local"] = "local"
RAY: Literal["ray"] = "ray"
OFFLINE = ("ENERGYLM_OFFLINE", "HF_HUB_OFFLINE")
DRY_RUN = "a dry run fetches nothing"
_only_looks = ContextVar("only_looks", default=False)


def home_folder() -> Path:
    """Models, artefacts and results: `ENERGYLM_HOME`, or the user's cache folder."""
    if chosen := os.environ.get("ENERGYLM_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("energylm"))


def data_folder() -> Path:
    """The folder of data sets named by `ENERGYLM_DATA`; a missing one is an error that says how to set it."""
    chosen = os.environ.get("ENERGYLM_DATA")
    if not chosen:
        raise DataError("ENERGYLM_DATA is not set; set it to the folder that holds the data sets (wiki/, books/, …)")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"ENERGYLM_DATA names {folder}, which is not a folder")
    return folder


def why_not_fetched() -> str | None:
    """Why nothing may be fetched now, in words; None where it may."""
    for name in OFFLINE:
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no"):
            return f"{name} is set"
    return DRY_RUN if _only_looks.get() else None


@contextmanager
def without_fetching() -> Iterator[None]:
    """Within it nothing is fetched."""
    token = _only_looks.set(True)
    try:
        yield
    finally:
        _only_looks.reset(token)


def is_hub_name(name: str) -> bool:
    """Whether `name` can be a model of the hub: OWNER/NAME. The few old names without an owner have one there, too."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None and not name.endswith(".gguf")


class EngineConfig(Config):
    """In this process, or by workers of a Ray cluster. The engine changes where work is done, never what comes out."""

    engine: Literal["local", "ray"] = Field(LOCAL, description="local: in this process; ray: on a Ray cluster.")
    address: str | None = Field(
        None, description="The cluster's address; none: RAY_ADDRESS, else a Ray on this machine for this run alone."
    )
    workers: int | None = Field(
        None, ge=1, description="Copies of the model; none: as many as the cluster has room for."
    )
    threads_per_worker: int | None = Field(
        None,
        ge=1,
        description="Threads of a copy; none: one on Ray, torch's own choice here. Equal results need equal threads.",
    )
    gpus_per_worker: float = Field(0.0, ge=0.0, description="GPUs of a copy, or a share of one.")

    @model_validator(mode="after")
    def _a_cluster_is_asked_for(self) -> Self:
        options = {"address": self.address, "workers": self.workers, "gpus-per-worker": self.gpus_per_worker or None}
        given = [name for name, value in options.items() if value is not None]
        if given and self.engine == LOCAL:
            raise ValueError(
                f"--{given[0]} is for a cluster, but the engine is local; add --engine ray, or leave it out"
            )
        return self


HERE = EngineConfig()
