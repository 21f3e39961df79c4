"""The harness of the chaos test: a nursery of processes, jobs left undisturbed once, what counts as the same result."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KILLS = 3  # of each job in the suite; `make chaos` asks for 20
# Circumstances, not results.
TIMES = {"seconds", "update_seconds", "tokens_per_second", "texts_per_second"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=KILLS, help="how often each long job is killed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each job and kill, so that a failure names both."""
    if "moment" in metafunc.fixturenames:
        metafunc.parametrize("moment", range(metafunc.config.getoption("--kills", default=KILLS)))


@pytest.fixture(scope="session")
def jobs():
    spec = importlib.util.spec_from_file_location("chaos_jobs", HERE / "chaos_jobs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Done:
    """How a job ended: `status` is its exit code or minus the signal that killed it."""

    status: int
    seconds: float
    other: int | None  # of the second process on the same folder, where there was one
    said: str


class Nursery:
    """Runs jobs in processes of their own."""

    def __init__(self, jobs: Any, made: Path, logs: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "MPLBACKEND": "agg"}
        self._process = subprocess.Popen(
            [sys.executable, HERE / "chaos_nursery.py"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"
        self._jobs, self.made, self._undisturbed = jobs, made, {}
        self._logs, self._numbers = logs, count()

    def run(self, job: str, folder: Path, *, kill_after: float | None = None, twice: bool = False) -> Done:
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{next(self._numbers):04}-{job}.log"
        task = {"job": job, "folder": str(folder), "made": str(self.made), "log": str(log)}
        print(json.dumps(task | {"kill_after": kill_after, "twice": twice}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return Done(**answer, said=log.read_text(encoding="utf-8") if log.exists() else "")

    def undisturbed(self, job: str) -> tuple[Path, float]:
        """The folder of a job that nobody disturbed, and the seconds it took; made once, after all it needs."""
        if job not in self._undisturbed:
            for needed in self._jobs.JOBS[job].needs:
                self.undisturbed(needed)
            done = self.run(job, self.made / job)
            assert done.status == 0, done.said
            self._undisturbed[job] = self.made / job, done.seconds
        return self._undisturbed[job]

    def close(self) -> None:
        with self._process:  # closes its pipes, which ends it
            pass


@pytest.fixture(scope="session")
def nursery(jobs, tmp_path_factory):
    running = Nursery(jobs, tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("logs"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def content():
    return content_of


def content_of(folder: Path) -> dict[str, Any]:
    """What a job left, by relative name: bytes, and JSON without timings. Its own place is taken out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".lock":
            raw = path.read_bytes().replace(str(folder).encode(), b"FOLDER")
            found[str(path.relative_to(folder))] = _without_times(path, raw)
    return found


def _without_times(path: Path, raw: bytes) -> Any:
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in raw.splitlines()]
    if path.suffix == ".json":
        value = _timeless(json.loads(raw))
        if path.name == "results.json":
            value["sections"].pop("steps", None)
        if path.name == "manifest.json" and path.parent.parent.name == "checkpoints":
            value["sha256"].pop("state.json", None)  # which holds seconds
        return value
    if path.name == "results.md":
        return re.sub(rb"## Steps\n.*?(?=\n## |\Z)", b"", raw, flags=re.DOTALL)
    if path.name == "report.html":
        return re.sub(rb'<section aria-labelledby="steps".*?</section>', b"", raw, flags=re.DOTALL)
    return raw


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
