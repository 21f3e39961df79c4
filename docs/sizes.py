"""Write the table of what each extra weighs into docs/install.md: `python docs/sizes.py docs/install.md`.

Sizes are those of the files that are installed here, of every package that an extra asks for and of what these ask
for, without what the core has already. torch is counted as it is installed here, which is its CPU build.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from energylm.tables import Table, to_markdown

ROOT = Path(__file__).parents[1]


def closure(requirements: list[str]) -> set[str]:
    """All distributions that these bring, by the metadata of what is installed."""
    done: set[str] = set()
    todo = [Requirement(line) for line in requirements]
    while todo:
        need = todo.pop()
        for extra in ("", *need.extras):
            key = f"{canonicalize_name(need.name)}[{extra}]"
            if key in done:
                continue
            done.add(key)
            try:
                inner = [Requirement(line) for line in distribution(need.name).requires or []]
            except PackageNotFoundError:
                continue
            todo += [one for one in inner if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {key.partition("[")[0] for key in done}


def megabytes(names: set[str]) -> float:
    total = 0
    for name in names:
        try:
            total += sum(file.size or 0 for file in distribution(name).files or ())
        except PackageNotFoundError:
            print(f"{name} is not installed here and counts nothing", file=sys.stderr)
    return total / 1e6


def sizes() -> Table:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = closure(project["dependencies"])
    rows: list[list[str | int]] = [["core", len(core), round(megabytes(core))]]
    for extra, lines in project["optional-dependencies"].items():
        if extra not in ("all", "dev", "docs"):
            more = closure(lines) - core
            rows.append([f"`{extra}`", len(more), round(megabytes(more))])
    return Table(["extra", "packages", "megabytes"], rows)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    table = f"<!-- sizes -->\n{to_markdown(sizes())}<!-- /sizes -->"
    page.write_text(
        re.sub(r"<!-- sizes -->.*<!-- /sizes -->", lambda _: table, text, flags=re.DOTALL), encoding="utf-8"
    )
