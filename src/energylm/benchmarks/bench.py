"""`energylm bench NAME`: measure against peers and limits in one run; exit code 1 where a bar does not hold."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.benchmarks import BENCHMARKS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import Table
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.benchmarks.harness import BenchmarkResult

LIST = "list"


@dataclass(frozen=True)
class BenchmarkList(Record):
    names: list[str]

    @property
    def table(self) -> Table:
        return Table(["benchmark"], [[name] for name in self.names])


class Bench(Verb):
    """Measure energylm against peers and the machine's limit.

    Contenders take turns within one run and medians are compared. Leaves with exit code 1 where a bar does not hold.
    """

    examples = ("energylm bench list", "energylm bench shared-prefix --json shared-prefix.json")

    name: Annotated[str, Positional("NAME")] = Field(description="Which benchmark; `list` names them all.")
    repeats: int = Field(5, ge=1, description="Interleaved repeats per contender; medians are reported.")
    quick: bool = Field(False, description="Tiny sizes, to see that it runs; its bars mean nothing.")

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.name not in (LIST, *BENCHMARKS):
            raise ValueError(f"unknown benchmark {self.name!r}; known: {', '.join(BENCHMARKS)}")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        if self.name == LIST:
            return f"would list {len(BENCHMARKS)} benchmarks"
        return (
            f"would run the benchmark {self.name} with {self.repeats} repeats{' of tiny sizes' if self.quick else ''}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "BenchmarkList | BenchmarkResult":
        if self.name == LIST:
            return BenchmarkList(list(BENCHMARKS))
        from energylm.benchmarks.harness import Options

        result: BenchmarkResult = import_module(BENCHMARKS[self.name]).run(Options(self.repeats, self.quick))
        return result

    def shown(self, result: Any) -> str:
        return "\n".join([*result.names, ""]) if isinstance(result, BenchmarkList) else super().shown(result)

    def exit_code(self, result: Any) -> int:
        return 0 if isinstance(result, BenchmarkList) or result.holds else 1
