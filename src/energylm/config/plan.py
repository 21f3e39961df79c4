"""What `energylm plan` is asked: a recipe at a scale, on which machine, on how many of them."""

from pydantic import Field

from energylm.config.base import Config
from energylm.config.recipe import Scale


class MachineConfig(Config):
    """What one process has: all cores of a machine, or a GPU. `energylm plan --measure FILE` writes this file."""

    name: str = Field("this machine", description="What the plan calls it.")
    matmul_gflops: float = Field(gt=0, description="Billions of operations a second of a large float32 matrix product.")
    memory_gigabytes_per_second: float = Field(gt=0, description="Read and written by a large element-wise operation.")
    operation_microseconds: float = Field(gt=0, description="Of an operation too small for its size to matter.")
    text_megabytes_per_second: float = Field(gt=0, description="Of encoding text with a byte-level BPE.")
    memory_gigabytes: float | None = Field(None, gt=0, description="That a process may use; none = not checked.")
    disk_gigabytes: float | None = Field(None, gt=0, description="That are free; none = not checked.")
    network_gigabytes_per_second: float = Field(
        1.0, gt=0, description="Between processes, for the gradients of an update."
    )


class PlanConfig(Config):
    name: str = Field(description="A recipe, e.g. deng2020/table1, a file of your own, or `demo`.")
    scale: Scale = Field("mini", description="Of a recipe.")
    corpus: str | None = Field(None, description="Which of the recipe's corpora; none = the first whose data are here.")
    nodes: int = Field(1, ge=1, description="Machines.")
    processes: int = Field(1, ge=1, description="On each of them.")
    text_gigabytes: float | None = Field(
        None, gt=0, description="Text of each data set from the hub whose size is not known here."
    )
    fresh: bool = Field(False, description="Count steps whose artefacts are there, too.")

    @property
    def world(self) -> int:
        return self.nodes * self.processes
