"""N-best lists of a recogniser or translator, reranked with language models: `energylm rerank`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from energylm.config.base import Config, Strings, listed
from energylm.config.cloze import (
    EXACT,
    GRID,
    MBR,
    STDIN,
    Choice,
    LengthNormalisation,
    LengthTerm,
    ListScorerConfig,
    MetricName,
    NBestFormat,
    WeightGrid,
    WeightSearch,
)
from energylm.errors import ModelError
from energylm.files import read_json
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.cloze.rerank_report import RerankResult

MODEL = "a model folder, a GGUF file, a known model or a hub name"
MODEL_FOLDER = "model"  # of a training run
RERANKER_FILE = "reranker.json"  # of a folder of `rerank train`: options of `rerank`


class NamedScorer(ListScorerConfig):
    """One of the models whose scores are added to the recogniser's."""

    model: str = Field(description=f"The scorer: {MODEL}.")


def _saved_reranker(folder: Path) -> dict[str, Any]:
    """What `rerank train` wrote into `folder`, its own model by its path; nothing of other folders."""
    if not (folder / RERANKER_FILE).is_file():
        return {}
    saved: dict[str, Any] = read_json(folder / RERANKER_FILE)
    for scorer in saved["scorers"]:
        scorer["model"] = str(folder / scorer["model"]) if scorer["model"] == MODEL_FOLDER else scorer["model"]
    return saved


class RerankSet(Config):
    """Lists to rerank, and the lists on which their λ is tuned."""

    lists: str = Field(description="A file of n-best lists; - is standard input.")
    dev: str | None = Field(None, description="A file of n-best lists with references on which λ is tuned.")
    references: str | None = Field(None, description="References of `lists`, a line each, where it has none inside.")
    dev_references: str | None = Field(None, description="References of `dev`, likewise.")
    # Left out of what identifies a finished result where nothing was asked for: older ones are found again.
    limit: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="Use this many of `lists`, chosen at random; none: as the limit for all says.",
    )
    dev_limit: int | None = Field(None, ge=1, exclude_if=lambda value: value is None, description="The same of `dev`.")

    @property
    def tuned_on(self) -> "RerankSet | None":
        """The dev lists as a set of their own."""
        if self.dev is None:
            return None
        return RerankSet(lists=self.dev, references=self.dev_references, limit=self.dev_limit)

    @property
    def measured_on(self) -> "RerankSet":
        """The lists without their dev lists."""
        return RerankSet(lists=self.lists, references=self.references, limit=self.limit)


class Rerank(Verb, ListScorerConfig):
    """Choose the hypothesis with the highest f + λ·score, with λ tuned on dev lists, for each file by itself.

    Prints a table: 1-best, reranked with interval and p of the paired bootstrap, oracle. Casing, method and the like
    hold for all scorers; in a YAML file each of `scorers` can have its own. Lists without references are reranked with
    a fixed λ, and what was chosen is printed. With --output a report and best-N.tsv are written, and scores are kept.
    """

    examples = (
        "energylm rerank smollm2-135m test_clean.json --dev dev_clean.json --casing lower -o out/rerank",
        "energylm rerank runs/e/model test_clean.json test_other.json --dev dev_clean.json --dev dev_other.json",
        "energylm rerank runs/mlm/model lists.jsonl --weight 0.4 --best chosen.tsv",
        "cat lists.jsonl | energylm rerank runs/mlm/model - --weight 0.4",
        "energylm rerank lm test.nbest --references test.en --dev dev.nbest --dev-references dev.en --metric bleu",
        "energylm rerank runs/e/model test.json --scorer lm --term words --dev dev.json --search exact --choose mbr",
        "energylm rerank runs/reranker/model test.json --trained-weights",
    )
    shortcuts: ClassVar = {"step": "grid.step", "highest": "grid.highest"}
    writes = "optional"
    blocks = True
    apart_from: ClassVar[frozenset[str]] = frozenset({"best", "device", "batch_tokens"})

    model: Annotated[str | None, Positional("MODEL")] = Field(
        None, description=f"The scorer: {MODEL}; or a folder of `rerank train`, with all its scorers and λ."
    )
    files: Annotated[Strings, Positional("FILE|-")] = Field(
        (), description="N-best lists: ESPnet JSON, JSONL, TSV, Moses, NeMo, folders of ESPnet or Kaldi; - is stdin."
    )
    dev: Strings = Field(
        (), description="Lists on which λ is tuned: one for all files, or one for each, in their order."
    )
    scorer: Strings = Field((), description="One more scorer, with its own λ.")
    weight: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(
        (), description="A fixed λ in place of tuning, one for each scorer."
    )
    trained_weights: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Take the λ that `rerank train` found for its OUTPUT/model: by itself, or with the scorers and "
        "terms that it was trained beside.",
    )
    references: Strings = Field((), description="A file of references, a line each, for each FILE.")
    dev_references: Strings = Field((), description="A file of references for each --dev.")
    scorers: tuple[NamedScorer, ...] = Field((), description="Scorers with settings of their own.")
    scores: Strings = Field(
        (), exclude_if=lambda value: not value, description="Another run's --output, whose kept scores are used."
    )
    sets: tuple[RerankSet, ...] = Field((), description="Sets of lists, each with its dev lists and references.")
    format: NBestFormat | None = Field(None, description="Format of the lists; none: by the file's name or content.")
    grid: WeightGrid = Field(WeightGrid(), description="The λ that are tried.")
    search: WeightSearch = Field(
        "grid",
        description="How λ are found: all combinations of the grid; of any number and sign, exact line searches, one λ "
        "after the other, for the best metric on the dev lists; or smooth, for the least expected cost there.",
    )
    term: Annotated[tuple[LengthTerm, ...], BeforeValidator(listed)] = Field(
        (), description="Add the words or characters of a hypothesis with a λ of their own (no grid has it)."
    )
    choose: Choice = Field(
        "best", description="best: the highest total. mbr: the least expected cost against all rivals of the list."
    )
    utility: MetricName | None = Field(
        None, description="What minimum risk counts as cost: word errors, or what BLEU or chrF lack; none: the metric."
    )
    sharpness: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Factor of totals in the posterior of minimum risk; none: chosen on the dev lists, 1 without.",
    )
    length_normalisation: LengthNormalisation = Field(
        "none", description="Divide the whole score, f + λ·score, by the words or characters of the hypothesis."
    )
    metric: MetricName = Field("wer", description="Word error rate (jiwer), BLEU or chrF (sacrebleu).")
    limit: int | None = Field(None, ge=1, description="Use this many lists of each file, chosen at random.")
    resamples: int = Field(2000, ge=1, description="Of the paired bootstrap against the 1-best.")
    seed: int = Field(0, ge=0, description="Of the choice of lists and of the bootstrap.")
    shown_changes: int = Field(20, ge=0, description="Changed hypotheses of each set that the report shows.")
    best: str | None = Field(None, description="Write `utterance TAB chosen text` lines to this file; - prints them.")

    @model_validator(mode="before")
    @classmethod
    def _a_trained_reranker_says_how(cls, values: Any) -> Any:
        """Options that a folder of `rerank train` holds, under those that are given; dev lists tune λ anew."""
        saved = _saved_reranker(Path(str(values.get("model")))) if isinstance(values, Mapping) else {}
        if not saved:
            return values
        search, _ = saved.pop("search", EXACT), saved.pop("alone", None)
        if values.get("dev") or any("dev" in each for each in values.get("sets", ())):
            del saved["weight"]
            saved["search"] = search
        return {**saved, **{name: value for name, value in values.items() if name != "model"}}

    @field_validator("scorers", mode="before")
    @classmethod
    def _a_path_is_a_scorer(cls, value: Any) -> Any:
        several = [value] if isinstance(value, str) else value
        return [{"model": scorer} if isinstance(scorer, str) else scorer for scorer in several]

    @model_validator(mode="after")
    def _there_is_one_for_each(self) -> Self:
        for option, values in (("--dev", self.dev), ("--references", self.references)):
            counts = {0, len(self.files), *([1] if option == "--dev" else [])}
            if len(values) not in counts:
                raise ValueError(
                    f"{len(values)} × {option} came for {len(self.files)} files; give one for each"
                    + (", or one for all" if option == "--dev" else "")
                )
        if len(self.dev_references) not in (0, len(self.dev)):
            raise ValueError(
                f"{len(self.dev_references)} × --dev-references came for {len(self.dev)} × --dev; give one for each"
            )
        return self

    @model_validator(mode="after")
    def _every_set_gets_its_weight(self) -> Self:
        weighed = len(self.all_scorers) + len(self.term)
        if not self.all_sets or (weighed == 0 and self.choose != MBR):
            raise ValueError("which lists? give a scorer and its files: energylm rerank MODEL FILE... --dev DEV")
        if self.weight and len(self.weight) != weighed:
            terms = f" and {len(self.term)} terms" if self.term else ""
            raise ValueError(
                f"{len(self.weight)} weights came for {len(self.all_scorers)} scorers{terms}; give one for each, or "
                "none to tune"
            )
        if self.term and not self.weight and not self.trained_weights and self.search == GRID:
            raise ValueError(f"--term {self.term[0]} may need a λ below 0, which no grid has; add --search smooth")
        if self.choose != MBR and (self.utility is not None or self.sharpness is not None):
            raise ValueError("--utility and --sharpness are for --choose mbr; add that, or drop them")
        if self.trained_weights and (self.weight or not self.model):
            raise ValueError("--trained-weights are those of MODEL; name it first, and drop --weight")
        has_weights = bool(self.weight) or self.trained_weights
        for each in self.all_sets if weighed else ():  # minimum risk needs nothing but the recogniser's scores
            if (each.dev is None) != has_weights:
                cure = "give it a dev set, or fixed weights" if each.dev is None else "drop the dev set, or the weights"
                raise ValueError(
                    f"{each.lists} has {'neither dev nor' if each.dev is None else 'both dev and'} weights; {cure}"
                )
        return self

    @model_validator(mode="after")
    def _standard_input_is_read_once(self) -> Self:
        pairs = {(each.lists, each.references) for each in self.all_sets}
        pairs |= {(each.dev, each.dev_references) for each in self.all_sets if each.dev is not None}
        if sum(name == STDIN for pair in pairs for name in pair) > 1:
            raise ValueError("- names standard input, which can be read once only; write one of the two to a file")
        return self

    @property
    def all_scorers(self) -> tuple[NamedScorer, ...]:
        """Each with the settings that hold for all, where it has none of its own."""
        common = {name: getattr(self, name) for name in ListScorerConfig.model_fields}
        named = [NamedScorer(model=model) for model in (self.model, *self.scorer) if model is not None]
        return tuple(
            NamedScorer(**common | scorer.model_dump(exclude_unset=True)) for scorer in (*named, *self.scorers)
        )

    def with_weights(self) -> Self:
        """The same with the λ that its model was trained with, where these are asked for, read as it was read there."""
        if not self.trained_weights:
            return self
        folder, is_model = Path(str(self.model)).parent, Path(str(self.model)).name == MODEL_FOLDER
        saved = _saved_reranker(folder) if is_model else {}
        if "alone" not in saved:
            raise ModelError(
                f"{self.model} has no λ of `energylm rerank train` beside it; give --dev lists, or a --weight"
            )
        scorers, weight = [NamedScorer(**each) for each in saved["scorers"]], tuple(saved["weight"])
        beside = [*(scorer.model for scorer in self.all_scorers[1:]), *self.term]
        trained = [*(scorer.model for scorer in scorers[1:]), *saved["term"]]
        if not beside:
            scorers, weight = scorers[:1], (saved["alone"],)
        elif beside != trained:
            raise ModelError(
                f"{folder} has λ of its model by itself and beside {', '.join(trained) or 'nothing'}, not beside "
                f"{', '.join(beside)}; give --dev lists, or a --weight for each"
            )
        own = {"model": None, "scorer": (), "scorers": tuple(scorers), "weight": weight, "trained_weights": False}
        return self.model_copy(update=own)

    @property
    def all_sets(self) -> tuple[RerankSet, ...]:
        """Each file with its dev lists and references."""
        named = []
        for index, file in enumerate(self.files):
            dev = min(index, len(self.dev) - 1)
            named.append(
                RerankSet(
                    lists=file,
                    dev=self.dev[dev] if self.dev else None,
                    references=self.references[index] if self.references else None,
                    dev_references=self.dev_references[dev] if self.dev_references else None,
                )
            )
        return (*named, *self.sets)

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.cloze.reranking import check_inputs

        return check_inputs(self)

    def run(self, job: Job = DEFAULT_JOB) -> "RerankResult":
        from energylm.files import write_text
        from energylm.verbs.cloze.reranking import rerank

        result = rerank(self, job)
        if self.best not in (None, STDIN):
            write_text(self.best, result.best_lines)
        return result

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.cloze.costs import count_rerank

        return count_rerank(self, around)

    def shown(self, result: "RerankResult") -> str:
        if self.best == STDIN or not result.sets:  # without references the choice is all there is
            return result.best_lines
        return super().shown(result)
