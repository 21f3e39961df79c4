"""Energies that learn from n-best lists: `energylm rerank train`."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.config.base import Strings, listed
from energylm.config.cloze import (
    EXACT,
    Casing,
    Dtype,
    LengthTerm,
    LineSearch,
    ListObjective,
    MetricName,
    NBestFormat,
)
from energylm.config.models import Pooling
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, TrainingVerb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.cloze.rerank_training import RerankerRun


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
        description="More lists, with their references inside, that every fold learns from and none is judged on: of "
        "other conditions, or simulated. Those with a reference of a judged list are left out.",
    )
    dev: Strings = Field(
        (),
        exclude_if=lambda value: not value,
        description="Lists that only tune λ, in place of folds that are judged by energies of their own; training "
        "lists with a reference of theirs are left out.",
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
        description="So many hypotheses of a list at a time, drawn anew in each epoch, a best and a worse one among "
        "them: quicker, and less is learnt by heart. None: all.",
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
        description="Learn energies of tokens, added up: what comes of it is an Electric, which scores a text and its "
        "words in one pass. Embeddings of tokens stay as they are.",
    )
    teacher: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Learn the score that this model gives each word, not errors: then the lists need no references. "
        "What comes of it is an Electric, which scores a text in one pass.",
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
        description="With --likelihood or --teacher: words heard before that the model reads first, as of `energylm "
        "rerank`.",
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

    @model_validator(mode="after")
    def _ways_to_learn_have_options_of_their_own(self) -> Self:
        ways = [way for way in ("likelihood", "electric", "teacher") if getattr(self, way)]
        if len(ways) > 1:
            raise ValueError(f"--{ways[0]} and --{ways[1]} are two ways to learn; drop one of them")
        read = ("likelihood", "teacher")
        for name, needed in (("lora_rank", read[:1]), ("teacher_dtype", read[1:]), ("context", read)):
            if getattr(self, name) and not set(ways) & set(needed):
                option, needs = f"--{name.replace('_', '-')}", " or ".join(f"--{way}" for way in needed)
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
