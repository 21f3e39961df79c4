"""A language model's own log-likelihood as an energy that tells real from machine text: the baseline of two numbers.

    E(x) = s · (ℓ(x) − θ),   ℓ(x) = (1/T) Σ_t log P_LM(x_t | x_<t),   s = ±1         Bakhtin et al. 2019, a baseline

Threshold θ *and direction* s are fitted on held-out texts: text drawn by top-k is likelier than real text (s = +1),
text drawn at a high temperature less likely (s = −1). Both are those of the highest balanced accuracy, so E < 0 says
real and E > 0 says machine, as for every other energy. Every token counts, context and continuation alike; the first
one too, where the model has a start token.

Use it     beside any trained energy: what the latter knows beyond the generator's likelihood is the difference. It is
           no residual energy: a joint model of a language model and its own likelihood is that model, sharpened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.bundles.devices import Device, DType
from energylm.bundles.energy_binding import BoundEnergy, Passage
from energylm.bundles.energy_model import EnergyModel, bind
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import open_folder, read_manifest, save_model
from energylm.bundles.text_codec import text_list
from energylm.bundles.text_energy import Energy
from energylm.config.models import TOKENS, Reads
from energylm.contracts import CausalModel
from energylm.errors import DataError


@dataclass(frozen=True)
class LikelihoodRule:
    """Before it is fitted: likelier text has a higher energy, with no threshold."""

    sign: int = 1
    threshold: float = 0.0  # nats a token

    def __call__(self, mean_log_prob_B: Tensor) -> Tensor:
        """(B,) energies of mean log-likelihoods."""
        return self.sign * (mean_log_prob_B - self.threshold)


def fit_rule(real_N: Tensor, machine_M: Tensor) -> LikelihoodRule:
    """The direction and threshold that tell these mean log-likelihoods apart best; thresholds lie between values."""
    for name, values in (("real", real_N), ("machine", machine_M)):
        if not len(values):
            raise DataError(f"no {name} text came to fit the likelihood threshold on; give texts of both classes")
        if not values.isfinite().all():
            raise DataError(f"a mean log-likelihood of {name} text is not finite; leave that text out")
    value_L, which_P = torch.cat([real_N, machine_M]).double().unique(return_inverse=True)
    share_P = torch.cat(
        [torch.full((len(real_N),), 1 / len(real_N)), torch.full((len(machine_M),), -1 / len(machine_M))]
    )
    # Up to and including value l: the share of real text minus the share of machine text. Where it is largest, calling
    # everything above it machine is best; where it is smallest, calling everything below it machine is.
    lead_L = torch.zeros(len(value_L), dtype=torch.float64).index_add(0, which_P, share_P.double()).cumsum(0)
    best, worst = int(lead_L.argmax()), int(lead_L.argmin())
    sign, index = (1, best) if lead_L[best] >= -lead_L[worst] else (-1, worst)
    return LikelihoodRule(sign=sign, threshold=float(value_L[index : index + 2].mean()))


KIND = "log-likelihood-energy"
LM_FOLDER = "language_model"


class LogLikelihoodEnergy(Energy):
    """`contracts.SequenceEnergy` that also reads text and folders."""

    kind = KIND
    reads: Reads = TOKENS

    def __init__(
        self, lm: LanguageModel, rule: LikelihoodRule | None = None, *, provenance: Mapping[str, Any] | None = None
    ) -> None:
        self.lm, self.rule = lm, rule or LikelihoodRule()
        self.name, self.provenance = f"log-likelihood of {lm.name}", dict(provenance or {})

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.lm.tokenizer

    @property
    def vocabulary_size(self) -> int:
        return self.lm.vocabulary_size

    def fitted(self, real: tuple[Tensor, Tensor], machine: tuple[Tensor, Tensor]) -> Self:
        """The same with the direction and threshold that tell these texts apart best: (B, T) ids and (B,) lengths of
        texts that neither training nor any report has seen."""
        rule = fit_rule(self.mean_log_probs(*real), self.mean_log_probs(*machine))
        return type(self)(self.lm, rule, provenance=self.provenance)

    def to(self, device: Device = None, dtype: DType = None) -> Self:
        self.lm.to(device, dtype)
        return self

    def bind(self, lm: CausalModel) -> BoundEnergy:
        return bind(self, lm)

    def passage_energies(self, passages: Sequence[Passage]) -> Tensor:
        texts = [passage.prompt + passage.completion for passage in passages]
        return self.energies(*self.encode_texts(texts, may_be_empty=True)).double().cpu()

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) energies of right-padded sequences of the language model's own token ids."""
        return self.rule(self.mean_log_probs(tokens_BT, lengths_B))

    def text_energies(self, texts: Sequence[str]) -> Tensor:
        """(B,) energies of texts."""
        return self.energies(*self.encode_texts(texts))

    def encode_texts(self, texts: Sequence[str], *, may_be_empty: bool = False) -> tuple[Tensor, Tensor]:
        """The right-padded ids (B, T) and lengths (B,) that `text_energies` reads. With `may_be_empty` an empty text is
        read as the end-of-sequence token alone, as by `EnergyModel`."""
        end = self.lm.eos_token_id
        instead = [end] if may_be_empty and end is not None else []
        rows = [torch.tensor(self.lm.encode(text) or instead, dtype=torch.int64) for text in text_list(texts)]
        if not rows:
            return torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    def mean_log_probs(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) nats a token."""
        given = 0 if self.lm.model.start_token_id is not None else 1  # without a start token the first has no context
        if len(lengths_B) and int(lengths_B.min()) <= given:
            raise DataError(
                f"a text of {int(lengths_B.min())} tokens came, but {self.lm.name} gives a likelihood from "
                f"{given + 1} on; leave it out"
            )
        log_prob_BT = self.lm.token_log_probs(tokens_BT, lengths_B, first=given).double()
        return log_prob_BT.sum(1) / (lengths_B.to(log_prob_BT.device) - given)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write language model and rule; the folder appears whole or not at all."""
        facts = {"name": self.name, "sign": self.rule.sign, "threshold": self.rule.threshold}
        save_model(folder, kind=KIND, facts=facts, provenance=self.provenance, parts={LM_FOLDER: self.lm})

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: Device = None) -> Self:
        """The energy that `save_pretrained` wrote."""
        problem = "holds no log-likelihood energy; give a folder that save_pretrained wrote"
        return cls.from_folder(*open_folder(folder, [KIND], problem), device=device)

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        rule = LikelihoodRule(sign=manifest["sign"], threshold=manifest["threshold"])
        lm = LanguageModel.from_pretrained(folder / LM_FOLDER, device=device)
        return cls(lm, rule, provenance=manifest["provenance"])


def load_energy(folder: str | Path, *, device: Device = None) -> EnergyModel | LogLikelihoodEnergy:
    """Whatever energy lies in `folder`."""
    location = locate(folder)
    kind = read_manifest(location).get("kind") if isinstance(location, Path) and location.is_dir() else None
    loader = LogLikelihoodEnergy if kind == KIND else EnergyModel
    return loader.from_pretrained(folder, device=device)
