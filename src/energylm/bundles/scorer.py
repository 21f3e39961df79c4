"""One number for a text, from any model that has one: `energylm.Scorer`. Higher = better.

causal language models              log-likelihood log P(x) = Σ_t log P(x_t | x_<t), one pass
masked language models              pseudo-log-likelihood Σ_t log p(x_t | x_∖t), a pass for each token
Electric, two-tower, ELECTRA-TT     pseudo-log-likelihood, one pass (Electric's, −E, is unnormalised)

The numbers do not depend on what else is scored in the same call (up to rounding). A text longer than the model is read
in windows that overlap by half, each token scored once, and this is said; or refused, on request.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from energylm.bundles.cloze_model import ELECTRIC, ClozeModel
from energylm.bundles.devices import Device, DType, move, usable_device
from energylm.bundles.known_models import is_energy_source, locate_energy
from energylm.bundles.language_model import KIND as CAUSAL
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.masked_language_model import KIND as MASKED
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.model_folder import MANIFEST, Saved, load_config
from energylm.bundles.scorer_text import (
    Reading,
    TextScore,
    Window,
    each_alone,
    read_text,
    recased,
    text_score,
    windows,
)
from energylm.bundles.text_codec import text_list
from energylm.config.cloze import (
    AUTO,
    FLOAT32,
    INT8,
    LOG_LIKELIHOOD,
    PSEUDO_LOG_LIKELIHOOD,
    TOKEN,
    WINDOWS,
    WITHIN_WORD,
    Casing,
    Masking,
    Method,
    Normalise,
    ScorerConfig,
)
from energylm.data.tokenizer import plain_encoder
from energylm.energies.electric import TokenEnergy
from energylm.errors import ConfigError, DataError, ModelError
from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods
from energylm.files import read_json
from energylm.models.prefix_tree import tree_log_probs, why_not_prefix_tree
from energylm.models.quantized import agreement, forget_float32, has_float32, is_quantized
from energylm.progress import say
from energylm.registry import ENERGIES, SCORERS

ENERGY = "energy"  # whatever `Energy.load` takes: its score is −E
NAMED_LONG_TEXTS = 5  # in one message
SAMPLED_TEXTS, SAMPLED_TOKENS = 64, 128  # on which int8 is compared with float32: so many texts, of each so much


def kind_of(path_or_name: str | Path) -> str:
    """What kind of scorer a model can be, without loading it: a name in `registry.SCORERS`."""
    if (named := SCORERS.named(path_or_name)) is not None:
        return named[0]
    location = locate_energy(path_or_name)
    if is_energy_source(location):
        return ENERGY
    if isinstance(location, Path) and location.is_file():
        return CAUSAL  # a GGUF file
    if isinstance(location, Path) and (location / MANIFEST).is_file():
        kind = str(read_json(location / MANIFEST)["kind"])
        if kind in ENERGIES.names():
            return ENERGY
        if kind not in SCORERS.names():
            raise ModelError(
                f"{location} holds a model of kind {kind!r}, which has no score for a text; give one of "
                f"{', '.join(SCORERS.names())}"
            )
        return kind
    return _kind_of_others(location)


def check_method(kind: str, config: ScorerConfig, *, name: str) -> None:
    """Whether a model of `kind` has the score that is asked for."""
    method: Method = SCORERS.get(kind).method
    if config.method not in (AUTO, method):
        what = "causal language model" if kind == CAUSAL else f"model of kind {kind!r}"
        cure = "causal language model" if config.method == LOG_LIKELIHOOD else "masked, Electric or two-tower model"
        raise ModelError(
            f"{name} is a {what}: it has a {method}, no {config.method}; leave the method out, or give a {cure}"
        )
    if config.masking != TOKEN and kind != MASKED:
        raise ConfigError(
            f"masking {config.masking!r} is for masked language models; {name} is a {kind} and hides none"
        )
    if config.eos and kind != CAUSAL:
        raise ConfigError(f"eos is for causal language models; {name} is a {kind} and scores no end-of-sequence token")
    if config.dtype not in (None, FLOAT32, INT8) and kind not in (CAUSAL, ELECTRIC):
        raise ConfigError(
            f"dtype {config.dtype} is for causal language models and Electric; {name} is a {kind}, read in float32"
        )


def _kind_of_others(location: Path | str) -> str:
    """Folders that transformers wrote, and hub names: by the architecture that their config names."""
    names = set(load_config(location, what="a language model").architectures or ())
    if names & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()):
        return MASKED
    if names & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return CAUSAL
    raise ModelError(
        f"{str(location)!r} is {', '.join(sorted(names)) or 'of no named architecture'}: neither a causal nor a masked "
        "language model, so it has no score for a text; give one with its output layer"
    )


class _TokenScorerBase:
    """What our three kinds share: texts are read by the model's tokenizer, and members of lists one by one."""

    method: Method = PSEUDO_LOG_LIKELIHOOD
    reads: str = "both"

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerFast) -> None:
        self.name, self._encoder = name, plain_encoder(tokenizer)

    def read(self, text: str) -> Reading:
        return read_text(self._encoder, text)

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]:
        if not readings:
            return []
        lengths_B = torch.tensor([len(reading) for reading in readings])
        scores_BT = self._scores(padded([reading.ids for reading in readings]), lengths_B, readings).cpu().double()
        return [scores_T[: len(reading)].tolist() for scores_T, reading in zip(scores_BT, readings, strict=True)]

    def _scores(self, tokens_BT: Tensor, lengths_B: Tensor, readings: Sequence[Reading]) -> Tensor:
        """(B, T) of right-padded sequences."""
        raise NotImplementedError

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        return each_alone(self.token_scores, lists)

    @property
    def networks(self) -> list[nn.Module]:
        """What moves from device to device."""
        raise NotImplementedError


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """(B, T) ids of `rows`, right-padded with 0."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


class CausalScorer(_TokenScorerBase):
    """Lists of similar texts are read over the tree of their prefixes where the network allows it, each shared prefix
    once."""

    method = LOG_LIKELIHOOD

    def __init__(self, lm: LanguageModel, *, eos: bool = False) -> None:
        super().__init__(lm.name, lm.tokenizer)
        self.lm, self.eos, self.reads = lm, eos, lm.model.direction
        if eos:
            lm.codec.ended([])  # says so where the model has no such token

    @classmethod
    def from_pretrained(cls, source: str | Path, *, config: ScorerConfig, device: torch.device | None) -> Self:
        dtype = None if config.dtype == INT8 else config.dtype  # which `Scorer` sees to
        return cls(LanguageModel.from_pretrained(source, device=device, dtype=dtype), eos=config.eos)

    @property
    def networks(self) -> list[nn.Module]:
        return [self.lm.model.network]

    @property
    def max_tokens(self) -> int | None:
        return self.lm.model.max_length  # the last token is scored, not read, which leaves room for the start token

    @property
    def convention(self) -> str:
        return f"log-likelihood, {self.lm.convention(eos=self.eos).partition(';')[0].replace('nats per token', 'nats')}"

    def read(self, text: str) -> Reading:
        reading = super().read(text)
        if not self.eos or self.lm.eos_token_id is None:
            return reading
        piece = str(self.lm.tokenizer.convert_ids_to_tokens(self.lm.eos_token_id))
        return reading.with_end(self.lm.eos_token_id, piece, at_the_end=self.lm.codec.forward)

    def _scores(self, tokens_BT: Tensor, lengths_B: Tensor, readings: Sequence[Reading]) -> Tensor:
        return self.lm.token_log_probs(tokens_BT, lengths_B)

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        """`token_scores` of lists whose members share prefixes."""
        if not self._reads_trees:
            return super().list_scores(lists)
        values = tree_log_probs(self.lm.model, [[reading.ids for reading in readings] for readings in lists])
        return [[scores_T.cpu().double().tolist() for scores_T in of_list] for of_list in values]

    @cached_property
    def _reads_trees(self) -> bool:
        reason = why_not_prefix_tree(self.lm.model)
        if reason is not None:
            say(f"energylm: {self.name} scores every hypothesis by itself, shared prefixes too (slower): {reason}")
        return reason is None


class MaskedScorer(_TokenScorerBase):
    def __init__(self, model: MaskedLanguageModel, *, masking: Masking = TOKEN) -> None:
        super().__init__(model.name, model.tokenizer)
        self.model, self.masking, self.max_tokens = model, masking, model.max_tokens

    @classmethod
    def from_pretrained(cls, source: str | Path, *, config: ScorerConfig, device: torch.device | None) -> Self:
        return cls(MaskedLanguageModel.from_pretrained(source, device=device), masking=config.masking)

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model.network]

    @property
    def convention(self) -> str:
        hidden = "each token hidden by itself"
        if self.masking == WITHIN_WORD:
            hidden = "each token hidden together with the later ones of its word"
        frame = ", read within its special tokens, which are not scored" if self.model.model.prefix else ""
        return f"pseudo-log-likelihood in nats of {self.name}'s tokens, {hidden}{frame}"

    def _scores(self, tokens_BT: Tensor, lengths_B: Tensor, readings: Sequence[Reading]) -> Tensor:
        words_BT = padded([reading.units for reading in readings]) if self.masking == WITHIN_WORD else None
        return token_pseudo_log_likelihoods(self.model, tokens_BT, lengths_B, words_BT=words_BT)


class ClozeScorer(_TokenScorerBase):
    def __init__(self, model: ClozeModel) -> None:
        super().__init__(model.name, model.tokenizer)
        self.model, self.max_tokens = model, model.max_tokens

    @classmethod
    def from_pretrained(cls, source: str | Path, *, config: ScorerConfig, device: torch.device | None) -> Self:
        model = ClozeModel.from_pretrained(source, device=device)
        if isinstance(model.main, TokenEnergy) and config.dtype != INT8:
            move(model.main.encoder, None, config.dtype)  # energies, differences of nats, are added up in float32
        return cls(model)

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model.main, *([] if self.model.noise is None else [self.model.noise])]

    @property
    def convention(self) -> str:
        return f"pseudo-log-likelihood in nats of {self.name}'s tokens, one pass ({self.model.kind})"

    def _scores(self, tokens_BT: Tensor, lengths_B: Tensor, readings: Sequence[Reading]) -> Tensor:
        return self.model.token_scores(tokens_BT, lengths_B)


class TokenScorer(Protocol):
    """What the kinds of scorers have in common."""

    name: str
    method: Method
    reads: str  # "left-to-right", "right-to-left" or "both": what a token's score looks at

    @property
    def max_tokens(self) -> int | None: ...

    @property
    def convention(self) -> str: ...

    def read(self, text: str) -> Reading: ...

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]: ...

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        """`token_scores` of lists whose members are much alike."""
        ...


class Scorer:
    """`from_pretrained` finds what kind a model is (`registry.SCORERS`, to which other packages and scripts add); a
    `TokenScorer` of your own can be given instead."""

    def __init__(self, reader: TokenScorer, *, casing: Casing = "keep", refuses_long_texts: bool = False) -> None:
        self.reader, self.casing, self.refuses_long_texts = reader, casing, refuses_long_texts

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        config: ScorerConfig | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> Self:
        """The scorer of a model folder, a GGUF file, a known model or a hub name; `config` says how it scores, and
        where and in which precision, unless `device` and `dtype` do."""
        config = config or ScorerConfig()
        if dtype is not None:
            config = ScorerConfig.checked(config.overlaid({"dtype": str(dtype).removeprefix("torch.")}))
        kind, named = kind_of(path_or_name), SCORERS.named(path_or_name)
        check_method(kind, config, name=str(path_or_name))
        device = usable_device(device or config.device)
        source = path_or_name if named is None else named[1]
        reader: TokenScorer = SCORERS.get(kind).from_pretrained(source, config=config, device=device)
        scorer = cls(reader, casing=config.casing, refuses_long_texts=config.long_texts != WINDOWS)
        if config.dtype == INT8 and not getattr(reader, "networks", ()):
            raise ConfigError(f"dtype int8 is for networks, and {path_or_name} shows none; leave it out")
        return scorer.to(dtype=INT8 if config.dtype == INT8 else None, batch_tokens=config.batch_tokens)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """The same scorer, its networks moved; a reader of your own stays where it is."""
        for network in self._networks:
            move(network, device, dtype, batch_tokens)
        return self

    @property
    def _networks(self) -> Sequence[nn.Module]:
        networks: Sequence[nn.Module] = getattr(self.reader, "networks", ())
        return networks

    def saved_as(self) -> tuple[Saved, dict[str, Any]]:
        """The model that it reads with, and the options (`ScorerConfig`) with which `from_pretrained` makes the same
        scorer of that model's folder."""
        readers = [getattr(self.reader, name, None) for name in ("lm", "model", "energy")]
        model = next((reader for reader in readers if hasattr(reader, "save_pretrained")), None)
        if model is None or any(map(is_quantized, self._networks)):
            why = "its layers are rounded to int8" if model else "it has no model of ours"
            raise ModelError(f"{self.name} cannot be saved as a scorer, since {why}; build it again where it is needed")
        options = {name: getattr(self.reader, name) for name in ("eos", "masking") if hasattr(self.reader, name)}
        long_texts = {"long_texts": "refuse" if self.refuses_long_texts else WINDOWS}
        return model, options | {"casing": self.casing} | long_texts

    @property
    def name(self) -> str:
        return self.reader.name

    @property
    def convention(self) -> str:
        """What a score counts, in words."""
        casing = "" if self.casing == "keep" else f", texts in {self.casing} case"
        precision = ", linear layers in int8" if any(map(is_quantized, self._networks)) else ""
        return f"{self.reader.convention}{casing}{precision}; higher = better"

    def score(self, texts: Sequence[str], *, normalise: Normalise = "none") -> list[float]:
        """A number for each text: its tokens' scores added up, divided by its tokens or words if asked."""
        return [score.normalised(normalise) for score in self.token_scores(texts)]

    def token_scores(self, texts: Sequence[str], *, names: Sequence[str] | None = None) -> list[TextScore]:
        """Scores by token and word. `names` are what messages call the texts, "text 1", "text 2" … by default."""
        return [score for (score,) in self.list_scores([[text] for text in text_list(texts)], names=names, alike=False)]

    def list_scores(
        self, lists: Sequence[Sequence[str]], *, names: Sequence[str] | None = None, alike: bool = True
    ) -> list[list[TextScore]]:
        """Scores of lists of texts. The members of a list that are `alike` (hypotheses of one utterance) may be read
        together, which is faster for causal models and gives the same numbers."""
        lists = [text_list(texts) for texts in lists]
        names = names or [f"text {number}" for number in range(1, len(lists) + 1)]
        readings = [[self.reader.read(recased(text, self.casing)) for text in texts] for texts in lists]
        self._check(readings, names)
        if has_float32(self._networks):
            self._tell_cost_of_int8(readings)
        limit, reads = self.reader.max_tokens, self.reader.reads
        cuts = [[windows(len(reading), limit, reads=reads) for reading in of_list] for of_list in readings]
        pieces = [
            [reading.cut(span.start, span.stop) for reading, spans in zip(*both, strict=True) for span in spans]
            for both in zip(readings, cuts, strict=True)
        ]
        values = self.reader.list_scores(pieces) if alike else each_alone(self.reader.token_scores, pieces)
        for name, of_list in zip(names, values, strict=True):
            if any(math.isnan(score) for scores in of_list for score in scores):
                raise ModelError(f"{self.name} gives NaN for {name}; its weights are damaged or overflow: give another")
        return [_joined(*of_list) for of_list in zip(lists, readings, cuts, values, strict=True)]

    def _tell_cost_of_int8(self, lists: Sequence[Sequence[Reading]]) -> None:
        """Once, on the first texts that come. Members of lists compete with each other alone, and differ by far less
        than texts of different lists: their scores count from the mean of their list."""
        some = [(row, reading) for row, of_list in enumerate(lists) for reading in of_list][:SAMPLED_TEXTS]
        shown = [reading.cut(0, min(len(reading), SAMPLED_TOKENS)) for _, reading in some]
        row_N = np.array([row for row, _ in some], dtype=np.int64)
        rivals = any(len(of_list) > 1 for of_list in lists)

        def scores() -> list[float]:
            score_N = np.array([math.fsum(scores_T) for scores_T in self.reader.token_scores(shown)])
            mean_R = np.bincount(row_N, score_N) / np.maximum(np.bincount(row_N), 1)
            compared: list[float] = (score_N - mean_R[row_N] if rivals else score_N).tolist()
            return compared

        if len(some) > 1:
            within = ", within their lists" if rivals else ""
            say(f"energylm: {self.name}: {agreement(self._networks, scores).summary()}{within}")
        forget_float32(self._networks)

    def _check(self, readings: Sequence[Sequence[Reading]], names: Sequence[str]) -> None:
        limit, long = self.reader.max_tokens, {}
        for name, of_list in zip(names, readings, strict=True):
            longest = max((len(reading) for reading in of_list), default=0)
            if any(reading.is_empty for reading in of_list):
                raise DataError(f"{name} is empty, so it has no score; leave it out")
            if limit is not None and longest > limit:
                long[name] = longest
        if not long:
            return
        named = [f"{name} ({tokens:,} tokens)" for name, tokens in long.items()][:NAMED_LONG_TEXTS]
        more = f" and {len(long) - len(named):,} more" if len(long) > len(named) else ""
        which = f"{', '.join(named)}{more}: longer than the {limit:,} tokens that {self.name} holds"
        if self.refuses_long_texts:
            raise DataError(f"{which}; shorten them, or let them be read in windows (long_texts=windows)")
        say(f"energylm: {which}; read in windows that overlap by half, every token scored once")


def _joined(
    texts: Sequence[str], readings: Sequence[Reading], cuts: Sequence[list[Window]], values: Sequence[list[float]]
) -> list[TextScore]:
    """The scores of whole texts from those of their windows."""
    scores, taken = [], 0
    for text, reading, spans in zip(texts, readings, cuts, strict=True):
        parts = values[taken : taken + len(spans)]
        taken += len(spans)
        whole = [
            score
            for span, part in zip(spans, parts, strict=True)
            for score in part[span.first - span.start : span.last - span.start]
        ]
        scores.append(text_score(text, reading, whole, read_in=len(spans)))
    return scores
