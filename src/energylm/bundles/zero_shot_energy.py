"""A zero-shot score of a language model as an energy that tells real from machine text: the baseline of two numbers.

    E(x) = s · (score(x) − θ),   s = ±1                score = the mean log-likelihood: Bakhtin et al. 2019, a baseline

Threshold θ *and direction* s are fitted on held-out texts: text drawn by top-k is likelier than real text, text drawn
at a high temperature less likely. Both are those of the highest balanced accuracy, so E < 0 says real and E > 0 says
machine, as for every other energy. Unfitted, the direction is the published one and θ = 0. Every token counts, context
and continuation alike; the first one too, where the model has a start token.

Use it     beside any trained energy: what the latter knows beyond the generator's likelihood is the difference. It is
           no residual energy: a joint model of a language model and its own likelihood is that model, sharpened.
Relations  `estimators.zero_shot` has the scores; `combined_energy` weighs all of them and more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.bundles.devices import Device, DType
from energylm.bundles.energy_model import EnergyModel, TokenizedEnergy
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import open_folder, read_manifest, save_model
from energylm.bundles.text_codec import text_list
from energylm.config.models import TOKENS, ZeroShotScore
from energylm.data.tokenizer import tokenizer_sha256
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.estimators.zero_shot import SCORES, SIGNS, TokenStatistics


@dataclass(frozen=True)
class ScoreRule:
    sign: int
    threshold: float = 0.0  # of the score

    def __call__(self, score_B: Tensor) -> Tensor:
        """(B,) energies of scores."""
        return self.sign * (score_B - self.threshold)


def fit_rule(real_N: Tensor, machine_M: Tensor) -> ScoreRule:
    """The direction and threshold that tell these scores apart best; thresholds lie between values."""
    for name, values in (("real", real_N), ("machine", machine_M)):
        if not len(values):
            raise DataError(f"no {name} text came to fit the threshold on; give texts of both classes")
        if not values.isfinite().all():
            raise DataError(f"a score of {name} text is not finite; leave that text out")
    value_L, which_P = torch.cat([real_N, machine_M]).double().unique(return_inverse=True)
    share_P = torch.cat(
        [torch.full((len(real_N),), 1 / len(real_N)), torch.full((len(machine_M),), -1 / len(machine_M))]
    )
    # Up to and including value l: the share of real text minus the share of machine text. Where it is largest, calling
    # everything above it machine is best; where it is smallest, calling everything below it machine is.
    lead_L = torch.zeros(len(value_L), dtype=torch.float64).index_add(0, which_P, share_P.double()).cumsum(0)
    best, worst = int(lead_L.argmax()), int(lead_L.argmin())
    sign, index = (1, best) if lead_L[best] >= -lead_L[worst] else (-1, worst)
    return ScoreRule(sign=sign, threshold=float(value_L[index : index + 2].mean()))


KIND = "zero-shot-energy"
LM_FOLDER, OBSERVER_FOLDER = "language_model", "observer"


class SurpriseEnergy(TokenizedEnergy):
    """One that is made of a language model's surprise, and reads its tokens."""

    reads = TOKENS
    lm: LanguageModel

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.lm.tokenizer

    @property
    def vocabulary_size(self) -> int:
        return self.lm.vocabulary_size

    @property
    def max_tokens(self) -> int | None:
        return self.lm.model.max_length

    def encode_texts(self, texts: Sequence[str], *, may_be_empty: bool = False) -> tuple[Tensor, Tensor]:
        end = self.lm.eos_token_id
        instead = [end] if may_be_empty and end is not None else []
        rows = [torch.tensor(self.lm.encode(text) or instead, dtype=torch.int64) for text in text_list(texts)]
        if not rows:
            return torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


class ZeroShotEnergy(SurpriseEnergy):
    """`contracts.SequenceEnergy` that also reads text and folders. Binoculars needs an `observer`, a second model of
    the same tokenizer."""

    kind = KIND

    def __init__(
        self,
        lm: LanguageModel,
        score: ZeroShotScore = "log-likelihood",
        rule: ScoreRule | None = None,
        *,
        observer: LanguageModel | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if score not in SCORES:
            raise ConfigError(f"there is no zero-shot score {score!r}; known: {', '.join(SCORES)}")
        if (score == "binoculars") != (observer is not None):
            raise ConfigError("binoculars compares two language models, other scores need one: give an observer for it")
        if observer is not None and tokenizer_sha256(observer.tokenizer) != tokenizer_sha256(lm.tokenizer):
            raise VocabularyMismatch(f"{observer.name} and {lm.name} have different tokenizers; take models of one")
        self.lm, self.score, self.observer = lm, score, observer
        self.rule = rule or ScoreRule(SIGNS[score])
        self.name, self.provenance = f"{score} of {lm.name}", dict(provenance or {})

    def fitted(self, real: tuple[Tensor, Tensor], machine: tuple[Tensor, Tensor]) -> Self:
        """The same with the direction and threshold that tell these texts apart best: (B, T) ids and (B,) lengths of
        texts that neither training nor any report has seen."""
        rule = fit_rule(self.scores(*real), self.scores(*machine))
        return type(self)(self.lm, self.score, rule, observer=self.observer, provenance=self.provenance)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        self.lm.to(device, dtype, batch_tokens)
        if self.observer is not None:
            self.observer.to(device, dtype)
        return self

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.rule(self.scores(tokens_BT, lengths_B))

    def scores(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) as `estimators.zero_shot` defines the score."""
        return SCORES[self.score](text_statistics(self.lm, tokens_BT, lengths_B, observer=self.observer))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write language models and rule; the folder appears whole or not at all."""
        facts = {"name": self.name, "score": self.score, "sign": self.rule.sign, "threshold": self.rule.threshold}
        parts = {LM_FOLDER: self.lm} | ({} if self.observer is None else {OBSERVER_FOLDER: self.observer})
        save_model(folder, kind=KIND, facts=facts, provenance=self.provenance, parts=parts)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: Device = None, dtype: DType = None) -> Self:
        """The energy that `save_pretrained` wrote."""
        problem = "holds no zero-shot energy; give a folder that save_pretrained wrote"
        return cls.from_folder(*open_folder(folder, [KIND], problem), device=device).to(dtype=dtype)

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        rule = ScoreRule(sign=manifest["sign"], threshold=manifest["threshold"])
        lm = LanguageModel.from_pretrained(folder / LM_FOLDER, device=device)
        observer = folder / OBSERVER_FOLDER
        return cls(
            lm,
            manifest.get("score", "log-likelihood"),
            rule,
            observer=LanguageModel.from_pretrained(observer, device=device) if observer.is_dir() else None,
            provenance=manifest["provenance"],
        )


def text_statistics(
    lm: LanguageModel, tokens_BT: Tensor, lengths_B: Tensor, *, observer: LanguageModel | None = None
) -> TokenStatistics:
    """Of all tokens that have a probability: without a start token the first has none."""
    given = 0 if lm.model.start_token_id is not None else 1
    if len(lengths_B) and int(lengths_B.min()) <= given:
        raise DataError(
            f"a text of {int(lengths_B.min())} tokens came, but {lm.name} gives a likelihood from {given + 1} on; "
            "leave it out"
        )
    other = None if observer is None else observer.model
    statistics = lm.model.token_statistics(tokens_BT, lengths_B, first=given, observer=other)
    if statistics.log_prob_BT.isnan().any():
        raise ModelError(f"{lm.name} gives NaN for a token; its weights are damaged or overflow: give another")
    return statistics


def load_energy(folder: str | Path, *, device: Device = None) -> EnergyModel | ZeroShotEnergy:
    """Whatever energy of token ids lies in `folder`."""
    location = locate(folder)
    kind = read_manifest(location).get("kind") if isinstance(location, Path) and location.is_dir() else None
    loader = ZeroShotEnergy if kind == KIND else EnergyModel
    return loader.from_pretrained(folder, device=device)
