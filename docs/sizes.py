"""Install wheel and extras, and write what they weigh into docs/install.md: `python docs/sizes.py docs/install.md`.

The core goes into a new virtual environment, each extra into one of its own on top of that, so that only what it adds
is counted. Sizes are those of all files that are there afterwards. Seconds are the processor's in pip (unpacking and
compiling, not waiting for the network), so that a busy machine does not change them; torch is the CPU build that
constraints.txt names.
"""

import re
import resource
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from energylm.tables import Cell, Table, to_markdown

ROOT = Path(__file__).parents[1]
PIP = ["install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]


def environment(folder: Path, *, on_top_of: Path | None = None) -> Path:
    """The folder of packages of a new environment, which also sees those of another."""
    venv.create(folder, with_pip=on_top_of is None)
    (packages,) = folder.glob("lib/python*/site-packages")
    if on_top_of is not None:
        (packages / "core.pth").write_text(f"{on_top_of}\n")
    return packages


def weight(packages: Path) -> tuple[int, int]:
    """How many distributions lie there, and the bytes of all files."""
    files = [file for file in packages.rglob("*") if file.is_file()]
    return len(list(packages.glob("*.dist-info"))), sum(file.stat().st_size for file in files)


def installed(packages: Path, command: list[str]) -> list[Cell]:
    """What a command of pip adds: packages, megabytes, seconds."""
    before, begun = weight(packages), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    ended, after = resource.getrusage(resource.RUSAGE_CHILDREN), weight(packages)
    seconds = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return [after[0] - before[0], round((after[1] - before[1]) / 1e6), round(seconds)]


def sizes() -> Table:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", temporary, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = folder.glob("*.whl")
        core, pip = environment(folder / "core"), [str(folder / "core" / "bin" / "python"), "-m", "pip"]
        rows: list[list[Cell]] = [["core", *installed(core, [*pip, *PIP, str(wheel)])]]
        for extra in (name for name in extras if name not in ("all", "dev", "docs")):
            packages = environment(folder / extra, on_top_of=core)
            there = ["--python", str(folder / extra / "bin" / "python")]
            rows.append([f"`{extra}`", *installed(packages, [*pip, *there, *PIP, f"energylm[{extra}]"])])
            print(f"{extra}: done", file=sys.stderr)
    return Table(["extra", "packages", "megabytes", "seconds"], rows)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    table = f"<!-- sizes -->\n{to_markdown(sizes())}<!-- /sizes -->"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        re.sub(r"<!-- sizes -->.*<!-- /sizes -->", lambda _: table, text, flags=re.DOTALL), encoding="utf-8"
    )
