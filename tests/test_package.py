"""The package as a whole: its metadata, that every module imports, and that the paper index tells the truth."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import energylm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted(module.name for module in pkgutil.walk_packages(energylm.__path__, "energylm."))
# As many items of each family as the mission has: 64.
ITEMS = [f"{letter}{i + 1}" for letter, n in zip("RDCMSX", (14, 11, 8, 8, 7, 16), strict=True) for i in range(n)]


def test_what_the_gate_depends_on_is_pinned_in_the_constraints_and_nowhere_else():
    """A library that pins torch cannot be installed beside another; a checkout that does not is not repeatable."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert sorted(pins) == ["mypy", "ruff", "torch", "transformers"]
    assert pins["torch"] == "2.13.0"
    packages = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert [r for requirements in packages for r in requirements if "==" in r] == []


def test_every_dependency_has_a_floor_and_no_ceiling():
    assert [r for r in PROJECT["dependencies"] if not re.fullmatch(r"[\w.-]+>=[\d.]+", r)] == []


def test_versions_agree():
    assert PROJECT["version"] == energylm.__version__
    assert f"\nversion: {energylm.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {energylm.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_licence():
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_every_module_imports_and_says_what_it_is():
    """A room whose first tenant has not come yet is an empty __init__; any other module opens with a header."""
    modules = {name: importlib.import_module(name) for name in MODULES if not name.endswith("__main__")}
    headless = [name for name, module in modules.items() if not module.__doc__]
    assert [name for name in headless if Path(modules[name].__file__).stat().st_size] == []


def test_public_names_resolve():
    assert [name for name in energylm.__all__ if not hasattr(energylm, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'LanguageModle'"):
        _ = energylm.LanguageModle


def test_importing_the_package_imports_nothing_heavy():
    spy = "import sys, energylm; print({'torch', 'transformers', 'pydantic', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", spy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def index_rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_paper_index_has_each_item_once():
    rows = index_rows()
    assert [row[0] for row in rows] == ITEMS
    assert len(ITEMS) == 64
    assert {len(row) for row in rows} == {7}


def test_paths_named_in_the_paper_index_exist():
    paths = {path for row in index_rows() for cell in row[3:] for path in re.findall(r"`([^`]+/[^`]+)`", cell)}
    assert paths, "an index that names no file proves nothing"
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_items_without_code_say_so():
    for item, _, _, file, test, *_ in index_rows():
        assert ("`" in file) == ("`" in test), f"{item} names a file without a test, or a test without a file"
        assert "`" in file or file == test == "not yet", f"{item} names no file and does not say 'not yet'"


def test_no_page_and_no_module_names_a_machine():
    """No absolute path of a developer's machine and no package registry in anything we ship."""
    forbidden = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/|https?://[\w.-]*(?:pypi|nexus|artifactory)[\w.-]*")
    kinds = {".py", ".md", ".toml", ".txt", ".cff", ".yaml", ".json"}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in kinds or not file.suffix}
    assert texts
    found = {str(file.relative_to(ROOT)): forbidden.findall(text) for file, text in texts.items()}
    assert {name: matches for name, matches in found.items() if matches and name != "tests/test_package.py"} == {}


def public_classes(package: Path) -> dict[str, list[str]]:
    """Each public class name with the modules that define it."""
    where: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(file.relative_to(package)))
    return where


def test_no_two_public_classes_share_a_name(tmp_path):
    """A reader who greps a class finds one. Teeth: a twin is seen."""
    assert {name: files for name, files in public_classes(ROOT / "src" / "energylm").items() if len(files) > 1} == {}
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Twin:\n    pass\n")
    assert public_classes(tmp_path) == {"Twin": ["a.py", "b.py"]}


MOST_FILES, LONGEST_FILE, SHORTEST_FILE, MOST_SINGLE_IMPORTERS = 340, 450, 30, 60


def lengths(package: Path) -> dict[str, int]:
    """Lines of each module, `__init__` and `__main__` apart."""
    files = [file for file in package.rglob("*.py") if not file.name.startswith("__")]
    return {str(file.relative_to(package)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}


def single_importers(package: Path) -> dict[str, str]:
    """Modules that exactly one other module of the package imports, with that one. `testing` is for users."""
    files = {".".join(file.relative_to(package).with_suffix("").parts): file for file in package.rglob("*.py")}
    importers: dict[str, set[str]] = {module: set() for module in files}
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("energylm"):
                source = node.module.removeprefix("energylm").removeprefix(".")
                names = [source, *(f"{source}.{alias.name}".removeprefix(".") for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name.removeprefix("energylm.") for alias in node.names]
            else:
                continue
            for name in set(names) & importers.keys() - {module}:
                importers[name].add(module)
    users_own = {"testing", "__init__", "__main__"}
    ours = {
        name: who for name, who in importers.items() if users_own.isdisjoint({name.split(".")[0], name.split(".")[-1]})
    }
    return {name: next(iter(who)) for name, who in ours.items() if len(who) == 1}


def test_files_are_as_long_as_their_subject():
    """Few files, none too long for a sitting, none that belongs inside its only importer."""
    sizes = lengths(ROOT / "src" / "energylm")
    assert len(list((ROOT / "src").rglob("*.py"))) <= MOST_FILES
    assert {name: size for name, size in sizes.items() if not SHORTEST_FILE <= size <= LONGEST_FILE} == {}
    alone = single_importers(ROOT / "src" / "energylm")
    assert len(alone) <= MOST_SINGLE_IMPORTERS, f"{len(alone)} modules have one importer: {alone}"


def test_importers_are_counted(tmp_path):
    """Teeth: one importer is told from two and from none, whichever way it imports."""
    modules = {
        "a": "from energylm.b import x\nfrom energylm import c",
        "b": "import energylm.c",
        "c": "def f():\n    from energylm.d import y",
        "d": "",
        "testing/e": "from energylm.f import z",
        "f": "",
    }
    (tmp_path / "testing").mkdir()
    for name, code in modules.items():
        (tmp_path / f"{name}.py").write_text(code)
    assert single_importers(tmp_path) == {"b": "a", "d": "c", "f": "testing.e"}
