"""One tiny task of every family that the engine trains, without dropout: what must work on many processes."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

from energylm.config.models import TransformerShape
from energylm.config.pretrain import MaskingConfig
from energylm.data.contrast import pad
from energylm.data.examples import EncodedTexts
from energylm.data.squad import NOWHERE, SpanWindow
from energylm.energies.encoder_bodies import build_energy_body
from energylm.energies.pooled import PooledEnergy
from energylm.models.cloze_presets import build_masked_network, build_two_tower
from energylm.models.headed_encoder import SequenceClassifier, SpanPredictor
from energylm.models.presets import build_network
from energylm.models.ralm import RalmLM
from energylm.randomness import seeded
from energylm.training.contrast_task import ContrastTask
from energylm.training.energy_task import EnergyTask
from energylm.training.finetune_task import LabelledTexts, SentenceTask, SpanTask
from energylm.training.language_model_task import MaskedLMTask, TwoTowerTask

BATCH = 7  # two processes have unequal shares


sys.path.append(str(Path(__file__).parent))  # the tests' own tasks are trained here, too
toy = import_module("toy")
SIZES = {"vocabulary_size": toy.VOCABULARY, "max_length": toy.LENGTH, "pad_token_id": None}
WINDOWS = {"seed": 0, "global_batch": BATCH, "save_model": toy.save_model, "valid_batch": 4}
MASK = 22


def convolution():
    network = build_network(
        "conv-tiny",
        vocabulary_size=toy.VOCABULARY,
        max_length=toy.LENGTH,
        eos_token_id=0,
        overrides={"width": 16, "embedding_width": 16},
    )
    return toy.task(network)


def ralm():
    return toy.task(RalmLM.of(toy.network(dropout=0.0), toy.network(dropout=0.0, seed=1)))


def masked():
    network = build_masked_network("bit-local-tiny", overrides={"width": 32}, **SIZES)
    return over_windows(MaskedLMTask, network, masking=MaskingConfig(rate=0.3), mask_token_id=MASK)


def two_tower():
    return over_windows(
        TwoTowerTask, build_two_tower(TransformerShape(layers=1, width=24, heads=2, dropout=0.0), **SIZES)
    )


def contrast(family):
    tests = import_module("test_contrast_task")
    return over_windows(
        ContrastTask, tests.build(family), contrast=tests.CONTRASTS[family], noise_rate=0.3, contrast_weight=5.0
    )


def over_windows(task_class, network, **options):
    ordinary_V = torch.ones(toy.VOCABULARY, dtype=torch.bool)
    ordinary_V[[0, MASK]] = False
    windows = toy.ToyWindows(), toy.ToyWindows(size=11, seed=1)
    return task_class(network, *windows, ordinary_V=ordinary_V, **WINDOWS, **options)


def energy(body, kind):
    contrasts = import_module("test_energy_task")
    sources = contrasts.ToyContrast(), contrasts.ToyContrast(size=11, seed=1)
    network = PooledEnergy(body, kind=kind)
    return EnergyTask(network, *sources, encode=pad, negatives_per_context=2, **WINDOWS)


def bilstm():
    return build_energy_body("bilstm-tiny", vocabulary_size=toy.VOCABULARY, overrides={"width": 8})


def sentences():
    numbers = np.random.default_rng(0)
    ids = [numbers.integers(1, 23, numbers.integers(4, 12)) for _ in range(30)]
    texts = EncodedTexts(ids, np.array([len(one) // 2 for one in ids]), cut=0, longest=11)
    labels_N = torch.tensor([int(one[0]) % 2 for one in ids])
    data = LabelledTexts(texts, labels_N)
    network = SequenceClassifier.of(bert(), num_labels=2, head_dropout=0.0)
    return SentenceTask(network, data, data, seed=0, global_batch=BATCH, save_model=toy.save_model)


def spans():
    numbers = np.random.default_rng(0)
    windows = [
        SpanWindow(
            question=number,
            ids=numbers.integers(1, 23, 12),
            second_start=4,
            offsets=np.zeros((7, 2), dtype=np.int64),
            start=NOWHERE if number % 3 == 0 else 5,
            end=NOWHERE if number % 3 == 0 else 7,
        )
        for number in range(20)
    ]
    network = SpanPredictor.of(bert(), head_dropout=0.0, span_width=8)
    return SpanTask(network, windows, windows[:3], answerable_weight=0.5, **WINDOWS)


def bert():
    config = BertConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel(config, add_pooling_layer=False)


FAMILIES = {
    "convolution": convolution,
    "ralm": ralm,
    "masked": masked,
    "two-tower": two_tower,
    "electric": lambda: contrast("electric"),
    "electra": lambda: contrast("electra"),
    "electra-tt": lambda: contrast("electra-tt"),
    "energy": lambda: energy(toy.network(dropout=0.0).transformer, "unit"),
    "energy-bilstm": lambda: energy(bilstm(), "bilstm"),
    "sentences": sentences,
    "spans": spans,
    "cmlm": lambda: import_module("test_cmlm_task").make(dropout=0.0),
    "seq2seq": lambda: import_module("test_seq2seq_task").make({"kind": "hinge"}, eos=True),
    "exact-study": lambda: import_module("test_exact_study_task").task("projection_and_pseudo"),
}


def make(name):
    with seeded(0, "initialisation"):
        return FAMILIES[name]()
