"""A verb: a frozen, described model whose fields are its options, with `check()` and `run()`. Declared once.

The command line (`cli.build`), the Python call, the recipe step (`verbs.recipes`) and the cost hook of `energylm plan`
are derived from the class: names, types, defaults, bounds and help come from its fields and stand nowhere else.

    class Perplexity(Verb):
        \"\"\"First line: what the verb does. The rest is the help's longer text.\"\"\"

        examples = ("energylm perplexity smollm2-135m book.txt",)
        language_model: Annotated[str, Positional("LM")] = Field(description="A model folder or name.")
        n: Annotated[int, Short("-n")] = Field(1000, ge=2, description="Samples a window.")

        def check(self, job: Job) -> str: ...       # the dry run, in words
        def run(self, job: Job = DEFAULT_JOB) -> PerplexityResult: ...

A verb module stays light: torch and what needs it are imported inside `check` and `run`.

Relations  `options` reads the fields; `table` lists the verbs; `jobs.job` is what surrounds a run.
"""

import inspect
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from energylm.config.base import Config, put
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import to_markdown

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings


@dataclass(frozen=True)
class Positional:
    """Marks a field that is given by its place on the command line; the last may take many."""

    metavar: str


@dataclass(frozen=True)
class Short:
    """Marks a field with a short flag, e.g. -n."""

    flag: str


@dataclass(frozen=True)
class Flag:
    """Marks a field whose long flag is not its name, where the name would not be understood on a command line."""

    flag: str


@dataclass(frozen=True)
class Metavar:
    """Marks a field of more than plain values that is typed as text all the same, e.g. NAME=FILE; its own validator
    reads both."""

    metavar: str


class Verb(Config):
    examples: ClassVar[tuple[str, ...]] = ()
    refused: ClassVar[Mapping[str, str]] = {}  # options that people will try here, each with why there is none
    writes: ClassVar[Literal["nothing", "optional", "required"]] = "nothing"  # whether there is an --output folder
    overwrites: ClassVar[bool] = False  # whether --overwrite replaces what stands there
    blocks: ClassVar[bool] = False  # whether the work is cut into blocks, which an engine can take elsewhere
    product: ClassVar[str] = "."  # what "@step" means in a recipe, inside the step's folder
    version: ClassVar[int] = 1  # raised when the same options come to mean something else
    apart_from: ClassVar[frozenset[str]] = frozenset()  # options that change how it is done, not what comes out

    @model_validator(mode="before")
    @classmethod
    def _say_why_not(cls, values: Any) -> Any:
        for name, reason in cls.refused.items():
            if isinstance(values, Mapping) and name in values:
                raise ValueError(f"{name} {values[name]}: {reason}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _reach_nested_keys(cls, values: Any) -> Any:
        """Shortcuts become keys of nested configs, whose other keys keep the defaults that this verb gives them."""
        if not isinstance(values, Mapping):
            return values
        expanded = {name: value for name, value in values.items() if name not in cls.shortcuts}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()}
        nested = {name: default for name, default in defaults.items() if isinstance(default, Config)}
        for name in nested:
            given = expanded.get(name)
            if isinstance(given, Config):
                expanded[name] = given.model_dump(exclude_unset=True)
            elif isinstance(given, Mapping):
                expanded[name] = deepcopy(dict(given))  # nothing of the caller's is changed
        for name, key in cls.shortcuts.items():
            if name in values:
                put(expanded, key, values[name])
        for name, default in nested.items():
            if isinstance(expanded.get(name), dict):
                expanded[name] = default.overlaid(expanded[name])
        return expanded

    def check(self, job: Job = DEFAULT_JOB) -> str:
        """Look at every input, load no network, write nothing; what would be done, in words."""
        raise NotImplementedError

    def run(self, job: Job = DEFAULT_JOB) -> Record:
        raise NotImplementedError

    def step_content(self) -> Mapping[str, Any] | None:
        """What a recipe knows this verb's product by, where its options do not tell all (or tell too much)."""
        return None

    def cost(self, around: "Surroundings") -> "Counted | None":
        """The work of this verb for `energylm plan`; None where it is not counted."""
        return None

    def shown(self, result: Any) -> str:
        """What the command line prints on stdout."""
        return to_markdown(result.table)

    def remarks(self, result: Any) -> list[str]:
        """What it says on stderr afterwards."""
        report = getattr(result, "report", None)
        return [line for line in (result.summary(), report and f"report: {report}") if line]

    def exit_code(self, result: Any) -> int:
        """What the command line leaves with."""
        return 0

    @classmethod
    def help_text(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")
