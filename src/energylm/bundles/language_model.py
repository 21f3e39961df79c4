"""A language model with its tokenizer: loads, saves, scores and samples text. `energylm.LanguageModel`.

A string is the beginning of a document: the start token is read before it. A list of token ids is taken as it is, but
to score its very first token the start token is read too. Right-to-left models read both from the right end: there a
context stands on the right, `prefix_tokens` count from the right, and what is sampled goes before the context.

Relations  `models.causal` is the arithmetic, `samplers.continuations` the draws, `estimators.perplexity` the number.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from energylm.bundles.causal_networks import as_causal, boundary_tokens, load_causal, load_gguf, refuse_adapters
from energylm.bundles.chat import Message, chat_ids, end_of_turn_id
from energylm.bundles.devices import Device, DType, move, usable_device
from energylm.bundles.hub import OnHub
from energylm.bundles.known_models import locate, models_folder
from energylm.bundles.model_folder import check_vocabularies, read_manifest, save_model, weights_hashes
from energylm.bundles.text_codec import TextCodec, Texts, as_list
from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT
from energylm.config.sampling import Truncation
from energylm.config.vocabulary import MAX_NEW_TOKENS, N_TEXTS, PREFIX_TOKENS
from energylm.contracts import Decoder
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import DataError, ModelError
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.files import sha256_of_file
from energylm.models.causal import CausalLanguageModel, reversed_within
from energylm.progress import Progress, say
from energylm.records import Record
from energylm.registry import FITS
from energylm.samplers.continuations import Continuations, sample_continuations
from energylm.tables import Table

KIND = "language-model"


@dataclass(frozen=True)
class SequenceScore(Record):
    """One sequence: natural-log probability, and how many tokens and bytes it covers."""

    log_prob: float
    tokens: int
    bytes: int
    token_log_probs: tuple[float, ...]  # of the scored tokens, in natural order

    computed = ("perplexity", "bits_per_byte")

    @property
    def perplexity(self) -> float:
        return math.exp(min(-self.log_prob / self.tokens, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        return -self.log_prob / (math.log(2) * self.bytes) if self.bytes else None


@dataclass(frozen=True)
class SampledTexts(Record):
    """n continuations of each context, as text and as tokens with both log-probabilities; all in natural order."""

    contexts: list[list[int]]
    texts: list[list[str]]  # what was added, without the context and without special tokens
    continuations: Continuations

    @property
    def table(self) -> Table:
        """A row a continuation."""
        names = ("context", "text", "log_prob", "proposal_log_prob")
        rows = [[row[name] for name in names] for row in self.rows()]
        return Table(["context", "text", "log-probability", "under the proposal"], rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One JSON-able object a continuation."""
        drawn = self.continuations
        for context, texts in enumerate(self.texts):
            for copy, text in enumerate(texts):
                length = int(drawn.lengths[context, copy])
                yield {
                    "context": context,
                    "text": text,
                    "tokens": drawn.tokens[context, copy, :length].tolist(),
                    "log_prob": float(drawn.log_prob[context, copy]),
                    "proposal_log_prob": float(drawn.proposal_log_prob[context, copy]),
                }


class LanguageModel(OnHub):
    """`contracts.CausalModel` that also reads and writes text and folders: `LanguageModel(model, tokenizer)` around a
    network of transformers (or a PEFT model) in memory, or `from_pretrained`."""

    report: Record | None = None  # what `fit` tells of its training

    def __init__(
        self,
        model: CausalLanguageModel | PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str = "unnamed",
        provenance: Mapping[str, Any] | None = None,
        location: Path | str | None = None,
    ) -> None:
        self.model = model = as_causal(model, tokenizer)
        self.tokenizer, self.name = tokenizer, name
        self.location = location.absolute() if isinstance(location, Path) else location  # what it was loaded from
        self.provenance = dict(provenance or {})
        check_vocabularies(name, tokenizer=len(tokenizer), network=model.vocabulary_size)
        self.codec = TextCodec(
            tokenizer,
            start_token_id=model.start_token_id,
            eos_token_id=model.eos_token_id,
            direction=model.direction,
        )

    @classmethod
    def fit(cls, texts: Any, *, output: str | Path | None = None, **options: Any) -> "LanguageModel":
        """A language model of `texts` (strings, a `datasets.Dataset`, a corpus folder, a file), trained and validated
        (`.report`).

        `options` are those of `energylm corpus build` and `lm train`, e.g. preset="tiny", steps=500, vocabulary_size;
        `pretrained` goes on from a model's weights. With an `output` folder a killed fit goes on where it stopped.
        """
        fitted: LanguageModel = FITS.get("language-model")(texts, output=output, **options)
        return fitted

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        device: Device = None,
        dtype: DType = None,
    ) -> Self:
        """A model from a folder, a GGUF file (converted once), a known name, or the hub; `bundles.devices` says which
        device and dtype are taken where none is named."""
        location = cls.located(path_or_name)
        manifest = read_manifest(location) if isinstance(location, Path) else {}
        if manifest and manifest["kind"] != KIND:
            raise ModelError(f"{location} holds a model of kind {manifest['kind']!r}, no language model; give another")
        network = load_causal(location, device=usable_device(device), dtype=dtype)
        tokenizer = load_tokenizer(location)
        start, eos = boundary_tokens(tokenizer, network)
        model = CausalLanguageModel(
            network,
            start_token_id=manifest.get("start_token_id", start),
            eos_token_id=manifest.get("eos_token_id", eos),
            direction=manifest.get("direction", LEFT_TO_RIGHT),
        )
        check_vocabularies(str(location), tokenizer=len(tokenizer), network=model.vocabulary_size)
        name = manifest.get("name", Path(location).name)
        provenance = manifest.get("provenance", {"origin": str(path_or_name)})
        return cls(model, tokenizer, name=name, provenance=provenance, location=location)

    @classmethod
    def from_gguf(
        cls,
        path: Path,
        *,
        provenance: Mapping[str, Any] | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> Self:
        """The model in a GGUF file, dequantised to float32 (half a minute; `from_pretrained` keeps the result), on the
        CPU unless a device is named."""
        network, tokenizer = load_gguf(path)
        start, eos = boundary_tokens(tokenizer, network)
        model = CausalLanguageModel(network, start_token_id=start, eos_token_id=eos)
        return cls(model, tokenizer, name=path.stem, provenance=provenance, location=path).to(device, dtype)

    @classmethod
    def located(cls, path_or_name: str | Path) -> Path | str:
        """The folder or hub name that is loaded; a GGUF file is converted, once."""
        location = locate(path_or_name)
        return cls._converted(location) if isinstance(location, Path) and location.is_file() else location

    @classmethod
    def _converted(cls, gguf: Path) -> Path:
        if gguf.suffix != ".gguf":
            raise ModelError(f"{gguf} is a file; give a model folder or a .gguf file")
        sha256 = sha256_of_file(gguf)
        folder = models_folder() / f"{gguf.stem}-{sha256[:12]}"
        if not folder.is_dir():
            say(f"energylm: converting {gguf.name} once, to {folder}")
            cls.from_gguf(gguf, provenance={"origin": gguf.name, "sha256": sha256}).save_pretrained(folder)
        return folder

    def save_pretrained(self, folder: str | Path) -> None:
        """Write network, tokenizer and manifest; `from_pretrained` here and in transformers read the folder."""
        refuse_adapters(self.model.network)
        facts = {
            "name": self.name,
            "direction": self.model.direction,
            "start_token_id": self.model.start_token_id,
            "eos_token_id": self.model.eos_token_id,
            "vocabulary_size": self.vocabulary_size,
        }
        save_model(folder, self.model.network, self.tokenizer, kind=KIND, facts=facts, provenance=self.provenance)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """The same model, moved."""
        move(self.model.network, device, dtype, batch_tokens)
        return self

    @property
    def vocabulary_size(self) -> int:
        return self.model.vocabulary_size

    @cached_property
    def weights_hashes(self) -> frozenset[str]:
        """Under which hashes the weights that it was loaded with are known; none for a network of one's own."""
        return weights_hashes(self.location, self.provenance)

    @property
    def eos_token_id(self) -> int | None:
        return self.model.eos_token_id

    def without_special_tokens(self) -> Self:
        """The same weights as a model of plain text of a fixed length: no special token is written, end-of-sequence
        above all, and their probability is shared out. Windows within documents hold none either; a model that could
        write one would give its texts away. An unknown-word token stays: text has it too."""
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        if self.eos_token_id is not None:
            special.add(self.eos_token_id)
        return self._with_model(self.model.without(sorted(special)))

    def for_chat(self) -> Self:
        """The same weights as a model of answers to chats, which end with the template's end-of-turn token."""
        end, model = end_of_turn_id(self.tokenizer, name=self.name), self.model
        if end == model.eos_token_id:
            return self
        return self._with_model(
            CausalLanguageModel(
                model.network,
                start_token_id=model.start_token_id,
                eos_token_id=end,
                direction=model.direction,
                forbidden_token_ids=model.forbidden_token_ids,
            )
        )

    def _with_model(self, model: CausalLanguageModel) -> Self:
        return type(self)(model, self.tokenizer, name=self.name, provenance=self.provenance, location=self.location)

    def token_log_probs(self, tokens_BT: Tensor, lengths_B: Tensor, *, first: int = 0) -> Tensor:
        log_prob_BT = self.model.token_log_probs(tokens_BT, lengths_B, first=first)
        if log_prob_BT.isnan().any():
            raise ModelError(f"{self.name} gives NaN for a token; its weights are damaged or overflow: give another")
        return log_prob_BT

    def decoder(self) -> Decoder:
        return self.model.decoder()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` alone; text that spells a special token stays text."""
        return self.codec.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens left out."""
        return self.codec.decode(tokens)

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat by the model's own template, up to where its answer begins."""
        return chat_ids(self.tokenizer, messages, name=self.name)

    def score(self, texts: Texts, *, prefix_tokens: int = PREFIX_TOKENS, eos: bool = False) -> list[SequenceScore]:
        """Log-probability of each text, all strings or all lists of ids, token by token in natural order.

        The first `prefix_tokens` are given, not scored. With `eos` the end-of-sequence token is scored and counted too.
        """
        texts = as_list(texts)
        if not texts:
            return []
        sequences = [self.codec.ended(self.codec.ids(text)) if eos else self.codec.ids(text) for text in texts]
        for number, sequence in enumerate(sequences, start=1):
            if len(sequence) <= prefix_tokens:
                raise DataError(
                    f"text {number} has {len(sequence)} tokens, none to score after a prefix of {prefix_tokens}; "
                    "leave it out, or shorten the prefix"
                )
        # Without a prefix the model itself reads the start token first.
        reads_start = prefix_tokens > 0 and isinstance(texts[0], str) and self.model.start_token_id is not None
        inputs = [torch.tensor(self.codec.started(sequence) if reads_start else sequence) for sequence in sequences]
        log_prob_BT = self.token_log_probs(
            torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True),
            torch.tensor([len(ids) for ids in inputs]),
            first=prefix_tokens + reads_start,
        )
        scores = []
        for text, sequence, row_T in zip(texts, sequences, log_prob_BT, strict=True):
            log_probs = row_T[: len(sequence) - prefix_tokens].tolist()
            size = self.codec.scored_bytes(text, sequence, prefix_tokens=prefix_tokens)
            scores.append(
                SequenceScore(math.fsum(log_probs), tokens=len(log_probs), bytes=size, token_log_probs=tuple(log_probs))
            )
        return scores

    def perplexity(self, texts: Texts, *, prefix_tokens: int = PREFIX_TOKENS, eos: bool = False) -> PerplexityEstimate:
        """Perplexity per token over all `texts` together, with its standard error, bits per byte and convention."""
        texts = as_list(texts)
        of_ids = not any(isinstance(text, str) for text in texts)
        return self.perplexity_of(
            self.score(texts, prefix_tokens=prefix_tokens, eos=eos),
            convention=self.convention(prefix_tokens=prefix_tokens, eos=eos, of_ids=of_ids),
        )

    def perplexity_of(self, scores: Sequence[SequenceScore], *, convention: str) -> PerplexityEstimate:
        return perplexity(
            torch.tensor([score.log_prob for score in scores], dtype=torch.float64),
            torch.tensor([score.tokens for score in scores]),
            torch.tensor([score.bytes for score in scores]),
            convention=convention,
        )

    def convention(self, *, prefix_tokens: int = PREFIX_TOKENS, eos: bool = False, of_ids: bool = False) -> str:
        """What a score of this model counts, in words; `of_ids` where lists of ids, not strings, are scored."""
        span = "all tokens"
        if prefix_tokens:
            side = "first" if self.model.direction == LEFT_TO_RIGHT else "last"
            span = f"all tokens but the {side} {prefix_tokens}, which are given"
        if self.model.start_token_id is not None and not (of_ids and prefix_tokens):
            span += f", after {self.tokenizer.convert_ids_to_tokens(self.model.start_token_id)!r}"
        end = "end-of-sequence token counted" if eos else "no end-of-sequence token"
        if self.model.forbidden_token_ids:
            end = "special tokens never written (their probability shared out among the others)"
        return (
            f"nats per token of {self.name}'s tokenizer ({len(self.tokenizer):,} tokens), {self.model.direction}, "
            f"{span}, {end}; total over total, standard error over sequences"
        )

    def sample(
        self,
        contexts: Texts,
        *,
        n: int = N_TEXTS,
        max_new_tokens: int = MAX_NEW_TOKENS,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        stop_at_eos: bool = True,
        seed: int = 0,
        first_context: int = 0,
        progress: Progress | None = None,
    ) -> SampledTexts:
        """n continuations of each context. `stop_at_eos=False` draws exactly max_new_tokens tokens. Context i has the
        random numbers of first_context + i."""
        if stop_at_eos and self.eos_token_id is None:
            raise ModelError("this model has no end-of-sequence token; ask for a fixed length (stop_at_eos=False)")
        truncation = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        given = [self.codec.context(context) for context in as_list(contexts)]
        backwards = self.model.direction == RIGHT_TO_LEFT
        drawn = sample_continuations(
            self.decoder(),
            [ids[::-1] for ids in given] if backwards else given,
            n=n,
            max_new_tokens=max_new_tokens,
            truncation=Truncation.checked(truncation, origin="sampling"),
            eos_token_id=self.eos_token_id if stop_at_eos else None,
            seed=seed,
            first_context=first_context,
            progress=progress,
        )
        if backwards:
            drawn = replace(drawn, tokens=reversed_within(drawn.tokens, drawn.lengths))
        texts = [
            self.codec.new_texts(ids, [tokens[:length].tolist() for tokens, length in zip(*rows, strict=True)])
            for ids, *rows in zip(given, drawn.tokens, drawn.lengths.tolist(), strict=True)
        ]
        return SampledTexts(contexts=given, texts=texts, continuations=drawn)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int = N_TEXTS,
        max_new_tokens: int = MAX_NEW_TOKENS,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> SampledTexts:
        """n answers to a chat, each up to the template's end-of-turn token."""
        return self.for_chat().sample(
            self.chat_ids(messages),
            n=n,
            max_new_tokens=max_new_tokens,
            top_k=top_k,
            top_p=top_p,
            temperature=temperature,
            seed=seed,
        )
