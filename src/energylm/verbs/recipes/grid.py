"""`energylm grid`: how far discrimination of real from machine text generalizes (Bakhtin et al. 2019 §4.4).

    corpora      books: {sources: […]}                  texts; one byte-level BPE, trained on the union, for all of them
    generators   small: {train: {preset: small}}        language models: trained on each corpus, or any model you have
    energies     unit: {init: tiny}                     what learns to tell real from generated text
    training     {corpora: pairs, generators: each}     sets to learn from; several corpora or generators are a union
    test         {corpora: …, generators: …}            every pair is a set to be judged on

Generators of training and of test texts differ in their seed, test texts come from the test split. What a cell shows
(in-domain, cross-architecture, cross-corpus, unseen) is derived from what its two sides share, never typed in.

Relations  `grid_steps` takes a grid apart; `report.grid_report` shows what it found.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.models import LEFT_TO_RIGHT, Direction, ZeroShotScore
from energylm.config.texts import SETTINGS, Setting
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import Table
from energylm.verbs.recipes.recipe import GRID, did_you_mean
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.report.grid_report import GridSummary
    from energylm.report.plots import HeatMap
    from energylm.verbs.recipes.steps import PlannedStep

# As `init`: a score of the training generator's own probabilities. Binoculars would need a second generator.
ZERO_SHOT = tuple(score for score in get_args(ZeroShotScore) if score != "binoculars")


class GeneratorConfig(Config):
    """A language model that writes: one trained here on each corpus, or one that exists."""

    train: dict[str, Any] | None = Field(
        None,
        description="Settings of `energylm lm train` (preset, network, window, training …); the seed is the grid's.",
    )
    language_model: str | None = Field(
        None, description="In place of `train`: a folder, a GGUF file, a known model, a hub name."
    )
    trained_on: str | None = Field(
        None, description="Train on this corpus alone, whatever text is continued (table 5: TransfHuge on CC-News)."
    )
    directions: tuple[Direction, ...] = Field(
        (LEFT_TO_RIGHT,),
        min_length=1,
        description="left-to-right writes ends of windows, right-to-left writes beginnings; the paper mixes both.",
    )
    negatives: dict[str, Any] = Field({}, description="Settings of its negatives that differ, e.g. their length.")
    pretrained_on: tuple[str, ...] = Field(
        (), description="Corpora of the grid that a given `language_model` may have seen."
    )

    @model_validator(mode="after")
    def _is_trained_or_given(self) -> Self:
        if (self.train is None) == (self.language_model is None):
            raise ValueError("a generator has either `train` (settings) or `language_model` (one that exists)")
        if self.language_model is not None and (self.trained_on or self.directions != (LEFT_TO_RIGHT,)):
            raise ValueError("a given `language_model` writes as it does; leave out trained_on and directions")
        if self.train is not None and self.pretrained_on:
            raise ValueError(
                "pretrained_on is for a given `language_model`; a trained one has seen what it is trained on"
            )
        return self


class GridEnergyConfig(Config):
    """An energy: settings of `energylm energy train`."""

    init: str = Field(
        description="As for `energylm energy train`; `@name` is one of `starts`; `log-likelihood`, `log-rank`, "
        "`entropy`, `lrr` or `curvature` is this score of the training generator's own probabilities, with threshold "
        "and sign fitted on validation texts."
    )
    settings: dict[str, Any] = Field(
        {}, description="Other settings of `energylm energy train`: kind, pooling, objective, training …"
    )
    pretrained_on: tuple[str, ...] = Field(
        (), description="Corpora that its start has seen: it is not judged on these (the paper's BiTransf on Wiki)."
    )


class StartConfig(Config):
    """Weights that energies start from, trained on the training texts of all corpora together."""

    make: Literal["lm train", "pretrain mlm"] = Field(
        "lm train", description="`lm train` for causal energies, `pretrain mlm` for bidirectional ones."
    )
    settings: dict[str, Any] = Field({}, description="Of `energylm lm train` or `energylm pretrain mlm`.")


class TrainingSetConfig(Config):
    """Sets of texts to learn from."""

    corpora: tuple[str, ...] | Literal["each", "pairs", "all"] = Field(
        "each", description="Names (their union), each by itself, every union of two, or the union of all."
    )
    generators: tuple[str, ...] | Literal["each", "all"] = Field("each", description="Names, each, or their union.")
    energies: tuple[str, ...] | None = Field(None, description="Which energies learn from it; none = all.")


class TestSetsConfig(Config):
    """Sets of texts to be judged on: every generator on every corpus."""

    corpora: tuple[str, ...] | None = Field(None, description="Names; none = all.")
    generators: tuple[str, ...] | None = Field(None, description="Names; none = all.")
    settings: tuple[Setting, ...] = Field(SETTINGS, min_length=1, description="Fill only cells that show these.")


class SplitSizes(Config):
    """Contexts of each split, at most, for each generator and corpus."""

    train: int | None = Field(None, ge=1, description="none = all of the split.")
    valid: int | None = Field(1024, ge=2, description="For early stopping and calibration.")
    test: int | None = Field(60_000, ge=1, description="The paper's cap on test texts.")


@dataclass(frozen=True)
class GridResult(Record):
    """What a grid found. Its JSON is that of the report."""

    report: Path
    results: Path  # the same as JSON
    cells: dict[str, Any]  # `report.grid_report.summarise`

    def to_json(self) -> dict[str, Any]:
        from energylm.files import read_json

        kept: dict[str, Any] = read_json(self.results)
        return kept

    @property
    def summarised(self) -> "GridSummary":
        from energylm.report.grid_report import GridSummary

        return GridSummary.from_json(self.cells)

    @property
    def table(self) -> Table:
        return self.summarised.table

    def plot(self, energy: str | None = None) -> "HeatMap":
        """As `GridSummary.plot`."""
        return self.summarised.plot(energy)


class Grid(Verb):
    """Train energies on the text of some generators and corpora, judge them on that of others.

    The four settings are in-domain, cross-architecture, cross-corpus and unseen (neither corpus nor architecture).
    Each cell has balanced accuracy, AUROC and true-positive rates at 1 % and 5 % false positives with bootstrap
    intervals; heat maps and a report are written. Whatever cells share is made once and kept in ENERGYLM_HOME, so a
    second run reuses it and an interrupted one continues. Corpora, generators, energies, training and test sets are
    named in the --config file.
    """

    examples = (
        "energylm grid --config study.yaml --dry-run",
        "energylm grid --config study.yaml --output out/study --json study.json",
        "energylm grid --config study.yaml --output out/longer --set contexts.train=20000",
    )
    writes = "required"

    corpora: dict[str, str | dict[str, Any]] = Field(
        min_length=1, description="By name: settings with `sources` as for `energylm corpus build`, or a corpus folder."
    )
    corpus: dict[str, Any] = Field({}, description="Settings that all corpora share, e.g. vocabulary_size.")
    generators: dict[str, GeneratorConfig] = Field(
        min_length=1, description="By name: language models that write, trained on each corpus or any that you have."
    )
    starts: dict[str, StartConfig] = Field({}, description="Trained weights that energies refer to as `@name`.")
    energies: dict[str, GridEnergyConfig] = Field(
        min_length=1, description="By name: what learns to tell real from generated text."
    )
    negatives: dict[str, Any] = Field(
        {}, description="Settings of `energylm negatives` for all: length, prefix_tokens, k … (top-k is 10)."
    )
    negatives_of: dict[str, dict[str, Any]] = Field(
        {}, description="By corpus, settings that differ, e.g. the stride (bakhtin2019: 160 on news, else 40)."
    )
    contexts: SplitSizes = Field(
        SplitSizes(), description="Contexts of each split, at most, for each generator and corpus."
    )
    held_out_negatives: int = Field(1, ge=1, description="Continuations of each validation and test context.")
    training: tuple[TrainingSetConfig, ...] = Field(
        (TrainingSetConfig(),),
        min_length=1,
        description="Sets to learn from; several corpora or generators are a union.",
    )
    test: TestSetsConfig = Field(TestSetsConfig(), description="Sets to be judged on: every generator on every corpus.")
    train_seed: int = Field(0, ge=0, description="Of the generators that training negatives come from.")
    test_seed: int = Field(1, ge=0, description="Of the generators that test negatives come from.")
    resamples: int = Field(1000, ge=1, description="Of the bootstrap intervals.")

    @model_validator(mode="after")
    def _names_and_seeds(self) -> Self:
        for name in (*self.corpora, *self.generators, *self.energies, *self.starts):
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name; use letters, digits and _, and begin with a letter")
        if self.train_seed == self.test_seed:
            raise ValueError(
                f"train_seed and test_seed are both {self.train_seed}: the generators of training and test texts would "
                "be one and the same; choose two seeds"
            )
        for key, names, known in self._named():
            for name in names:
                if name not in known:
                    raise ValueError(f"{key} names {name!r}, which is unknown; {did_you_mean(name, known)}")
        return self

    def _named(self) -> list[tuple[str, tuple[str, ...], Collection[str]]]:
        """Keys that hold names, which, and the names that may stand there."""
        corpora, generators, energies = self.corpora, self.generators, self.energies
        named: list[tuple[str, tuple[str, ...], Collection[str]]] = [
            ("test.corpora", self.test.corpora or (), corpora),
            ("negatives_of", tuple(self.negatives_of), corpora),
            ("test.generators", self.test.generators or (), generators),
        ]
        for name, generator in generators.items():
            given = (generator.trained_on,) if generator.trained_on else ()
            named += [(f"generators.{name}.trained_on", given, corpora)]
            named += [(f"generators.{name}.pretrained_on", generator.pretrained_on, corpora)]
        for name, energy in energies.items():
            named += [(f"energies.{name}.pretrained_on", energy.pretrained_on, corpora)]
        for number, entry in enumerate(self.training):
            if isinstance(entry.corpora, tuple):
                named += [(f"training.{number}.corpora", entry.corpora, corpora)]
            if isinstance(entry.generators, tuple):
                named += [(f"training.{number}.generators", entry.generators, generators)]
            named += [(f"training.{number}.energies", entry.energies or (), energies)]
        return named

    def on(self, corpora: Sequence[str]) -> Self:
        """The same grid on some of its corpora: what it says of the others falls away."""
        generators = {
            name: entry.model_copy(update={"pretrained_on": tuple(c for c in entry.pretrained_on if c in corpora)})
            for name, entry in self.generators.items()
            if entry.trained_on is None or entry.trained_on in corpora
        }
        energies = {
            name: entry.model_copy(update={"pretrained_on": tuple(c for c in entry.pretrained_on if c in corpora)})
            for name, entry in self.energies.items()
        }
        training = tuple(
            entry
            for entry in self.training
            if (isinstance(entry.corpora, str) or set(entry.corpora) <= set(corpora))
            and (isinstance(entry.generators, str) or set(entry.generators) <= generators.keys())
        )
        test = self.test
        if test.corpora is not None:
            test = test.model_copy(update={"corpora": tuple(name for name in test.corpora if name in corpora)})
        if test.generators is not None:
            test = test.model_copy(update={"generators": tuple(name for name in test.generators if name in generators)})
        kept = {name: self.corpora[name] for name in corpora}
        changed = {"corpora": kept, "generators": generators, "energies": energies, "training": training, "test": test}
        return self.model_copy(update=changed)

    def plan(self) -> "list[PlannedStep]":
        """Every step, in order, the grid's own last; what is there already is known by its key. Makes nothing."""
        from energylm.jobs.artefacts import ArtefactStore
        from energylm.verbs.recipes.grid_steps import expand_grid
        from energylm.verbs.recipes.steps import plan_steps

        return plan_steps(expand_grid(GRID, self), [GRID], store=ArtefactStore())

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.recipes.steps import describe_steps

        steps = self.plan()
        lines, cells = describe_steps(steps), steps[-1].verb.model_dump()["cells"]
        for cell in cells:
            note = f" (not judged: {cell['note']})" if cell["note"] else ""
            lines.append(
                f"  cell      {cell['energy']} trained on {cell['training']}, tested on {cell['test']}: "
                f"{cell['setting']}{note}"
            )
        left = sum(not step.finished for step in steps)
        return "\n".join([*lines, f"{left} of {len(steps)} steps to make, {len(cells)} cells"])

    def run(self, job: Job = DEFAULT_JOB) -> GridResult:
        from energylm.files import interrupts_say_it_is_kept
        from energylm.jobs.artefacts import ArtefactStore
        from energylm.report.grid_report import grid_sections
        from energylm.report.report import Text, write_report
        from energylm.verbs.recipes.steps import make_steps, steps_section

        folder = job.folder
        with interrupts_say_it_is_kept():
            made = make_steps(self.plan(), store=ArtefactStore())
            cells = made[GRID].result
            sections = [
                Text("What this is", self._about()),
                *grid_sections(cells, title="Accuracy"),
                steps_section(made),
            ]
            page = write_report(folder, title="Generalization of real against machine text", sections=sections)
        return GridResult(page, page.parent / "results.json", cells)

    def shown(self, result: Any) -> str:
        lines = []
        for record in result.cells["records"]:
            where = f"{record['energy']} trained on {record['trained on']}, tested on {record['tested on']}"
            if record["accuracy"] is None:
                lines.append(f"{where}: {record['setting']}: not judged ({record['note']})")
            else:
                lines.append(
                    f"{where}: {record['setting']}: accuracy {record['accuracy']:.3f} "
                    f"[{record['lower']:.3f}, {record['upper']:.3f}], AUROC {record['AUROC']:.3f}"
                )
        return "\n".join([*lines, str(result.report), ""])

    def remarks(self, result: Any) -> list[str]:
        return []

    def _about(self) -> str:
        generators = ", ".join(
            f"{name} ({entry.language_model})"
            if entry.language_model is not None
            else f"{name} ({', '.join(entry.directions)})"
            for name, entry in self.generators.items()
        )
        return (
            f"Energies {', '.join(self.energies)}, trained to tell real text from text by the generators {generators} "
            f"on the corpora {', '.join(self.corpora)}. Generators of test texts were trained with another seed than "
            f"those of training texts ({self.test_seed} and {self.train_seed}); test texts are of the test split.\n\n"
            "in-domain: training set and test set share corpus and generator architecture; cross-architecture: the "
            "corpus alone; cross-corpus: the architecture alone; unseen: neither. A generator that was not trained "
            "here brings a corpus of its own."
        )
