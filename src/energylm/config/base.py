"""The base of all configs: frozen, closed, described; read from YAML, changed by `--set a.b=c`, wrong keys named.

A config is data: it cannot call anything. A misspelt key is an error that names its nearest neighbour.
"""

import difflib
import re
import reprlib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from energylm.errors import ConfigError

ConfigType = TypeVar("ConfigType", bound="Config")


def listed(value: Any) -> Any:
    """One string or number as a list of one."""
    return (value,) if isinstance(value, str | int) else value


Strings = Annotated[tuple[str, ...], BeforeValidator(listed)]  # one or several
Folders = Annotated[Strings, Field(min_length=1)]


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())
    shortcuts: ClassVar[Mapping[str, str]] = {}  # other names for keys of nested configs: {"steps": "training.steps"}

    @classmethod
    def checked(
        cls,
        values: Mapping[str, Any],
        *,
        origin: str = "the configuration",
        names: Mapping[str, str] | None = None,
    ) -> Self:
        """Validate `values`; every mistake becomes one `ConfigError` line that names `origin`, the key and the cure.
        `names` says how the user spells a key (`--prefix-tokens`)."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(_explain(cls, problem, names or {}) for problem in error.errors())
            raise ConfigError(f"{origin}: {problems}" if origin else problems) from None

    def overlaid(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that were set here, with `values` over them: what a field that has this config as default takes."""
        return merged(self.model_dump(exclude_unset=True), values)


def load_config(
    config_class: type[ConfigType],
    file: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> ConfigType:
    """Defaults, then the YAML `file`, then `overrides` (flags that are not None), then `settings` ("a.b=c"). With
    `names`, which say how the user types a key, mistakes are told in these words."""
    values: dict[str, Any] = {}
    if file is not None:
        values = _read_yaml(Path(file))
    # One key for one thing, so that whatever comes later wins, whichever of its names it has.
    for name in [name for name in config_class.shortcuts if name in values]:
        put(values, config_class.shortcuts[name], values.pop(name))
    for name, value in (overrides or {}).items():
        if value is not None:
            put(values, config_class.shortcuts.get(name, name), value)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {setting!r} is not of the form key=value, e.g. --set {_example(config_class)}")
        try:
            put(values, config_class.shortcuts.get(key, key), yaml.safe_load(text))
        except yaml.YAMLError:
            raise ConfigError(
                f"--set {key}: {text!r} is not a YAML value; quote it, e.g. --set '{key}=\"…\"'"
            ) from None
    origins = [*([str(file)] if file is not None else []), *(["--set"] if settings else [])]
    unnamed = "" if names else "the configuration"
    return config_class.checked(values, origin=" with ".join(origins) or unnamed, names=names)


class _ClosedLoader(yaml.SafeLoader):
    """Plain data only, and a key that comes twice is a mistake, not a matter of which comes last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} comes twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _ClosedLoader)
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, not a {type(values).__name__}")
    return values


def put(values: dict[str, Any], dotted_key: str, value: Any) -> None:
    *path, last = dotted_key.split(".")
    for part in path:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"key {dotted_key!r}: {part!r} is a plain value, it has no keys below it")
        values = inner
    values[last] = value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, key by key at every depth."""
    result = dict(below)
    for key, value in above.items():
        value = value.model_dump() if isinstance(value, Config) else value
        both_are_nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_are_nested else value
    return result


def _explain(config_class: type[BaseModel], problem: Any, spelling: Mapping[str, str]) -> str:
    location = [str(part) for part in problem["loc"]]
    while location and ".".join(location) not in spelling and location[-1].isdigit():
        location.pop()  # an entry of a list is told by the list's name
    key = ".".join(location)
    key = spelling.get(key, key)
    if problem["type"] == "extra_forbidden":
        names = _field_names(config_class, location[:-1])
        near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
        cure = f"did you mean {'.'.join([*location[:-1], near[0]])!r}?" if near else f"known keys: {', '.join(names)}"
        return f"unknown key {key!r}; {cure}"
    if problem["type"] == "missing":
        has_option = key in spelling.values()
        return f"{key} is missing, here and in --config" if has_option else f"key {key!r} is missing, it has no default"
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = re.sub(r"`(\w+)`", lambda name: spelling.get(".".join([*location, name[1]]), name[1]), message)
    for name, spelled in spelling.items():
        if "_" in name or message.startswith(f"{name} "):  # a message names options as they are typed
            message = re.sub(rf"(?<![\w.-]){re.escape(name)}\b", spelled, message)
    return f"{key}: {message} (came {reprlib.repr(problem['input'])})" if key else message


def _example(config_class: type[BaseModel]) -> str:
    """A setting that the configuration has: the first with a plain default, inner ones last."""
    defaults = {name: field.get_default() for name, field in config_class.model_fields.items()}
    for name, value in defaults.items():
        if isinstance(value, bool | int | float | str):
            return f"{name}={value}"
    inner = next(((name, value) for name, value in defaults.items() if isinstance(value, BaseModel)), None)
    return f"{next(iter(defaults))}=…" if inner is None else f"{inner[0]}.{_example(type(inner[1]))}"


def _field_names(config_class: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that are known at `path`; indices of lists, names in dicts and tags of unions are steps that stay."""
    current: list[type[BaseModel]] = [config_class]
    for part in path:
        fields = [model.model_fields[part] for model in current if part in model.model_fields]
        current = [model for field in fields for model in _models_in(field.annotation)] or current
    return list(dict.fromkeys(name for model in current for name in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
