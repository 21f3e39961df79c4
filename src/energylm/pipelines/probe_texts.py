"""The texts that `energylm probe attack` edits, as ids of the energy's own tokenizer, and where they may be edited."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from energylm.bundles.energy_model import EnergyModel, bind
from energylm.bundles.language_model import LanguageModel
from energylm.config.energy import TEXT
from energylm.config.probe import AttackConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, pad
from energylm.data.source_windows import SourceWindows
from energylm.data.text_files import existing, read_texts
from energylm.errors import ConfigError, DataError
from energylm.randomness import derive_seed, shuffled


@dataclass(frozen=True)
class ProbedText:
    tokens: list[int]
    editable_T: Tensor  # bool


def check_texts(config: AttackConfig) -> str:
    """Find the texts without loading a model; which they are, in words."""
    if config.negatives is not None:
        negatives = Negatives.open(config.negatives)
        negatives.check(corpus=Corpus.open(config.corpus))
        kind = "generated" if config.towards == "real" else "real"
        return f"{min(config.texts, len(negatives))} {kind} texts of {config.negatives}"
    if existing(Path(config.source)).is_dir():
        _windows(config).check()
        return f"{config.texts} windows of {config.length} tokens of {config.source} ({config.split})"
    return f"the first {config.texts} texts of {config.source}"


def load_texts(config: AttackConfig, energy: EnergyModel, lm: LanguageModel) -> list[ProbedText]:
    if config.negatives is not None:
        return _of_negatives(config, energy)
    if Path(config.source).is_dir():
        return _own(energy, lm, _windows(config).load(lm.tokenizer, model=config.language_model))
    texts = list(islice(read_texts(Path(config.source), field=config.field), config.texts))
    if not texts:
        raise DataError(f"{config.source} holds no text; give a file with one text a line")
    return _everywhere(*energy.encode_texts(texts))


def _of_negatives(config: AttackConfig, energy: EnergyModel) -> list[ProbedText]:
    if config.only_generated and energy.reads == TEXT:
        raise ConfigError(
            f"only_generated came, but {energy.name} reads text, in tokens that do not say which were generated; leave "
            "it out, or give an energy that reads tokens"
        )
    negatives, corpus = Negatives.open(config.negatives), Corpus.open(config.corpus)
    positions = np.arange(min(config.texts, len(negatives)), dtype=np.int64)
    rows = shuffled(positions, len(negatives), seed=derive_seed(config.seed, "attacked contexts"))
    contrast = Contrast(negatives, corpus, rows=rows)
    both = contrast.sequences(positions, np.zeros((len(rows), 1), dtype=np.int64))  # real, generated, real, …
    texts = _own(energy, corpus, both[1::2] if config.towards == "real" else both[::2])
    if not config.only_generated:
        return texts
    context_B = negatives.rows(rows).context_length_B.tolist()
    suffix = negatives.config.side == "suffix"
    for text, context in zip(texts, context_B, strict=True):
        length = len(text.tokens)
        text.editable_T[slice(0, context) if suffix else slice(length - context, length)] = False
    return texts


def _own(energy: EnergyModel, writer: LanguageModel | Corpus, sequences: list[list[int]]) -> list[ProbedText]:
    """Sequences of the writer's tokens in the energy's own."""
    bound = bind(energy, writer)
    return _everywhere(*(pad(sequences) if bound is energy else bound.encode(sequences)))


def _everywhere(tokens_BT: Tensor, lengths_B: Tensor) -> list[ProbedText]:
    return [
        ProbedText(row[:length], torch.ones(length, dtype=torch.bool))
        for row, length in zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True)
    ]


def _windows(config: AttackConfig) -> SourceWindows:
    return SourceWindows(config.source, config.length, config.texts, config.seed, config.split)
