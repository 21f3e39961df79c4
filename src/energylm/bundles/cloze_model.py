"""Cloze models that score every token of a text in one pass: Electric, two-tower, ELECTRA-TT. Folders and token scores.

    electric      −E(x)_t                                        unnormalised; about log p(x_t | x_∖t) after training
    two-tower     log q(x_t | x_∖t)                              exact
    electra-tt    log D q / (a (1 − D) + q)                      detector and noise model (`objectives.noised_tokens`)

The sum over a text is its pseudo-log-likelihood (clark2020 §3.2). Networks that were trained on documents between
end-of-text tokens read each sequence framed by one on either side (`framed`, which the folder knows); the frame is
read, not scored. Special tokens inside a sequence score 0: no family was trained to judge them.

FOLDER/               the main network, which transformers' AutoModel reads as an encoder (ELECTRA in its own classes,
                      or in ModernBERT's where attention is local: `models.cloze_presets`)
FOLDER/words.safetensors    of an Electric that reads, beside its tokens, how common their words are (`word_classes`)
FOLDER/noise/         the noise model, a folder of its own kind (electra-tt needs it; electric keeps it for study)
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch
from safetensors.torch import load_file
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import (
    ElectraForPreTraining,
    ModernBertForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from energylm.bundles.devices import usable_device
from energylm.bundles.model_folder import (
    WORDS_FILE,
    check_finite,
    check_vocabularies,
    load_config,
    load_encoder,
    load_head,
    load_network,
    open_folder,
    save_model,
)
from energylm.data.corpus import TextOrCounts, english_words, word_counts
from energylm.data.tokenizer import BEGINS_WORD, end_token_id, load_tokenizer, plain_encoder
from energylm.energies.electric import BEGINS, CONTINUES, STANDS_ALONE, TokenEnergy, WordClasses, word_keys
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models.cloze_presets import DetectorNetwork, replaced_logits
from energylm.models.contexts import length_batches, tokens_at_once
from energylm.models.packed_passes import encoder_states
from energylm.models.two_tower import TwoTowerForCloze
from energylm.objectives.noised_tokens import detector_log_prob

ClozeKind = Literal["electric", "two-tower", "electra-tt"]
ClozeNetwork = TokenEnergy | TwoTowerForCloze | DetectorNetwork
ELECTRIC: ClozeKind = "electric"
TWO_TOWER: ClozeKind = "two-tower"
ELECTRA_TT: ClozeKind = "electra-tt"
NOISE_FOLDER = "noise"
LOGITS_AT_ONCE = 1 << 25
PROBED = 1000  # words that tell whether two ways to write words are the same
Way = tuple[Callable[[str], str], str]  # a casing, and what stands before
_NO_CLOZE = (
    "holds no one-pass cloze model (kind {kind}): give a folder of `energylm pretrain electric`, `two-tower` or "
    "`electra-tt`"
)
_CURES = {
    "electra": "its masked-LM generator gives no probabilities in one pass; pretrain electra-tt to score text",
    "masked-lm": "a masked language model needs a pass for each token; score text with `energylm score`",
    "language-model": "it is causal; score text with `energylm lm score`",
}


class ClozeModel:
    """`ClozeModel.from_pretrained(folder)`; `main` is a `TokenEnergy`, a `TwoTowerForCloze` or a detector of
    `models.cloze_presets`, as `kind` says. `noise_rate` is the share of tokens an ELECTRA-TT saw replaced."""

    def __init__(
        self,
        kind: ClozeKind,
        main: ClozeNetwork,
        tokenizer: PreTrainedTokenizerFast,
        *,
        noise: TwoTowerForCloze | None = None,
        noise_rate: float | None = None,
        framed: bool = True,
        name: str = "unnamed",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if kind == ELECTRA_TT and (noise is None or noise_rate is None):
            raise ModelError("an electra-tt scores with its noise model and the rate of noise; give both")
        self.kind, self.noise, self.tokenizer = kind, noise, tokenizer
        self.main: ClozeNetwork = main.eval()
        self.noise_rate, self.name, self.provenance = noise_rate, name, dict(provenance or {})
        check_vocabularies(name, tokenizer=len(tokenizer), network=self.vocabulary_size)
        if noise is not None:
            noise.eval()  # type: ignore[no-untyped-call]  # transformers leaves it bare
        self._end_token_id = end_token_id(tokenizer)
        self._frame = 1 if framed else 0  # tokens on either side
        self._special = torch.tensor(sorted({*tokenizer.all_special_ids, self._end_token_id}))

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, device: torch.device | str | None = None, framed: bool | None = None
    ) -> Self:
        """The model that `save_pretrained` or `energylm pretrain electric|two-tower|electra-tt` wrote; `framed` in
        place of what the folder says of it."""
        location, manifest = open_folder(folder, (*get_args(ClozeKind), *_CURES), _NO_CLOZE)
        kind: ClozeKind = manifest["kind"]
        if kind in _CURES:
            raise ModelError(f"{folder} holds no one-pass cloze model (kind {kind}): {_CURES[kind]}")
        on = usable_device(device)
        has_noise = kind == ELECTRA_TT or (location / NOISE_FOLDER).is_dir()
        noise = cls.from_pretrained(location / NOISE_FOLDER, device=on).main if has_noise else None
        return cls(
            kind,
            _load_main(kind, location, on),
            load_tokenizer(location),
            noise=cast(TwoTowerForCloze | None, noise),  # `save_pretrained` writes no other kind there
            noise_rate=manifest["noise_rate"],
            framed=manifest.get("framed", True) if framed is None else framed,
            name=manifest["name"],
            provenance=manifest["provenance"],
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the networks, the tokenizer and the manifest; the folder appears whole or not at all."""
        framed = self._frame > 0
        facts = {"name": self.name, "vocabulary_size": self.vocabulary_size, "noise_rate": self.noise_rate}
        parts = {}
        if self.noise is not None:
            name = f"noise of {self.name}"
            parts[NOISE_FOLDER] = ClozeModel(TWO_TOWER, self.noise, self.tokenizer, framed=framed, name=name)
        save_model(
            folder,
            self._network,
            self.tokenizer,
            kind=self.kind,
            facts=facts | {"framed": framed},
            provenance=self.provenance,
            head=self.main.head if isinstance(self.main, TokenEnergy) else None,
            words=self.main.words if isinstance(self.main, TokenEnergy) else None,
            parts=parts,
        )

    @property
    def vocabulary_size(self) -> int:
        return int(self._network.config.vocab_size)

    @property
    def max_tokens(self) -> int:
        """The longest sequence, without its frame."""
        return int(self._network.config.max_position_embeddings) - 2 * self._frame

    @torch.no_grad()
    def token_scores(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, T): the (pseudo-)log-probability of each token of right-padded sequences given all the others; 0 for
        special tokens and past the end. Higher = likelier."""
        device = self._network.device
        tokens_BT, lengths_B = self._readable(tokens_BT.to(device), lengths_B.to(device))
        framed_BS, framed_lengths_B = self.framed(tokens_BT, lengths_B)
        score_BS = torch.zeros(framed_BS.shape, device=device)
        for rows, longest in length_batches(framed_lengths_B, tokens_at_once=self._tokens_at_once):
            score_BS[rows, :longest] = self._scores(framed_BS[rows, :longest], framed_lengths_B[rows]).float()
        score_BT = score_BS[:, self._frame : self._frame + tokens_BT.shape[1]]
        real_BT = torch.arange(tokens_BT.shape[1], device=device) < lengths_B[:, None]
        is_text_BT = real_BT & ~torch.isin(tokens_BT, self._special.to(device))
        score_BT = score_BT.where(is_text_BT, 0.0)
        if not score_BT.isfinite().all():
            raise ModelError(f"token scores of {self.name} are not finite; its weights are damaged: train it again")
        return score_BT

    def _scores(self, tokens_RS: Tensor, lengths_R: Tensor) -> Tensor:
        """(R, S) of one micro-batch."""
        if self.kind == ELECTRIC:
            main = cast(TokenEnergy, self.main)
            return -main.project(encoder_states(main.encoder, tokens_RS, lengths_R, inputs=main.inputs))
        mask_RS = (torch.arange(tokens_RS.shape[1], device=tokens_RS.device) < lengths_R[:, None]).long()
        logits_RSV: Tensor = (self.noise or self.main)(tokens_RS, attention_mask=mask_RS).logits.float()
        log_noise_RS = logits_RSV.gather(-1, tokens_RS[..., None])[..., 0] - logits_RSV.logsumexp(-1)
        if self.kind == TWO_TOWER:
            return log_noise_RS
        assert self.noise_rate is not None  # the constructor refuses an electra-tt without
        replaced_logit_RS = replaced_logits(cast(DetectorNetwork, self.main), tokens_RS, mask_RS).float()
        return detector_log_prob(replaced_logit_RS, log_noise_RS, rate=self.noise_rate)

    @property
    def _network(self) -> PreTrainedModel:
        return self.main.encoder if isinstance(self.main, TokenEnergy) else self.main

    @property
    def _tokens_at_once(self) -> int:
        return tokens_at_once(self._network, None if self.kind == ELECTRIC else LOGITS_AT_ONCE)

    def framed(self, tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T + 2) and (B,): an end-of-text token before and after each sequence."""
        if not self._frame:
            return tokens_BT, lengths_B
        framed_BS = torch.nn.functional.pad(tokens_BT, (1, 1))
        framed_BS[:, 0] = self._end_token_id
        return framed_BS.scatter_(1, lengths_B[:, None] + 1, self._end_token_id), lengths_B + 2

    def _readable(self, tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with padding set to 0, if the network can read them at all."""
        too_long = (lengths_B > self.max_tokens).nonzero()[:, 0].tolist()
        if too_long:
            raise ModelError(
                f"sequence {too_long[0] + 1} has {int(lengths_B[too_long[0]]):,} tokens but {self.name} holds "
                f"{self.max_tokens:,} ({len(too_long):,} of {len(lengths_B):,} are too long); shorten them"
            )
        real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        tokens_BT = tokens_BT.masked_fill(~real_BT, 0)
        unknown = tokens_BT[(tokens_BT < 0) | (tokens_BT >= self.vocabulary_size)]
        if len(unknown):
            raise VocabularyMismatch(
                f"token id {int(unknown[0])} came but {self.name} knows ids 0 to {self.vocabulary_size - 1}; "
                "encode the text with this model's own tokenizer"
            )
        return tokens_BT, lengths_B


def _load_main(kind: ClozeKind, folder: Path, device: torch.device) -> ClozeNetwork:
    if kind == ELECTRIC:
        file = folder / WORDS_FILE
        energy = TokenEnergy(load_encoder(folder, device=device, with_words=True))
        load_head(energy.head, folder)
        if file.is_file():
            energy.words = WordClasses.of_state(load_file(file)).to(device)
            check_finite(energy.words, file)
        return energy
    network_class: type[PreTrainedModel] = TwoTowerForCloze
    if kind == ELECTRA_TT:
        is_electra = load_config(folder, what="a detector").model_type == "electra"
        network_class = ElectraForPreTraining if is_electra else ModernBertForTokenClassification
    network: ClozeNetwork
    network, _ = load_network(network_class, folder, what=f"a {network_class.__name__}", device=device)
    return network


def word_classes(
    tokenizer: PreTrainedTokenizerFast, source: TextOrCounts, *, embedding: nn.Module, english: bool = True
) -> WordClasses:
    """How common words are in a file of plain text, in the training split of a corpus or by these counts, in the tokens
    of `tokenizer`, in lower case, with a capital and in capitals; and which others the CMU pronouncing dictionary of
    `english` has. To be read beside this `embedding` of tokens. A word is what the tokenizer marks as one: punctuation
    may be part of it, or cut it."""
    rows, width = cast(nn.Embedding, embedding).weight.shape
    part_V = word_parts(tokenizer, rows)
    counts = dict.fromkeys(english_words() if english else (), 0) | word_counts(source)
    words, count_N, encoder = [*counts], torch.tensor([*counts.values()]), plain_encoder(tokenizer)

    def encoded(ways: Way, some: Sequence[str]) -> list[list[int]]:
        written, space = ways
        texts = [space + written(word) for word in some]
        return [each.ids for each in encoder.encode_batch(texts, add_special_tokens=False)]

    of_some: list[list[list[int]]] = []
    keys, highest = [], []  # of all words in one casing, with a space before them or without
    for way in product((str.lower, str.capitalize, str.upper), ("", " ")):
        if (some := encoded(way, words[:: len(words) // PROBED + 1])) in of_some:
            continue  # to most tokenizers some ways to write words are the same
        of_some.append(some)
        key_K, count_K = _counted_keys(encoded(way, words), count_N, part_V)
        keys.append(key_K)
        highest.append(count_K)
    key_W, way_A = torch.cat(keys).unique(return_inverse=True)
    count_W = torch.zeros_like(key_W).scatter_reduce(0, way_A, torch.cat(highest), "amax")
    return WordClasses.of_counts(width, part_V=part_V, key_W=key_W, count_W=count_W)


def _counted_keys(rows: list[list[int]], count_N: Tensor, part_V: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the words that stand in some rows, and how often, where each row stands `count_N` times."""
    lengths_N = torch.tensor([len(row) for row in rows])
    real_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
    tokens_NT = torch.zeros(real_NT.shape, dtype=torch.long)
    tokens_NT[real_NT] = torch.tensor([*chain.from_iterable(rows)])
    part_NT = part_V[tokens_NT].masked_fill(~real_NT, STANDS_ALONE)
    key_NT, starts_NT = word_keys(tokens_NT, part_NT), real_NT & (part_NT == BEGINS)
    starts_NT[:, 0] |= part_NT[:, 0] == CONTINUES
    key_K, word_M = key_NT[starts_NT].unique(return_inverse=True)
    return key_K, torch.zeros_like(key_K).index_add(0, word_M, count_N[:, None].expand_as(key_NT)[starts_NT])


def word_parts(tokenizer: PreTrainedTokenizerFast, vocabulary_size: int) -> Tensor:
    """(V,): whether each token begins a word, continues one, or stands alone, as special tokens do, and those that a
    network has beyond its tokenizer's."""
    model = tokenizer.backend_tokenizer.model
    pieces = cast(list[str], tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    if isinstance(model, WordLevel):
        begins = [True for _ in pieces]
    elif within := getattr(model, "continuing_subword_prefix", None):
        begins = [not piece.startswith(within) for piece in pieces]
    else:
        begins = [piece.startswith(BEGINS_WORD) for piece in pieces]
    if not any(begins):
        raise ModelError("this tokenizer does not mark where words begin, so they have no classes; leave those out")
    part_V = torch.full((vocabulary_size,), STANDS_ALONE)
    part_V[: len(pieces)] = torch.where(torch.tensor(begins), BEGINS, CONTINUES)
    part_V[sorted({*tokenizer.all_special_ids, end_token_id(tokenizer)})] = STANDS_ALONE
    return part_V
