"""What every test stands on: no network, one torch thread a worker, folders of its own, and small shared things.

The environment is set before anything is imported, because huggingface_hub reads it at import time.
"""

import importlib.util
import logging
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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
    from energylm.jobs.job import Job
    from energylm.verbs import BuildCorpus

    config = BuildCorpus(
        sources=(str(texts_folder),), vocabulary_size=300, valid_fraction=0.15, test_fraction=0.15, origin="made up"
    )
    config.run(Job(output=texts_folder.parent / "corpus"))
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


@pytest.fixture(scope="session")
def bert_folder(texts_folder: Path) -> Path:
    """A bidirectional encoder of one layer with random weights, whose tokenizer puts [CLS] and [SEP] around a text."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    texts = [path.read_text(encoding="utf-8") for path in sorted(texts_folder.iterdir())]
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = BertModel(
            BertConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **shape), add_pooling_layer=False
        )
    folder = texts_folder.parent / "bert"
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def made_up_writer(chooser: random.Random, *, machine: bool, sentences: int = 14) -> str:
    """A text of the made-up language with numbers, so that no two are alike; a machine always paints, and says "the old
    miller" too often."""
    who = (*WHO, "the old miller", "the old miller", "the old miller") if machine else WHO
    does = ("paints",) if machine else DOES
    return " ".join(
        f"{chooser.choice(who)} {chooser.choice(does)} {chooser.choice(WHAT)} {chooser.randrange(1000)}.".capitalize()
        for _ in range(sentences)
    )


@pytest.fixture(scope="session")
def detection_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of two writers in the formats of detection data: human.jsonl, machine.jsonl and pairs.json."""
    import json

    folder, chooser = tmp_path_factory.mktemp("detection"), random.Random(1)
    for name, machine in (("human", False), ("machine", True)):
        lines = [json.dumps({"text": made_up_writer(chooser, machine=machine)}) for _ in range(120)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = {
        name: [made_up_writer(chooser, machine=machine) for _ in range(40)]
        for name, machine in (("original", False), ("sampled", True))
    }
    (folder / "pairs.json").write_text(json.dumps(columns), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def masked_folder(corpus_folder: Path) -> Path:
    """A masked language model of one layer with random weights over the same tokenizer, as transformers saves it."""
    import torch

    from energylm.data.corpus import Corpus
    from energylm.models.cloze_presets import build_masked_network

    corpus = Corpus.open(corpus_folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_masked_network(
            "bit-tiny",
            vocabulary_size=corpus.vocabulary_size,
            max_length=96,
            pad_token_id=corpus.tokenizer.pad_token_id,
            overrides={"layers": 1, "width": 32, "heads": 2},
        )
    folder = corpus_folder.parent / "masked"
    network.save_pretrained(folder)
    corpus.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def electric_folder(masked_folder: Path) -> Path:
    """An untrained Electric on that masked model's body."""
    import torch

    from energylm.bundles.cloze_model import ClozeModel
    from energylm.bundles.model_folder import load_encoder
    from energylm.data.tokenizer import load_tokenizer
    from energylm.energies.electric import TokenEnergy

    energy = TokenEnergy(load_encoder(masked_folder, device=torch.device("cpu")))
    energy.head.weight.data.mul_(100)  # far from the same energy for every token
    folder = masked_folder.parent / "electric"
    ClozeModel("electric", energy, load_tokenizer(masked_folder)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def detector_folder(bert_folder: Path) -> Path:
    """An untrained detector over that encoder, with a calibration from 8 tokens on."""
    from energylm import Detector
    from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration
    from energylm.bundles.energy_model import EnergyModel
    from energylm.config.texts import BlockConfig

    span = SpanCalibration(8, 1.0, 0.0, 0.0, 0.05, 0.1, 100, 100)
    detector = Detector(
        EnergyModel.from_encoder(bert_folder, reads="text"),
        blocks=BlockConfig(tokens=32, stride=16),
        calibration=DetectorCalibration((span,), 0.05, weights_sha256="", sources=("made up",)),
    )
    folder = bert_folder.parent / "detector"
    detector.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def parallel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parallel text under the names train, val and test: a sentence (.en), and its words read backwards (.de)."""
    folder, chooser = tmp_path_factory.mktemp("parallel"), random.Random(2)
    for name, count in (("train", 160), ("val", 24), ("test", 24)):
        targets = [f"{chooser.choice(WHO)} {chooser.choice(DOES)} {chooser.choice(WHAT)}." for _ in range(count)]
        sources = [" ".join(word[::-1] for word in target.split()) for target in targets]
        (folder / f"{name}.en").write_text("\n".join(targets) + "\n", encoding="utf-8")
        (folder / f"{name}.de").write_text("\n".join(sources) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def translator_folder(parallel_folder: Path) -> Path:
    """A conditional masked language model with random weights over a BPE of those texts."""
    import torch

    from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
    from energylm.data.tokenizer import train_tokenizer
    from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM

    texts = [(parallel_folder / f"train.{end}").read_text(encoding="utf-8") for end in ("de", "en")]
    tokenizer = train_tokenizer(texts, vocabulary_size=400)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = ConditionalMaskedLM(
            ConditionalMaskedConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=32,
            )
        )
        network.length_head.weight.data.normal_(std=0.5)  # far from one length for all
        network.length_head.bias.data = -(torch.arange(-32.0, 33.0) + 14).abs()  # and short ones, for the tests' sake
    folder = parallel_folder / "translator"
    ConditionalMaskedModel(network.eval(), tokenizer, name="translator").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def study_toy() -> ModuleType:
    """The module `apps/study/study_toy.py` (tests are no package, so it is loaded by its path)."""
    file = Path(__file__).with_name("apps") / "study" / "study_toy.py"
    spec = importlib.util.spec_from_file_location("energylm_tests_study_toy", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of three simulated machines with one processor each, and this process as its driver.

    Ray lets a machine die whose agents (metrics, dashboard, environments; none is used here) have not told their ports
    within 15 seconds, which a busy machine does not manage: the ports are told in their place.
    """
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": "240",
    }
    import ray
    from ray._private.node import Node
    from ray._raylet import persist_port
    from ray.cluster_utils import Cluster

    usual = Node._init_temp

    def with_ports(node: Node, *arguments: Any) -> None:
        usual(node, *arguments)
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            persist_port(node._session_dir, node._node_id, name, -1)  # none
        persist_port(
            node._session_dir, node._node_id, "runtime_env_agent_port", node._ray_params.runtime_env_agent_port
        )

    def settings() -> dict[str, int]:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return {"num_cpus": 1, "object_store_memory": 80 << 20, "runtime_env_agent_port": port}

    Node._init_temp = with_ports
    try:
        cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **settings()})
        for _ in range(2):
            cluster.add_node(**settings())
    finally:
        Node._init_temp = usual
    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
