"""The base of all configs: frozen, closed, described; read from YAML, changed by `--set a.b=c`, wrong keys named.

A config is data: it cannot call anything. A misspelt key is an error that names its nearest neighbour.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from energylm.errors import ConfigError

ConfigType = TypeVar("ConfigType", bound="Config")


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, origin: str = "the configuration") -> Self:
        """Validate `values`; every mistake becomes one `ConfigError` line that names `origin`, the key and the cure."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{origin}: " + "; ".join(_explain(cls, problem) for problem in error.errors())) from None


def load_config(
    config_class: type[ConfigType],
    file: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> ConfigType:
    """Defaults, then the YAML `file`, then `overrides` (flags that are not None), then `settings` ("a.b=c")."""
    values: dict[str, Any] = {}
    if file is not None:
        values = _read_yaml(Path(file))
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(values, key, value)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"--set {setting!r} is not of the form key=value, e.g. --set optimizer.learning_rate=0.001"
            )
        try:
            _put(values, key, yaml.safe_load(text))
        except yaml.YAMLError:
            raise ConfigError(
                f"--set {key}: {text!r} is not a YAML value; quote it, e.g. --set '{key}=\"…\"'"
            ) from None
    return config_class.checked(values, origin=str(file) if file is not None else "the configuration")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, not a {type(values).__name__}")
    return values


def _put(values: dict[str, Any], dotted_key: str, value: Any) -> None:
    *path, last = dotted_key.split(".")
    for part in path:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"key {dotted_key!r}: {part!r} is a plain value, it has no keys below it")
        values = inner
    values[last] = value


def _explain(config_class: type[BaseModel], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        names = _field_names(config_class, location[:-1])
        near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
        cure = f"did you mean {'.'.join([*location[:-1], near[0]])!r}?" if near else f"known keys: {', '.join(names)}"
        return f"unknown key {key!r}; {cure}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key or 'values'}: {message} (came {problem['input']!r})" if key else message


def _field_names(config_class: type[BaseModel], path: Sequence[str]) -> list[str]:
    current: Any = config_class
    for part in path:
        field = current.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if current is None:
            return []
    return list(current.model_fields)
