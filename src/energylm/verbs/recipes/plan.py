"""`energylm plan`: what a recipe or the demo will cost, before it is run."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.config.base import load_config
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.recipes.machine import MachineConfig
from energylm.verbs.recipes.recipe import Scale, load_recipe
from energylm.verbs.verb import Positional, Verb

DEMO = "demo"


class Plan(Verb):
    """Estimate FLOPs, memory, disk and time, step by step. Steps that are there already cost nothing.

    Without --machine the rates of this machine are measured in some seconds; let nothing else run meanwhile. Training
    ends at its last step in a plan, though validation may end it earlier.
    """

    examples = (
        "energylm plan deng2020/table1",
        "energylm plan demo --json plan.json",
        "energylm plan --measure machine.yaml",
        "energylm plan deng2020/table1 --scale paper --machine gpu.yaml --nodes 8 --processes 8",
    )

    recipe: Annotated[str | None, Positional("RECIPE")] = Field(
        None, description="A recipe, e.g. deng2020/table1, a YAML file of your own, or `demo`."
    )
    scale: Scale = Field("mini", description="Of a recipe.")
    corpus: str | None = Field(
        None, description="Which of the recipe's corpora; without it the first whose data are here."
    )
    machine: Path | None = Field(
        None, description="YAML file with the rates of a machine; without it this one is measured."
    )
    nodes: int = Field(1, ge=1, description="Machines.")
    processes: int = Field(1, ge=1, description="Processes on each machine, each with the rates of --machine.")
    text_gigabytes: float | None = Field(
        None, gt=0, description="Text of each data set from the hub whose size is not known here."
    )
    fresh: bool = Field(False, description="Count steps whose artefacts are there, too.")
    measure: Path | None = Field(None, description="Measure this machine, write its rates to this file, and leave.")
    fit: tuple[Path, ...] = Field(
        (), description="Fit the factors anew to kept results (results.json) of this machine, and leave."
    )

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if self.recipe is None and self.measure is None and not self.fit:
            raise ValueError("name a recipe, e.g. energylm plan deng2020/table1, or demo; or say --measure FILE")
        return self

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.nodes * self.processes

    def rates(self) -> MachineConfig:
        """Of the file, or measured here."""
        if self.machine is not None:
            return load_config(MachineConfig, self.machine)
        from energylm.verbs.recipes.machine import measure_machine

        return measure_machine()

    def check(self, job: Job = DEFAULT_JOB) -> str:
        machine = "this machine, measured" if self.machine is None else load_config(MachineConfig, self.machine).name
        if self.measure is not None:
            return f"would measure this machine and write its rates to {self.measure}"
        if self.fit:
            return f"would fit the factors to {len(self.fit)} kept results with the rates of {machine}"
        if self.recipe is not None and self.recipe != DEMO:
            load_recipe(self.recipe)
        return f"would count the work of {self.recipe} and turn it into time on {machine}"

    def run(self, job: Job = DEFAULT_JOB) -> Record:
        self.check(job)  # a misspelt name is told before anything is measured
        from energylm.verbs.recipes.plan_cost import plan_cost
        from energylm.verbs.recipes.plan_fit import MeasuredMachine, fit_factors, save_factors

        if self.measure is not None:
            return MeasuredMachine.written(self.measure)
        if self.fit:
            fitted = fit_factors(self.fit, self.rates())
            save_factors(fitted)
            return fitted
        return plan_cost(self, self.rates())

    def shown(self, result: Any) -> str:
        text: str = result.in_words()
        return text

    def remarks(self, result: Any) -> list[str]:
        return []
