"""A tagger or translator with its vocabularies: folder ⇄ live object, and the searches that decode it.

    model = Seq2SeqModel.from_pretrained("runs/ner/model")
    model.decode(["Ada went to Rome ."], DecodingConfig(method="beam", beam=3))

A folder holds the network as transformers saves it, `tokenizer.json` (words of a tagger, the BPE of a translator, whose
source and target share it) and the manifest. Tags are the network's `id2label`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from energylm.bundles.model_folder import load_network, open_folder, save_model
from energylm.config.seq2seq import BEAM, GREEDY, LOCAL, SOFT_BEAM, TRANSLATION, DecodingConfig, TaskName
from energylm.data.tokenizer import end_token_id, load_tokenizer, plain_encoder
from energylm.errors import ConfigError, DataError
from energylm.models import lstm_seq2seq
from energylm.models.lstm_seq2seq import LSTMSeq2Seq
from energylm.search.beam import beam_search, greedy_search
from energylm.search.continuous_beam import continuous_beam_search

KIND = "seq2seq"
Output = TypeVar("Output")


class Seq2SeqModel:
    """`network` writes ids; this reads and writes words, tags and texts."""

    def __init__(
        self,
        network: LSTMSeq2Seq,
        tokenizer: PreTrainedTokenizerFast,
        *,
        task: TaskName,
        name: str = "",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.tokenizer, self.task, self.name = network, tokenizer, task, name
        self.provenance = dict(provenance or {})
        self._encoder = plain_encoder(tokenizer)
        self._words = tokenizer.get_vocab()

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> Self:
        location, manifest = open_folder(
            folder,
            [KIND],
            "holds a model of kind {kind!r}, expected 'seq2seq'; give the folder of an `energylm seq2seq train` run",
        )
        lstm_seq2seq.register()
        network, _ = load_network(AutoModelForSeq2SeqLM, location, what="a tagger or translator", device=device)
        return cls(
            network,
            load_tokenizer(location),
            task=manifest["task"],
            name=manifest["name"],
            provenance=manifest["provenance"],
        )

    def save_pretrained(self, folder: Path | str) -> None:
        facts = {"name": self.name, "task": self.task, "vocabulary_size": self.network.config.vocab_size}
        save_model(folder, self.network, self.tokenizer, kind=KIND, facts=facts, provenance=self.provenance)

    @cached_property  # `output` asks for it at every symbol, and a transformers config answers slowly
    def tags(self) -> list[str]:
        """The tags of a tagger, by id."""
        names: Any = self.network.config.id2label  # by number; transformers also allows none and others
        return [names[number] for number in range(self.network.config.vocab_size)]

    @property
    def eos_token_id(self) -> int | None:
        end: int | None = self.network.config.eos_token_id
        return end

    def check(self, decoding: DecodingConfig) -> None:
        """Whether this model can be decoded so."""
        if decoding.method == SOFT_BEAM:
            check_soft_beam(decoding.beam, vocabulary=self.network.config.vocab_size, key="decoding.beam")

    def source_ids(self, source: str | Sequence[str]) -> list[int]:
        """Of a text to translate, or of a sentence to tag (its words, or a text whose words stand apart)."""
        if self.task == TRANSLATION:
            text = source if isinstance(source, str) else " ".join(source)
            return [*self._encoder.encode(text).ids, end_token_id(self.tokenizer)]
        unknown = self._words[self.tokenizer.unk_token]
        words = source.split() if isinstance(source, str) else source
        return [self._words.get(word, unknown) for word in words]

    def target_ids(self, text: str) -> list[int]:
        """Of a translation, its end counted."""
        return [*self._encoder.encode(text).ids, end_token_id(self.tokenizer)]

    def output(self, ids: Sequence[int]) -> str:
        """What a list of output ids says: a text, or tags with spaces between them."""
        if self.task != TRANSLATION:
            return " ".join(self.tags[i] for i in ids)
        return str(self.tokenizer.decode([i for i in ids if i != self.eos_token_id], skip_special_tokens=True)).strip()

    def decode(self, sources: Sequence[str], decoding: DecodingConfig, *, batch: int = 64) -> list[str]:
        """The output of each source, in order; sources of like length are decoded together."""
        return [
            self.output(ids) for ids in self.decode_ids([self.source_ids(s) for s in sources], decoding, batch=batch)
        ]

    def decode_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, *, batch: int = 64
    ) -> list[list[int]]:
        """The same with ids on both sides."""
        return self._each(sources, partial(search, self.network, decoding=decoding), batch=batch)

    def best_outputs(
        self, sources: Sequence[str], decoding: DecodingConfig, *, count: int, batch: int = 64
    ) -> list[list[tuple[str, float]]]:
        """The `count` best different outputs of the beam of each source, with their scores; fewer where the beam says
        the same in several ways, the best of which counts."""
        ids = [self.source_ids(source) for source in sources]
        beams = self._each(ids, partial(beam_members, self.network, decoding=decoding), batch=batch)
        lists = []
        for members in beams:
            outputs: dict[str, float] = {}
            for row, score in members:
                outputs.setdefault(self.output(row), score)
            lists.append(list(outputs.items())[:count])
        return lists

    def _each(
        self, sources: Sequence[Sequence[int]], write: Callable[[Tensor, Tensor], Sequence[Output]], *, batch: int
    ) -> list[Output]:
        """What `write` makes of right-padded batches, in the order of the sources."""
        if empty := [number for number, ids in enumerate(sources, start=1) if not ids]:
            raise DataError(f"source {empty[0]} is empty; there is nothing to write for it: leave it out")
        device = next(self.network.parameters()).device
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        outputs: dict[int, Output] = {}
        for start in range(0, len(order), batch):
            members = order[start : start + batch]
            rows = [torch.tensor(sources[number]) for number in members]
            source_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
            lengths_B = torch.tensor([len(row) for row in rows], device=device)
            outputs |= zip(members, write(source_BS, lengths_B), strict=True)
        return [outputs[number] for number in range(len(sources))]


def check_soft_beam(beam: int, *, vocabulary: int, key: str) -> None:
    """A soft beam starts with the symbols of one step; better said before an hour of training than after it."""
    if beam > vocabulary:
        raise ConfigError(
            f"{key}: a soft beam of {beam} is wider than its first step allows: there are {vocabulary} symbols"
        )


@torch.no_grad()
def search(network: LSTMSeq2Seq, source_BS: Tensor, lengths_B: Tensor, decoding: DecodingConfig) -> list[list[int]]:
    """The output ids of right-padded sources: as many as source tokens, or up to and without EOS."""
    if decoding.method == BEAM:
        return [members[0][0] for members in beam_members(network, source_BS, lengths_B, decoding)]
    eos, limit_B = network.config.eos_token_id, output_limits(network, lengths_B, decoding)
    stepper = network.stepper(source_BS, lengths_B)
    if decoding.method == GREEDY:
        tokens_BT, ends_B = greedy_search(stepper, lengths_B=limit_B, eos_token_id=eos)
    else:
        soft = continuous_beam_search(
            stepper,
            beam=decoding.beam,
            alpha=decoding.alpha,
            lengths_B=limit_B,
            eos_token_id=eos,
            locally_normalized=decoding.normalization == LOCAL,
        )
        tokens_BT, ends_B = soft.decode(lengths_B=limit_B, eos_token_id=eos)
    rows = zip(tokens_BT.tolist(), ends_B.tolist(), strict=True)
    return [_without_end(tokens[:end], eos) for tokens, end in rows]


@torch.no_grad()
def beam_members(
    network: LSTMSeq2Seq, source_BS: Tensor, lengths_B: Tensor, decoding: DecodingConfig
) -> list[list[tuple[list[int], float]]]:
    """Output ids and score of every sequence in the last beam of right-padded sources, best first."""
    eos = network.config.eos_token_id
    beam = beam_search(
        network.stepper(source_BS, lengths_B),
        beam=decoding.beam,
        lengths_B=output_limits(network, lengths_B, decoding),
        eos_token_id=eos,
        locally_normalized=decoding.normalization == LOCAL,
        length_exponent=decoding.length_exponent,
    )
    tensors = (beam.tokens_BKT, beam.lengths_BK, beam.scores_BK)
    return [
        [(_without_end(ids[:end], eos), score) for ids, end, score in zip(*row, strict=True) if score > -torch.inf]
        for row in zip(*(tensor.tolist() for tensor in tensors), strict=True)
    ]


def output_limits(network: LSTMSeq2Seq, lengths_B: Tensor, decoding: DecodingConfig) -> Tensor:
    """(B,) the most symbols of each output."""
    if network.config.eos_token_id is None:
        return lengths_B
    return (lengths_B * decoding.length_ratio).long() + decoding.length_extra


def _without_end(ids: list[int], eos_token_id: int | None) -> list[int]:
    return ids[:-1] if eos_token_id is not None and ids and ids[-1] == eos_token_id else ids
