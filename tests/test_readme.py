"""The README's first Python block prints what the README says, with the very models that it names.

The models come from the package index; where they cannot be had the test skips and says so. That the block runs at all
is also shown with tiny models, like every block of every page (`test_docs_commands`).
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

from energylm.errors import EnergyLMError
from energylm.verbs import GetModel

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", flags=re.DOTALL)


@pytest.fixture
def first_block(tmp_path, monkeypatch) -> tuple[str, str]:
    """The block and its output, in a folder with the models at hand."""
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2-135m", "minilm-l6"):
        try:
            GetModel(name=name).run()
        except EnergyLMError as error:
            pytest.skip(f"{name} cannot be had here: {error}")
    match = BLOCK.search(README)
    assert match is not None
    return match[1], match[2]


def printed(block: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    return out.getvalue()


@pytest.mark.slow
def test_the_first_block_prints_what_stands_below_it(first_block):
    block, shown = first_block
    assert printed(block) == shown
    assert Path("curve.png").stat().st_size > 10_000
    # Teeth: another target writes another text.
    assert printed(block.replace("A storm at sea.", "A birthday party.")) != shown
