"""One hash a model: that of its file, or of its files; from the manifest or from the files themselves."""

import pytest
import torch
from safetensors.torch import save_file

from energylm.bundles.model_folder import weights_sha256
from energylm.errors import ModelError
from energylm.files import sha256_of_file


def test_one_file_is_named_by_its_own_hash(model_folder, tmp_path):
    expected = sha256_of_file(model_folder / "model.safetensors")
    assert weights_sha256(model_folder) == expected
    copy = tmp_path / "elsewhere"  # a folder that energylm did not write has no manifest
    copy.mkdir()
    (copy / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes())
    assert weights_sha256(copy) == expected
    assert weights_sha256(copy / "model.safetensors") == expected


def test_several_files_are_named_together(tmp_path):
    for number in range(2):
        save_file({"weight": torch.full((2,), float(number))}, tmp_path / f"model-{number}.safetensors")
    both = weights_sha256(tmp_path)
    save_file({"weight": torch.full((2,), 7.0)}, tmp_path / "model-1.safetensors")
    assert weights_sha256(tmp_path) != both != sha256_of_file(tmp_path / "model-0.safetensors")


def test_what_has_no_weights(tmp_path):
    with pytest.raises(ModelError, match=r"holds no \.safetensors"):
        weights_sha256(tmp_path)
    with pytest.raises(ModelError, match="is not here, and the hub cannot be reached"):
        weights_sha256("nobody/nothing")
