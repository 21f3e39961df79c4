"""What an energy looks at, how it is fooled, how well it tells texts apart: `energylm probe perturb | attack |
differences` (bakhtin2019 §5.6, appendices E and F), and the steps of generalization grids (§4.4): an energy judged on
generated texts beside the real ones, the log-likelihood baseline, and the grid that gathers the cells."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Folders, Strings
from energylm.config.models import Towards, ZeroShotScore
from energylm.config.texts import CellConfig
from energylm.config.vocabulary import WINDOW_TOKENS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.data.windows import SourceWindows
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.models.compute import Network
    from energylm.report.grid_report import GridSummary
    from energylm.verbs.detect.attacking import AttackResult
    from energylm.verbs.detect.discriminating import DifferencesResult, DiscriminationResult, FittedLikelihood
    from energylm.verbs.detect.perturbing import PerturbResult

Split = Literal["train", "valid", "test"]
EnergyFolder = Annotated[str, Positional("ENERGY"), Field(description="An energy folder (`energylm energy train`).")]
LanguageModelName = Annotated[
    str, Positional("LM"), Field(description="The language model: a folder, a GGUF file, a known model or a hub name.")
]


class PerturbTexts(Verb):
    """Change real texts at every position: a name, the commonest word, neighbours swapped; and random texts.

    Told are the changes of the energy and of the language model's negative log-likelihood, by position.
    """

    examples = (
        "energylm probe perturb runs/energy/model runs/lm/model corpora/wiki --texts 200 --output out/perturb",
        "energylm probe perturb runs/energy/model smollm2-135m book.txt --entity ' John' --common ' the' --json o.json",
    )
    writes = "optional"

    energy: EnergyFolder
    language_model: LanguageModelName
    source: Annotated[str, Positional("FILE|CORPUS")] = Field(
        description="Real texts: a corpus folder, or a text or JSONL file."
    )
    split: Split = Field("test", description="Split of a corpus folder.")
    field: str = Field("text", description="JSONL field that holds the text.")
    documents: Literal["packed", "within"] = Field(
        "within", description="Whether windows of a corpus may cross documents (packed) or not."
    )
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of a text.")
    texts: int = Field(100, ge=2, description="Windows, chosen at random from a corpus, evenly from a file.")
    entity: str | None = Field(
        None, description="The name that replaces tokens, one token of the language model, e.g. ' John'; none = chosen."
    )
    common: str | None = Field(
        None, description="The commonest word, one token of the language model, e.g. ' the'; none = counted."
    )
    ends: int = Field(
        40, ge=1, description="Tokens at either end that negatives had generated in training; the rest is the middle."
    )
    seed: int = Field(0, ge=0, description="Of the choice of windows and of random text.")

    @model_validator(mode="after")
    def _has_a_middle(self) -> Self:
        if 2 * self.ends >= self.length:
            raise ValueError(
                f"ends of {self.ends} tokens leave no middle of {self.length}; give fewer, as many as negatives had "
                "generated"
            )
        return self

    @property
    def windows(self) -> "SourceWindows":
        from energylm.data.windows import SourceWindows

        return SourceWindows(self.source, self.length, self.texts, self.seed, self.split, self.field, self.documents)

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate

        locate(self.energy)
        self.windows.check()
        return (
            f"would change {self.texts} texts of {self.length} tokens of {self.source} at every position, 3 ways "
            f"({self.texts * (3 * self.length - 1):,} copies), and score them with {self.energy} and "
            f"{self.language_model}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "PerturbResult":
        self.check(job)

        from energylm.verbs.detect.perturbing import perturb

        return perturb(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.detect.costs import count_perturbations

        return count_perturbations(self, around)

    def shown(self, result: "PerturbResult") -> str:
        from energylm.tables import to_markdown

        return f"{to_markdown(result.table)}\n{to_markdown(result.replacements_table)}"


class AttackEnergy(Verb):
    """Turn an energy's verdict by replacing a few tokens that its gradient points to.

    Every position × vocabulary replacement is tried by one backward pass and one matrix product; the best are scored
    exactly. Told are how many edits flip a text, the energy and the perplexity of each step, and how far the first
    order agrees with exact energies.
    """

    examples = (
        "energylm probe attack runs/energy/model runs/lm/model --negatives negatives/test --corpus corpora/wiki "
        "--edits 5",
        "energylm probe attack runs/energy/model runs/lm/model corpora/wiki --towards fake --perplexity-budget 1.5",
        "energylm probe attack runs/energy/model smollm2-135m texts.txt --towards real --output out/attack",
    )
    writes = "optional"

    energy: EnergyFolder
    language_model: LanguageModelName
    source: Annotated[str | None, Positional("FILE|CORPUS")] = Field(
        None, description="Texts to edit: windows of a corpus folder, or a text or JSONL file, a text a line."
    )
    negatives: str | None = Field(
        None,
        description="Instead of a source: a folder made by `energylm negatives`. Towards real its generated texts are "
        "edited, towards fake the real ones beside them.",
    )
    corpus: str | None = Field(None, description="The corpus folder that the negatives were made from.")
    towards: Towards = Field("real", description="real: lower the energy of machine text; fake: raise that of real.")
    split: Split = Field("test", description="Split of a corpus folder as source.")
    field: str = Field("text", description="JSONL field that holds the text.")
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of a window of a corpus as source.")
    texts: int = Field(100, ge=1, description="Texts at most, chosen at random from folders, the first of a file.")
    edits: int = Field(5, ge=1, description="Tokens that may be replaced in a text (the paper's examples: 5).")
    candidates: int = Field(
        160, ge=1, description="Best replacements by first order, spread over positions, scored exactly each step."
    )
    threshold: float = Field(0.0, description="The energy at which the verdict turns.")
    only_generated: bool = Field(
        False, description="With negatives: edit the generated part (or the real one in its place), not the context."
    )
    perplexity_budget: float | None = Field(
        None, gt=1, description="No edit may raise the text's perplexity above this many times its own; none = any."
    )
    fidelity_pairs: int = Field(
        128, ge=3, description="Random replacements of a text whose first-order and exact changes are compared."
    )
    seed: int = Field(0, ge=0, description="Of the choice of texts and of those replacements.")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.source is None) == (self.negatives is None):
            raise ValueError("give texts to edit: either a source (a corpus or a file) or negatives with their corpus")
        if (self.negatives is None) != (self.corpus is None):
            raise ValueError("negatives and the corpus that they were made from come together; give both or neither")
        if self.only_generated and self.negatives is None:
            raise ValueError("only_generated needs negatives, whose generated part is known; leave it out")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate
        from energylm.verbs.detect.attacking import check_texts

        locate(self.energy)
        locate(self.language_model)
        return (
            f"would replace at most {self.edits} tokens in each of {check_texts(self)}, towards {self.towards}, "
            f"by the gradient of {self.energy}, with the perplexity of {self.language_model} beside it"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "AttackResult":
        self.check(job)

        from energylm.verbs.detect.attacking import attack

        return attack(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.detect.costs import count_attack

        return count_attack(self, around)

    def shown(self, result: "AttackResult") -> str:
        from energylm.tables import to_markdown

        return f"{to_markdown(result.table)}\n{to_markdown(result.outcome_table)}"


class CompareEnergies(Verb):
    """How far apart an energy puts real and generated texts of the same contexts: a distribution, and margins."""

    examples = (
        "energylm probe differences runs/energy/model negatives/left negatives/right --corpus corpora/wiki "
        "--new-tokens 40",
        "energylm probe differences runs/energy/model negatives/test --corpus corpora/wiki --margin 0.1 -o out/margins",
    )
    writes = "optional"

    energy: EnergyFolder
    negatives: Annotated[Folders, Positional("NEGATIVES")] = Field(
        description="Folders made by `energylm negatives`: left to right, right to left, …; a row each."
    )
    corpus: str = Field(description="The corpus folder that they were made from.")
    contexts: int = Field(1000, ge=2, description="Contexts of each folder at most, chosen at random.")
    per_context: int = Field(1, ge=1, description="Generated texts of each context at most.")
    new_tokens: int | None = Field(
        None, ge=1, description="Only contexts that are continued by so many tokens (the paper: 40); none = all."
    )
    margin: tuple[float, ...] = Field(
        (0.0, 0.1, 1.0), min_length=1, description="A margin to count (0.1 in the paper's figure 3, 1 in its eq. 2)."
    )
    seed: int = Field(0, ge=0, description="Of the choice of contexts.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.discriminating import check_folders

        check_folders(self)
        return (
            f"would compare real and generated texts of at most {self.contexts:,} contexts of each of "
            f"{', '.join(self.negatives)} by the energy {self.energy}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "DifferencesResult":
        self.check(job)

        from energylm.verbs.detect.discriminating import compare

        return compare(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.detect.costs import count_differences

        return count_differences(self, around)


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
        from energylm.data.negatives import paired_sources

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
    """Make the log-likelihood of a language model, or another zero-shot score, an energy, with the sign and threshold
    that tell texts apart best."""

    writes = "required"
    product = "model"

    language_model: str = Field(description="The language model.")
    score: ZeroShotScore = Field("log-likelihood", description="The zero-shot score.")
    observer: str | None = Field(None, description="For binoculars: a second language model of the same tokenizer.")
    negatives: Folders = Field(description="Generated continuations of validation texts, for threshold and sign.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate

        return f"would fit the {self.score} of {locate(self.language_model)} to {', '.join(self.negatives)}"

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
        one_pass = reading(network, rows=rows, length=texts.length, predicted=predicted, passes=passes_over(tokens))
        counted.add("reading", one_pass)
    return counted
