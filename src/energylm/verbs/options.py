"""The options of a verb, read from its fields: what the command line, completion and documentation are built from."""

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from energylm.registry import Named
from energylm.verbs.verb import Flag, Metavar, Positional, Short, Verb

_NAMES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Option:
    """One option. `key` is where it lies in the config; for most it is the name itself."""

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
    found = [_option(name, name, field) for name, field in config_class.model_fields.items() if _is_plain(field)]
    shortcuts: Mapping[str, str] = config_class.shortcuts if issubclass(config_class, Verb) else {}
    for name, key in shortcuts.items():
        option = _option(name, key, field_at(config_class, key))
        found.append(replace(option, nested_default=default_at(config_class, key)))
    return found


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
