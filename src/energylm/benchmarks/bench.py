"""`energylm bench NAME`: measure against peers and limits in one run; exit code 1 unless every bar holds."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.benchmarks import BENCHMARKS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.plots import LinePlot
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

    Contenders take turns within one run; medians are compared, with the middle half of the rounds as their spread. A
    bar holds where it holds beyond the spread. Leaves with exit code 1 unless every bar holds.
    """

    examples = (
        "energylm bench list",
        "energylm bench shared-prefix --json shared-prefix.json",
        "energylm bench scaling --full --output runs/scaling",
    )
    writes = "optional"

    name: Annotated[str, Positional("NAME")] = Field(description="Which benchmark; `list` names them all.")
    repeats: int = Field(5, ge=1, description="Rounds in which all contenders take turns, after one to warm up.")
    quick: bool = Field(False, description="Tiny sizes, to see that it runs; its bars mean nothing.")
    full: bool = Field(False, description="Whole ranges and all rounds, however long; else within five minutes.")

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.name not in (LIST, *BENCHMARKS):
            raise ValueError(f"unknown benchmark {self.name!r}; known: {', '.join(BENCHMARKS)}")
        if self.quick and self.full:
            raise ValueError("quick and full exclude each other; choose one")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        if self.name == LIST:
            return f"would list {len(BENCHMARKS)} benchmarks"
        sizes = " of tiny sizes" if self.quick else ", however long" if self.full else " within five minutes"
        return f"would run the benchmark {self.name} with {self.repeats} rounds{sizes}"

    def run(self, job: Job = DEFAULT_JOB) -> "BenchmarkList | BenchmarkResult":
        if self.name == LIST:
            return BenchmarkList(list(BENCHMARKS))
        from energylm.benchmarks.harness import Options

        options = Options(self.repeats, self.quick, self.full)
        result: BenchmarkResult = import_module(BENCHMARKS[self.name]).run(options)
        if job.output is not None:
            self._write_report(result, job.output)
        return result

    def _write_report(self, result: "BenchmarkResult", folder: Path) -> None:
        from energylm.report.report import Numbers, Plot, Section, write_report

        sections: list[Section] = [Numbers("Measured", result.table)]
        if type(result).plot is not Record.plot and isinstance(picture := result.plot(), LinePlot):
            sections.append(Plot("Growth", picture, f"The curves of bench {self.name}; their numbers: JSON."))
        write_report(folder, title=f"bench {self.name}", sections=sections)

    def shown(self, result: Any) -> str:
        return "\n".join([*result.names, ""]) if isinstance(result, BenchmarkList) else super().shown(result)

    def exit_code(self, result: Any) -> int:
        return 0 if isinstance(result, BenchmarkList) or result.holds else 1
