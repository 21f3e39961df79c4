"""N-best lists of a recogniser or translator, reranked with language models: `energylm rerank`; energies that learn
from such lists: `energylm rerank train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from energylm.config.base import Strings, listed
from energylm.config.cloze import (
    EXACT,
    GRID,
    MBR,
    MODEL,
    STDIN,
    Casing,
    Choice,
    Dtype,
    LengthNormalisation,
    LengthTerm,
    LineSearch,
    ListObjective,
    ListScorerConfig,
    MetricName,
    NamedScorer,
    NBestFormat,
    RerankSet,
    WeightGrid,
    WeightSearch,
)
from energylm.config.models import Pooling
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.files import read_json
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, TrainingVerb, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.cloze.rerank_report import RerankerRun, RerankResult

MODEL_FOLDER = "model"  # of a training run
LEXICAL, CONTEXTUAL = {"electric", "teacher"}, {"likelihood", "teacher"}
NEEDED = {"lora_rank": {"likelihood"}, "teacher_dtype": {"teacher"}, "context": CONTEXTUAL, "lexicon": LEXICAL}  # any
RERANKER_FILE = "reranker.json"  # of an output of `rerank train` or `rerank`: options of `rerank`


def saved_reranker(folder: Path) -> dict[str, Any]:
    """What `rerank train` or `rerank` wrote into `folder`, a model of its own by its path; nothing of other folders."""
    if not (folder / RERANKER_FILE).is_file():
        return {}
    saved: dict[str, Any] = read_json(folder / RERANKER_FILE)
    for scorer in saved["scorers"]:
        scorer["model"] = str(folder / scorer["model"]) if scorer["model"] == MODEL_FOLDER else scorer["model"]
    return saved


class Rerank(Verb, ListScorerConfig):
    """Choose the hypothesis with the highest f + λ·score, with λ tuned on dev lists, for each file by itself.

    Prints a table: 1-best, reranked with interval and p of the paired bootstrap, oracle. Casing, method and the like
    hold for all scorers; in a YAML file each of `scorers` can have its own. Lists without references are reranked with
    a fixed λ, and what was chosen is printed. With --output a report and best-N.tsv are written, scores are kept, and
    `energylm rerank OUTPUT FILE...` chooses of other lists as it was chosen here.
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
        None,
        description=f"The scorer: {MODEL}; or an output of `rerank train` or `rerank`, with all scorers and λ.",
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
        description="Take the λ that `rerank train` found for its OUTPUT/model, by itself or with others beside it.",
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
        """Options that a folder of an earlier run holds, under those that are given; dev lists tune λ anew."""
        saved = saved_reranker(Path(str(values.get("model")))) if isinstance(values, Mapping) else {}
        if not saved:
            return values
        search, _ = saved.pop("search", EXACT), saved.pop("alone", None)
        if values.get("dev") or any("dev" in each for each in values.get("sets", ())):
            del saved["weight"]
            saved.pop("sharpness", None)
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


class TrainReranker(TrainingVerb):
    """Train an energy on n-best lists with references, and combine it with other scorers: P ∝ P_recogniser · exp(−E).

    Lists are cut into folds; each is judged by an energy that was trained on the others, and λ of all scorers are tuned
    on these scores, so that no list tunes on itself. Then an energy learns from all lists. With --dev one energy learns
    from the lists, and λ from the dev lists. `energylm rerank OUTPUT FILE...` reranks with what came of it, `energylm
    rerank OUTPUT/model FILE... --trained-weights` with the energy alone. Killed runs go on where they stopped when run
    again.
    """

    examples = (
        "energylm rerank train dev_clean.json dev_other.json --init minilm-l6 --output runs/reranker",
        "energylm rerank train dev_other.json --dev dev_clean.json --init minilm-l6 --output runs/reranker",
        "energylm rerank train dev.json --init runs/electric/model --objective nce --scorer smollm2-135m -o runs/r",
        "energylm rerank train dev.nbest --references dev.en --init lm --metric bleu --output runs/translated",
        "energylm rerank train dev_other.json --dev dev_clean.json --init smollm2-135m --likelihood 0.5 --lora-rank 16 "
        "--context 50 --casing lower --output runs/tuned",
        "energylm rerank train dev_clean.json --also dev_other.json --also out/simulated/lists.jsonl --init minilm-l6 "
        "--electric --objective nce --casing lower --output runs/one-pass",
        "energylm rerank train dev_other.json out/simulated/lists.jsonl --dev dev_clean.json --init minilm-l6 "
        "--teacher runs/adapted/model --teacher-dtype bfloat16 --casing lower --output runs/taught",
    )
    shortcuts: ClassVar = {
        "steps": "training.steps",
        "batch": "training.global_batch",
        "learning_rate": "training.optimizer.learning_rate",
        "seed": "training.seed",
    }

    lists: Annotated[Strings, Positional("FILE")] = Field(
        min_length=1, description="N-best lists with references, in any format that `energylm rerank` reads."
    )
    references: Strings = Field((), description="A file of references, a line each, for each FILE.")
    also: Strings = Field(
        (),
        exclude_if=lambda value: not value,
        description="More lists, with references inside, that every fold learns from and none is judged on: of other "
        "conditions, or simulated. Those with a reference of a judged list are left out.",
    )
    dev: Strings = Field(
        (),
        exclude_if=lambda value: not value,
        description="Lists that only tune λ, in place of folds; training lists with their references are left out.",
    )
    dev_references: Strings = Field(
        (), exclude_if=lambda value: not value, description="A file of references for each --dev."
    )
    dev_limit: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="The limit of each --dev; none: as of the lists.",
    )
    format: NBestFormat | None = Field(None, description="Format of the lists; none: by the file's name or content.")
    init: str = Field(
        description="What the energy starts from: a folder or name of an encoder, of a causal or masked model, of an "
        "Electric (whose token energies it takes over) or of an energy."
    )
    objective: ListObjective = Field(
        "expected-error",
        description="The loss over a list: expected errors of its posterior, nce (the list as noise), or the margin "
        "against the most offending hypothesis.",
    )
    base_scale: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        exclude_if=lambda value: value == 1.0,
        description="Factor of the recogniser's scores while the energy learns; below 1 where it is surer than it is "
        "right. λ is found afterwards, by the scores as they are.",
    )
    with_reference: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Learn from the reference as well where no hypothesis is right: as one that costs nothing and has "
        "the recogniser's highest score. Otherwise the best of wrong hypotheses is what is learnt.",
    )
    hypotheses: int | None = Field(
        None,
        ge=2,
        exclude_if=lambda value: value is None,
        description="So many of a list at a time, drawn anew in each epoch, a best and a worse among them. None: all.",
    )
    pooling: Pooling = Field("sum", description="How states of tokens become one energy: sum, mean or first.")
    likelihood: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda value: value is None,
        description="Of a causal model no new projection but its own log-likelihood is the energy, with this λ while "
        "it learns (0.5 suits word errors of SmolLM2); what comes of it is a language model again.",
    )
    electric: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Learn energies of tokens, added up: an Electric, one pass a text. Embeddings stay as they are.",
    )
    lexicon: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="With --electric or --teacher: a file of plain text, or a corpus. Beside each token is read how "
        "common its word is in it, or whether it is one at all (of English).",
    )
    teacher: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Learn, as an Electric, the score that this model gives each word: needs no references.",
    )
    teacher_dtype: Dtype | None = Field(
        None, exclude_if=lambda value: value is None, description="Type of the teacher's weights, as of `rerank`."
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="With --likelihood: adapters of this rank learn, and nothing else (needs peft).",
    )
    context: int = Field(
        0,
        ge=0,
        exclude_if=lambda value: value == 0,
        description="With --likelihood or --teacher: words heard before that the model reads first, as of `rerank`.",
    )
    casing: Casing = Field("keep", description="What the energy and the scorers read: texts as they are, or recased.")
    metric: MetricName = Field("wer", description="What choices cost, and what λ are tuned by: wer, bleu or chrf.")
    folds: int = Field(3, ge=2, description="Parts of the lists, each judged by an energy trained on the others.")
    validation_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the training lists that chooses when to stop; 0 = the last step is taken.",
    )
    scorer: Strings = Field((), description="One more scorer, with its own λ.")
    scorers: tuple[NamedScorer, ...] = Field(
        (), exclude_if=lambda value: not value, description="Scorers with settings of their own."
    )
    search: LineSearch = Field(
        EXACT,
        exclude_if=lambda value: value == EXACT,
        description="How λ are found on the judged lists: exact line searches for the best metric, or smooth, for the "
        "least expected cost.",
    )
    term: Annotated[tuple[LengthTerm, ...], BeforeValidator(listed)] = Field(
        ("words",), description="Lengths of a hypothesis that get a λ of their own."
    )
    limit: int | None = Field(None, ge=1, description="Use this many lists of each file, chosen at random.")
    # Of `global_batch` a sequence is a list with all its hypotheses.
    training: TrainingConfig = TrainingConfig(
        steps=400,
        global_batch=8,
        optimizer=OptimizerConfig(learning_rate=5e-5, weight_decay=0.01),
        validation=ValidationConfig(every_steps=50, metric="excess"),
        checkpoint=CheckpointConfig(every_steps=50, keep=1),
    )

    @property
    def all_scorers(self) -> tuple[NamedScorer, ...]:
        """Beside the energy; each reads what the energy does, where it has no casing of its own."""
        named = (*(NamedScorer(model=model) for model in self.scorer), *self.scorers)
        return tuple(NamedScorer(**{"casing": self.casing} | each.model_dump(exclude_unset=True)) for each in named)

    @model_validator(mode="after")
    def _ways_to_learn_have_options_of_their_own(self) -> Self:
        ways = [way for way in ("likelihood", "electric", "teacher") if getattr(self, way)]
        if len(ways) > 1:
            raise ValueError(f"--{ways[0]} and --{ways[1]} are two ways to learn; drop one of them")
        for name, needed in NEEDED.items():
            if getattr(self, name) and needed.isdisjoint(ways):
                option, needs = f"--{name.replace('_', '-')}", " or ".join(f"--{way}" for way in sorted(needed))
                raise ValueError(f"{option} is for {needs} alone; add that, or drop it")
        if ways and "pooling" in self.model_fields_set:
            raise ValueError(f"--pooling makes one energy of a text, and --{ways[0]} has its own; drop one of them")
        for name in ("objective", "base_scale", "with_reference", "hypotheses"):
            if self.teacher and name in self.model_fields_set:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} is about errors, and --teacher learns a model's scores; drop one of them")
        if self.also and self.dev:
            raise ValueError("--also is for folds; with --dev every FILE is only learnt from: name its lists there")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.cloze.rerank_training import describe_training

        return describe_training(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "RerankerRun":
        from energylm.verbs.cloze.rerank_training import train_reranker

        return train_reranker(self, job)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.cloze.costs import count_reranker

        return count_reranker(self, around)
