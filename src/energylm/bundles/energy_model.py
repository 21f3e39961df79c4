"""An energy as people use it: folders, text, calibration. `energylm.EnergyModel`.

    E(x) = scale · raw(x) + shift           lower = likelier; the calibration is fitted after training, 1 and 0 before

It reads *tokens*, where its tokenizer is the language model's, or *text*: sequences are decoded with the language
model's tokenizer (special tokens left out) and encoded with its own, so that any encoder goes with any language model.
Real and drawn sequences take the same way. `bind` gives a joint model the energy as a function of token ids either way.

Relations  `energies.pooled` is the network, `energy_reading` the micro-batches, `text_codec` the way from text.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, cast, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from energylm.bundles import energy_reading
from energylm.bundles.causal_networks import live_network, refuse_adapters
from energylm.bundles.devices import Device, DType, move
from energylm.bundles.energy_binding import BoundEnergy, Passage
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import (
    check_vocabularies,
    load_encoder,
    load_head,
    open_folder,
    read_manifest,
    save_model,
)
from energylm.bundles.text_codec import TextReader, text_list
from energylm.bundles.text_energy import Energy
from energylm.config.models import (
    KIND_WORDS,
    REFUSE,
    RIGHT_TO_LEFT,
    TEXT,
    TOKENS,
    EnergyKind,
    LongTexts,
    Pooling,
    Reads,
)
from energylm.config.vocabulary import ENCODER
from energylm.contracts import CausalModel, ContinuationEnergy, SequenceEnergy
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.energies.pooled import PooledEnergy, kind_of
from energylm.errors import ModelError, VocabularyMismatch
from energylm.records import Record
from energylm.registry import FITS

KIND = "energy"


class TokenizedEnergy(Energy):
    """One that reads token ids of a tokenizer of its own, and text through it. A passage is read as one text, and an
    empty one, as a model may write it, as the end-of-sequence token alone."""

    reads: Reads
    provenance: dict[str, Any]

    @abstractmethod
    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) energies of right-padded sequences of its own token ids: `contracts.SequenceEnergy`."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str], *, may_be_empty: bool = False) -> tuple[Tensor, Tensor]:
        """The right-padded ids (B, T) and lengths (B,) that `text_energies` reads."""

    def text_energies(self, texts: Sequence[str]) -> Tensor:
        """(B,) energies of texts; an empty one is refused."""
        return self.energies(*self.encode_texts(texts))

    def passage_energies(self, passages: Sequence[Passage]) -> Tensor:
        texts = [passage.prompt + passage.completion for passage in passages]
        return self.energies(*self.encode_texts(texts, may_be_empty=True)).double().cpu()

    def bind(self, lm: CausalModel) -> BoundEnergy:
        bound: BoundEnergy = bind(self, lm)
        return bound


class EnergyModel(TokenizedEnergy):
    """`contracts.ContinuationEnergy` that also reads text and folders. `EnergyModel(network, tokenizer)` takes networks
    of transformers in memory, too (PEFT models included): their body, under a new projection.

    `provenance` tells what it was trained against: `loss` (`config.models.NCE` alone gives log-ratios), the hash of the
    generator's weights, the corpus.
    """

    kind = KIND
    report: Record | None = None  # what `fit` tells of its training

    def __init__(
        self,
        network: PooledEnergy | PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        reads: Reads = TOKENS,
        long_texts: LongTexts = REFUSE,
        scale: float = 1.0,
        shift: float = 0.0,
        name: str = "unnamed",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        network = _pooled(network)
        check_vocabularies(name, tokenizer=len(tokenizer), network=network.vocabulary_size)
        self.network, self.tokenizer, self.reads, self.long_texts = network, tokenizer, reads, long_texts
        self.scale, self.shift, self.name, self.provenance = scale, shift, name, dict(provenance or {})
        self._reader = TextReader(
            tokenizer, special_tokens=reads == TEXT, max_tokens=network.max_tokens, long_texts=long_texts
        )

    @classmethod
    def fit(
        cls,
        lm: Any,
        texts: Any,
        *,
        encoder: str | Path = ENCODER,
        output: str | Path | None = None,
        **options: Any,
    ) -> "EnergyModel":
        """An energy that tells `texts` from what `lm` writes in their place, trained, calibrated and reported
        (`.report`).

        `lm` is a `LanguageModel`, live or from a folder, or its name; `texts` are strings, a `datasets.Dataset` (its
        column `field`), a corpus folder, or a file. `options` are those of `energylm corpus build`, `negatives` and
        `energy train`, e.g. contexts=200, k=8, length=64, prefix_tokens=40, steps=100, seed=0. With an `output` folder
        a killed fit goes on where it stopped, and a finished one is not repeated.
        """
        fitted: EnergyModel = FITS.get("energy")(lm, texts, encoder=encoder, output=output, **options)
        return fitted

    @classmethod
    def from_encoder(
        cls,
        path_or_name: str | Path,
        *,
        kind: EnergyKind | None = None,
        pooling: Pooling | None = None,
        reads: Reads = TOKENS,
        long_texts: LongTexts = REFUSE,
        seed: int = 0,
        device: Device = None,
        dtype: DType = None,
    ) -> Self:
        """An energy to be trained: the body of a language model (UniT), of a masked model or an encoder (BiT), or of
        another energy, from a folder, a known model or the hub, under a new projection. `kind` only checks that the
        body is what was meant."""
        location = locate(path_or_name)
        if isinstance(location, Path) and location.is_file():
            raise ModelError(
                f"{location} is a file; give a model folder (LanguageModel.from_pretrained converts GGUF files)"
            )
        manifest = read_manifest(location) if isinstance(location, Path) else {}
        if manifest.get("direction") == RIGHT_TO_LEFT:
            raise ModelError(f"{location} reads right-to-left, but energies read text as it stands; give another model")
        encoder = load_encoder(location, device=device)
        actual = kind_of(encoder)
        if kind not in (None, actual):
            raise ModelError(
                f"kind {kind!r} needs a {KIND_WORDS[kind]} encoder, but {path_or_name} is {KIND_WORDS[actual]}; "
                f"give another encoder, or kind {actual!r}"
            )
        name = manifest.get("name", Path(location).name)
        energy = cls(
            PooledEnergy(encoder, kind=actual, pooling=pooling, seed=seed).eval(),
            load_tokenizer(location),
            reads=reads,
            long_texts=long_texts,
            name=name,
            provenance={"encoder": {"name": name, "weights": manifest.get("weights", {})}},
        )
        return energy if dtype is None else energy.to(dtype=dtype)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, device: Device = None, dtype: DType = None, calibrated: bool = True
    ) -> Self:
        """The energy that `save_pretrained` wrote; without calibration where the raw numbers are wanted."""
        problem = "holds no trained energy ({kind}); train one with `energylm energy train`, or give its folder"
        location, manifest = open_folder(folder, [KIND], problem)
        energy = cls.from_folder(location, manifest, device=device, calibrated=calibrated)
        return energy if dtype is None else energy.to(dtype=dtype)

    @classmethod
    def from_folder(
        cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None, calibrated: bool = True
    ) -> Self:
        encoder = load_encoder(folder, device=device)
        network = PooledEnergy(encoder, kind=manifest["energy_kind"], pooling=manifest["pooling"])
        load_head(network.head, folder)
        return cls(
            network.eval(),
            load_tokenizer(folder),
            reads=manifest["reads"],
            long_texts=manifest["long_texts"],
            scale=manifest["scale"] if calibrated else 1.0,
            shift=manifest["shift"] if calibrated else 0.0,
            name=manifest["name"],
            provenance=manifest["provenance"],
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write encoder (which transformers' AutoModel reads, too), projection, tokenizer and manifest."""
        facts = {
            "name": self.name,
            "energy_kind": self.network.kind,
            "pooling": self.network.pooling,
            "reads": self.reads,
            "long_texts": self.long_texts,
            "scale": self.scale,
            "shift": self.shift,
            "vocabulary_size": self.vocabulary_size,
        }
        network, head = self.network.encoder, self.network.head
        refuse_adapters(network)
        save_model(folder, network, self.tokenizer, kind=KIND, facts=facts, provenance=self.provenance, head=head)

    @property
    def vocabulary_size(self) -> int:
        return self.network.vocabulary_size

    @property
    def max_tokens(self) -> int | None:
        """The most that its positions hold, special tokens included."""
        return self.network.max_tokens

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        move(self.network, device, dtype, batch_tokens)
        return self

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self._calibrated(energy_reading.sequence_energies(self.network, tokens_BT, lengths_B))

    def continuation_energies(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> Tensor:
        """(B, N) energies of each context with each of its continuations; a causal encoder reads each context once."""
        return self._calibrated(energy_reading.continuation_energies(self.network, contexts, tokens_BNT, lengths_BN))

    def energies_and_states(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, and the pooled states (B, N, D) that they are a projection of, by one reading."""
        states_BND = energy_reading.continuation_states(self.network, contexts, tokens_BNT, lengths_BN)
        return self.state_energies(states_BND.flatten(0, 1)).view(lengths_BN.shape), states_BND

    def states(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) pooled states of right-padded sequences of its own token ids."""
        return energy_reading.sequence_states(self.network, tokens_BT, lengths_B)

    def state_energies(self, states_RD: Tensor) -> Tensor:
        """(R,) energies of pooled states."""
        with torch.no_grad():
            return self._calibrated(self.network.project(states_RD))

    def encode_texts(self, texts: Sequence[str], *, may_be_empty: bool = False) -> tuple[Tensor, Tensor]:
        return self._reader.read(text_list(texts), may_be_empty=may_be_empty)

    def _calibrated(self, raw: Tensor) -> Tensor:
        energies = self.scale * raw + self.shift
        if not energies.isfinite().all():
            bad = energies[~energies.isfinite()]
            raise ModelError(
                f"{len(bad):,} of {energies.numel():,} energies of {self.name} are not finite (the first is "
                f"{float(bad[0])}); its weights or its calibration are damaged: train it again"
            )
        return energies


def _pooled(network: Any) -> PooledEnergy:
    """An energy's network as it is; of a network in memory its body, under a new projection that is to be trained."""
    if isinstance(network, PooledEnergy):
        return network
    body = cast(PreTrainedModel, live_network(network).base_model)
    return PooledEnergy(body, kind=kind_of(body)).train(body.training)


class Writer(Protocol):
    """What tokens come from: a language model, or a corpus."""

    @property
    def vocabulary_size(self) -> int: ...


@overload
def bind(energy: EnergyModel, lm: Writer) -> ContinuationEnergy: ...
@overload
def bind(energy: TokenizedEnergy, lm: Writer) -> SequenceEnergy: ...
def bind(energy: Any, lm: Writer) -> Any:
    """`energy` as a function of `lm`'s token ids, whatever it reads."""
    tokenizer = getattr(lm, "tokenizer", None)
    if energy.reads == TEXT:
        if tokenizer is None:
            raise ModelError(f"{energy.name} reads text, but the language model has no tokenizer to write it with")
        return TextBoundEnergy(energy, tokenizer)
    is_same = tokenizer is not None and tokenizer_sha256(tokenizer) == tokenizer_sha256(energy.tokenizer)
    if not is_same and (tokenizer is not None or lm.vocabulary_size != energy.vocabulary_size):
        theirs = lm.vocabulary_size if tokenizer is None else len(tokenizer)
        raise VocabularyMismatch(
            f"the energy {energy.name} reads the {len(energy.tokenizer):,} tokens of its own tokenizer but the "
            f"language model writes {theirs:,} of another; train an energy that reads text, or one on that tokenizer"
        )
    return energy


class TextBoundEnergy:
    """An energy that reads text, over the ids of another tokenizer."""

    def __init__(self, energy: TokenizedEnergy, tokenizer: PreTrainedTokenizerFast) -> None:
        self.energy, self._tokenizer = energy, tokenizer

    def encode(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The right-padded ids (B, T) and lengths (B,) that the energy's network reads for these sequences."""
        texts = self._tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=True)
        return self.energy.encode_texts(texts, may_be_empty=True)

    def _encoded(self, tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        rows = zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True)
        return self.encode([row[:length] for row, length in rows])

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.energy.energies(*self._encoded(tokens_BT, lengths_B))

    def continuation_energies(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> Tensor:
        pieces = energy_reading.joined(contexts, tokens_BNT, lengths_BN)
        return torch.cat([self.energies(*piece) for piece in pieces]).view(lengths_BN.shape)

    def energies_and_states(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The same, and the pooled states (B, N, D) that they are a projection of, where there are such."""
        if not isinstance(self.energy, EnergyModel):
            return self.continuation_energies(contexts, tokens_BNT, lengths_BN), None
        pieces = energy_reading.joined(contexts, tokens_BNT, lengths_BN)
        states_RD = torch.cat([self.energy.states(*self._encoded(*piece)) for piece in pieces])
        return self.energy.state_energies(states_RD).view(lengths_BN.shape), states_RD.view(*lengths_BN.shape, -1)


class EnergyGradients:
    """Gradients ∇_{e_t} E(x) of an energy by the embeddings of its tokens, whatever its network: what
    `search.token_replacement` asks for. Token ids are those of the energy's own tokenizer; energies are the calibrated
    ones, their scale is in the gradient.

    The output of the embedding layer (`network.get_input_embeddings()`) is caught on its way and made the leaf of the
    graph, so a network needs no second entrance for embeddings: transformers, recurrent networks and bags of tokens
    alike.
    """

    def __init__(self, energy: EnergyModel) -> None:
        self.energy = energy

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.energy.energies(tokens_BT, lengths_B)

    def token_gradients(self, tokens_T: Tensor) -> tuple[float, Tensor]:
        """The energy of one sequence and its gradient (T, D), by one forward and one backward pass."""
        network, caught = self.energy.network, []

        def catch(layer: nn.Module, inputs: object, output_BTD: Tensor) -> Tensor:
            caught.append(output_BTD.detach().requires_grad_())
            return caught[-1]

        tokens_1T = tokens_T.to(self.token_table.device)[None]
        hook = network.get_input_embeddings().register_forward_hook(catch)
        try:
            # cuDNN's recurrent networks have no backward pass in evaluation mode; torch's own have.
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                raw = network(tokens_1T, torch.tensor([len(tokens_T)], device=tokens_1T.device))[0]
        finally:
            hook.remove()
        if len(caught) != 1:
            raise ModelError(
                f"{self.energy.name} reads its token embeddings {len(caught)} times, so there is no one gradient by "
                "them; give an energy whose network embeds its tokens once"
            )
        (gradient_1TD,) = torch.autograd.grad(raw, caught)
        return self.energy.scale * float(raw.detach()) + self.energy.shift, self.energy.scale * gradient_1TD[0]

    @cached_property
    def token_table(self) -> Tensor:
        """(V, D): the embedding layer's output, not its weights: some families scale these."""
        layer = self.energy.network.get_input_embeddings()
        with torch.no_grad():
            table_VD: Tensor = layer(torch.arange(self.energy.vocabulary_size, device=next(layer.parameters()).device))
        return table_VD
