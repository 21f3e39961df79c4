"""The contexts of an energy's training: learnt from, reported, calibrated on; no context is in two of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.weights_identity import weights_sha256
from energylm.config.train_energy import TrainEnergyConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, by_window
from energylm.errors import ConfigError, DataError


@dataclass(frozen=True)
class EnergyData:
    corpus: Corpus
    negatives: Negatives
    validation: Negatives | None  # a folder of its own, if there is one
    train: Contrast
    report: Contrast  # chooses the best step, and is what reports tell
    calibration: Contrast  # for scale and shift alone


def open_data(config: TrainEnergyConfig) -> EnergyData:
    """Open and check everything; which context serves what is decided by a hash of its window's number."""
    corpus, negatives = Corpus.open(config.corpus), Negatives.open(config.negatives)
    generator_sha256 = None if config.lm is None else weights_sha256(config.lm)
    negatives.check(corpus=corpus, generator_sha256=generator_sha256)
    if config.negatives_per_context > negatives.k:
        raise ConfigError(
            f"negatives_per_context is {config.negatives_per_context}, but {config.negatives} holds {negatives.k} of "
            "each context; ask for fewer, or generate more (-k)"
        )
    if config.validation is None:
        validation = None
        held_out_N = _held_out(negatives, config)
        train_rows, rows, source = np.flatnonzero(~held_out_N), np.flatnonzero(held_out_N), negatives
    else:
        validation = _open_validation(config, negatives)
        train_rows, rows, source = np.arange(len(negatives)), np.arange(len(validation)), validation
    if config.validation_contexts is not None and len(rows) > config.validation_contexts:
        rows = rows[np.arange(config.validation_contexts) * len(rows) // config.validation_contexts]  # evenly spread
    calibrates_V = by_window(source.windows[rows], fraction=0.5, purpose="calibration contexts")
    report_rows, calibration_rows = rows[~calibrates_V], rows[calibrates_V]
    _refuse_empty(config, train=train_rows, report=report_rows, calibration=calibration_rows)
    return EnergyData(
        corpus=corpus,
        negatives=negatives,
        validation=validation,
        train=Contrast(negatives, corpus, rows=train_rows),
        report=Contrast(source, corpus, rows=report_rows),
        calibration=Contrast(source, corpus, rows=calibration_rows),
    )


def _held_out(negatives: Negatives, config: TrainEnergyConfig) -> NDArray[np.bool_]:
    own = negatives.config
    if own.stride is not None and own.stride < own.length:
        raise ConfigError(
            f"the windows of {config.negatives} overlap (stride {own.stride}, length {own.length}), so contexts held "
            "out of them would have been seen; give negatives of another split with --validation"
        )
    return by_window(negatives.windows, fraction=config.validation_fraction, purpose="validation contexts")


def _open_validation(config: TrainEnergyConfig, negatives: Negatives) -> Negatives:
    validation = Negatives.open(config.validation)
    validation.check(generator_sha256=negatives.manifest.generator.sha256)
    if validation.config.split == negatives.config.split:
        raise DataError(
            f"{config.validation} and {config.negatives} both continue texts of split {negatives.config.split!r}; "
            "validate on another split, or leave --validation out to hold some contexts out"
        )
    return validation


def _refuse_empty(config: TrainEnergyConfig, **rows: NDArray[np.int64]) -> None:
    for purpose, chosen in rows.items():
        if not len(chosen):
            counts = ", ".join(f"{name} {len(of)}" for name, of in rows.items())
            raise DataError(
                f"no context is left for {purpose} ({counts}); generate more contexts, or change validation_fraction "
                "or validation_contexts"
            )
