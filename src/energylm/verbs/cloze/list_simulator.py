"""Lists of any text by what one recogniser confuses: learnt from its own lists, drawn for texts that nobody has spoken.

    learnt of lists    the words of the recogniser's best hypothesis are aligned with those of each rival; a run of
                       words that differs is a place that is open, and what stands there in the rival replaces it
    open places        as many as a list has; where:   p(place) ∝ (k + κ r) / (n + κ)     k: the shares of rivals that
                       had its words otherwise, added up, n: how often they stood in a best hypothesis, r: the rate of
                       words as common in the texts
    replacement        of seen ones with probability N / (N + κ), by their counts, N in all; else a word spelled alike,
                       p(b | a) ∝ c_b^ρ · exp(−σ d(a, b))   c_b: occurrences, d: letters to change; ρ and σ by maximum
                       likelihood of the words that the lists confuse; or, as often as the lists have it in place of
                       words as common, no word
    as common          by the length of the binary number of occurrences, halved. Of a text its own document does not
                       count: a name that it has on every page is as rare to a recogniser as one that no text has
    no word            what the texts do not have: letters are replaced as the lists replace them where they write such,
                       in places and as many as above, letters in place of words
    in their place     of several replacements each is kept by importance P(left, b, right): a recogniser writes what
                       goes with the words around it. P by pairs of words of the texts; what is no word has none there,
                       and keeps its share

A rival changes as many of the open places as rivals of the lists do, drawn by the same rates. The text itself comes
first.

After the hallucinated lists of Sagae et al. 2012; pairs of words and a channel over spelling in place of their phrases
and phones.

Relations  `simulate` is the verb; `data.nbest` reads lists.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from random import Random
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from energylm.data.nbest import Hypothesis, NBest, recognisers_best
from energylm.errors import DataError, extra
from energylm.progress import say
from energylm.randomness import derive_seed

T = TypeVar("T")
Words = tuple[str, ...]
Span = tuple[int, int]  # first word, and the one after the last
LONGEST = 3  # words of a place, and of what replaces them
PRIOR = 1.0  # κ, occurrences
PAIRS_TO_FIT, FEW_PAIRS = 400, 50  # for two numbers
NEAREST = 200  # words spelled alike that are drawn from
REPLACEMENTS = 3  # of a place, which the rivals of a list share
DRAWN = 24  # of which these are chosen by the words around them
PAIR_PRIOR = 2.0  # occurrences of a word before single words tell
CLASSES = 7  # of words by how common they are
TRIES = 8  # for each rival, until it differs from all others


@dataclass
class Confusions:
    """What the lists of a recogniser say of its mistakes."""

    replaced: dict[Words, Counter[Words]] = field(default_factory=lambda: defaultdict(Counter))
    opened: dict[Words, float] = field(default_factory=lambda: defaultdict(float))  # k
    occurred: Counter[Words] = field(default_factory=Counter)  # n
    open_places: Counter[int] = field(default_factory=Counter)  # of a list
    changed_places: Counter[int] = field(default_factory=Counter)  # of a rival
    lengths: Counter[int] = field(default_factory=Counter)  # words of a best hypothesis
    counts: Mapping[str, int] = field(default_factory=dict)  # how often words stand in the texts

    @classmethod
    def of(cls, lists: Iterable[NBest], counts: Mapping[str, int] = MappingProxyType({})) -> "Confusions":
        learnt = cls(counts=counts)
        for of_list in lists:
            best = tuple(of_list.hypotheses[recognisers_best(of_list)].text.split())
            places: Counter[Span] = Counter()
            for rival in of_list.hypotheses:
                changes = differences(best, tuple(rival.text.split()))
                for span, by in changes:
                    learnt.replaced[best[slice(*span)]][by] += 1
                places.update(span for span, _ in changes)
                learnt.changed_places[len(changes)] += bool(changes)
            for (start, end), rivals in places.items():
                learnt.opened[best[start:end]] += rivals / (len(of_list.hypotheses) - 1)
            for start, end in spans(len(best)):
                learnt.occurred[best[start:end]] += 1
            learnt.open_places[len(places)] += bool(places)
            learnt.lengths[len(best)] += bool(best)
        if not +learnt.open_places:
            raise DataError("no list has hypotheses that differ in a few words, so there is nothing to imitate")
        return learnt

    @cached_property
    def rates(self) -> dict[int, float]:
        """r: how readily a word is open, by how common it is."""
        opened, occurred = [0.0] * CLASSES, [0] * CLASSES
        for words, count in self.occurred.items():
            if len(words) == 1:
                common = frequency_class(self.counts.get(words[0], 0))
                opened[common] += self.opened.get(words, 0.0)
                occurred[common] += count
        overall = sum(opened) / sum(occurred)
        return {common: (opened[common] + PRIOR * overall) / (occurred[common] + PRIOR) for common in range(CLASSES)}

    def rate(self, words: Words, count: int | None = None) -> float:
        """How readily a place with these words is open; 0 for several words, or none, that never were. `count` is how
        often the only word stands in texts, if not as often as in all."""
        if len(words) != 1:
            return self.opened[words] / self.occurred[words] if words in self.opened else 0.0
        rate = self.rates[frequency_class(self.counts.get(words[0], 0) if count is None else count)]
        return (self.opened.get(words, 0.0) + PRIOR * rate) / (self.occurred[words] + PRIOR)

    def drawn_places(self, words: Words, random: Random, counts: Sequence[int] | None = None) -> dict[Span, float]:
        """As many as a list has, without overlap, with their rates. `counts` are how often each word stands in texts,
        if not as often as in all."""
        rates: dict[Span, float] = {}
        for start, end in spans(len(words)):
            count = None if counts is None or end - start != 1 else counts[start]
            if rate := self.rate(words[start:end], count):
                rates[start, end] = rate
        chosen: dict[Span, float] = {}
        places = _drawn(self.open_places, random)
        for span in in_random_order(rates, random):
            if len(chosen) < places and not any(_overlap(span, other) for other in chosen):
                chosen[span] = rates[span]
        return chosen

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of single words of which one replaces the other, once."""
        return [
            (source[0], by[0])
            for source, all_of in self.replaced.items()
            for by in all_of
            if len(source) == len(by) == 1
        ]


def frequency_class(count: int) -> int:
    """The class of a word that occurs so often: 0, 1 to 3, 4 to 15, 16 to 63 …"""
    return min((count.bit_length() + 1) // 2, CLASSES - 1)


def differences(best: Words, rival: Words) -> list[tuple[Span, Words]]:
    """Runs of words of `best` that `rival` has otherwise, with what it has; none where a run is long."""
    with extra("rerank"):
        from rapidfuzz.distance import Levenshtein

    runs: list[tuple[int, int, int, int]] = []
    for step in Levenshtein.opcodes(best, rival):
        if step.tag == "equal":
            continue
        start, by_start = step.src_start, step.dest_start
        if runs and runs[-1][1] == start and runs[-1][3] == by_start:
            start, _, by_start, _ = runs.pop()
        runs.append((start, step.src_end, by_start, step.dest_end))
    if any(max(end - start, by_end - by_start) > LONGEST for start, end, by_start, by_end in runs):
        return []
    return [((start, end), rival[by_start:by_end]) for start, end, by_start, by_end in runs]


def spans(length: int) -> Iterator[Span]:
    """All places of a text: between words, and up to `LONGEST` of them."""
    return ((start, end) for start in range(length + 1) for end in range(start, min(length, start + LONGEST) + 1))


class SpelledAlike:
    """p(b | a) over a vocabulary, by how common b is and how far its letters are from a's."""

    def __init__(self, counts: Counter[str], *, commonness: float = 1.0, distance_cost: float = 1.0) -> None:
        self.words = sorted(counts)
        self.log_count_V = np.log([counts[word] for word in self.words])
        self.commonness, self.distance_cost = commonness, distance_cost
        self._nearest: dict[str, tuple[list[str], list[float]]] = {}

    def distances(self, words: Sequence[str]) -> NDArray[np.float64]:
        """(A, V) letters to change."""
        with extra("rerank"):
            from rapidfuzz.distance import Levenshtein
            from rapidfuzz.process import cdist

        return np.asarray(cdist(words, self.words, scorer=Levenshtein.distance, dtype=np.int32), float)

    def log_probs(self, words: Sequence[str]) -> NDArray[np.float64]:
        """(A, V) log p(b | a); no word replaces itself."""
        return self._log_probs(self.distances(words), self.commonness, self.distance_cost)

    def _log_probs(
        self, distance_AV: NDArray[np.float64], commonness: float, distance_cost: float
    ) -> NDArray[np.float64]:
        score_AV = np.where(distance_AV > 0, commonness * self.log_count_V - distance_cost * distance_AV, -np.inf)
        score_AV -= score_AV.max(1, keepdims=True)
        score_AV -= np.log(np.exp(score_AV).sum(1, keepdims=True))
        return score_AV

    def fit(self, pairs: Sequence[tuple[str, str]], *, seed: int) -> None:
        """ρ and σ under which `pairs` are likeliest (concave, two numbers), some of them chosen at random."""
        with extra("rerank"):
            from scipy.optimize import minimize

        position = {word: index for index, word in enumerate(self.words)}
        known = [(a, b) for a, b in pairs if b in position and a != b]
        if not known:
            raise DataError("no word of the lists is mistaken for one of the text's; give text of the same language")
        if len(known) < FEW_PAIRS:
            say(f"energylm: the lists confuse {len(known)} pairs of words only; longer files of lists imitate better")
        known = Random(derive_seed(seed, "pairs to fit")).sample(known, min(PAIRS_TO_FIT, len(known)))
        distance_AV = self.distances([a for a, _ in known])
        rows_A, said_A = np.arange(len(known)), np.array([position[b] for _, b in known])

        def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            log_prob_AV = self._log_probs(distance_AV, *theta)
            prob_AV = np.exp(log_prob_AV)
            commoner_A = self.log_count_V[said_A] - prob_AV @ self.log_count_V
            nearer_A = (prob_AV * distance_AV).sum(1) - distance_AV[rows_A, said_A]
            return -log_prob_AV[rows_A, said_A].mean(), -np.array([commoner_A.mean(), nearer_A.mean()])

        found = minimize(loss, np.array([self.commonness, self.distance_cost]), jac=True, method="L-BFGS-B")
        self.commonness, self.distance_cost = map(float, found.x)
        self._nearest.clear()

    def draw(self, word: str, random: Random) -> str:
        """One of the likeliest `NEAREST`."""
        if word not in self._nearest:
            [log_prob_V] = self.log_probs([word])
            likeliest = np.argpartition(-log_prob_V, min(NEAREST, len(log_prob_V) - 1))[:NEAREST]
            upto = np.exp(log_prob_V[likeliest]).cumsum().tolist()
            self._nearest[word] = [self.words[index] for index in likeliest], upto
        candidates, upto = self._nearest[word]
        return random.choices(candidates, cum_weights=upto)[0]


class Neighbours:
    """P of words by the one before each: (c_ab + κ p_b) / (c_a + κ), p_b ∝ c_b + ½; texts have an empty word around."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.single: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        for sentence in sentences:
            words = ["", *sentence.split(), ""]
            self.single.update(words)
            self.pairs.update(pairwise(words))
        self.total = self.single.total() + 0.5 * len(self.single)

    def prob(self, words: Iterable[str]) -> float:
        """Of all but the first."""
        value = 1.0
        for before, word in pairwise(words):
            alone = (self.single[word] + 0.5) / self.total
            value *= (self.pairs[before, word] + PAIR_PRIOR * alone) / (self.single[before] + PAIR_PRIOR)
        return value


@dataclass(frozen=True)
class Misspellings:
    """What a recogniser writes that is no word: letters of a word replaced as it replaces them."""

    share: float  # of what it writes in place of words
    shares: Mapping[int, float]  # of words by how common they are
    known: AbstractSet[str]
    letters: Confusions | None  # of those pairs whose second is no word, a letter for a word; None: there is no pair

    @classmethod
    def of(cls, confusions: Confusions, *, known: AbstractSet[str]) -> "Misspellings":
        """`known` are the words; those of the lists are as common as `confusions` says."""
        wrote: Counter[int] = Counter()
        no_words: Counter[int] = Counter()
        for source, all_of in confusions.replaced.items():
            for by, count in all_of.items():
                if len(source) == len(by) == 1:
                    common = frequency_class(confusions.counts.get(source[0], 0))
                    wrote[common] += count
                    no_words[common] += count * (by[0] not in known)
        misspelled = [(a, b) for a, b in confusions.pairs if b not in known]
        if not any(differences(tuple(a), tuple(b)) for a, b in misspelled):
            return cls(0.0, dict.fromkeys(range(CLASSES), 0.0), known, None)
        spelled = [[Hypothesis(" ".join(a), 1.0), Hypothesis(" ".join(b), 0.0)] for a, b in misspelled]
        letters = Confusions.of(NBest("", None, tuple(pair)) for pair in spelled)
        share = no_words.total() / wrote.total()
        shares = {common: (no_words[common] + PRIOR * share) / (wrote[common] + PRIOR) for common in range(CLASSES)}
        return cls(share, shares, known, letters)

    def draw(self, word: str, random: Random) -> str:
        """The word itself where its letters lead to other words alone."""
        assert self.letters is not None  # the share is 0 then
        for _ in range(TRIES):
            spelled = list(word)
            for start, end in sorted(self.letters.drawn_places(tuple(word), random), reverse=True):
                if seen := self.letters.replaced.get(tuple(word[start:end])):
                    by: Words = _drawn(seen, random)
                    spelled[start:end] = by
            misspelled = "".join(spelled)
            if misspelled not in ("", word) and misspelled not in self.known:
                return misspelled
        return word


@dataclass(frozen=True)
class ListSimulator:
    """Lists of any text by what one recogniser confuses."""

    confusions: Confusions
    spelled_alike: SpelledAlike
    neighbours: Neighbours
    misspellings: Misspellings
    drawn: int = DRAWN

    @classmethod
    def fitted(cls, lists: Sequence[NBest], sentences: Sequence[str], *, seed: int) -> "ListSimulator":
        """Words are those of the sentences; whatever else the lists have is misspelled."""
        counts = Counter(word for sentence in sentences for word in sentence.split())
        confusions, alike = Confusions.of(lists, counts), SpelledAlike(counts)
        alike.fit(confusions.pairs, seed=seed)
        misspellings = Misspellings.of(confusions, known=set(alike.words))
        return cls(confusions, alike, Neighbours(sentences), misspellings)

    def simulate(
        self,
        text: str,
        *,
        hypotheses: int,
        random: Random,
        utterance: str,
        own: Mapping[str, int] = MappingProxyType({}),
    ) -> NBest:
        """The text and its rivals, all different; fewer than `hypotheses` where no more were found. `own` are the
        counts of the document that it stands in."""
        words = tuple(text.split())
        counts = [self.confusions.counts.get(word, 0) - own.get(word, 0) for word in words]
        rates = self.confusions.drawn_places(words, random, counts)
        choices = {span: self._replacements(words, span, counts, random) for span in rates}
        texts = dict.fromkeys([text])
        for _ in range(TRIES * (hypotheses - 1)):
            if len(texts) == hypotheses or not choices:
                break
            count = min(_drawn(self.confusions.changed_places, random), len(choices))
            rival = list(words)
            for start, end in sorted(in_random_order(rates, random)[:count], reverse=True):
                rival[start:end] = random.choice(choices[start, end])
            if rival:
                texts[" ".join(rival)] = None
        return NBest(utterance, text, tuple(Hypothesis(each, 0.0) for each in texts))

    def _replacements(self, words: Words, span: Span, counts: Sequence[int], random: Random) -> list[Words]:
        """Drawn by what the lists confuse, resampled by the words around."""
        left, right = ("", *words)[span[0]], (*words, "")[span[1]]
        share = self.misspellings.shares[frequency_class(sum(counts[slice(*span)]))]  # asked for of single words
        drawn = [self._replacement(words[slice(*span)], share, random) for _ in range(self.drawn)]
        weights = [self.neighbours.prob((left, *by, right)) for by in drawn]
        have_neighbours = [all(word in self.neighbours.single for word in by) for by in drawn]
        known = [weight for weight, has in zip(weights, have_neighbours, strict=True) if has]
        kept = sum(known) / len(known) if known else 1.0
        weights = [weight if has else kept for weight, has in zip(weights, have_neighbours, strict=True)]
        return random.choices(drawn, weights, k=REPLACEMENTS)

    def _replacement(self, words: Words, share: float, random: Random) -> Words:
        seen = self.confusions.replaced.get(words, Counter())
        if len(words) != 1 or random.random() * (seen.total() + PRIOR) < seen.total():
            return _drawn(seen, random)
        if random.random() < share:
            return (self.misspellings.draw(words[0], random),)
        return (self.spelled_alike.draw(words[0], random),)


def in_random_order(rates: Mapping[Span, float], random: Random) -> list[Span]:
    """Drawn one after the other by their rates, without replacement: a race of exponential times."""
    times = {span: random.expovariate(rate) for span, rate in rates.items()}
    return sorted(times, key=times.__getitem__)


def _overlap(a: Span, b: Span) -> bool:
    return a == b or (a[0] < b[1] and b[0] < a[1])


def _drawn(counts: Counter[T], random: Random) -> T:
    return random.choices(list(counts), list(counts.values()))[0]
