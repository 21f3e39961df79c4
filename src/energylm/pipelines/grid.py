"""The generalization study as one command: `energylm grid`.

Every corpus, language model, folder of negatives, energy and cell is a step in the artefact store: what cells share is
made once, what was made before (by a grid or a recipe) is reused, and an interrupted run goes on where it stopped.

OUTPUT/report.html, results.md, results.json, PNG heat maps
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.config.grid import GridConfig
from energylm.evaluation.grid_report import grid_sections
from energylm.files import interrupts_say_it_is_kept, read_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.pipelines.grid_steps import GRID, expand_grid
from energylm.pipelines.steps import PlannedStep, describe_steps, make_steps, plan_steps, steps_section
from energylm.report.report import Section, Text, write_report

__all__ = ["GridConfig", "GridPlan", "GridRun", "plan_grid", "run_grid"]


@dataclass(frozen=True)
class GridPlan:
    steps: list[PlannedStep]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Where each cell stands, in the order of the report."""
        return self.steps[-1].values["cells"]

    def describe(self) -> str:
        lines = describe_steps(self.steps)
        for cell in self.cells:
            note = f" (not judged: {cell['note']})" if cell.get("note") else ""
            lines.append(
                f"  cell      {cell['energy']} trained on {cell['training']}, tested on {cell['test']}: "
                f"{cell['setting']}{note}"
            )
        left = sum(not step.finished for step in self.steps)
        return "\n".join([*lines, f"{left} of {len(self.steps)} steps to make, {len(self.cells)} cells"])


@dataclass(frozen=True)
class GridRun:
    report: Path
    results: Path
    found: dict[str, Any]  # `evaluation.grid_report.summarise`

    def to_json(self) -> dict[str, Any]:
        return read_json(self.results)


def plan_grid(config: GridConfig, *, store: ArtefactStore | None = None) -> GridPlan:
    """Check the grid and find out what is already there. Makes nothing."""
    return GridPlan(plan_steps(expand_grid(GRID, config), [GRID], store=store or ArtefactStore()))


@interrupts_say_it_is_kept()
def run_grid(config: GridConfig, *, output: Path, store: ArtefactStore | None = None) -> GridRun:
    """Fill all cells and write the report into the folder `output`."""
    store = store or ArtefactStore()
    made = make_steps(plan_grid(config, store=store).steps, store=store)
    found = made[GRID].result
    sections: list[Section] = [
        Text("What this is", _about(config)),
        *grid_sections(found, title="Accuracy"),
        steps_section(made),
    ]
    page = write_report(output, title="Generalization of real against machine text", sections=sections)
    return GridRun(page, page.parent / "results.json", found)


def _about(config: GridConfig) -> str:
    generators = ", ".join(
        f"{name} ({one.lm})" if one.lm is not None else f"{name} ({', '.join(one.directions)})"
        for name, one in config.generators.items()
    )
    return (
        f"Energies {', '.join(config.energies)}, trained to tell real text from text by the generators {generators} on "
        f"the corpora {', '.join(config.corpora)}. Generators of test texts were trained with another seed than those "
        f"of training texts ({config.test_seed} and {config.train_seed}); test texts are of the test split.\n\n"
        "in-domain: training set and test set share corpus and generator architecture; cross-architecture: the corpus "
        "alone; cross-corpus: the architecture alone; unseen: neither. A generator that was not trained here brings a "
        "corpus of its own."
    )
