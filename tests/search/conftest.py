"""`toy`: the module beside this file (tests are no package, so it is loaded by its path)."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toy():
    spec = importlib.util.spec_from_file_location("energylm_tests_search_toy", Path(__file__).with_name("toy.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
