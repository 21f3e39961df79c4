"""Steps of generalization grids: an energy judged on generated texts beside the real ones, the log-likelihood baseline,
and the grid that gathers the cells (Bakhtin et al. 2019 §4.4)."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from energylm.config.base import Folders
from energylm.config.detect import Strings
from energylm.config.grid import CellConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.models.compute import Network
    from energylm.report.grid_report import GridSummary
    from energylm.verbs.detect.discriminating import DiscriminationResult, FittedLikelihood


class Discriminate(Verb):
    """Judge an energy on generated texts beside the real ones: a cell of a grid."""

    writes = "optional"

    energy: str = Field(description="The energy's folder.")
    negatives: Folders = Field(description="Folders of generated continuations of test texts.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")
    trained_on: Strings = Field((), description="Negatives that the energy learnt from: must not overlap.")
    trained_on_corpus: Strings = Field((), description="The corpus of each of these, or one for all.")
    resamples: int = Field(1000, ge=1, description="Of the bootstrap intervals.")
    seed: int = Field(0, ge=0, description="Of the bootstrap.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate
        from energylm.data.negatives_sources import paired_sources

        texts = sum(len(negatives) for negatives, _ in paired_sources(self.negatives, self.corpus))
        return f"would judge {texts:,} texts and what was generated beside them with {locate(self.energy)}"

    def run(self, job: Job = DEFAULT_JOB) -> "DiscriminationResult":
        from energylm.verbs.detect.discriminating import discriminate

        return discriminate(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import TOKENS_AT_ONCE
        from energylm.models.compute import resident_bytes

        energy = around.network(self.energy)
        is_likelihood = "likelihood" in Path(self.energy).parts  # where the store puts what a step `likelihood` made
        counted = _reading(energy, self.negatives, around, predicts=is_likelihood)
        counted.count("windows", sum(around.texts(name).contexts for name in (*self.negatives, *self.trained_on)))
        counted.memory_bytes += resident_bytes(energy, tokens=TOKENS_AT_ONCE, length=64, predicted=0, learns=False)
        return counted


class FitLikelihood(Verb):
    """Make the log-likelihood of a language model an energy, with the sign and threshold that tell texts apart best."""

    writes = "required"
    product = "model"

    language_model: str = Field(description="The language model.")
    negatives: Folders = Field(description="Generated continuations of validation texts, for threshold and sign.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate

        return f"would fit the log-likelihood of {locate(self.language_model)} to {', '.join(self.negatives)}"

    def run(self, job: Job = DEFAULT_JOB) -> "FittedLikelihood":
        from energylm.verbs.detect.discriminating import fit_likelihood

        return fit_likelihood(self, job.folder / self.product)

    def cost(self, around: "Surroundings") -> "Counted":
        network = around.network(self.language_model)
        counted = _reading(network, self.negatives, around, predicts=True)
        counted.product = network
        return counted


class GatherCells(Verb):
    """Gather the cells of a grid: means by setting, and how unions fare."""

    cells: tuple[CellConfig, ...] = Field(min_length=1, description="All cells, and where their results lie.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would gather {len(self.cells)} cells"

    def run(self, job: Job = DEFAULT_JOB) -> "GridSummary":
        from energylm.report.grid_report import summarise
        from energylm.verbs.detect.discriminating import grid_cell

        return summarise([grid_cell(cell) for cell in self.cells])

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted()


def _reading(network: "Network", negatives: Folders, around: "Surroundings", *, predicts: bool) -> "Counted":
    """The work of reading real and generated texts, by a network that `predicts` every token or scores the whole."""
    from energylm.jobs.costs import Counted, passes_over
    from energylm.models.compute import reading

    counted = Counted()
    for name in negatives:
        texts = around.texts(name)
        rows = texts.contexts * (1 + texts.k) / around.world
        tokens = rows * texts.length
        predicted = tokens if predicts else 0
        work = reading(network, rows=rows, length=texts.length, predicted=predicted, passes=passes_over(tokens))
        counted.add("reading", work)
    return counted
