"""Result records: one base that gives JSON out and in, a readable `repr`, a table when printed, a data frame, HTML in
notebooks, and a plot where the numbers have a natural one.

A record is a frozen dataclass that inherits `Record`. Its JSON holds its fields (but for those marked `LOCAL`), and
the properties that `computed` names; reading it back ignores the latter. Tensors become lists, paths strings, and
numbers that JSON cannot hold their names ("nan", "inf", "-inf"). Reports, `--json`, recipes and notebooks show this one
shape.
"""

import base64
import dataclasses
import html
import math
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from energylm.errors import ConfigError
from energylm.plots import Picture
from energylm.tables import Table, to_html, to_pandas, to_text

LOCAL = {"local": True}  # metadata of a field that means something on this machine only: not in the JSON
_LONGEST = 6  # entries of a list that `repr` shows
_MOST_ROWS = 12  # of a table that notebooks and `print` show


class Record:
    """Base of result records: `@dataclass(frozen=True) class Outcome(Record)`."""

    computed: ClassVar[tuple[str, ...]] = ()  # properties that the JSON holds beside the fields

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Record.__repr__  # type: ignore[method-assign]  # before `dataclass` writes its own

    def to_json(self) -> dict[str, Any]:
        fields = [field.name for field in dataclasses.fields(self) if field.metadata != LOCAL]  # type: ignore[arg-type]
        return {name: to_plain(getattr(self, name)) for name in (*fields, *self.computed)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        hints = get_type_hints(cls)
        fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _from_plain(values[name], hints[name]) for name in fields if name in values})

    def summary(self) -> str | None:
        """A line for people; None where the table says it all."""
        return None

    @property
    def table(self) -> Table:
        """The numbers for people; by default one row for each plain field, or, of a record whose first field is a list
        of records, one row for each of these."""
        first = getattr(self, dataclasses.fields(self)[0].name, None)  # type: ignore[arg-type]
        if isinstance(first, list | tuple) and first and all(isinstance(entry, Record) for entry in first):
            rows = [_plain(entry) for entry in first]
            columns = list(dict.fromkeys(name for row in rows for name in row))
            return Table(
                [name.replace("_", " ") for name in columns], [[row.get(name) for name in columns] for row in rows]
            )
        plain = _plain(self)
        return Table(["what", "value"], [[name.replace("_", " "), value] for name, value in plain.items()])

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`."""
        return to_pandas(self.table)

    def plot(self) -> Picture:
        """The numbers as a figure, which notebooks show and `save` writes."""
        raise ConfigError(f"a {type(self).__name__} has no natural plot; its numbers are in .table and .to_pandas()")

    def __repr__(self) -> str:
        """Fields, and what is computed of them as long as it is a number."""
        names = [field.name for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        names += [name for name in self.computed if isinstance(getattr(self, name), int | float)]
        return f"{type(self).__name__}({', '.join(f'{name}={_short(getattr(self, name))}' for name in names)})"

    def __str__(self) -> str:
        """What `print` shows: the first rows of the table, and the summary."""
        table, summary = self.table, self.summary()
        if not table.rows:
            return repr(self)
        return "\n".join([to_text(table, most_rows=_MOST_ROWS), *([summary] if summary else [])])

    def _repr_html_(self) -> str:
        """What notebooks show."""
        summary = self.summary()
        parts = [to_html(self.table, most_rows=_MOST_ROWS)]
        parts += [f"<p><small>{html.escape(summary)}</small></p>"] if summary else []
        with suppress(ConfigError):  # these numbers, or this class, have no natural plot
            picture = base64.b64encode(self.plot().png()).decode()
            parts.append(f'<img alt="plot" style="max-width: 32em" src="data:image/png;base64,{picture}">')
        return "".join(parts)


def _plain(record: Record) -> dict[str, Any]:
    """What stands in a table: all but lists and what has names of its own."""
    return {name: value for name, value in record.to_json().items() if not isinstance(value, list | dict)}


def to_plain(value: Any) -> Any:
    """`value` as JSON holds it."""
    if isinstance(value, Record):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # a pydantic model
        return to_plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [to_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # a tensor or an array
        return to_plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _from_plain(value: Any, hint: Any) -> Any:
    """`value` of a JSON file as the type that a field declares."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or value is None or origin is Literal:
        return value
    if origin in (Union, types.UnionType):
        return _from_plain(value, _option(value, [option for option in inner if option is not type(None)]))
    if origin in (list, set, frozenset) or hint is list:
        return (origin or list)(_from_plain(entry, inner[0] if inner else Any) for entry in value)
    if origin is tuple:
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_from_plain(entry, of) for entry, of in zip(value, hints, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {_from_plain(key, inner[0]): _from_plain(entry, inner[1]) for key, entry in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    if dataclasses.is_dataclass(hint):
        of_fields, names = get_type_hints(hint), [field.name for field in dataclasses.fields(hint)]
        return hint(**{name: _from_plain(value[name], of_fields[name]) for name in names})  # type: ignore[operator]
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if isinstance(hint, type) and hint.__module__ == "torch" and hint.__name__ == "Tensor":
        import torch

        numbers = _numbers(value)
        return torch.tensor(
            numbers, dtype=torch.float64 if any(isinstance(x, float) for x in _leaves(numbers)) else None
        )
    return hint(value) if hint in (int, float, Path, str) and not isinstance(value, bool) else value


def _option(value: Any, options: list[Any]) -> Any:
    """Of the types that a union offers, the record that has the very names of `value`; else the first."""
    for option in options:
        if isinstance(option, type) and issubclass(option, Record) and isinstance(value, Mapping):
            names = [field.name for field in dataclasses.fields(option) if field.metadata != LOCAL]  # type: ignore[arg-type]
            if {*names, *option.computed} == set(value):
                return option
    return options[0]


def _numbers(value: Any) -> Any:
    """Nested lists in which "inf" and its like, which JSON cannot hold, are numbers again."""
    return (
        [_numbers(entry) for entry in value]
        if isinstance(value, list)
        else float(value)
        if isinstance(value, str)
        else value
    )


def _leaves(value: Any) -> list[Any]:
    return [leaf for entry in value for leaf in _leaves(entry)] if isinstance(value, list) else [value]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple) and len(value) > _LONGEST:
        return f"[{', '.join(map(_short, value[:_LONGEST]))}, … {len(value):,} in all]"
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        return f"{type(value).__name__}{tuple(value.shape)}"
    return repr(value)
