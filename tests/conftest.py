"""What every test stands on: no network, one torch thread a worker, folders of its own, and small shared things.

The environment is set before anything is imported, because huggingface_hub reads it at import time.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

_HOME = Path(tempfile.mkdtemp(prefix="energylm-tests-"))
os.environ |= {
    "HF_HUB_OFFLINE": "1",  # a misspelt path looks like a hub name and would cost half a minute of retries
    "HF_HOME": str(_HOME / "huggingface"),
    "ENERGYLM_HOME": str(_HOME / "energylm"),
    "TOKENIZERS_PARALLELISM": "false",
}


def pytest_configure() -> None:
    import torch

    torch.set_num_threads(1)  # two workers share two cores, and one thread makes sums repeatable


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; tests that need it skip, counted and shown, where it is not named."""
    chosen = os.environ.get("ENERGYLM_DATA")
    if not chosen or not Path(chosen).is_dir():
        pytest.skip("ENERGYLM_DATA names no folder of data sets")
    return Path(chosen)


WHO = ("the clerk", "a sailor", "our neighbour", "the old miller", "her sister", "a stranger", "the council")
DOES = ("counts", "mends", "remembers", "sells", "carries", "forgets", "paints")
WHAT = ("the boats", "a letter", "seven lamps", "the harvest", "a bridge", "the winter coats", "an old map")


@pytest.fixture(scope="session")
def texts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 short text files in a made-up language of a few hundred sentences; always the same."""
    chooser = random.Random(0)
    folder = tmp_path_factory.mktemp("made-up") / "texts"
    folder.mkdir()
    for number in range(60):
        sentences = [f"{chooser.choice(WHO)} {chooser.choice(DOES)} {chooser.choice(WHAT)}." for _ in range(12)]
        text = " ".join(sentence.capitalize() for sentence in sentences)
        (folder / f"{number:02}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def corpus_folder(texts_folder: Path) -> Path:
    """A corpus of those texts: 300 tokens of vocabulary, all three splits."""
    from energylm.config.corpus import CorpusConfig
    from energylm.pipelines.build_corpus import build_corpus

    config = CorpusConfig(
        sources=(str(texts_folder),), vocabulary_size=300, valid_fraction=0.15, test_fraction=0.15, origin="made up"
    )
    build_corpus(config, output=texts_folder.parent / "corpus")
    return texts_folder.parent / "corpus"


@pytest.fixture(scope="session")
def model_folder(corpus_folder: Path) -> Path:
    """A language model of one layer with random weights, over the corpus' tokenizer."""
    import torch

    from energylm.bundles.language_model import LanguageModel
    from energylm.data.corpus import Corpus
    from energylm.models.causal import CausalLanguageModel
    from energylm.models.presets import build_network

    corpus = Corpus.open(corpus_folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            "tiny",
            vocabulary_size=corpus.vocabulary_size,
            max_length=128,
            eos_token_id=corpus.end_token_id,
            overrides={"layers": 1, "width": 32, "heads": 2},
        )
    model = CausalLanguageModel(network.eval(), start_token_id=corpus.end_token_id, eos_token_id=corpus.end_token_id)
    folder = corpus_folder.parent / "model"
    LanguageModel(model, corpus.tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def energy_folder(model_folder: Path) -> Path:
    """An untrained causal energy on that model's body, scaled up until it matters."""
    from energylm.bundles.energy_model import EnergyModel

    energy = EnergyModel.from_encoder(model_folder, kind="unit")
    energy.scale, energy.provenance["loss"] = 50.0, "nce"
    folder = model_folder.parent / "energy"
    energy.save_pretrained(folder)
    return folder
