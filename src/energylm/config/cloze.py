"""What is done with models that score text: scores, n-best lists reranked by f + Σ λ·score, fine-tuning on tasks.

Metrics and epochs of GLUE and SQuAD are those of clark2020 (app. C, table 3). What the paper takes over from ELECTRA
without printing it (the lengths of inputs and answers, the beam, the weight of answerability) is ELECTRA's. WNLI is
left out, as there.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

Method = Literal["auto", "log-likelihood", "pseudo-log-likelihood"]
AUTO: Method = "auto"
LOG_LIKELIHOOD: Method = "log-likelihood"
PSEUDO_LOG_LIKELIHOOD: Method = "pseudo-log-likelihood"

Masking = Literal["token", "within-word"]
TOKEN: Masking = "token"
WITHIN_WORD: Masking = "within-word"

Casing = Literal["keep", "lower", "upper", "sentence"]
LongInputs = Literal["windows", "refuse"]
WINDOWS: LongInputs = "windows"
Normalise = Literal["none", "token", "word"]
Per = Literal["sentence", "word", "token"]
Dtype = Literal["float32", "float64", "bfloat16", "float16", "int8"]
FLOAT32: Dtype = "float32"
INT8: Dtype = "int8"


class ScorerConfig(Config):
    """What a score is made of. Higher = better."""

    method: Method = Field(
        AUTO,
        description="log-likelihood (causal models), pseudo-log-likelihood (masked models, Electric, two-tower, "
        "ELECTRA-TT), or auto: what the model has.",
    )
    masking: Masking = Field(
        TOKEN,
        description="What a masked model does not see of a word while it scores one of its tokens: that token, or also "
        "the later ones (within-word: left to right within a word).",
    )
    casing: Casing = Field(
        "keep",
        description="Turn texts to lower or upper case before scoring, or to lower case with a capital at the start "
        "and for the word I (sentence); what is printed stays as it was.",
    )
    eos: bool = Field(False, description="Score the end-of-sequence token too (causal models).")
    long_texts: LongInputs = Field(
        WINDOWS,
        description="Texts longer than the model: scored in overlapping windows, every token once, or refused.",
    )
    # Left out of what identifies a finished result where nothing was asked for: older ones are found again.
    device: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Where the model runs: cpu, cuda, cuda:1 or mps; none: a GPU where there is one, else the CPU.",
    )
    dtype: Dtype | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Type of a causal model's or an Electric's weights; none: float32 on a CPU, the saved one "
        "elsewhere. Others are read in float32. int8, for all on a CPU, is faster and rounds; what that costs is said.",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="Tokens that the model reads in one pass at most; none: as many as it reads fastest.",
    )


class ListScorerConfig(ScorerConfig):
    """The same for members of n-best lists, whose neighbours are known."""

    context: int = Field(
        0,
        ge=0,
        exclude_if=lambda value: value == 0,
        description="Words of the recogniser's best hypotheses of the lists before, of the same recording, that a "
        "scorer reads first; lists belong together whose names differ in their last number alone.",
    )


NBestFormat = Literal["espnet", "jsonl", "tsv", "moses", "nemo", "espnet-folder", "kaldi-folder"]
MetricName = Literal["wer", "bleu", "chrf"]
LengthNormalisation = Literal["none", "word", "character"]
LengthTerm = Literal["words", "characters"]
WeightSearch = Literal["grid", "exact", "smooth"]
Choice = Literal["best", "mbr"]
ListObjective = Literal["expected-error", "nce", "most-offending"]
MBR: Choice = "mbr"
LineSearch = Literal["exact", "smooth"]  # of λ of either sign
EXACT: LineSearch = "exact"
GRID: WeightSearch = "grid"

STDIN = "-"
MODEL = "a model folder, a GGUF file, a known model or a hub name"
MOST_VALUES = 100_000  # of λ in a grid
BELOW_STEP = (0.0, 0.1, 0.2, 0.5)  # in steps: a scorer may deserve little trust, or none


class WeightGrid(Config):
    """0, some below `step`, and from `step` to `highest` in steps; clark2020: 0.05, 0.1, … 1.0."""

    step: float = Field(0.05, gt=0, allow_inf_nan=False, description="The distance from one λ to the next.")
    highest: float = Field(1.0, gt=0, allow_inf_nan=False, description="The highest λ.")

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.highest < self.step:
            raise ValueError(f"the highest λ, {self.highest}, lies below the step, {self.step}; no λ is left to try")
        if self.highest / self.step > MOST_VALUES:
            raise ValueError(
                f"a step of {self.step} up to {self.highest} makes more than {MOST_VALUES:,} values of λ; take a "
                "larger step"
            )
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        count = int(self.highest / self.step + 1e-9)
        return tuple(round(self.step * number, 10) for number in (*BELOW_STEP, *range(1, count + 1)))


TaskKind = Literal["classification", "regression", "spans"]
TaskName = Literal["cola", "sst2", "mrpc", "sts", "qqp", "mnli", "qnli", "rte", "squad1", "squad2"]
Pooling = Literal["first", "mean"]
TextStyle = Literal["written", "spoken"]  # of those that corpora have
CLASSIFICATION: TaskKind = "classification"
REGRESSION: TaskKind = "regression"
SPANS: TaskKind = "spans"
FIRST: Pooling = "first"
MEAN: Pooling = "mean"


@dataclass(frozen=True)
class FinetuneTask:
    """`metrics` are printed, the first of them is the paper's; `labels` are the names of classes 0, 1, …"""

    kind: TaskKind
    metrics: tuple[str, ...]
    epochs: int
    labels: tuple[str, ...] = ()
    has_pairs: bool = True
    highest: float = 1.0  # of a regression's scores, which start at 0

    @property
    def tokens(self) -> int:
        """The most that is read at once (ELECTRA's)."""
        return 512 if self.kind == SPANS else 128


TASKS: dict[TaskName, FinetuneTask] = {
    "cola": FinetuneTask(CLASSIFICATION, ("mcc", "accuracy"), 3, ("unacceptable", "acceptable"), has_pairs=False),
    "sst2": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("negative", "positive"), has_pairs=False),
    "mrpc": FinetuneTask(CLASSIFICATION, ("accuracy", "f1"), 3, ("different", "paraphrase")),
    "sts": FinetuneTask(REGRESSION, ("spearman", "pearson"), 10, highest=5.0),
    "qqp": FinetuneTask(CLASSIFICATION, ("accuracy", "f1"), 3, ("different", "duplicate")),
    "mnli": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("entailment", "neutral", "contradiction")),
    "qnli": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("entailment", "not_entailment")),
    "rte": FinetuneTask(CLASSIFICATION, ("accuracy",), 10, ("entailment", "not_entailment")),
    "squad1": FinetuneTask(SPANS, ("exact_match", "f1"), 2),
    "squad2": FinetuneTask(SPANS, ("exact_match", "f1", "best_exact_match", "best_f1"), 2),
}


class SpanConfig(Config):
    """How questions are read and answered (SQuAD)."""

    stride: int = Field(128, ge=1, description="Tokens from the beginning of one window of a long context to the next.")
    question_tokens: int = Field(64, ge=1, description="Longer questions are cut.")
    answer_tokens: int = Field(30, ge=1, description="The longest answer.")
    beam: int = Field(20, ge=1, description="Starts, and ends of each start, that are followed up.")
    hidden_width: int = Field(512, ge=1, description="Of the layers that score ends and answerability.")
    answerable_weight: float = Field(0.5, ge=0, description="Of the answerability loss beside start and end (SQuAD 2).")
    threshold: float = Field(0.0, description="Log-odds of 'no answer' above which no answer is given (SQuAD 2).")


class NamedScorer(ListScorerConfig):
    """One of the models whose scores are added to the recogniser's."""

    model: str = Field(description=f"The scorer: {MODEL}.")


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
