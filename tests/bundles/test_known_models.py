"""Where a name or path leads; a mistake is found at once, without asking the hub."""

import pytest

from energylm.bundles.known_models import KNOWN_MODELS, locate
from energylm.errors import ModelError


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_here_comes_first(home):
    (home / "gpt2").mkdir()
    (home / "model.gguf").write_bytes(b"")
    assert locate("gpt2").is_dir() and locate(home / "gpt2") == home / "gpt2"
    assert locate("model.gguf").name == "model.gguf"


def test_known_names_lead_home():
    with pytest.raises(ModelError, match="run `energylm models get smollm2-135m` first"):
        locate("smollm2-135m")
    KNOWN_MODELS["smollm2-135m"].folder.mkdir(parents=True)
    assert locate("smollm2-135m") == KNOWN_MODELS["smollm2-135m"].folder


def test_hub_names_stay_names():
    assert locate("gpt2") == "gpt2"
    assert locate("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"


@pytest.mark.parametrize(
    "wrong", ["./gpt2", "/no/such/model", "a/b/c", "runs/tiny", "gpt2/", "model.gguf", "two words"]
)
def test_what_looks_like_a_path_is_no_hub_name(home, wrong):
    (home / "runs").mkdir()
    with pytest.raises(ModelError, match="does not exist; give a model folder"):
        locate(wrong)
