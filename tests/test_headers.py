"""Headers tell the truth about their neighbours: what a docstring names between back-quotes is there today.

    Relations lines of a header     every name: a module of the same folder or of the package, with or without a name
                                    in it; a class of the package; a name of the file itself; or a path
    all other docstrings            names that begin with a room (`samplers.resampling`, `config.models.NCE`)

Text with blanks between back-quotes is a command or a formula, and is left alone.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "energylm"
RELATIONS = re.compile(r"^Relations\b.*(?:\n +\S.*)*", re.MULTILINE)
QUOTED = re.compile(r"(?<!`)`([^`\s]+)`(?!`)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
FILES = (".json", ".yaml", ".py", ".md")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def names_in(file: Path) -> set[str]:
    """Every name that a file defines, at any depth: functions, classes, variables, fields, arguments."""
    names = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


@cache
def classes(package: Path) -> set[str]:
    return {
        node.name for file in package.rglob("*.py") for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef)
    }


def resolves(name: str, folder: Path) -> bool:
    """Whether `a.b.c` is a module or package below `folder`, or a name in such a module."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        module = folder / f"{part}.py"
        if module.is_file():
            return set(parts[index + 1 :]) <= names_in(module)
        folder = folder / part
        if not folder.is_dir():
            return False
        front, rest = folder / "__init__.py", parts[index + 1 :]
        if len(rest) == 1 and front.is_file() and rest[0] in names_in(front):
            return True
    return True


def untrue(file: Path, package: Path) -> Iterator[str]:
    """Names in a file's docstrings that are nowhere."""
    rooms = {entry.stem for entry in package.iterdir()}
    header = ast.get_docstring(parsed(file)) or ""
    relations = "\n".join(RELATIONS.findall(header))
    for name in QUOTED.findall(relations):
        if "/" in name:
            known = (package / name).exists()
        elif not DOTTED.fullmatch(name):
            continue
        else:
            known = resolves(name, file.parent) or resolves(name, package)
            known = known or name.partition(".")[0] in classes(package) or name in names_in(file)
        if not known:
            yield name
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    inner = [ast.get_docstring(node) or "" for node in ast.walk(parsed(file)) if isinstance(node, kinds)]
    for name in QUOTED.findall("\n".join([RELATIONS.sub("", header), *inner])):
        room = name.partition(".")[0]
        if not DOTTED.fullmatch(name) or "." not in name or name.endswith(FILES) or room not in rooms:
            continue
        is_variable = room in names_in(file)  # `config.seed` is a field of the argument `config`
        if not is_variable and not resolves(name, package) and not resolves(name, file.parent):
            yield name


def test_docstrings_name_what_is_there():
    files = sorted(PACKAGE.rglob("*.py"))
    wrong = {str(file.relative_to(PACKAGE)): names for file in files if (names := list(untrue(file, PACKAGE)))}
    assert wrong == {}


def test_relations_are_read_at_all():
    """Teeth: an empty list of mistakes must not come from an empty list of names."""
    headers = [ast.get_docstring(parsed(file)) or "" for file in PACKAGE.rglob("*.py")]
    assert sum(len(QUOTED.findall("\n".join(RELATIONS.findall(header)))) for header in headers) > 150


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (
            '"""Losses.\n\nRelations  `beam`, `search.beam`, `search.beam.Beam` and `Beam` are there.\n"""',
            [],
        ),
        ('"""Losses.\n\nRelations  `soft_beam` was renamed.\n"""', ["soft_beam"]),
        ('"""Losses.\n\nRelations  `beam` is below,\n           `search.old` is not.\n"""', ["search.old"]),
        ('"""Losses.\n\nRelations  `search.beam.Tree` is gone.\n"""', ["search.beam.Tree"]),
        ('"""Losses."""\ndef f():\n    """As `search.old` did, with `x.y` and `beams`."""', ["search.old"]),
        ('"""Losses.\n\nRelations  `energylm plan` counts it, `f` is here.\n"""\ndef f(): ...', []),
    ],
)
def test_names_that_are_nowhere_are_caught(tmp_path, header, names):
    package = tmp_path / "energylm"
    (package / "search").mkdir(parents=True)
    (package / "search" / "beam.py").write_text("class Beam: ...")
    (package / "search" / "losses.py").write_text(header)
    assert list(untrue(package / "search" / "losses.py", package)) == names
