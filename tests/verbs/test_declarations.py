"""Every verb of the table is declared once: flags, Python names, YAML keys and help agree; no default is typed twice.

Each check is a function that lists what is wrong with a verb; beside it stands a toy verb that it must complain of.
"""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args

import click
import pytest
import yaml
from pydantic import BaseModel, Field, model_validator

from energylm.cli.command import VerbCommand
from energylm.config.base import load_config
from energylm.errors import ConfigError, EnergyLMError
from energylm.verbs import table
from energylm.verbs.verb import Option, Positional, Verb, options_of

PACKAGE = Path(__file__).parents[2] / "src" / "energylm"
TYPED_DEFAULT = re.compile(r"[(\[]default(s to)?[: ]", re.IGNORECASE)


def value_for(option: Option) -> Any:
    """A value that is not the default and likely allowed."""
    if option.choices:
        return next((choice for choice in option.choices if choice != option.default), option.choices[0])
    if option.is_switch:
        return not option.default
    if option.kind in (int, float):
        default = option.default if isinstance(option.default, int | float) else 1
        bounds = [bound for mark in option.field.metadata if (bound := getattr(mark, "lt", None)) is not None]
        bounds += [bound for mark in option.field.metadata if (bound := getattr(mark, "le", None)) is not None]
        return option.kind(default / 2) if bounds else option.kind(default + 1)
    return "something"


def as_words(option: Option, value: Any) -> list[str]:
    if option.positional:
        return [str(value)]
    if option.is_switch:
        return [option.flag if value else f"--no-{option.flag.removeprefix('--')}"]
    return [option.flag, str(value)]


def outcome(make: Any) -> Any:
    """The configuration, or that it was refused: for a value that another option forbids, not for its name."""
    try:
        return make().model_dump(mode="json")
    except ConfigError as error:
        unknown = re.search(r"unknown key '\w+'", str(error))
        return unknown[0] if unknown else "refused"


def disagreements(verb: type[Verb], folder: Path) -> list[str]:
    """Each option given by its flag, by its Python name and by its YAML key, beside all that is required."""
    options, command, complaints = options_of(verb), VerbCommand(verb), []
    required = [option for option in options if option.is_required]
    shown = " ".join(command.get_help(click.Context(command, terminal_width=10_000, max_content_width=10_000)).split())
    for option in options:
        given = {other.name: value_for(other) for other in required} | {option.name: value_for(option)}
        lists = {
            other.name: [given[other.name]] if other.is_many else given[other.name]
            for other in options
            if other.name in given
        }
        by_position = [other for other in options if other.name in given]
        words = [word for other in by_position for word in as_words(other, given[other.name])]
        file = folder / "options.yaml"
        file.write_text(yaml.safe_dump(lists), encoding="utf-8")
        typed = outcome(lambda words=words: command.configured(_parsed(command, words))[0])
        called = outcome(lambda lists=lists: verb.checked(lists))
        written = outcome(lambda file=file: load_config(verb, file))
        if "unknown key" in str(called):
            complaints.append(f"{option.name}: {called}")
        elif not typed == called == written:
            complaints.append(f"{option.name}: {typed} typed, {called} called, {written} written")
        name = option.positional or option.flag
        if name not in shown or " ".join(option.help.split()) not in shown:
            complaints.append(f"{option.name}: the help shows no {name} with its description")
    return complaints


def _parsed(command: VerbCommand, words: list[str]) -> dict[str, Any]:
    return command.make_context(command.name, list(words)).params


def undescribed(config: type[BaseModel], prefix: str = "") -> list[str]:
    """Fields without a description, of nested configs, too; a config of its own describes itself by its docstring."""
    missing = []
    for name, field in config.model_fields.items():
        nested = list(_configs_in(field.annotation))
        if not field.description and not (
            nested and all("__doc__" in vars(inner) and inner.__doc__ for inner in nested)
        ):
            missing.append(f"{prefix}{name}")
        for inner in nested:
            missing += undescribed(inner, f"{prefix}{name}.")
    return missing


def _configs_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _configs_in(inner)


def typed_defaults(verb: type[Verb]) -> list[str]:
    """Descriptions and docstrings that repeat a default, which the builder shows by itself."""
    texts = [verb.help_text(), *(option.help for option in options_of(verb))]
    return [text for text in texts if TYPED_DEFAULT.search(text)]


def unparsed_examples(verb: type[Verb]) -> list[str]:
    """Examples that the command line would not take, each with its complaint."""
    command, complaints = VerbCommand(verb), []
    begin = ["energylm", *table.name_of(verb).split()]
    for example in verb.examples:
        words = shlex.split(example.rpartition(" | ")[2])
        words = words[: words.index(">")] if ">" in words else words
        if words[: len(begin)] != begin:
            complaints.append(f"{example}: does not begin with {' '.join(begin)}")
            continue
        try:
            parsed = _parsed(command, words[len(begin) :])
            if parsed["config_file"] is None:
                command.configured(parsed)
        except (EnergyLMError, click.UsageError) as error:
            complaints.append(f"{example}: {error}")
    return complaints


EVERY_VERB = sorted(table.VERBS | table.STEPS_ONLY)


@pytest.mark.parametrize("name", EVERY_VERB)
def test_flags_python_names_yaml_keys_and_help_agree(name, tmp_path):
    assert disagreements(table.verb_class(name), tmp_path) == []


@pytest.mark.parametrize("name", EVERY_VERB)
def test_every_field_is_described_and_no_default_is_typed(name):
    verb = table.verb_class(name)
    assert undescribed(verb) == []
    assert typed_defaults(verb) == []


def test_no_default_is_typed_in_the_source_of_verbs():
    sources = [
        PACKAGE / "benchmarks" / "bench.py",
        *(PACKAGE / "verbs").rglob("*.py"),
        *(PACKAGE / "apps").rglob("*.py"),
    ]
    assert len(sources) > 20
    assert [str(file) for file in sources if TYPED_DEFAULT.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", sorted(table.VERBS))
def test_every_example_is_understood(name):
    verb = table.verb_class(name)
    assert verb.examples
    assert unparsed_examples(verb) == []


def test_the_help_of_every_verb_imports_no_torch():
    """In one process, all verbs one after the other; what the first imports would be seen at the first."""
    code = (
        "import sys, click\nfrom energylm.verbs import table\nfrom energylm.cli.command import VerbCommand\n"
        "for name in table.VERBS:\n"
        "    command = VerbCommand(table.verb_class(name))\n"
        "    assert command.get_help(click.Context(command))\n"
        "    heavy = {'torch', 'transformers', 'matplotlib', 'datasets'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
        "print(len(table.VERBS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(len(table.VERBS)), done.stderr
    worse = code.replace("    assert command", "    import torch\n    assert command")  # teeth
    assert "'torch'" in subprocess.run([sys.executable, "-c", worse], capture_output=True, text=True).stderr


def files_with(package: Path, text: str) -> list[Path]:
    """Files in which a string is this text."""
    return [file for file in sorted(package.rglob("*.py")) if text in _strings(file)]


def _strings(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_option_seed_of_perplexity_is_written_in_one_declaration(tmp_path):
    """Its flag is spelt nowhere, its words stand in one file, and no other code of its group declares it again."""
    verb = table.verb_class("perplexity")
    (seed,) = (option for option in options_of(verb) if option.name == "seed")
    home = Path(inspect.getsourcefile(verb) or "")
    assert files_with(PACKAGE, seed.help) == [home]
    assert home.read_text(encoding="utf-8").count("seed: int") == 1
    assert [file for file in (PACKAGE / "verbs").rglob("*.py") if '"--seed"' in file.read_text(encoding="utf-8")] == []
    copy = tmp_path / "package"  # teeth: a second declaration is seen
    copy.mkdir()
    for other in ("first.py", "second.py"):
        (copy / other).write_text(f"seed = Field(0, description={seed.help!r})", encoding="utf-8")
    assert len(files_with(copy, seed.help)) == 2


class Sound(Verb):
    """Count to n."""

    examples = ("energylm count letters --n 3", "energylm count letters --no-loud")
    what: Annotated[str, Positional("WHAT")] = Field(description="What is counted.")
    n: int = Field(2, ge=1, description="How far.")
    loud: bool = Field(True, description="Whether it is heard.")


class Undescribed(Sound):
    further: int = 3


class TypedTwice(Sound):
    """Count to n (default: 2)."""


class Misspelt(Sound):
    examples = ("energylm count letters --nn 3",)


class OutOfBounds(Sound):
    examples = ("energylm count letters --n 0",)


class Deaf(Sound):
    """What is typed is text, which this verb takes for something else than the number."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_another_number(cls, values: Any) -> Any:
        return {**values, "n": 100} if isinstance(values.get("n"), str) else values


class Renamed(Sound):
    """A field that neither Python nor YAML knows by its name."""

    m: int = Field(5, alias="number", description="How far else.")


@pytest.fixture
def declared(monkeypatch):
    """Put a toy verb into the table as `count`."""

    def declare(verb: type[Verb]) -> type[Verb]:
        module = ModuleType("energylm.verbs.toy")
        setattr(module, verb.__name__, verb)
        monkeypatch.setattr(verb, "__module__", "energylm.verbs.toy")
        monkeypatch.setitem(sys.modules, "energylm.verbs.toy", module)
        monkeypatch.setitem(table.VERBS, "count", f"toy:{verb.__name__}")
        return verb

    return declare


def test_a_sound_verb_passes_every_check(declared, tmp_path):
    verb = declared(Sound)
    assert disagreements(verb, tmp_path) == undescribed(verb) == typed_defaults(verb) == unparsed_examples(verb) == []


def test_each_check_shows_its_teeth(declared, tmp_path, monkeypatch):
    assert undescribed(Undescribed) == ["further"]
    assert typed_defaults(TypedTwice) == ["Count to n (default: 2)."]
    (said,) = unparsed_examples(declared(Misspelt))
    assert "No such option" in said and "--nn" in said
    (said,) = unparsed_examples(declared(OutOfBounds))
    assert "--n: Input should be greater than or equal to 1" in said
    (said,) = disagreements(declared(Deaf), tmp_path)
    assert said.startswith("n: ") and "100" in said
    (said,) = disagreements(declared(Renamed), tmp_path)
    assert said.startswith("m: unknown key 'm'")
    monkeypatch.setattr("energylm.cli.command._described", lambda option: "")
    assert "n: the help shows no --n with its description" in disagreements(declared(Sound), tmp_path)
