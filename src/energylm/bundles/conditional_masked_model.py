"""A conditional masked language model with its tokenizer: folder ⇄ live object, and what it says of given sources.

    model = ConditionalMaskedModel.from_pretrained("runs/cmlm/model")
    model.translate(["Ein Hund rennt."], iterations=10, length_beam=5)       by Mask-Predict
    model.reading(["Ein Hund rennt."])                                       a masked model of its translations

A folder holds the network as transformers saves it, the BPE that both languages share, and the manifest.

Relations  `masked_language_model` is the same without a source; `energylm mcmc` samples from either.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from energylm.bundles.masked_language_model import CONDITIONAL_KIND, MaskedLanguageModel
from energylm.bundles.model_folder import load_network, open_folder, save_model
from energylm.data.tokenizer import load_tokenizer, plain_encoder
from energylm.models import cmlm
from energylm.models.cmlm import ConditionalMaskedLM
from energylm.models.masked import ConditionalMaskedNetwork
from energylm.samplers.mask_predict import MaskPredict, best_of_length_beam


class SourcedMaskedModel(MaskedLanguageModel):
    """A masked language model of the translations of some sources: `source_R` of a row counts these."""

    model: ConditionalMaskedNetwork

    def likely_lengths(self, count: int) -> list[list[int]]:
        """The `count` likeliest lengths in tokens of every source's translation, likeliest first."""
        return self.model.likely_lengths(count)


class ConditionalMaskedModel:
    """The network is in evaluation mode, except while it is trained."""

    def __init__(
        self,
        network: ConditionalMaskedLM,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str = "",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.tokenizer, self.name = network, tokenizer, name
        self.provenance = dict(provenance or {})
        self._encoder = plain_encoder(tokenizer)

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, device: torch.device | str | None = None) -> Self:
        """`device` is a GPU where there is one."""
        location, manifest = open_folder(
            folder,
            [CONDITIONAL_KIND],
            "holds a model of kind {kind!r}, which reads no source; leave the source out, or give a model of `energylm "
            "pretrain cmlm`",
        )
        cmlm.register()
        what = "a conditional masked language model"
        network, _ = load_network(AutoModelForSeq2SeqLM, location, what=what, device=device)
        return cls(network, load_tokenizer(location), name=manifest["name"], provenance=manifest["provenance"])

    def save_pretrained(self, folder: Path | str) -> None:
        facts = {"name": self.name, "vocabulary_size": self.network.config.vocab_size}
        save_model(folder, self.network, self.tokenizer, kind=CONDITIONAL_KIND, facts=facts, provenance=self.provenance)

    @property
    def max_tokens(self) -> int:
        """The longest source, and the longest translation, that the network holds."""
        return int(self.network.config.max_position_embeddings)

    def source_ids(self, source: str | Sequence[str]) -> list[int]:
        """Of a text, or of its words."""
        return self.target_ids(source if isinstance(source, str) else " ".join(source))

    def target_ids(self, text: str) -> list[int]:
        """Without anything that marks the end: the length is known before the tokens."""
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def reading(self, sources: Sequence[str]) -> SourcedMaskedModel:
        """Read the sources, once for all that is asked about their translations."""
        return self.reading_ids([self.source_ids(source) for source in sources])

    def reading_ids(self, sources: Sequence[Sequence[int]]) -> SourcedMaskedModel:
        """The same with ids."""
        model = ConditionalMaskedNetwork(self.network, sources, mask_token_id=int(self.tokenizer.mask_token_id or 0))
        return SourcedMaskedModel(self.network, self.tokenizer, name=self.name, model=model)

    def translate(self, sources: Sequence[str], *, iterations: int = 10, length_beam: int = 1) -> list[str]:
        """By Mask-Predict; of `length_beam` lengths the one with the most confident tokens is kept."""
        read = self.reading(sources)
        return [read.decode(ids).strip() for ids in predict(read, iterations=iterations, length_beam=length_beam)]


def predict(read: SourcedMaskedModel, *, iterations: int, length_beam: int) -> list[list[int]]:
    """The ids of each source's translation by Mask-Predict."""
    lengths = read.likely_lengths(length_beam)
    device = read.network.device
    length_R = torch.tensor([length for beam in lengths for length in beam], device=device)
    source_R = torch.arange(len(lengths), device=device).repeat_interleave(length_beam)
    rows = [torch.full((length,), read.mask_token_id) for beam in lengths for length in beam]
    tokens_RT = pad_sequence(rows, batch_first=True).to(device)
    free_RT = torch.arange(tokens_RT.shape[1], device=device) < length_R[:, None]
    state = MaskPredict(read, read.ordinary_V, iterations).run(tokens_RT, length_R, free_RT=free_RT, source_R=source_R)
    best = best_of_length_beam(state, source_R)
    return [state.tokens_RT[row, : int(length_R[row])].tolist() for row in best]
