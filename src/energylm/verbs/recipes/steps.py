"""Steps of recipes and grids: what a verb is as a step, in which order steps are made, found in the store or made.

A step names what it is made from ("@corpus"). Wanted steps, and those they are made from, are made one after the other,
each under a key that is a hash of its settings and of the keys it is made from (`jobs.artefacts`). Options of a step
are those of the verb, with all defaults; in the key files stand for their content, known models for their weights, and
a user's own folders for the corpus or the weights that lie there: never for their path on this machine. The result is
the verb's own JSON.

Relations  `reproducing` and `grid_steps` decide which steps there are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.model_folder import weights_sha256
from energylm.config.base import Config, put
from energylm.config.environment import data_folder
from energylm.data.manifest import MANIFEST_FILE as CORPUS_MANIFEST
from energylm.data.manifest import read_manifest
from energylm.errors import ConfigError, DataError
from energylm.files import sha256_of_file
from energylm.jobs.artefacts import Artefact, ArtefactStore, artefact_key
from energylm.jobs.job import Job
from energylm.progress import format_seconds, say
from energylm.report.report import Numbers, Section
from energylm.tables import Table
from energylm.verbs.recipes.recipe import DATA, PRODUCT, StepConfig, did_you_mean, mapped, references, with_products
from energylm.verbs.table import STEPS_ONLY, VERBS, verb_class
from energylm.verbs.verb import Verb

SEEDS_APART = 1000  # between the seeds of two runs of a recipe, whose own steps differ by a few
WAS_FINISHED = "was_finished"  # of results: whether a process before this one did it all


def step_verb(kind: str, values: Mapping[str, Any], *, origin: str = "the configuration") -> Verb:
    """The verb with its options. Strings among them that hold `data:` are files under ENERGYLM_DATA; a format before it
    stays (`jsonl:data:news.jsonl`)."""
    return verb_class(kind).checked(mapped(values, _path_of), origin=origin)


def step_identity(kind: str, values: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """What the key of a step is a hash of, from options that name other steps by their keys."""
    verb = verb_class(kind)
    if verb.step_content is Verb.step_content:
        return {"version": verb.version, **mapped(verb.checked(values, origin=origin).step_content(), _pinned)}
    return {"version": verb.version, **step_verb(kind, values, origin=origin).step_content()}


def reseeded(name: str, step: StepConfig, run: int) -> StepConfig:
    """The step in another run of its recipe: every seed among its options moved on, splits of the data as they were."""
    if run == 0 or step.make not in {*VERBS, *STEPS_ONLY}:
        return step
    verb, config = verb_class(step.make), deepcopy(step.config)
    for key, seed in _seeds(verb.checked(config, origin=f"step {name!r}")):
        for shortcut, meant in verb.shortcuts.items():
            if meant == key:
                config.pop(shortcut, None)
        put(config, key, seed + run * SEEDS_APART)
    return step.model_copy(update={"config": config})


def _seeds(config: Config, above: str = "") -> Iterator[tuple[str, int]]:
    """Dotted keys of all options called `seed`, at every depth, with their values."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name == "seed":
            yield f"{above}{name}", value
        elif isinstance(value, Config):
            yield from _seeds(value, f"{above}{name}.")


def make_step(verb: Verb, folder: Path | None) -> dict[str, Any]:
    """Fill `folder`, or go on with it; the result's JSON, whichever process finished it."""
    result = verb.run(Job(output=folder)).to_json()
    return {name: value for name, value in result.items() if name != WAS_FINISHED}


@dataclass(frozen=True)
class PlannedStep:
    name: str
    kind: str
    key: str
    identity: dict[str, Any]  # settings, with the keys of what they refer to
    verb: Verb  # the same with paths
    product: str  # what "@name" means: where it lies or will lie
    finished: bool


def plan_steps(steps: Mapping[str, StepConfig], wanted: Iterable[str], *, store: ArtefactStore) -> list[PlannedStep]:
    """`wanted` steps and everything they are made from, in order, each with its key. Makes nothing."""
    planned: dict[str, PlannedStep] = {}
    for name in _order(steps, set(wanted)):
        planned[name] = _planned(name, steps[name], planned, store)
    return list(planned.values())


def make_steps(planned: Sequence[PlannedStep], *, store: ArtefactStore) -> dict[str, Artefact]:
    """Every step's artefact; what is there already is not made again."""
    made: dict[str, Artefact] = {}
    for number, step in enumerate(planned, start=1):
        head = f"{number}/{len(planned)} {step.name} ({step.kind})"
        say(f"{head}: {'reused' if step.finished else 'making'} {step.kind}/{step.key}")
        make = partial(make_step, step.verb)
        made[step.name] = store.make(step.kind, step.key, make, identity=step.identity)
    return made


def describe_steps(planned: Sequence[PlannedStep]) -> list[str]:
    """One line a step: whether it is there, its name, and what the store calls it."""
    width = max([24, *(len(step.name) for step in planned)])
    return [
        f"  {'is there' if step.finished else 'to make':8}  {step.name:{width}} {step.kind}/{step.key}"
        for step in planned
    ]


def steps_section(made: Mapping[str, Artefact]) -> Section:
    """What was made, what was reused, and how long each step took when it was made."""
    rows = [
        [name, artefact.kind, artefact.key, "reused" if artefact.reused else "made", artefact.seconds]
        for name, artefact in made.items()
    ]
    total = format_seconds(sum(artefact.seconds for artefact in made.values()))
    spent = format_seconds(sum(artefact.seconds for artefact in made.values() if not artefact.reused))
    return Numbers(
        "Steps",
        Table(
            ["step", "kind", "key", "this time", "seconds when made"],
            rows,
            convention=f"all steps together took {total}, {spent} of it in this run; keys name artefacts in the store",
        ),
    )


def _order(steps: Mapping[str, StepConfig], wanted: set[str]) -> Iterator[str]:
    """`wanted` and everything they are made from, each after what it needs; ties in the order of `steps`."""
    order = {name: number for number, name in enumerate(steps)}
    graph: dict[str, list[str]] = {}
    left = sorted(wanted, key=order.__getitem__)
    while left:
        name = left.pop()
        if name not in graph:
            graph[name] = list(dict.fromkeys(references(steps[name].config, PRODUCT)))
            _refuse_unknown(name, graph[name], steps)
            left += graph[name]
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as circle:
        raise ConfigError(f"steps are made from each other in a circle: {' → '.join(circle.args[1])}") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.__getitem__)
        yield from ready
        sorter.done(*ready)


def _refuse_unknown(name: str, products: Sequence[str], steps: Mapping[str, StepConfig]) -> None:
    for product in products:
        if product not in steps:
            cure = did_you_mean(product, steps, kind="steps", sign=PRODUCT)
            raise ConfigError(f"step {name!r} needs @{product}, which is no step; {cure}")


def _planned(name: str, step: StepConfig, before: Mapping[str, PlannedStep], store: ArtefactStore) -> PlannedStep:
    kinds = sorted({*VERBS, *STEPS_ONLY})
    if step.make not in kinds:
        raise ConfigError(f"step {name!r} makes {step.make!r}, which is unknown; known: {', '.join(kinds)}")
    origin = f"step {name!r}"
    verb = step_verb(
        step.make, with_products(step.config, {other.name: other.product for other in before.values()}), origin=origin
    )
    keys = {other.name: f"{other.kind}/{other.key}" for other in before.values()}
    identity = step_identity(step.make, with_products(step.config, keys), origin=origin)
    key = artefact_key(step.make, identity)
    product = str(store.product(step.make, key) / verb.product)
    return PlannedStep(name, step.make, key, identity, verb, product, store.find(step.make, key) is not None)


def _path_of(text: str) -> str:
    form, is_data, path = text.partition(DATA)
    return f"{form}{data_folder() / path}" if is_data else text


def _pinned(text: str) -> Any:
    form, is_data, path = text.partition(DATA)
    if is_data:
        return [form, Path(path).name, *_content(data_folder() / path)]
    if text in KNOWN_MODELS:
        return f"{text} {weights_sha256(text)}"
    if Path(text).is_absolute() and Path(text).exists():
        if (Path(text) / CORPUS_MANIFEST).is_file():
            return f"corpus {read_manifest(text).identity}"
        return f"weights {weights_sha256(text)}" if Path(text).is_dir() else sha256_of_file(text)
    return text


def _content(path: Path) -> list[str]:
    """The hash of a file, or those of a folder's files in the order of their names."""
    if not path.exists():
        raise DataError(f"{path} does not exist; put the data set there, or set ENERGYLM_DATA to where it is")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [sha256_of_file(file) for file in files]
