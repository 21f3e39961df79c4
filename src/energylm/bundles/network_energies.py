"""Energies from networks that people have already: a classifier, a reward model, an encoder of sentences.

    classifier      E = −β log P(label | text)          softmax over the labels; of labels that stand alone, the sigmoid
    reward model    E = −β r(prompt, completion)        one output, a conversation rendered by its own chat template
    similarity      E = −β max_j cos(h(text), h(target_j))          h: the mean of the last hidden states, of length 1

A causal network (a reward model on a language model's body) is read at the last token of each text, found by its
length: neither padding nor a token that looks like it is taken for the end. Of texts that a network cannot hold, the
end is read.

Relations  `text_energy` builds them (`Energy.from_classifier` …); `energy_model` is an energy that was trained here.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from energylm.bundles.chat import encoded_chat, rendered_chat
from energylm.bundles.devices import Device, DType, move
from energylm.bundles.energy_binding import Passage
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import load_encoder, load_network, save_model
from energylm.bundles.text_codec import TextReader
from energylm.bundles.text_energy import Energy, Judges, Options, ScoreEnergy, built, saved_facts
from energylm.config.models import CUT_LEFT
from energylm.config.vocabulary import ENCODER
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.models.contexts import length_batches, tokens_at_once
from energylm.models.packed_passes import encoder_states


class NetworkEnergy(ScoreEnergy):
    """A network of transformers with its tokenizer, read in batches of similar length."""

    what: ClassVar[str]  # for messages

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str | None,
        beta: float,
        judges: Judges,
    ) -> None:
        super().__init__(name=name or f"{self.what} {_name_of(network)}", beta=beta, judges=judges)
        self.network, self.tokenizer = network.eval(), tokenizer
        self._max_tokens: int | None = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        self._reader = TextReader(tokenizer, special_tokens=True, max_tokens=self._max_tokens, long_texts=CUT_LEFT)

    @classmethod
    def of(
        cls,
        network: str | Path | PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast | None,
        *,
        device: Device,
        dtype: DType,
        **options: Any,
    ) -> Self:
        """Of a folder or a name, or of a network in memory with its tokenizer; `options` are the constructor's."""
        if isinstance(network, PreTrainedModel):
            if tokenizer is None:
                raise ConfigError(f"a {cls.what} in memory needs its tokenizer: tokenizer=…")
        else:
            location = locate(network, what=cls.what)
            network, tokenizer = cls.load_network(location, device), tokenizer or load_tokenizer(location)
        if device is not None or dtype is not None:
            move(network, device, dtype)
        return cls(network, tokenizer, **options)

    @staticmethod
    def load_network(location: Path | str, device: Device) -> PreTrainedModel:
        network: PreTrainedModel
        network, _ = load_network(
            AutoModelForSequenceClassification, location, what="a sequence classifier", device=device
        )
        return network

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        move(self.network, device, dtype, batch_tokens)
        return self

    @torch.no_grad()
    def scores(self, texts: list[str]) -> Tensor:
        tokens_BT, lengths_B = self._encode(texts)
        score_B = torch.zeros(len(texts), dtype=torch.float64)
        for rows, tokens_RT, lengths_R in self._batches(tokens_BT, lengths_B):
            score_B[rows] = self._batch_scores(tokens_RT, lengths_R).double().cpu()
        return score_B

    @abstractmethod
    def _batch_scores(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        """(R,) scores of right-padded texts, on the network's device."""

    def _encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Right-padded ids (B, T) and lengths (B,)."""
        return self._reader.read(texts, may_be_empty=True)

    def _batches(self, tokens_BT: Tensor, lengths_B: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Indices, tokens and lengths of texts that travel together, longest first."""
        device = self.network.device
        for rows, longest in length_batches(lengths_B, tokens_at_once=tokens_at_once(self.network)):
            yield rows, tokens_BT[rows, :longest].to(device), lengths_B[rows].to(device)

    def _logits(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        """(R, L) outputs of a sequence classifier."""
        mask_RT = _mask(tokens_RT, lengths_R)
        head = getattr(self.network, "score", None)  # transformers' name for the head over a causal body
        if head is None:  # reads its first token, or has a layer of its own
            logits: Tensor = self.network(input_ids=tokens_RT, attention_mask=mask_RT).logits
            return logits
        hidden_RTD = self.network.base_model(input_ids=tokens_RT, attention_mask=mask_RT).last_hidden_state
        outputs: Tensor = head(hidden_RTD[torch.arange(len(lengths_R), device=tokens_RT.device), lengths_R - 1])
        return outputs

    def save_pretrained(self, folder: str | Path) -> None:
        save_model(folder, self.network, self.tokenizer, kind=self.kind, facts=self.facts(), provenance={})

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        return cls(cls.load_network(folder, device), load_tokenizer(folder), **saved_facts(manifest))


class ClassifierEnergy(NetworkEnergy):
    kind = "classifier"
    what = "classifier"

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        label: str | int,
        beta: float,
        judges: Judges,
        name: str | None = None,
    ) -> None:
        super().__init__(network, tokenizer, name=name or f"{_name_of(network)}: {label}", beta=beta, judges=judges)
        if _outputs(network) < 2:
            raise ModelError(f"{_name_of(network)} has one output and no labels; take Energy.from_reward_model")
        self.label, self._stands_alone = label, network.config.problem_type == "multi_label_classification"
        self._index = _label_index(network, label)

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """classifier:MODEL:LABEL"""
        model, colon, label = text.rpartition(":")
        if not colon:
            raise ConfigError(f"classifier:{text} names no label; give classifier:MODEL:LABEL")
        return built(Energy.from_classifier, options, network=model, label=label, device=device)

    def _batch_scores(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        logits_RL = self._logits(tokens_RT, lengths_R).double()
        log_prob_RL = torch.nn.functional.logsigmoid(logits_RL) if self._stands_alone else logits_RL.log_softmax(-1)
        return log_prob_RL[:, self._index]

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"label": self.label}


def _label_index(network: PreTrainedModel, label: str | int) -> int:
    names = {int(index): str(name) for index, name in (network.config.id2label or {}).items()}
    indices = {name.lower(): index for index, name in names.items()}
    if isinstance(label, int) and 0 <= label < _outputs(network):
        return label
    if isinstance(label, str) and label.lower() in indices:
        return indices[label.lower()]
    raise ConfigError(f"there is no label {label!r}; this classifier has {', '.join(names.values())}")


def _outputs(network: PreTrainedModel) -> int:
    return int(network.config.num_labels or 0)


class RewardEnergy(NetworkEnergy):
    kind = "reward-model"
    what = "reward model"

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        beta: float,
        judges: Judges = "text",
        name: str | None = None,
    ) -> None:
        super().__init__(network, tokenizer, name=name, beta=beta, judges=judges)
        if _outputs(network) != 1:
            raise ModelError(
                f"{_name_of(network)} has {_outputs(network)} outputs, so it is no reward model; take "
                "Energy.from_classifier and name the label"
            )

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """reward-model:MODEL"""
        return built(Energy.from_reward_model, options, network=text, device=device)

    def judged_text(self, passage: Passage) -> str:
        """The conversation as the reward model's own template writes it; without a template, the plain text."""
        if self.tokenizer.chat_template is None:
            return super().judged_text(passage)
        asked = passage.messages or ({"role": "user", "content": passage.prompt},)
        answered = [*map(dict, asked), {"role": "assistant", "content": passage.completion}]
        return rendered_chat(self.tokenizer, answered, name=self.name, answering=False)

    def _encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """The template spells the special tokens itself, and none are added."""
        if self.tokenizer.chat_template is None:
            return super()._encode(texts)
        first = 0 if self._max_tokens is None else -self._max_tokens
        rows = [torch.tensor(encoded_chat(self.tokenizer, text)[first:]) for text in texts]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    def _batch_scores(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        return self._logits(tokens_RT, lengths_R)[:, 0]


class SimilarityEnergy(NetworkEnergy):
    kind = "similarity"
    what = "sentence encoder"

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        target: str | Sequence[str],
        beta: float,
        judges: Judges,
        name: str | None = None,
    ) -> None:
        super().__init__(network, tokenizer, name=name or f"similarity to {target!r:.40}", beta=beta, judges=judges)
        self.target = [target] if isinstance(target, str) else list(target)
        if not self.target or not all(text.strip() for text in self.target):
            raise ConfigError("a target of similarity is empty; give a sentence, or several")
        self._target_JD = self.embeddings(self.target)

    @staticmethod
    def load_network(location: Path | str, device: Device) -> PreTrainedModel:
        return load_encoder(location, device=device)

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """similarity:TARGET TEXT"""
        return built(Energy.from_similarity, options, encoder=ENCODER, target=text, device=device)

    @torch.no_grad()
    def embeddings(self, texts: list[str]) -> Tensor:
        """(B, D) float64 embeddings of length 1."""
        batches = [(batch[0], self._embed(*batch[1:])) for batch in self._batches(*self._encode(texts))]
        order_B = torch.cat([rows for rows, _ in batches])
        return torch.cat([embedding_RD for _, embedding_RD in batches])[order_B.argsort()]

    def _embed(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        """(R, D) means of the last hidden states, of length 1."""
        mask_RT = _mask(tokens_RT, lengths_R)
        hidden_RTD = encoder_states(self.network, tokens_RT, lengths_R)
        mean_RD = (hidden_RTD * mask_RT[..., None]).sum(1) / lengths_R[:, None]
        return torch.nn.functional.normalize(mean_RD.double(), dim=-1)

    def _batch_scores(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        return (self._embed(tokens_RT, lengths_R) @ self._target_JD.T).amax(-1)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        super().to(device, dtype, batch_tokens)
        self._target_JD = self._target_JD.to(self.network.device)  # float64, as embeddings are
        return self

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"target": self.target}


def _name_of(network: PreTrainedModel) -> str:
    return str(getattr(network, "name_or_path", "")).rstrip("/").rpartition("/")[2] or type(network).__name__


def _mask(tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
    return (torch.arange(tokens_RT.shape[1], device=tokens_RT.device) < lengths_R[:, None]).long()
