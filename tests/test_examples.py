"""The examples run as they stand, with tiny models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from energylm import ResidualModel
from energylm.data.tokenizer import train_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """A bidirectional encoder with a tokenizer of its own, as transformers saves it."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = train_tokenizer(["A sailor mends the old bridge. "] * 20, vocabulary_size=280)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=280, **sizes), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_own_models(model_folder, encoder_folder, tmp_path):
    done = run("own_models.py", model_folder, encoder_folder, tmp_path / "joint")
    assert done.returncode == 0, done.stderr
    perplexity, sample, saved = done.stdout.strip().splitlines()[0], done.stdout, done.stdout.strip().splitlines()[-1]
    assert perplexity.startswith("base ") and "The clerk" in sample and saved == "True"
    joint = ResidualModel.from_pretrained(tmp_path / "joint")
    assert joint.energy.reads == "text" and len(joint.lm.tokenizer) != len(joint.energy.tokenizer)


def test_the_example_is_short():
    """Twenty lines is the promise: code inside `main`, blank lines left out."""
    body = (EXAMPLES / "own_models.py").read_text(encoding="utf-8").split("def main", 1)[1].split("if __name__")[0]
    assert len([line for line in body.splitlines()[1:] if line.strip()]) <= 20
