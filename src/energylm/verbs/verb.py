"""A verb: a frozen, described model whose fields are its options, with `check()` and `run()`. Declared once.

The command line (`cli.command`), the Python call, the recipe step (`verbs.recipes`) and the cost hook of `energylm
plan` are derived from the class: names, types, defaults, bounds and help come from its fields and stand nowhere else.

    class Perplexity(Verb):
        \"\"\"First line: what the verb does. The rest is the help's longer text.\"\"\"

        examples = ("energylm perplexity smollm2-135m book.txt",)
        language_model: Annotated[str, Positional("LM")] = Field(description="A model folder or name.")
        n: Annotated[int, Short("-n")] = Field(1000, ge=2, description="Samples a window.")

        def check(self, job: Job) -> str: ...       # the dry run, in words
        def run(self, job: Job = DEFAULT_JOB) -> PerplexityResult: ...

A verb module stays light: torch and what needs it are imported inside `check` and `run`.

Relations  `options_of` reads the fields for the command line; `table` lists the verbs; `jobs.job` surrounds a run.
"""

import inspect
import types
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from energylm.config.base import Config, put
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.registry import Named
from energylm.tables import to_markdown

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

_NAMES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Positional:
    """Marks a field that is given by its position on the command line; the last may take many."""

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

    def step_content(self) -> Mapping[str, Any]:
        """What a recipe knows this verb's product by; a verb whose options do not tell all (or tell too much) says it
        in another way."""
        return self.model_dump(mode="json", exclude=set(self.apart_from))

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


class TrainingVerb(Verb):
    """What all verbs that train a model into OUTPUT/model have; their result is a `training.state.TrainedRun`."""

    writes = "required"
    product = "model"

    def shown(self, result: Any) -> str:
        return f"{result.model}: {result.summary()}\n"

    def remarks(self, result: Any) -> list[str]:
        return []  # what is shown says it


@dataclass(frozen=True)
class Option:
    """An option as the command line, completion and documentation show it. `key` is where it lies in the config; for
    most it is the name itself."""

    name: str  # in Python and in YAML
    key: str
    flag: str
    field: FieldInfo
    short: str | None = None
    positional: str | None = None  # its metavar
    nested_default: Any = PydanticUndefined  # of a key of a nested config: what the verb gives it

    @property
    def help(self) -> str:
        return self.field.description or ""

    @property
    def is_required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        value = self.nested_default
        if value is PydanticUndefined:
            value = self.field.get_default(call_default_factory=True)
        return None if value is PydanticUndefined else value

    @property
    def kind(self) -> Any:
        """The type of one value: without None, lists and the like."""
        return _unwrapped(self.field.annotation)[0]

    @property
    def is_many(self) -> bool:
        return _unwrapped(self.field.annotation)[1] or get_origin(self.field.annotation) is dict

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def choices(self) -> tuple[str, ...]:
        named = [name for mark in self.field.metadata if isinstance(mark, Named) for name in mark.registry.names()]
        return tuple(map(str, get_args(self.kind))) if get_origin(self.kind) is Literal else tuple(named)

    @property
    def metavar(self) -> str:
        written = next((mark.metavar for mark in self.field.metadata if isinstance(mark, Metavar)), None)
        return self.positional or written or "|".join(self.choices) or _NAMES.get(self.kind, "VALUE")


def options_of(config_class: type[BaseModel]) -> list[Option]:
    """Every option that has a flag or a position: fields of plain values, and the shortcuts into nested configs.
    A nested config itself has none; `--set` and `--config` reach each of its keys."""
    options = [_option(name, name, field) for name, field in config_class.model_fields.items() if _is_plain(field)]
    shortcuts: Mapping[str, str] = config_class.shortcuts if issubclass(config_class, Verb) else {}
    for name, key in shortcuts.items():
        option = _option(name, key, field_at(config_class, key))
        options.append(replace(option, nested_default=default_at(config_class, key)))
    return options


def field_at(config_class: type[BaseModel], key: str) -> FieldInfo:
    """The field that a dotted key names."""
    *path, last = key.split(".")
    for part in path:
        config_class = _unwrapped(config_class.model_fields[part].annotation)[0]
    return config_class.model_fields[last]


def default_at(config_class: type[BaseModel], key: str) -> Any:
    """The value at a dotted key when nothing is given."""
    first, *path = key.split(".")
    value = config_class.model_fields[first].get_default(call_default_factory=True)
    for part in path:
        value = getattr(value, part, PydanticUndefined)
    return value


def _option(name: str, key: str, field: FieldInfo) -> Option:
    marks = {type(mark): mark for mark in field.metadata}
    flag = marks[Flag].flag if Flag in marks else "--" + name.replace("_", "-")
    position = marks.get(Positional)
    short = marks[Short].flag if Short in marks else f"-{name}" if len(name) == 1 else None  # --n is also -n
    return Option(name, key, flag, field, short, position and position.metavar)


def _is_plain(field: FieldInfo) -> bool:
    kind = _unwrapped(field.annotation)[0]
    is_written = any(isinstance(mark, Metavar) for mark in field.metadata)
    return is_written or kind in (bool, int, float, str, Path) or get_origin(kind) is Literal


def _unwrapped(annotation: Any) -> tuple[Any, bool]:
    """The type without None and without the list around it, and whether there was one. `A | B` is taken as A."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _unwrapped(next(option for option in inner if option is not type(None)))
    if origin is Annotated:
        return _unwrapped(inner[0])
    if origin in (list, tuple, set, frozenset):
        return _unwrapped(inner[0])[0], True
    if annotation is None:
        return str, False
    return annotation, False
