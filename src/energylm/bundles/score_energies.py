"""Energies without a network of their own: a function, a scorer, and constraints that forbid what breaks them.

    function     E = ∓β f(text)                   higher, or lower, values are better
    scorer       E = −β score(text)               a (pseudo-)log-likelihood under another model, by token if asked
    pattern      E = 0 where a regular expression matches (or does not), +∞ elsewhere
    length       E = 0 for so many words or characters, +∞ elsewhere
    frequency    E = −β Σ_w log (c_w + ½) / (N + ½ (V + 1))      c_w: how often word w stands in some text of N words, V
                 of them different; half an occurrence goes to each word, and to all that is not there
    lexicon      E = β · number of words that neither some text nor the CMU pronouncing dictionary has
    recall       E = −β Σ_t log P(w_t | w_<t) / p(w_t)           P(w | w_<t) = (c_<t(w) + μ p(w)) / (t − 1 + μ), a cache
                 (Kuhn & De Mori 1990); p as of a frequency. With β below 0 it makes repeating dear

Use it     constraints with enough candidates: they choose among what the language model draws, they do not lead it
           there. Where none of the candidates is allowed, sampling stops and says so. A frequency with a λ below 0
           takes out of a reranked list what recogniser and language model both know: how common words are. A lexicon
           knows what a small network cannot: which strings of letters are words at all. Recall knows the names of
           what is talked about, from as far back as it is told, where a network reads little or nothing before.
Relations  `text_energy` builds them (`Energy.from_function` …); `network_energies` are those that own a network.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from energylm.bundles.devices import Device, DType
from energylm.bundles.model_folder import save_model
from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_text import Reading, each_alone
from energylm.bundles.text_energy import Better, Energy, Judges, Must, Options, ScoreEnergy, Unit, built
from energylm.config.cloze import AUTO, Normalise, ScorerConfig
from energylm.data.corpus import words_of
from energylm.errors import ConfigError, ModelError

SCORER_FOLDER = "scored_by"
LENGTH_TEXT = re.compile(r"\s*(\d*)\s*-\s*(\d*)\s*(words|characters)?\s*")  # 5-30 words, 5-, -30 characters


class FunctionEnergy(ScoreEnergy):
    kind = "function"

    def __init__(
        self,
        function: Callable[[list[str]], Any],
        *,
        better: Better,
        beta: float,
        judges: Judges,
        name: str,
    ) -> None:
        if not callable(function):
            raise ConfigError(f"{function!r:.40} came, expected a function of a list of texts")
        if better not in ("higher", "lower"):
            raise ConfigError(f"better {better!r} came, expected 'higher' or 'lower': which values are wanted")
        super().__init__(name=name, beta=beta, judges=judges)
        self._function, self._sign = function, 1.0 if better == "higher" else -1.0

    def scores(self, texts: list[str]) -> Tensor:
        return self._sign * torch.as_tensor(self._function(texts), dtype=torch.float64)

    def save_pretrained(self, folder: str | Path) -> None:
        raise ModelError(f"{self.name} is a function, which cannot be saved; build it again where it is needed")


class ScorerEnergy(ScoreEnergy):
    kind = "scorer"

    def __init__(self, scorer: Scorer, *, normalise: Normalise, beta: float, judges: Judges) -> None:
        super().__init__(name=f"score of {scorer.name}", beta=beta, judges=judges)
        self._scorer, self._normalise = scorer, normalise

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """scorer:MODEL; its own options (`ScorerConfig`) stand beside those of the energy"""
        own = {name: value for name, value in options.items() if name in ScorerConfig.model_fields}
        scorer = Scorer.from_pretrained(text, config=ScorerConfig.checked(own, origin=f"scorer:{text}"), device=device)
        others = {name: value for name, value in options.items() if name not in own}
        return built(Energy.from_scorer, others, scorer=scorer)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        self._scorer.to(device, dtype, batch_tokens)
        return self

    def scores(self, texts: list[str]) -> Tensor:
        filled = [text for text in texts if text.strip()]
        values = dict(zip(filled, self._scorer.score(filled, normalise=self._normalise), strict=True))
        return torch.tensor([values.get(text, -math.inf) for text in texts], dtype=torch.float64)

    def save_pretrained(self, folder: str | Path) -> None:
        model, options = self._scorer.saved_as()
        facts = self.facts() | {"normalise": self._normalise, "options": options}
        save_model(folder, kind=self.kind, facts=facts, provenance={}, parts={SCORER_FOLDER: model})

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        config = ScorerConfig(**manifest["options"])
        scorer = Scorer.from_pretrained(folder / SCORER_FOLDER, config=config, device=device)
        return cls(scorer, normalise=manifest["normalise"], beta=manifest["beta"], judges=manifest["judges"])


class PatternEnergy(ScoreEnergy):
    kind = "pattern"

    def __init__(self, pattern: str, *, must: Must, judges: Judges) -> None:
        if must not in ("match", "avoid"):
            raise ConfigError(f"must {must!r} came, expected 'match' or 'avoid'")
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"the pattern {pattern!r} is no regular expression ({error}); mend it") from None
        super().__init__(name=f"{must} {pattern!r}", beta=1.0, judges=judges)
        self._must: Must = must

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """pattern:REGULAR EXPRESSION"""
        return built(Energy.from_pattern, options, pattern=text)

    def scores(self, texts: list[str]) -> Tensor:
        is_match_B = torch.tensor([self._pattern.search(text) is not None for text in texts])
        return torch.where(is_match_B == (self._must == "match"), 0.0, -math.inf)

    def facts(self) -> dict[str, Any]:
        return {"pattern": self._pattern.pattern, "must": self._must, "judges": self.judges}


class LengthEnergy(ScoreEnergy):
    kind = "length"

    def __init__(self, minimum: int, maximum: int | None, *, unit: Unit, judges: Judges) -> None:
        if unit not in ("words", "characters"):
            raise ConfigError(f"unit {unit!r} came, expected 'words' or 'characters'")
        if maximum is not None and maximum < minimum:
            raise ConfigError(f"no text has at least {minimum} and at most {maximum} {unit}; raise the maximum")
        most = "any number of" if maximum is None else maximum
        super().__init__(name=f"{minimum} to {most} {unit}", beta=1.0, judges=judges)
        self._minimum, self._maximum, self._unit = minimum, maximum, unit

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """length:5-30 words; either end may be left out"""
        match = LENGTH_TEXT.fullmatch(text)
        if match is None or not (match[1] or match[2]):
            raise ConfigError(f"length:{text} is no length; give e.g. length:5-30 words or length:-280 characters")
        maximum = int(match[2]) if match[2] else None
        unit: Unit = "characters" if match[3] == "characters" else "words"
        return built(Energy.from_length, options, minimum=int(match[1] or 0), maximum=maximum, unit=unit)

    def scores(self, texts: list[str]) -> Tensor:
        lengths = [len(text.split()) if self._unit == "words" else len(text) for text in texts]
        highest = math.inf if self._maximum is None else self._maximum
        return torch.tensor([0.0 if self._minimum <= length <= highest else -math.inf for length in lengths])

    def facts(self) -> dict[str, Any]:
        return {"minimum": self._minimum, "maximum": self._maximum, "unit": self._unit, "judges": self.judges}


class FrequencyEnergy(ScoreEnergy):
    kind = "frequency"

    def __init__(self, counts: Mapping[str, int], *, beta: float, judges: Judges, name: str = "frequency") -> None:
        if not counts or min(counts.values()) < 1:
            raise ConfigError("frequencies are of words that occur, each once at least; give their counts, or a text")
        super().__init__(name=name, beta=beta, judges=judges)
        self._counts = Counter(counts)
        self._total = self._counts.total() + (len(counts) + 1) / 2

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """frequency:FILE, of plain text, or frequency:CORPUS"""
        return built(Energy.from_frequencies, options, source=text)

    def scores(self, texts: list[str]) -> Tensor:
        rows = [[math.log(self._prob(word)) for word in words_of(text)] for text in texts]
        return torch.tensor([math.fsum(row) for row in rows], dtype=torch.float64)

    def _prob(self, word: str) -> float:
        return (self._counts[word] + 0.5) / self._total

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "counts": dict(self._counts)}


class RecallEnergy(FrequencyEnergy):
    kind = "recall"

    def __init__(
        self, counts: Mapping[str, int], *, strength: float, beta: float, judges: Judges, name: str = "recall"
    ) -> None:
        if not strength > 0:
            raise ConfigError(f"strength {strength} came, expected a number of words above 0 that p counts for")
        super().__init__(counts, beta=beta, judges=judges, name=name)
        self._strength = strength

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """recall:FILE, of plain text, or recall:CORPUS"""
        return built(Energy.from_recall, options, source=text)

    def scores(self, texts: list[str]) -> Tensor:
        return torch.tensor([math.fsum(self.word_scores(text)) for text in texts], dtype=torch.float64)

    def word_scores(self, text: str) -> list[float]:
        """Of what stands between white space, given all before it."""
        heard: Counter[str] = Counter()
        count, scores = 0, []
        for written in text.split():
            ratios = []
            for word in words_of(written):
                recalled = heard[word] / self._prob(word)
                ratios.append(math.log((recalled + self._strength) / (count + self._strength)))
                heard[word] += 1
                count += 1
            scores.append(math.fsum(ratios))
        return scores

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "strength": self._strength}


class LexiconEnergy(ScoreEnergy):
    kind = "lexicon"

    def __init__(self, words: Collection[str], *, beta: float, judges: Judges, name: str = "lexicon") -> None:
        if not words:
            raise ConfigError("a lexicon without words came, in which nothing is one; give its words, or a text")
        super().__init__(name=name, beta=beta, judges=judges)
        self._words = frozenset(words)

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> Energy:
        """lexicon:FILE, of plain text, or lexicon:CORPUS"""
        return built(Energy.from_lexicon, options, source=text)

    def scores(self, texts: list[str]) -> Tensor:
        return torch.tensor([-float(sum(not self._has(word) for word in words_of(text))) for text in texts])

    def _has(self, word: str) -> bool:
        return word in self._words or word.removesuffix("'s") in self._words

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "words": sorted(self._words)}


class EnergyScorer:
    """The other way round: an energy as a `bundles.scorer.TokenScorer`, whose score of a text is −E. A text is read as
    a whole, as if it were one token, so that what was heard before cannot be left out of the count and is not read,
    unless the energy has a score for each word."""

    method = AUTO
    reads = "both"
    max_tokens: int | None = None

    def __init__(self, energy: Energy) -> None:
        self.energy, self.name = energy, energy.name
        self.scores_tokens = isinstance(energy, RecallEnergy)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, config: ScorerConfig, device: Device = None) -> Self:
        """Of whatever `Energy.load` takes."""
        return cls(Energy.load(source, device=device))

    @property
    def convention(self) -> str:
        return f"minus the energy of {self.name}"

    def read(self, text: str) -> Reading:
        pieces = tuple(text.split()) if self.scores_tokens else (text,) * bool(text.strip())
        indices = tuple(range(len(pieces)))
        return Reading(indices, pieces, indices, indices)

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]:
        texts = [" ".join(reading.pieces) for reading in readings]
        if isinstance(self.energy, RecallEnergy):
            return [[self.energy.beta * score for score in self.energy.word_scores(text)] for text in texts]
        return [[-energy] for energy in self.energy.text_energies(texts).tolist()]

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        return each_alone(self.token_scores, lists)
