"""Every path that a recipe's report or claim looks up leads somewhere in the results' declared types.

Recipes take minutes to hours; a renamed field of a result would otherwise show only at their end.
"""

import ast
import contextlib
import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from energylm.records import LOCAL, Record
from energylm.verbs.recipes.claims import paths
from energylm.verbs.recipes.recipe import VALUE, Recipe, load_recipe, recipe_names, references
from energylm.verbs.recipes.reproducing import steps_on
from energylm.verbs.table import verb_class
from energylm.verbs.verb import Verb


@cache
def result_type(verb: type[Verb]) -> Any:
    """What `run` says that it returns; a name that is imported for type checkers only is looked up in the source."""
    name = inspect.get_annotations(verb.run)["return"]
    if not isinstance(name, str):
        return name
    module = inspect.getmodule(verb.run)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return getattr(import_module(node.module), name)
    return getattr(module, name)


def leads_to(hint: Any, part: str) -> Any:
    """The type under the name `part` of a value of type `hint`; an error where there is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return Any
    if origin in (Union, types.UnionType):
        return _first_that_leads([option for option in inner if option is not type(None)], part)
    if origin is not None and issubclass(origin, Mapping):
        return inner[1]
    if origin is not None and issubclass(origin, Sequence):
        return leads_to(inner[0], part)
    if not dataclasses.is_dataclass(hint):
        raise LookupError(f"{hint} has no parts, asked for {part!r}")
    if "to_json" in vars(hint):  # writes its own shape
        return Any
    names = {field.name for field in dataclasses.fields(hint) if field.metadata != LOCAL}
    computed = getattr(hint, "computed", ())
    if part in computed:
        return get_type_hints(getattr(hint, part).fget).get("return", Any)
    if part not in names:
        raise LookupError(f"{hint.__name__} has no {part!r}; it has {sorted({*names, *computed})}")
    return get_type_hints(hint)[part]


def _first_that_leads(options: Sequence[Any], part: str) -> Any:
    """Of a union's types that have the part."""
    ways = []
    for option in options:
        with contextlib.suppress(LookupError):
            ways.append(leads_to(option, part))
    if not ways:
        raise LookupError(f"none of {', '.join(map(str, options))} has {part!r}")
    return Union[tuple(ways)]  # noqa: UP007  # as many as there are


def looked_up(recipe: Recipe) -> Iterator[str]:
    for section in recipe.report:
        yield from references(section.model_dump(mode="json"), VALUE)
    for claim in recipe.claims:
        yield from paths(claim.holds_if)


def dead_ends(recipe: Recipe, scale: Any, corpus: str) -> Iterator[str]:
    steps = steps_on(recipe, scale, corpus)
    for path in looked_up(recipe):
        step, *parts = path.split(".")
        if step not in steps:
            continue  # not made at this scale
        hint = result_type(verb_class(steps[step].make))
        try:
            for part in parts:
                hint = leads_to(hint, part)
        except LookupError as error:
            yield f"{path}: {error.args[0]}"


@pytest.mark.parametrize("name", recipe_names())
def test_paths_of_a_recipe_lead_somewhere(name):
    recipe = load_recipe(name)
    for scale, config in recipe.scales.items():
        for corpus in config.corpora or [""]:
            assert not list(dead_ends(recipe, scale, corpus)), (scale, corpus)


def test_a_misspelt_path_is_a_dead_end():
    recipe = load_recipe("bakhtin2019/table2")
    cell = "=linear_on_big_books_at_big_books.measured.accuracy"
    wrong = recipe.report[0].model_copy(update={"rows": ((cell,),)})
    (problem,) = dead_ends(recipe.model_copy(update={"report": (wrong,), "claims": ()}), "mini", "books-news-wiki")
    assert "Discrimination has no 'accuracy'" in problem


@dataclasses.dataclass(frozen=True)
class Inner(Record):
    value: float


@dataclasses.dataclass(frozen=True)
class Outer(Record):
    rows: tuple[Inner, ...]
    by_name: dict[str, Inner]
    maybe: Inner | None


def test_types_of_results_are_known():
    assert leads_to(leads_to(Outer, "rows"), "value") is float
    assert leads_to(leads_to(leads_to(Outer, "by_name"), "anything"), "value") is float
    assert leads_to(leads_to(Outer, "maybe"), "value") is float
    assert leads_to(Outer | Inner, "value") is float
    with pytest.raises(LookupError, match="no 'values'"):
        leads_to(leads_to(Outer, "rows"), "values")
