"""A verb as a step of a recipe: which artefact its options name, and what making it returns.

Options of a step are those of the verb. Strings that hold `data:` are files under ENERGYLM_DATA. The key of a step is a
hash of all options with their defaults, in which files stand for their content, known models for their weights, and a
user's own folders for the corpus or the weights that lie there: never for their place on this machine. The result is
the verb's own JSON.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.model_folder import weights_sha256
from energylm.config.environment import data_folder
from energylm.data.manifest import MANIFEST_FILE as CORPUS_MANIFEST
from energylm.data.manifest import read_manifest
from energylm.errors import DataError
from energylm.files import sha256_of_file
from energylm.jobs.job import Job
from energylm.verbs.table import STEPS_ONLY, VERBS, verb_class
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

DATA = "data:"
WAS_FINISHED = "was_finished"  # of results: whether a process before this one did it all


class StepKind(Protocol):
    """What the engine of recipes asks of a kind of step."""

    @property
    def product(self) -> str:
        """What "@step" means, inside the step's folder."""

    def identity(self, values: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
        """What the key of the step is a hash of. Options that cannot be are refused."""

    def make(self, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Fill `folder`, or go on with it; the result's JSON."""

    def cost(self, values: Mapping[str, Any], around: "Surroundings") -> "Counted | None":
        """The work of it; None where it is not counted."""


@dataclass(frozen=True)
class VerbStep:
    verb: type[Verb]

    @property
    def product(self) -> str:
        return self.verb.product

    def identity(self, values: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
        return identity(self.verb, values, origin=origin)

    def make(self, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return make(self.verb, values, folder)

    def cost(self, values: Mapping[str, Any], around: "Surroundings") -> "Counted | None":
        return self.verb.checked(located(values)).cost(around)


def step_kind(name: str) -> StepKind:
    """The kind of step that a name of the table of verbs stands for; a `KeyError` where there is none."""
    return VerbStep(verb_class(name))


def step_kinds() -> list[str]:
    """Every name that `make` of a step may have."""
    return sorted({*VERBS, *STEPS_ONLY})


def located(values: Any) -> Any:
    """The options with `data:` files as paths of this machine; a format before it stays (`jsonl:data:news.jsonl`)."""
    return _mapped(values, _path_of)


def identity(verb: type[Verb], values: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """What the key of the step is a hash of."""
    settings = verb.checked(values, origin=origin).model_dump(mode="json", exclude=set(verb.apart_from))
    content = verb.checked(located(values), origin=origin).step_content()
    return {"version": verb.version, **(_mapped(settings, _pinned) if content is None else content)}


def make(verb: type[Verb], values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run the verb into `folder`; its result's JSON, whichever process finished it."""
    result = verb.checked(located(values)).run(Job(output=folder)).to_json()
    return {name: value for name, value in result.items() if name != WAS_FINISHED}


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    """`value` with every string inside it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


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
