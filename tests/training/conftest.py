"""`toy`: the module beside this file (tests are no package, so it is loaded by its path)."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOY = Path(__file__).with_name("toy.py")


@pytest.fixture(scope="session")
def toy():
    spec = importlib.util.spec_from_file_location("energylm_tests_training_toy", TOY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_toy():
    """Run toy.py in a process of its own (or several, by torchrun) with one thread each; its exit code and stderr."""

    def run(*arguments, processes=1):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        command = [sys.executable, *(launcher if processes > 1 else []), str(TOY), *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        return done.returncode, done.stderr

    return run
