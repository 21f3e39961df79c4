"""The diffs of docs/add_a_verb.md, applied to a copy of the sources: as small as the page says, and they work.

A diff of the page names the lines around a change and no line numbers, so that it stays right while files grow.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add_a_verb.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(diff|console)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class FileChange:
    """Of one file: pairs of lines as they are and as they become; a new file has one pair that begins empty."""

    path: str
    is_new: bool
    hunks: list[tuple[list[str], list[str]]]

    @property
    def added(self) -> int:
        """Lines that are written, blank ones apart."""
        return sum(bool(line.strip()) for old, new in self.hunks for line in new) - sum(
            bool(line.strip()) for old, _ in self.hunks for line in old
        )

    def apply(self, root: Path) -> None:
        file = root / self.path
        text = "" if self.is_new else file.read_text(encoding="utf-8")
        for old, new in self.hunks:
            before, after = "".join(old), "".join(new)
            assert self.is_new or text.count(before) == 1, f"{self.path} does not hold once:\n{before}"
            text = after if self.is_new else text.replace(before, after)
        file.write_text(text, encoding="utf-8")


def read_diff(block: str) -> list[FileChange]:
    changes: list[FileChange] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("--- "):
            is_new = line.startswith("--- /dev/null")
        elif line.startswith("+++ b/"):
            changes.append(FileChange(line.removeprefix("+++ b/").strip(), is_new, []))
        elif line.startswith("@@"):
            changes[-1].hunks.append(([], []))
        else:
            old, new = changes[-1].hunks[-1]
            if not line.startswith("+"):
                old.append(line[1:])
            if not line.startswith("-"):
                new.append(line[1:])
    return changes


BLOCKS = FENCE.findall(PAGE)
DIFFS = [read_diff(block) for kind, block in BLOCKS if kind == "diff"]
COMMANDS = [block for kind, block in BLOCKS if kind == "console"]


def test_an_option_is_one_line_a_verb_and_a_loss_one_file_and_one_line():
    """The option's second line is its use."""
    option, verb, loss = DIFFS
    assert [change.added for change in option] == [2] and not option[0].is_new
    for changes in (verb, loss):
        new, named = changes
        assert new.is_new and new.added < 40 and not named.is_new and named.added == 1


@pytest.fixture
def sources(tmp_path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(block: str, sources: Path) -> subprocess.CompletedProcess[str]:
    folder = sources / "work"
    folder.mkdir(exist_ok=True)
    program = f'energylm() {{ "{sys.executable}" -m energylm "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\n'
    environment = os.environ | {"PYTHONPATH": str(sources / "src"), "ENERGYLM_HOME": str(sources / "home")}
    lines = enumerate(block.strip().splitlines(), start=1)
    checked = "".join(f"{{ {line}; }} || {{ echo 'failed: line {number}' >&2; exit 1; }}\n" for number, line in lines)
    command = ["bash", "-c", program + checked]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_changes_work_as_the_page_says(sources):
    for changes, commands in zip(DIFFS, COMMANDS, strict=True):
        for change in changes:
            change.apply(sources)
        done = run(commands, sources)
        assert done.returncode == 0, done.stderr[-2000:]


def test_without_its_line_in_the_table_a_verb_is_not_there(sources):
    """Teeth: the commands of the page fail where half of the change is missing."""
    DIFFS[1][0].apply(sources)
    done = run(COMMANDS[1], sources)
    assert done.returncode == 1 and "failed: line 2" in done.stderr
