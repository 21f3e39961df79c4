"""What the pages show works: every block of the README, CONTRIBUTING and docs is run, in an empty folder, from top to
bottom.

A reader who types what a page shows has nothing but the package. So each page gets an empty folder and an empty
ENERGYLM_HOME, and its blocks are run verbatim in their order: `bash` by the shell, `python` in one namespace. A `yaml`
block whose first line is `# NAME.yaml` is that file. What takes minutes is made short and nothing else
(`shortened_steps`), so a command that names what no line before it made fails here as it would fail the reader.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from energylm import registry

pytestmark = pytest.mark.xdist_group("docs")  # one worker, so that the warm program is started once

ROOT = Path(__file__).parents[1]
DOCS = [page for folder in (".", "concepts") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", flags=re.MULTILINE | re.DOTALL)
RUN, SHOWN = ("bash", "python", "yaml"), ("text", "json", "toml", "diff", "console")  # the last two: `test_changes`
FILE_NAME = re.compile(r"# ([\w.-]+\.yaml)\n")
MAKE = '#!/bin/sh\nexec {make} --dry-run --directory {root} "$@" >/dev/null\n'  # knows its targets, does nothing
Page = Callable[[str, Path], None]


@pytest.fixture(scope="module")
def shell(tmp_path_factory, bert_folder, model_folder) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a block in a folder; `energylm` starts at once (`warm_energylm`), `make` only looks."""
    workshop = tmp_path_factory.mktemp("bin")
    shutil.copytree(bert_folder, workshop / "minilm-l6")
    shutil.copytree(model_folder, workshop / "smollm2-135m")
    (workshop / "make").write_text(MAKE.format(make=shutil.which("make"), root=ROOT), encoding="utf-8")
    (workshop / "make").chmod(0o755)
    path = os.pathsep.join([str(workshop), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, str(ROOT / "tests" / "warm_energylm.py"), str(workshop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as warm:
        assert warm.stdout is not None and warm.stdout.readline() == "ready\n"

        def run(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
            options = {"cwd": folder, "env": os.environ | {"PATH": path}, "capture_output": True, "text": True}
            line = ["bash", "-e", "-x", "-o", "pipefail", "-c", block]
            return subprocess.run(line, check=False, timeout=300, **options)

        yield run
        os.killpg(warm.pid, signal.SIGKILL)  # and what it has started


@pytest.fixture
def run_page(shell, tmp_path, monkeypatch) -> Page:
    """Runs the blocks of a page, as text, in a folder."""
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENERGYLM_DATA", raising=False)

    def run(markdown: str, folder: Path) -> None:
        monkeypatch.chdir(folder)
        namespace = {"__name__": "page"}
        for number, (language, block) in enumerate(FENCE.findall(markdown), start=1):
            if language == "bash":
                done = shell(block, folder)
                assert done.returncode == 0 and "Traceback" not in done.stderr, (
                    f"block {number}:\n{done.stderr[-4000:]}"
                )
            elif language == "python":
                exec(compile(block, f"block {number}", "exec"), namespace)
            elif name := FILE_NAME.match(block):
                (folder / name[1]).write_text(block, encoding="utf-8")

    return run


@pytest.fixture
def empty(tmp_path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_works_in_an_empty_folder(run_page, empty, page, monkeypatch):
    for parts in (named for named in vars(registry).values() if isinstance(named, registry.Registry)):
        monkeypatch.setattr(parts, "_parts", dict(parts._parts))  # what a page registers ends with it
    run_page(page.read_text(encoding="utf-8"), empty)


def test_blocks_are_of_known_languages():
    """A command in a block of another name would be run by nobody."""
    for page in PAGES:
        others = {language for language, _ in FENCE.findall(page.read_text(encoding="utf-8"))} - {*RUN, *SHOWN}
        assert not others, f"{page.name} has blocks of {others}"


CHAIN = """
```bash
energylm corpus build sotu:1953-1990 --output my-corpus
energylm lm train {corpus} --output my-lm --window 16 --steps 2000
```

```python
from pathlib import Path
assert Path("my-lm/model/config.json").is_file()
```
"""


def test_a_name_that_no_line_made_fails(run_page, tmp_path):
    """Teeth: what the README once had, `my-corpus` built and `corpus` trained on. With the right name it works."""
    for corpus in ("my-corpus", "corpus"):
        (tmp_path / corpus).mkdir()
    run_page(CHAIN.format(corpus="my-corpus"), tmp_path / "my-corpus")
    with pytest.raises(AssertionError, match=r"energylm: corpus is not a corpus"):
        run_page(CHAIN.format(corpus="corpus"), tmp_path / "corpus")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("```bash\nenergylm lm smaple model\n```\n", "smaple"),
        ("```bash\nmake nonsense\n```\n", "nonsense"),
        ("```bash\nls nowhere | cat\necho done\n```\n", "nowhere"),
        ("```bash\nenergylm models get minilm-l7\n```\n", "minilm-l7"),
        ("```python\nraise AssertionError('no')\n```\n", "no"),
    ],
)
def test_what_a_page_must_not_have_fails(run_page, empty, wrong, told):
    """Teeth: a verb, a target, a file, a model that do not exist."""
    with pytest.raises(AssertionError, match=told):
        run_page(wrong, empty)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
