"""A masked language model with its tokenizer, from a folder or the hub: `MaskedLanguageModel.from_pretrained`.

Any `ForMaskedLM` of transformers, or what `energylm pretrain mlm` made. Texts are encoded without special tokens. Where
the model's own tokenizer frames a text ([CLS] … [SEP]), the frame is put around every sequence when the network reads
it, and no position of the frame is ever scored or hidden. Models of `energylm pretrain mlm` that saw documents begin
and end get end-of-text tokens for a frame, as the siblings of `cloze_model` do.

Relations  `models.masked` is the arithmetic; `energies.masked_lm` reads it as an energy, `samplers` draw from that;
           `conditional_masked_model` is the same for translation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import check_vocabularies, load_config, load_network, read_manifest, save_model
from energylm.data.tokenizer import end_token_id, load_tokenizer, plain_encoder
from energylm.errors import ModelError
from energylm.models import gated_convolution, ralm
from energylm.models.masked import MaskedNetwork

KIND, CONDITIONAL_KIND = "masked-lm", "conditional-masked-lm"


class MaskedLanguageModel:
    """`contracts.MaskedModel` that also reads and writes text. The network is in evaluation mode."""

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str = "unnamed",
        framed: bool = False,
        model: MaskedNetwork | None = None,
    ) -> None:
        """`model` is how the network is asked; without it as a plain masked network, framed as the tokenizer does, or
        by end-of-text tokens if it does not and the text is to be `framed`."""
        if tokenizer.mask_token_id is None:
            raise ModelError(
                f"{name}: the tokenizer has no mask token, so nothing can be hidden; set mask_token in its "
                "tokenizer_config.json, or give another model"
            )
        self.network, self.tokenizer, self.name, self._framed = network, tokenizer, name, framed
        self.mask_token_id = int(tokenizer.mask_token_id)
        self._encoder = plain_encoder(tokenizer)
        if model is None:
            prefix, suffix = _frame(tokenizer)
            if framed and not prefix and not suffix:
                prefix = suffix = [end_token_id(tokenizer)]
            model = MaskedNetwork(network, mask_token_id=self.mask_token_id, prefix=prefix, suffix=suffix)
        self.model = model
        check_vocabularies(name, tokenizer=len(tokenizer), network=self.vocabulary_size)

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path, *, device: torch.device | str | None = None) -> Self:
        """A masked model from a folder or the hub, in float32; `device` is a GPU where there is one."""
        location = locate(path_or_name)
        if isinstance(location, Path) and location.is_file():
            raise ModelError(f"{location} is a file; a masked language model is a folder, or a hub name")
        manifest = read_manifest(location) if isinstance(location, Path) else {}
        if manifest and manifest["kind"] == CONDITIONAL_KIND:
            raise ModelError(f"{location} is a conditional masked language model, which reads a source: give --source")
        if manifest and manifest["kind"] != KIND:
            raise ModelError(
                f"{location} holds a model of kind {manifest['kind']!r}, no masked language model; give a ForMaskedLM "
                "folder, or train one with `energylm pretrain mlm`"
            )
        network = _load(location, device)
        name, framed = manifest.get("name", Path(location).name), manifest.get("framed", False)
        return cls(network, load_tokenizer(location), name=name, framed=framed)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write what `from_pretrained` reads."""
        save_masked_language_model(
            self.network, self.tokenizer, Path(folder), name=self.name, framed=self._framed, provenance={}
        )

    @property
    def vocabulary_size(self) -> int:
        return self.model.vocabulary_size

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence, frame not counted, that the network holds; None where nothing limits it."""
        return self.model.max_tokens

    def logits(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, T, V) at every position of right-padded sequences without frame; hide tokens with `mask_token_id`."""
        return self.model.logits(tokens_BT, lengths_B)

    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        """(N, V): `logits` at the N positions where `hidden_RT` is true and which are hidden, row by row."""
        return self.model.masked_logits(tokens_RT, lengths_R, hidden_RT, source_R=source_R)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` without frame; text that spells a special token stays text."""
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def ordinary_V(self) -> Tensor:  # noqa: N802  (the axis letter)
        """(V,) true for ids that are text: neither special tokens nor rows beyond the tokenizer's vocabulary."""
        ordinary_V = torch.arange(self.vocabulary_size) < len(self.tokenizer)
        ordinary_V[self.tokenizer.all_special_ids] = False
        return ordinary_V


def save_masked_language_model(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    name: str,
    framed: bool,
    provenance: Mapping[str, Any],
) -> None:
    """Write what `MaskedLanguageModel.from_pretrained` and transformers' Auto classes read, whole or not at all.
    `framed` says that the network knows texts between end-of-text tokens."""
    facts = {"name": name, "vocabulary_size": len(tokenizer), "framed": framed}
    save_model(folder, network, tokenizer, kind=KIND, facts=facts, provenance=provenance)


def _load(location: Path | str, device: torch.device | str | None) -> PreTrainedModel:
    gated_convolution.register()
    ralm.register()
    config = load_config(location, what="a masked language model")
    causal = sorted(set(config.architectures or ()) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))
    if causal or type(config) not in AutoModelForMaskedLM._model_mapping:
        what = f"a causal language model ({', '.join(causal)})" if causal else f"a {config.model_type} model"
        raise ModelError(
            f"{str(location)!r} is {what}, no masked language model; give a ForMaskedLM folder, or train one with "
            "`energylm pretrain mlm`"
        )
    network: PreTrainedModel
    network, _ = load_network(
        AutoModelForMaskedLM, location, what="a masked language model", device=device, config=config
    )
    return network


def _frame(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer itself puts before and after every text."""
    encoder = plain_encoder(tokenizer)
    bare = encoder.encode("a", add_special_tokens=False).ids
    framed = encoder.encode("a", add_special_tokens=True).ids
    if framed == bare:
        return [], []
    start = next(start for start in range(len(framed)) if framed[start : start + len(bare)] == bare)
    return framed[:start], framed[start + len(bare) :]
