"""Where blocks of work are done: `--engine local|ray` of the commands that generate and score."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

LOCAL: Literal["local"] = "local"
RAY: Literal["ray"] = "ray"


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
        asked = {"address": self.address, "workers": self.workers, "gpus-per-worker": self.gpus_per_worker or None}
        given = [name for name, value in asked.items() if value is not None]
        if given and self.engine == LOCAL:
            raise ValueError(
                f"--{given[0]} is for a cluster, but the engine is local; add --engine ray, or leave it out"
            )
        return self


HERE = EngineConfig()
