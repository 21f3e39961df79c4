"""`energylm study new`: a study to be made from files of completions, or from models that complete prefixes."""

import shutil
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.apps.study.design import RESERVED, StudyDesign
from energylm.config.base import Config
from energylm.config.sampling import JointSampling, Truncation
from energylm.config.vocabulary import WINDOW_PREFIX_TOKENS, WINDOW_TOKENS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Flag, Metavar, Verb

if TYPE_CHECKING:
    from energylm.apps.study.making import NewStudy
    from energylm.jobs.costs import Counted, Surroundings

SALT = "simulated"  # of a recipe's study: nobody answers it, and its answers are the same in every run


class CompletionsFile(Config):
    """A model's completions, written elsewhere."""

    name: str = Field(min_length=1, description="What the report calls the model.")
    file: str = Field(description='JSONL: {"prefix": …, "completion": …} a line.')


class StudyModel(Config):
    """A model that completes the prefixes itself."""

    name: str = Field(min_length=1, description="What the report calls the model.")
    language_model: str = Field(description="A model folder, a GGUF file, a known model or a hub name.")
    energy: str | None = Field(None, description="An energy folder: completions come by joint sampling.")
    candidates: int | None = Field(None, ge=2, description="Candidates of joint sampling; none = as many as others'.")
    truncation: Truncation = Field(Truncation(top_k=10), description="The paper's human evaluation takes top-k 10.")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.language_model,) if self.energy is None else (self.language_model, self.energy)

    def joint_sampling(self, new_tokens: int) -> JointSampling:
        assert self.candidates is not None
        return JointSampling(
            n=self.candidates, max_new_tokens=new_tokens, truncation=self.truncation, stop_at_eos=False
        )


def named(values: Any, form: str, example: str) -> list[Any]:
    """NAME=VALUE texts taken apart; entries that are no text stay as they are."""
    pairs: list[Any] = []
    for entry in [values] if isinstance(values, str) else values:
        name, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if isinstance(entry, str) and not (name and equals and value):
            raise ValueError(f"{entry!r} is not of the form {form}, e.g. {example}")
        pairs.append((name, value) if isinstance(entry, str) else entry)
    return pairs


def _files(values: Any) -> list[Any]:
    pairs = named(values, "NAME=FILE", "base=base.jsonl")
    return [{"name": pair[0], "file": pair[1]} if isinstance(pair, tuple) else pair for pair in pairs]


def _models(values: Any) -> list[Any]:
    models = []
    for pair in named(values, "NAME=LM[,ENERGY]", "joint=runs/lm/model,runs/bit/model"):
        if isinstance(pair, tuple):
            language_model, _, energy = pair[1].partition(",")
            pair = {"name": pair[0], "language_model": language_model, "energy": energy or None}
        models.append(pair)
    return models


def _comparisons(values: Any) -> Any:
    if values is None:
        return None
    for entry in values:
        if isinstance(entry, str) and entry.count(":") != 1:
            raise ValueError(f"{entry!r} is not of the form BASELINE:MODEL, e.g. base:joint")
    return [tuple(entry.split(":")) if isinstance(entry, str) else entry for entry in values]


class StudyNew(Verb):
    """Make a study from completions of the same prefixes by two models or more.

    Prints its counts, and how often a coin-tosser passes the qualification. Models complete windows of a corpus that
    none of them was trained on; what they have drawn is kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm study new -o studies/news --completions base=base.jsonl --completions joint=joint.jsonl "
        "--real real.jsonl",
        "energylm study new -o studies/news --model base=runs/lm/model --model joint=runs/lm/model,runs/bit/model "
        "--source corpora/news --candidates 1000",
        "energylm study new -o studies/news --config study.yaml --set design.checks.wrong=shuffled",
    )
    writes = "required"
    version = 3  # since 3, windows are options of the study itself
    shortcuts: ClassVar[dict[str, str]] = {
        "ties": "design.ties",
        "raters_per_pair": "design.raters_per_pair",
        "max_pairs_per_rater": "design.max_pairs_per_rater",
        "qualification": "design.qualification.items",
        "title": "design.title",
        "seed": "design.seed",
    }

    completions: Annotated[tuple[CompletionsFile, ...], Metavar("NAME=FILE"), BeforeValidator(_files)] = Field(
        (), description='Files of completions, one a model: JSONL of {"prefix": …, "completion": …}.'
    )
    real: str | None = Field(None, description="The real endings of the same prefixes, in the same form.")
    models: Annotated[
        tuple[StudyModel, ...], Flag("--model"), Metavar("NAME=LM[,ENERGY]"), BeforeValidator(_models)
    ] = Field((), description="Models that complete prefixes, in place of files.")
    candidates: int = Field(
        10_000, ge=2, description="Candidates of joint sampling for each completion (the paper draws 10,000)."
    )
    source: str | None = Field(
        None, description="A corpus folder (`energylm corpus build`), or a text or JSONL file: prefixes for the models."
    )
    split: str = Field("test", description="Of the corpus; text that no model was trained on.")
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of prefix and completion together.")
    prefix_tokens: int = Field(WINDOW_PREFIX_TOKENS, ge=1, description="Tokens of the prefix.")
    comparisons: Annotated[
        tuple[tuple[str, str], ...] | None,
        Flag("--compare"),
        Metavar("BASELINE:MODEL"),
        BeforeValidator(_comparisons),
    ] = Field(None, description="Baseline and compared model, by name; none = every two, in the order given.")
    pairs: int | None = Field(333, ge=1, description="Prefixes of each comparison; none = as many as there are.")
    design: StudyDesign = Field(StudyDesign(), description="How it is run and judged.")

    @property
    def names(self) -> tuple[str, ...]:
        return (*(file.name for file in self.completions), *(model.name for model in self.models))

    @property
    def compared(self) -> tuple[tuple[str, str], ...]:
        if self.comparisons is not None:
            return self.comparisons
        return tuple(combinations(self.names, 2))

    @property
    def drawn_by(self) -> tuple[StudyModel, ...]:
        """The models, each with its number of candidates."""
        return tuple(
            model.model_copy(update={"candidates": model.candidates or self.candidates}) for model in self.models
        )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if "candidates" in self.model_fields_set and not self.models:
            raise ValueError("candidates goes with models; files hold completions already")
        if bool(self.completions) == bool(self.models):
            raise ValueError("give either completions (files) or models (with a source), not both and not neither")
        if bool(self.models) != (self.source is not None):
            raise ValueError("models complete the prefixes of a source: give both, and neither with files")
        if self.models and self.real is not None:
            raise ValueError("real endings come with the source; `real` goes with files of completions")
        if self.prefix_tokens >= self.length:
            raise ValueError(f"prefix_tokens {self.prefix_tokens} leaves nothing of length {self.length}; shorten it")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(self.names) < 2:
            raise ValueError(f"a comparison needs two models or more, came {len(self.names)}")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"every model needs a name of its own, came {', '.join(self.names)}")
        if taken := [name for name in self.names if name in RESERVED]:
            raise ValueError(f"{taken[0]!r} means text with a known answer; call the model something else, e.g. human")
        seen = set()
        for first, second in self.compared:
            for name in (first, second):
                if name not in self.names:
                    raise ValueError(f"comparison names {name!r}; models: {', '.join(self.names)}")
            if first == second or frozenset((first, second)) in seen:
                raise ValueError(f"comparison of {first!r} with {second!r} comes twice or compares a model with itself")
            seen.add(frozenset((first, second)))
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.apps.study.making import describe_study

        return describe_study(self)

    def run(self, job: Job = DEFAULT_JOB) -> "NewStudy":
        from energylm.apps.study.making import new_study

        return new_study(self, output=job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        """What the models draw; completions that are given cost nothing."""
        from energylm.apps.study.making import prefixes_needed
        from energylm.jobs.costs import Counted
        from energylm.verbs.joint.costs import count_completions

        counted, new = Counted(), self.length - self.prefix_tokens
        contexts = prefixes_needed(self) if self.models else 0
        for model in self.drawn_by:
            count_completions(
                counted, model.language_model, model.energy, around, contexts=contexts, copies=model.candidates or 1,
                given=self.prefix_tokens, new=new,
            )  # fmt: skip
        return counted

    def shown(self, result: "NewStudy") -> str:
        return f"{result.summary()}\n"

    def remarks(self, result: "NewStudy") -> list[str]:
        return []


class StudyStep(StudyNew):
    """Make a study that simulated raters answer: the same one in every run of a recipe."""

    def run(self, job: Job = DEFAULT_JOB) -> "NewStudy":
        from energylm.apps.study.making import new_study

        shutil.rmtree(job.folder, ignore_errors=True)  # of a run that was interrupted
        return new_study(self, output=job.folder, salt=SALT)
