"""Imports point one way (docs/architecture.md): every module is read with `ast`, imports inside functions included.

    cli → benchmarks → apps → verbs → jobs | report | training → bundles → models | energies
    → objectives | samplers | search | estimators | data → numerics
    → config, contracts, randomness, errors, files, plots, progress, records, registry, tables, waiting

A room imports rooms of lower rows only; rooms of one row are strangers. In the lowest row rooms may use each other as
long as no circle arises, and `errors` stands on nothing. `testing` is for users and tests: it stands on numerics and
below, and nothing stands on it. `recipes` is data. The package's own `__init__` names bundles, lazily.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "energylm"
ROWS = [
    {
        "config",
        "contracts",
        "randomness",
        "errors",
        "files",
        "plots",
        "progress",
        "records",
        "registry",
        "tables",
        "waiting",
    },
    {"numerics"},
    {"objectives", "samplers", "search", "estimators", "data"},
    {"models", "energies"},
    {"bundles"},
    {"jobs", "report", "training"},
    {"verbs"},
    {"apps"},
    {"benchmarks"},
    {"cli"},
]
ROW = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
ROOMS = {*ROW, "testing", "recipes"}
FRONT = {"bundles"}  # what the package's own __init__ may name


@dataclass(frozen=True)
class Arrow:
    """One import statement: `module` (e.g. "samplers.chains") reaches for `target` (e.g. "numerics.masks")."""

    module: str
    target: str
    line: int

    @property
    def rooms(self) -> tuple[str, str]:
        return self.module.partition(".")[0], self.target.partition(".")[0]


def arrows(package: Path) -> Iterator[Arrow]:
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        here = ["energylm", *parts[:-1]]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name in _imported(node, here):
                if name == "energylm" or name.startswith("energylm."):
                    yield Arrow(module, name.removeprefix("energylm").removeprefix("."), node.lineno)


def _imported(node: ast.AST, here: list[str]) -> list[str]:
    """Full names that a statement imports; `here` is the package it stands in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = here[: len(here) + 1 - node.level] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        return (
            [f"{source}.{alias.name}" for alias in node.names]
            if source in ("energylm", "energylm.apps", "energylm.verbs")
            else [source]
        )
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
        return [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return []


def public_names(package: Path) -> dict[str, str]:
    """name → room, of the lazy names in the package's `__init__`: the dictionary `_HOMES`."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return {name: home.split(".")[1] for name, home in ast.literal_eval(node.value).items()}
    return {}


def violations(package: Path) -> list[str]:
    homes, found = public_names(package), []
    base_graph: dict[str, set[str]] = {room: set() for room in ROWS[0]}
    for arrow in arrows(package):
        source, target = arrow.rooms
        target = homes.get(target, target)
        complaint = _complaint(arrow.module, source, target) or _between_folders(arrow)
        if complaint:
            found.append(f"energylm.{arrow.module} line {arrow.line}: {complaint}")
        elif source in ROWS[0] and source != target and target in ROWS[0]:
            base_graph[source].add(target)
    found += [
        f"energylm.{name} → {room}: the package names {sorted(FRONT)} only"
        for name, room in homes.items()
        if room not in FRONT
    ]
    try:
        TopologicalSorter(base_graph).prepare()
    except CycleError as circle:
        found.append(f"a circle in the lowest row: {' → '.join(circle.args[1])}")
    return found


def _complaint(module: str, source: str, target: str) -> str | None:
    """Why a module of room `source` may not reach for room `target`; None if it may."""
    if target == "__version__" or source == target != "":
        return None
    if source == "__main__":
        return None if target == "cli" else f"the program starts in cli, not in {target}"
    if source == "":
        return None if target in FRONT else f"the package's __init__ names {sorted(FRONT)} only, not {target}"
    if target == "":
        return "imports the bare package, whose lazy names hide where the arrow points; import the module"
    for room in (source, target):
        if room not in ROOMS:
            return f"{room!r} is no room of the design"
    if target == "testing":
        return "production code does not import the test kit"
    if "recipes" in (source, target):
        return "recipes are data: they import nothing and are read as files"
    if source == "testing":
        return None if ROW[target] <= ROW["numerics"] else f"the test kit stands on numerics and below, not on {target}"
    if source == "errors":
        return f"errors stands on nothing, not on {target}"
    if ROW[source] == ROW[target]:
        return None if ROW[source] == 0 else f"{source} and {target} are neighbours"
    return f"the arrow from {source} to {target} points up" if ROW[source] < ROW[target] else None


def _between_folders(arrow: Arrow) -> str | None:
    """Why a module of `apps` or `verbs` may not reach for another one; None if it may: each application and each group
    of verbs is a folder of its own."""
    room = arrow.rooms[0]
    if arrow.rooms not in (("apps", "apps"), ("verbs", "verbs")):
        return None
    source, target = (_folder(name) for name in (arrow.module, arrow.target))
    if target is None or source == target:
        return None
    if source:
        return f"{room}/{source} and {room}/{target} are strangers"
    return f"what {room} share does not know {room}/{target}"


def _folder(module: str) -> str | None:
    """Which application or group a module belongs to; None for what they share."""
    room, *rest = module.split(".")
    return rest[0] if rest and (PACKAGE / room / rest[0]).is_dir() else None


def test_imports_point_down():
    assert violations(PACKAGE) == []


def test_the_reader_sees_the_imports_that_are_there():
    """Teeth: an empty list of violations must not come from an empty list of arrows."""
    seen = {arrow.rooms for arrow in arrows(PACKAGE)}
    assert {("samplers", "numerics"), ("cli", "errors"), ("testing", "contracts"), ("", "bundles")} <= seen


@pytest.mark.parametrize(
    ("module", "code", "says"),
    [
        ("numerics/masks.py", "import energylm.models.causal", "from numerics to models points up"),
        ("data/windows.py", "from energylm.models import causal", "from data to models points up"),
        ("samplers/chains.py", "from energylm.estimators.bounds import T", "samplers and estimators are neighbours"),
        ("training/task.py", "from ..report import report", "training and report are neighbours"),
        ("models/causal.py", "from energylm import bundles", "from models to bundles points up"),
        ("bundles/lm.py", "def f():\n    from energylm.verbs import demo", "from bundles to verbs points up"),
        (
            "energies/bit.py",
            "if TYPE_CHECKING:\n    from energylm.models import x",
            "energies and models are neighbours",
        ),
        (
            "data/x.py",
            "import importlib\nimportlib.import_module('energylm.training.engine')",
            "data to training points up",
        ),
        ("samplers/x.py", "from energylm.testing import TabularEnergy", "does not import the test kit"),
        ("testing/x.py", "from energylm.samplers import chains", "stands on numerics and below, not on samplers"),
        ("benchmarks/x.py", "from energylm.cli import main", "from benchmarks to cli points up"),
        ("apps/x.py", "from energylm.cli import main", "from apps to cli points up"),
        ("verbs/x.py", "from energylm.apps.serve import app", "from verbs to apps points up"),
        ("apps/serve/x.py", "from energylm.apps.study import app", "apps/serve and apps/study are strangers"),
        ("apps/x.py", "from energylm.apps.study import app", "what apps share does not know apps/study"),
        ("verbs/joint/x.py", "from energylm.verbs.detect.y import z", "verbs/joint and verbs/detect are strangers"),
        ("verbs/verb.py", "from energylm.verbs.lm.language_model import z", "what verbs share does not know verbs/lm"),
        ("files.py", "from energylm.numerics import x", "from files to numerics points up"),
        ("errors.py", "from energylm.files import x", "errors stands on nothing"),
        ("recipes/x.py", "from energylm.config import Config", "recipes are data"),
        ("verbs/x.py", "import energylm.recipes", "recipes are data"),
        ("numerics/x.py", "from energylm import LanguageModel", "from numerics to bundles points up"),
        ("numerics/x.py", "import energylm", "imports the bare package"),
        ("helpers/x.py", "from energylm.errors import DataError", "'helpers' is no room"),
        ("__main__.py", "from energylm.verbs import demo", "starts in cli"),
        ("__init__.py", "from energylm.models import causal", "not models"),
        ("__init__.py", "_HOMES = {'Windows': 'energylm.data.windows'}", "energylm.Windows → data"),
    ],
)
def test_each_kind_of_wrong_arrow_is_caught(tmp_path, module, code, says):
    package = toy_package(tmp_path, {module: code})
    (message,) = violations(package)
    assert says in message


def test_a_circle_in_the_lowest_row_is_caught(tmp_path):
    one_way = {"config/base.py": "from energylm.files import x"}
    assert violations(toy_package(tmp_path / "a", one_way)) == []
    both = one_way | {"files.py": "def f():\n    from energylm.config import y"}
    (message,) = violations(toy_package(tmp_path / "b", both))
    assert "a circle in the lowest row" in message and "config" in message and "files" in message


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("cli/x.py", "from energylm import __version__\ndef f():\n    from energylm.verbs import demo"),
        (
            "data/x.py",
            "import torch\nfrom energylm.numerics import masks\nfrom . import windows\nfrom .windows import Windows",
        ),
        ("data/__init__.py", "from .windows import Windows\nfrom ..errors import DataError"),
        ("benchmarks/x.py", "from energylm.samplers import a\nfrom energylm.apps.serve import b"),
        ("apps/x.py", "from energylm.bundles import a\nfrom energylm.apps import hosting"),
        (
            "apps/study/x.py",
            "from energylm.apps.security import a\nfrom energylm.apps import hosting\nfrom . import app",
        ),
        ("testing/x.py", "from energylm.numerics import a\nfrom energylm.contracts import Energy"),
        ("config/x.py", "from energylm.errors import ConfigError"),
        ("numerics/x.py", "import energylm_extra\nfrom energylmx import y"),
    ],
)
def test_right_arrows_pass(tmp_path, module, code):
    assert violations(toy_package(tmp_path, {module: code})) == []


def toy_package(folder: Path, modules: dict[str, str]) -> Path:
    """A package with the real `_HOMES` and the given modules."""
    package = folder / "energylm"
    modules = {"__init__.py": "_HOMES = {'LanguageModel': 'energylm.bundles.language_model'}"} | modules
    for name, code in modules.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(code, encoding="utf-8")
    return package
