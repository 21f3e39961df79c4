"""Many features of a language model's surprise, weighed into one energy that tells machine text from human.

    E(x) = Σ_j w_j (f_j(x) − m_j) / s_j + b        log-odds of machine, both classes weighing alike

    strangeness(x) = √( (1/J) u ᵀ Λ u ),  u_j = (f_j(x) − m_j) / s_j,  Λ = the inverse of u's shrunk covariance

f are `estimators.surprise_features` and, where there is an encoder that was trained as a detector, that one's score.
The weights are a logistic regression's (`training.feature_weights`): a few dozen numbers, so that hundreds of texts
suffice. A text whose features lie farther out than almost all of the texts held out in training is out of range:
weights say nothing about what no training text was like. Of new texts like those held out at most `rate` are refused
(`estimators.false_positive_threshold`, on strangeness).

The folder holds `weights.json`, and the language model unless it is a known one, which is named and tied by its hash.

Relations  `zero_shot_energy` is one score by itself; `detector` reads texts in blocks and calibrates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energylm.bundles.detector import Detector
from energylm.bundles.devices import Device, DType
from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import WEIGHTS_FILE, new_model_folder, open_folder, write_manifest
from energylm.bundles.zero_shot_energy import LM_FOLDER, SurpriseEnergy, text_statistics
from energylm.errors import ModelError
from energylm.estimators.false_positive_threshold import false_positive_threshold
from energylm.estimators.surprise_features import FEATURES, surprise_features
from energylm.files import read_json, write_json
from energylm.records import Record

KIND = "combined-energy"
ENCODER_FOLDER = "encoder"
ENCODER_FEATURE = "encoder's score"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureWeights(Record):
    """What was learnt: J features by name, and what makes a text too strange."""

    features: tuple[str, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    precision: tuple[tuple[float, ...], ...]  # Λ
    limit: float  # of strangeness
    rate: float  # at most this share of texts like those held out is refused
    texts: int  # that were held out

    @cached_property
    def columns(self) -> list[int]:
        """Of these features among all that there are, the encoder's last."""
        return [(*FEATURES, ENCODER_FEATURE).index(name) for name in self.features]

    def energies(self, features_BJ: Floats) -> Floats:
        """(B,) of *all* features in order."""
        return np.asarray(self.standardised(features_BJ) @ np.array(self.weights) + self.bias)

    def strangeness(self, features_BJ: Floats) -> Floats:
        """(B,) about 1 for the training texts."""
        u_BJ = self.standardised(features_BJ)
        square_B = np.einsum("bj,jk,bk->b", u_BJ, np.array(self.precision), u_BJ) / len(self.features)
        return np.asarray(np.sqrt(square_B))

    def standardised(self, features_BJ: Floats) -> Floats:
        return np.asarray((features_BJ[:, self.columns] - np.array(self.means)) / np.array(self.spreads))

    def limited(self, features_NJ: Floats, *, rate: float) -> Self:
        """The same with the limit that at most `rate` of texts like these exceed; they must not have been learnt from.
        Too few texts allow a higher rate only."""
        strangeness_N = self.strangeness(features_NJ)
        limit = false_positive_threshold(strangeness_N, max(rate, 1 / (len(strangeness_N) + 1)))
        return replace(self, limit=limit.threshold, rate=limit.expected_rate, texts=limit.texts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        weights = super().from_json(values)
        numbers = (*weights.means, *weights.spreads, *weights.weights, weights.bias, weights.limit)
        if len(weights.weights) != len(weights.features) or not all(math.isfinite(number) for number in numbers):
            raise ModelError(f"{WEIGHTS_FILE} is damaged: it has not one finite weight a feature; make it again")
        return weights


class CombinedEnergy(SurpriseEnergy):
    """`contracts.SequenceEnergy` that also reads text and folders."""

    kind = KIND

    def __init__(
        self,
        lm: LanguageModel,
        weights: FeatureWeights,
        *,
        encoder: Detector | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if (ENCODER_FEATURE in weights.features) and encoder is None:
            raise ModelError("these weights have one for an encoder's score, but no encoder came; give its detector")
        self.lm, self.weights, self.encoder = lm, weights, encoder
        self.name, self.provenance = f"combined features of {lm.name}", dict(provenance or {})

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        self.lm.to(device, dtype, batch_tokens)
        if self.encoder is not None:
            self.encoder.to(device, dtype)
        return self

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) float64."""
        return self.energies_and_strangeness(tokens_BT, lengths_B)[0]

    def energies_and_strangeness(self, tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) each, from one pass."""
        features_BJ = text_features(self.lm, tokens_BT, lengths_B, encoder=self.encoder)
        return (
            torch.from_numpy(self.weights.energies(features_BJ)),
            torch.from_numpy(self.weights.strangeness(features_BJ)),
        )

    def complaint(self, strangeness: float) -> str | None:
        """Why a text whose blocks have this mean strangeness is out of range; none if it is not."""
        if strangeness <= self.weights.limit:
            return None
        return (
            f"the language model's surprise at it is unlike that at any training text (strangeness {strangeness:.2g}, "
            f"there at most {self.weights.limit:.2g} but for {self.weights.rate:.2g} of them), so the weights say "
            "nothing about it"
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, and the models unless they are known by name; the folder appears whole or not at all."""
        known = _known_name(self.lm)
        facts = {
            "name": self.name,
            "known_models": [] if known is None else [known],
            "language_model_weights": sorted(self.lm.weights_hashes),
        }
        with new_model_folder(folder) as temporary:
            write_json(temporary / WEIGHTS_FILE, self.weights.to_json())
            if known is None:
                self.lm.save_pretrained(temporary / LM_FOLDER)
            if self.encoder is not None:
                self.encoder.save_pretrained(temporary / ENCODER_FOLDER)
            write_manifest(temporary, kind=KIND, facts=facts, provenance=self.provenance)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: Device = None, dtype: DType = None) -> Self:
        """The energy that `save_pretrained` wrote."""
        problem = "holds no combined energy ({kind}); make one with `energylm detect combine`"
        energy = cls.from_folder(*open_folder(folder, [KIND], problem), device=device)
        return energy if dtype is None else energy.to(dtype=dtype)

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        (source,) = manifest["known_models"] or [folder / LM_FOLDER]
        lm = LanguageModel.from_pretrained(source, device=device)
        if manifest["known_models"] and not lm.weights_hashes & set(manifest["language_model_weights"]):
            raise ModelError(
                f"{folder} was made with other weights of {source} than those in {lm.location}; get the same "
                "(`energylm models get`, from the same source), or make it again"
            )
        encoder = folder / ENCODER_FOLDER
        return cls(
            lm,
            FeatureWeights.from_json(read_json(folder / WEIGHTS_FILE)),
            encoder=Detector.from_pretrained(encoder, device=device) if encoder.is_dir() else None,
            provenance=manifest["provenance"],
        )


def text_features(
    lm: LanguageModel, tokens_BT: Tensor, lengths_B: Tensor, *, encoder: Detector | None = None
) -> Floats:
    """(B, J + 1) all features of right-padded sequences of the language model's ids, and the encoder's score of their
    text; NaN without an encoder."""
    features_BJ = surprise_features(text_statistics(lm, tokens_BT, lengths_B)).numpy()
    score_B = np.full(len(features_BJ), np.nan)
    if encoder is not None:
        rows = zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True)
        texts = lm.tokenizer.backend_tokenizer.decode_batch([row[:length] for row, length in rows])
        score_B = encoder.scores(encoder.reader.encode(texts))
    return np.column_stack([features_BJ, score_B])


def _known_name(lm: LanguageModel) -> str | None:
    """The name of a known model, where `lm` is one as it was fetched."""
    return next((name for name, model in KNOWN_MODELS.items() if lm.location == model.folder.absolute()), None)
