"""Recipes: a table or figure of a paper as data, in YAML under `recipes/<paper>/`.

    steps     what is made, each from others:    base: {make: lm train, config: {corpus: "@corpus"}}
    scales    mini (minutes on 2 CPU cores), desk (hours) and paper (the published sizes): corpora to choose from, and
              the settings of each step that differ. A step that a scale does not name is not made at that scale; a
              scale `like` another lays its own settings over those of that one; its own corpora come first.
    corpora   alternatives, of which the first whose data are here is taken: each a corpus ({sources: …}, the step
              `corpus`) or a set ({books: {sources: …}, news: …}: steps `books`, `news`, and `corpus`, their union,
              whose byte-level BPE they share; Bakhtin et al. 2019 §4.1 take the vocabulary from CC-News alone)
    report    tables and plots over the results:  "=bit.upper" is a path into what the step `bit` found
    claims    the paper's findings as predicates over the same results

A recipe is data: "@name" is where the step `name` left its product ("@a|b": that of `a`, or of `b` where the chosen
corpora do not make `a`; "frequency:@a": an energy made of it), "=a.b" is a number, "data:" begins a path under
ENERGYLM_DATA, and nothing can call anything.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from energylm.config.base import Config, load_config, merged
from energylm.config.environment import data_folder
from energylm.errors import ConfigError, DataError
from energylm.verbs.recipes.claims import Kind, paths

Scale = Literal["mini", "desk", "paper"]
PRODUCT, VALUE, DATA = "@", "=", "data:"  # a string refers to a step's product, a number of its result, a file
OR = "|"  # between products of which the chosen corpora make one
CORPUS, BUILD = "corpus", "corpus build"  # the step that makes the chosen corpus, and its verb
GRID = "grid"  # the kind of step that is many steps, whose names are known once it is laid out
Cell = str | int | float | None
_KIND = re.compile(r"^[a-z-]+:(?=@)")  # of an energy or scorer that is made of a product: frequency:@corpus
_SPLIT_SETTINGS = ("valid_fraction", "test_fraction", "split_seed")


class StepConfig(Config):
    """One thing that is made."""

    make: str = Field(description="A verb: corpus build, lm train, perplexity …")
    config: dict[str, Any] = Field({}, description="Settings that hold at every scale; '@step' is that step's product.")


class ScaleConfig(Config):
    """What a scale adds."""

    like: Scale | None = Field(None, description="Another scale whose settings hold here, too, where none are given.")
    minutes: float | None = Field(None, gt=0, description="About how long everything takes on 2 CPU cores, all seeds.")
    seeds: int = Field(1, ge=1, description="Runs with seeds of their own, unless --seeds says otherwise.")
    corpora: dict[str, dict[str, Any]] = Field(
        {},
        description="By name: settings of the step `corpus`, or a set of corpora with settings each; sources under "
        "ENERGYLM_DATA begin with `data:`.",
    )
    steps: dict[str, dict[str, Any]] = Field({}, description="Settings of each step, laid over those for all scales.")


class SeriesConfig(Config):
    name: str
    x: str = Field(description="A list in the results, e.g. =gain.positions.")
    y: str


class SectionConfig(Config):
    """A part of the report: a table of given rows, a table of records in the results, a plot, or all of a grid."""

    title: str
    columns: tuple[str, ...] = Field((), description="Of a table; for records, their keys.")
    rows: tuple[tuple[Cell, ...], ...] = Field((), description="Cells; '=path' is looked up in the results.")
    records: str | None = Field(None, description="A list of objects in the results: one row each.")
    convention: str = Field("", description="How the numbers were made; '=path' is looked up.")
    series: tuple[SeriesConfig, ...] = Field((), description="Lines of a plot.")
    grid: str | None = Field(None, description="What a step that makes a grid found: heat maps and a table.")
    x_label: str = ""
    y_label: str = ""
    log_x: bool = Field(False, description="Equal ratios at equal distances on the x axis of a plot.")
    alt: str = Field("", description="What a plot shows, in words.")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if sum(map(bool, (self.rows, self.records, self.series, self.grid))) != 1:
            raise ValueError(f"section {self.title!r} must have exactly one of rows, records, series and grid")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"section {self.title!r}: a row of {len(row)} cells, {len(self.columns)} columns")
        return self


class ClaimConfig(Config):
    says: str = Field(description="The finding in words.")
    holds_if: str = Field(description="A predicate over the results (verbs.recipes.claims).")
    published: str = Field("", description="What the paper prints for it.")
    kind: Kind = Field(
        "finding",
        description="finding: of the paper; duplicate: said by another recipe, too; accounting: true by construction "
        "(sizes, counts); ours: not in the paper; simulated: planted in made-up data. Findings alone are counted.",
    )
    headline: bool = Field(False, description="Whether it stands on the first page of results.")
    gate: bool = Field(
        False,
        description="Whether it is a control: where it does not hold the instrument is broken, and no finding of the "
        "recipe is judged.",
    )

    @field_validator("holds_if")
    @classmethod
    def _is_a_predicate(cls, predicate: str) -> str:
        paths(predicate)
        return predicate


class Shared(Config):
    """Steps that several recipes of a paper use; a file of its own, named by their `uses`. It may use another."""

    uses: str | None = Field(None, description="A file beside this one with shared steps.")
    steps: dict[str, StepConfig] = Field({}, description="What is made, by name.")
    scales: dict[Scale, ScaleConfig] = Field({}, description="mini, desk and paper.")


class Recipe(Shared):
    title: str
    where: str = Field(description="Table, figure or section of the paper.")
    about: str = Field(description="What is shown and how the mini scale differs.")
    report: tuple[SectionConfig, ...] = Field(min_length=1)
    claims: tuple[ClaimConfig, ...] = Field(min_length=1)

    def steps_at(self, scale: Scale) -> dict[str, StepConfig]:
        """The steps of a scale with its settings laid over the common ones."""
        return {
            name: self.steps[name].model_copy(update={"config": merged(self.steps[name].config, settings)})
            for name, settings in self.scales[scale].steps.items()
        }

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for scale, settings in self.scales.items():
            if unknown := [name for name in settings.steps if name not in self.steps]:
                raise ValueError(f"scales.{scale}.steps names {unknown[0]!r}, which is no step")
            members = {name for chosen in settings.corpora.values() for name in members_of(chosen) or ()}
            if taken := sorted(members & settings.steps.keys()):
                raise ValueError(f"scales.{scale} has both a corpus and a step called {taken[0]!r}")
            known, steps = settings.steps.keys() | members, self.steps_at(scale)
            if any(step.make == GRID for step in steps.values()):
                continue
            for name, step in steps.items():
                for product in references(step.config, PRODUCT):
                    if known.isdisjoint(product.split(OR)):
                        raise ValueError(f"step {name!r} needs @{product}, which scale {scale} does not make")
        return self


def recipe_names() -> list[str]:
    """All recipes as `paper/item`; files whose name begins with an underscore are shared parts."""
    papers = sorted(folder for folder in _folder().iterdir() if folder.is_dir())
    return [
        f"{paper.name}/{file.stem}"
        for paper in papers
        for file in sorted(paper.glob("*.yaml"))
        if not file.name.startswith("_")
    ]


def load_recipe(name: str) -> Recipe:
    """A recipe of the package by its name, or a file of the user's own."""
    if name.endswith(".yaml"):
        return read_recipe(Path(name))
    if name not in recipe_names():
        raise ConfigError(f"unknown recipe {name!r}; known: {', '.join(recipe_names())}, or a file NAME.yaml")
    return read_recipe(_folder() / f"{name}.yaml")


def read_recipe(file: Path) -> Recipe:
    """A recipe file with the shared files that it uses."""
    partial = load_config(_Partial, file)
    values: dict[str, Any] = partial.model_dump(exclude_unset=True)
    uses = partial.uses
    while uses is not None:
        shared = load_config(Shared, file.parent / f"{uses}.yaml")
        values, uses = merged(shared.model_dump(exclude_unset=True), values), shared.uses
    for scale, settings in values.get("scales", {}).items():
        if like := settings.get("like"):
            if like == scale or like not in values["scales"]:
                raise ConfigError(f"{file}: scale {scale} is like {like!r}, which is no other scale of it")
            both = merged(values["scales"][like], settings)
            own = settings.get("corpora", {})
            both["corpora"] = {name: both["corpora"][name] for name in (*own, *both.get("corpora", {}))}
            values["scales"][scale] = both
    return Recipe.checked(values, origin=str(file))


class _Partial(Config):
    """A recipe file by itself: its steps may be parts of those in the shared file, so it is checked with that one."""

    model_config = ConfigDict(extra="allow")

    uses: str | None = None


def choose_corpus(corpora: Mapping[str, Mapping[str, Any]], *, wanted: str | None) -> str:
    """The name of the corpus (or set of corpora) that is `wanted`, or of the first whose sources are here."""
    if wanted is not None:
        if wanted not in corpora:
            raise ConfigError(f"unknown corpus {wanted!r}; this recipe has: {', '.join(corpora)}")
        return wanted
    for name, settings in corpora.items():
        if all(map(_is_here, _sources(settings))):
            return name
    raise DataError(f"none of the corpora {', '.join(corpora)} is here; set ENERGYLM_DATA to the folder of data sets")


def corpus_steps(common: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, StepConfig]:
    """The steps of a chosen corpus or set, with the settings `common` to all."""
    members = members_of(chosen)
    if members is None:
        return {CORPUS: StepConfig(make=BUILD, config={**common, **chosen})}
    for name, settings in members.items():
        if own := [key for key in _SPLIT_SETTINGS if settings.get(key, common.get(key)) != common.get(key)]:
            raise ConfigError(
                f"corpus {name!r} has a {own[0]} of its own, but the common tokenizer learns from the training texts "
                f"of all: set {own[0]} for all of them"
            )
    union = StepConfig(make=BUILD, config={**common, "sources": list(dict.fromkeys(_sources(chosen)))})
    return {CORPUS: union} | {
        name: StepConfig(make=BUILD, config={**common, "tokenizer": f"{PRODUCT}{CORPUS}", **settings})
        for name, settings in members.items()
    }


def members_of(corpora: Mapping[str, Any]) -> dict[str, Mapping[str, Any]] | None:
    """The corpora of a set by name; None for a single corpus, which has `sources`."""
    if "sources" in corpora:
        return None
    for name, settings in corpora.items():
        if not isinstance(settings, Mapping) or not settings.get("sources"):
            raise ConfigError(f"corpus {name!r} has no sources; give it a list of them")
    return dict(corpora)


def _sources(settings: Mapping[str, Any]) -> list[str]:
    members = members_of(settings)
    parts = [settings] if members is None else members.values()
    return [source for part in parts for source in part["sources"]]


def _is_here(source: str) -> bool:
    _, is_data, path = source.partition(DATA)
    try:
        return not is_data or (data_folder() / path).exists()
    except DataError:
        return False


def references(value: Any, sign: str) -> Iterator[str]:
    """Everything that strings inside `value` refer to with `sign`."""
    if isinstance(value, str):
        value = _KIND.sub("", value)
        if value.startswith(sign):
            yield value.removeprefix(sign)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from references(inner, sign)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references(inner, sign)


def mapped(value: Any, change: Callable[[str], Any]) -> Any:
    """`value` with every string inside it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(inner, change) for inner in value]
    return value


def first_made(value: Any, made: Collection[str]) -> Any:
    """`value` with every "@a|b" as the first of its alternatives that is `made`, or as its first."""

    def first(name: str) -> str:
        names = name.split(OR)
        return PRODUCT + next((name for name in names if name in made), names[0])

    return _products_mapped(value, first)


def with_products(value: Any, products: Mapping[str, str]) -> Any:
    """`value` with every "@name" replaced."""
    return _products_mapped(value, products.__getitem__)


def _products_mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with the name of every product changed, and its sign gone; a kind before the sign stays."""

    def changed(text: str) -> str:
        bare = _KIND.sub("", text)
        kind = text.removesuffix(bare)
        return kind + change(bare.removeprefix(PRODUCT)) if bare.startswith(PRODUCT) else text

    return mapped(value, changed)


def did_you_mean(name: str, names: Collection[str], *, kind: str = "known", sign: str = "") -> str:
    """The cure for a name that is none of `names`."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    shown = f"{sign}{near[0]}" if near and sign else repr(near[0]) if near else ""
    return f"did you mean {shown}?" if near else f"{kind}: {', '.join(names)}"


def _folder() -> Path:
    return Path(str(files("energylm"))) / "recipes"
