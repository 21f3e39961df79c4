"""The command line as a person types it, and a store of artefacts for each file of tests."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def energylm_command(monkeypatch, capsys) -> Callable[..., Done]:
    from energylm.cli.main import main

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main()
        code = leaving.value.code
        return Done(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[None]:
    """An ENERGYLM_HOME of a file of tests, which share what they make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGYLM_HOME", str(tmp_path_factory.mktemp("home")))
        yield
