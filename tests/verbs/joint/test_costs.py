"""What `energylm plan` counts for the analyses of joint text, against torch's own count of a run."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from energylm.bundles.energy_model import EnergyModel
from energylm.jobs.costs import Surroundings
from energylm.models import decoders
from energylm.models.compute import Network
from energylm.verbs import Repetitions, SampledText

SPAN = {"length": 24, "prefix_tokens": 8, "contexts": 6, "n": 20, "split": "train"}


@pytest.fixture(scope="module")
def encoder_energy(masked_folder, tmp_path_factory):
    """A bidirectional energy over the language model's tokens, which reads whole texts."""
    energy = EnergyModel.from_encoder(masked_folder, kind="bit")
    with torch.no_grad():
        energy.network.head.weight.zero_()
    folder = tmp_path_factory.mktemp("energies") / "bit"
    energy.save_pretrained(folder)
    return folder


@pytest.fixture
def verb(model_folder, encoder_energy, corpus_folder):
    def make(kind, **values):
        names = {"language_model": str(model_folder), "energy": str(encoder_energy), "source": str(corpus_folder)}
        return kind(**names, **SPAN | values)

    return make


@pytest.fixture
def around(model_folder, encoder_energy, corpus_folder):
    from energylm.data.corpus import Corpus

    shape = {"layers": 1, "width": 32, "heads": 2}
    size = Corpus.open(corpus_folder).vocabulary_size
    networks = {
        str(model_folder): Network.of_preset("tiny", shape, vocabulary_size=size),
        str(encoder_energy): Network.of_preset("bit-tiny", shape, vocabulary_size=size),
    }
    return Surroundings(networks, {"networks": {}})


@pytest.fixture(autouse=True)
def _products_that_torch_counts(monkeypatch):
    """Its counter does not know products with packed weights, which are as many."""
    monkeypatch.setattr(decoders, "why_not_packed", lambda network: "its products are to be counted")


def measured(verb):
    with FlopCounterMode(display=False) as counter:
        verb.run()
    return counter.get_total_flops()


def test_sampled_text_by_torch(verb, around):
    settings = verb(SampledText)
    assert settings.cost(around).flops == pytest.approx(measured(settings), rel=0.1)
    fewer = verb(SampledText, n=16).cost(around)  # teeth
    assert fewer.flops != pytest.approx(measured(settings), rel=0.1)


def test_repetitions_by_torch(verb, around, monkeypatch):
    """The base repeats nothing worth a table by itself, so the rule is told where: in the middle, in each text."""
    from energylm.verbs.joint import analyses

    middle = SPAN["prefix_tokens"] + (SPAN["length"] - SPAN["prefix_tokens"]) // 2
    monkeypatch.setattr(analyses, "_first_repetitions", lambda loaded, texts, verb: ((text, middle) for text in texts))
    settings = verb(Repetitions, repetitions=2, candidates=300, keep=300, contexts=2)
    assert settings.cost(around).flops == pytest.approx(measured(settings), rel=0.1)
    assert verb(Repetitions, repetitions=3, candidates=300, contexts=2).cost(around).flops > 1.3 * measured(settings)
