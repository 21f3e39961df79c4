"""Registries: names without imports, parts of this package, of scripts and of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Annotated

import pytest
from pydantic import Field

from energylm import registry
from energylm.config.base import Config
from energylm.errors import ConfigError
from energylm.registry import LOSSES, SAMPLERS, Named, Registry
from energylm.verbs.verb import options_of


@pytest.fixture
def parts():
    return Registry("part", group="energylm.test", parts={"root": "math:sqrt", "lost": "math:no_such"})


def test_a_part_is_imported_when_it_is_asked_for(parts):
    assert parts.names() == ("root", "lost") and parts.get("root")(9) == 3
    with pytest.raises(ConfigError, match="part 'lost' should lie at math:no_such, but"):
        parts.get("lost")
    with pytest.raises(ConfigError, match="no part 'rot'; did you mean 'root'"):
        parts.check("rot")


def test_a_script_adds_its_own(parts):
    parts.add("twice", lambda value: 2 * value)
    assert parts.get("twice")(4) == 8 and parts.check("twice") == "twice"
    with pytest.raises(ConfigError, match="already"):
        parts.add("root", abs)


def test_another_package_adds_its_own_but_takes_no_name_of_ours(parts, monkeypatch):
    entries = EntryPoints([EntryPoint("cube", "operator:pow", "g"), EntryPoint("root", "operator:neg", "g")])
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == "energylm.test" else EntryPoints())
    assert parts.names() == ("root", "lost", "cube") and parts.get("cube")(2, 3) == 8 and parts.get("root")(9) == 3


def test_listing_losses_imports_no_torch():
    spy = "import sys; from energylm.registry import LOSSES; print(LOSSES.names(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", spy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{LOSSES.names()} False"


@pytest.mark.parametrize(("parts", "name"), [(parts, name) for parts in (LOSSES, SAMPLERS) for name in parts.names()])
def test_every_part_is_there(parts, name):
    assert callable(parts.get(name))


def test_a_field_takes_names_of_a_registry_and_the_command_line_shows_them(parts):
    class Toy(Config):
        part: Annotated[str, Named(parts)] = Field("root", description="Which.")

    assert Toy(part="lost").part == "lost"
    with pytest.raises(ConfigError, match="part: there is no part 'rot'; did you mean 'root'"):
        Toy.checked({"part": "rot"})
    (option,) = options_of(Toy)
    assert option.choices == parts.names() and option.metavar == "root|lost"
