"""`toy` and others: modules beside this file (tests are no package, so they are loaded by their paths)."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def beside():
    """A module of this folder by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"energylm_tests_training_{name}", HERE / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def toy(beside):
    return beside("toy")


@pytest.fixture(scope="session")
def run_program():
    """Run a file of this folder in a process of its own or, by torchrun, in several: the exit code and stderr."""

    def run(file, *arguments, processes=1):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        command = [sys.executable, *(launcher if processes > 1 else []), str(HERE / file), *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stderr

    return run


@pytest.fixture(scope="session")
def run_toy(run_program):
    return partial(run_program, "toy.py")
