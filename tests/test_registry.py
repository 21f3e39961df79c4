"""Registries: names without imports, parts of this package, of scripts and of other packages."""

import os
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


LETTERS = """
from energylm.bundles.text_energy import ScoreEnergy

class LetterEnergy(ScoreEnergy):
    kind = "letter"

    def __init__(self, letter):
        super().__init__(name=letter, beta=1.0, judges="completion")

    @classmethod
    def from_text(cls, text, *, device=None):
        return cls(text)

    def scores(self, texts):
        return [float(text.count(self.name)) for text in texts]
"""


def test_an_installed_package_adds_an_energy_to_the_command_line(tmp_path, model_folder):
    """As pip leaves it: a module, and a folder of metadata with its entry points. Without the latter there is none."""
    (tmp_path / "letters.py").write_text(LETTERS)
    metadata = tmp_path / "letters-0.1.dist-info"
    options = ["--energy", "letter:e", "--prompt", "The", "-n", "4", "--max-new-tokens", "2"]

    def generate():
        command = [sys.executable, "-m", "energylm", "generate", str(model_folder), *options]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    failed = generate()
    assert failed.returncode == 2 and "no kind of energy 'letter'" in failed.stderr
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[energylm.energies]\nletter = letters:LetterEnergy\n")
    done = generate()
    assert done.returncode == 0 and done.stdout.startswith("The") and "4 candidates" in done.stderr
