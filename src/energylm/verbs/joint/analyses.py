"""What is looked at in text that a joint model writes (deng2020 §4.3, app. A.1): the steps `sampled-text` and
`repetitions` of recipes, which the command line does not offer.

**Sampled text.** One continuation of each context by each: real, drawn from the base, drawn by joint sampling
(algorithm 1), untruncated or, for both, truncated; both models judge what was drawn by their whole distributions.

    unique_n = 100 · |{n-grams that occur}| / (number of n-grams)        percent        Deng et al. 2020, fig. 2 right
    Δ = | mean log P(x), x ~ P  −  mean log P(x), x real |               nats           Deng et al. 2020, fig. 3

The more text, the fewer of its n-grams are new, so bodies of text are comparable at equal token counts only: all are
cut to the shortest of them, text by text in turn, and an n-gram never crosses from one text to the next.

If P were the data's distribution both sides of Δ would have the same law, so Δ = 0 is necessary (not sufficient). The
base model judges its own samples; the joint model, log P(x | c) = log P_LM(x | c) − E(c, x) − log Z(c), judges what
joint sampling drew. Its log Z must be estimated for each context, without which contexts would be shifted against each
other, and from draws of its own: that of the pool which the sample was kept of would rise and fall with its weight.

**Repetitions.** Where the base repeats a word, the text before that word is the context of a table
(`ResidualModel.next_token_table`): the likeliest next tokens of base and joint model side by side, with the remaining
horizon of the window, as in training. Table 3 of the paper picks repetitions by hand; here the rule is written down.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from energylm.bundles.known_models import locate
from energylm.config.sampling import JointSampling, Truncation
from energylm.config.vocabulary import WINDOW_PREFIX_TOKENS, WINDOW_TOKENS, N
from energylm.data.windows import SourceWindows
from energylm.errors import DataError, extra
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.randomness import derive_seed
from energylm.records import Record
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.bundles.language_model import LanguageModel, SampledTexts
    from energylm.bundles.next_tokens import NextToken
    from energylm.bundles.residual_model import ResidualModel
    from energylm.jobs.costs import Counted, Surroundings

ORDERS = (2, 3, 4)  # the paper's
POINTS = 200  # of a drawn curve


class JointAnalysis(Verb):
    """A joint model and the windows of a corpus whose beginnings it continues."""

    version = 2  # since 2, models that continue windows within documents write no special tokens

    language_model: str = Field(description="The base model: a folder or a name.")
    energy: str = Field(description="An energy folder (`energylm energy train`).")
    source: str = Field(description="A corpus folder.")
    split: Literal["train", "valid", "test"] = Field("test", description="Split of the corpus.")
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of a window, which lies within one document.")
    prefix_tokens: int = Field(WINDOW_PREFIX_TOKENS, ge=1, description="Tokens of a window that are given.")
    contexts: int = Field(100, ge=2, description="Windows, chosen at random.")
    n: int = Field(N, ge=2, description="Samples of the base for each text of the joint model (the paper: 10,000).")
    seed: int = Field(0, ge=0, description="Of the windows and all samples.")
    truncation: Truncation = Field(
        Truncation(),
        exclude_if=lambda value: value.is_identity,
        description="How the base draws, for itself and for the joint model; the paper's text to read has top-k 10.",
    )

    @model_validator(mode="after")
    def _leaves_something_to_write(self) -> Self:
        if self.prefix_tokens >= self.length:
            raise ValueError(
                f"prefix_tokens {self.prefix_tokens} leaves nothing of length {self.length} to write; lower it"
            )
        return self

    @property
    def windows(self) -> SourceWindows:
        """The same that `energylm perplexity` measures with this seed."""
        return SourceWindows(self.source, self.length, self.contexts, self.seed, self.split)

    @property
    def new_tokens(self) -> int:
        return self.length - self.prefix_tokens

    def check(self, job: Job = DEFAULT_JOB) -> str:
        for model in (self.language_model, self.energy):
            locate(model)
        return (
            f"would continue {self.prefix_tokens} tokens of {self.windows.check()} by {self.language_model}, and by "
            f"its joint model with {self.energy} from {self.n:,} samples each"
        )


@dataclass(frozen=True)
class JointWindows:
    """Windows of a corpus and the joint model that continues their beginnings."""

    verb: JointAnalysis
    lm: "LanguageModel"
    joint: "ResidualModel"
    windows: list[list[int]]

    @classmethod
    def load(cls, verb: JointAnalysis) -> "JointWindows":
        from energylm.bundles.energy_model import EnergyModel
        from energylm.bundles.language_model import LanguageModel
        from energylm.bundles.residual_model import ResidualModel

        lm = LanguageModel.from_pretrained(verb.language_model)
        windows = verb.windows.load(lm.tokenizer, model=verb.language_model)
        lm = lm.without_special_tokens()  # the windows lie within documents
        return cls(verb, lm, ResidualModel(lm, EnergyModel.from_pretrained(verb.energy)), windows)

    @property
    def contexts(self) -> list[list[int]]:
        return [window[: self.verb.prefix_tokens] for window in self.windows]

    @property
    def continuations(self) -> list[list[int]]:
        """The real ones."""
        return [window[self.verb.prefix_tokens :] for window in self.windows]

    @cached_property
    def base_samples(self) -> "SampledTexts":
        """One continuation of each context by the base model."""
        verb, seed = self.verb, derive_seed(self.verb.seed, "base samples")
        drawn_by = verb.truncation.model_dump()
        return self.lm.sample(
            self.contexts, n=1, max_new_tokens=verb.new_tokens, stop_at_eos=False, seed=seed, **drawn_by
        )


@dataclass(frozen=True, repr=False)
class UniqueNgrams(Record):
    """Percentages of unique n-grams in each body of text, for each order."""

    orders: tuple[int, ...]
    data: tuple[float, ...]
    base: tuple[float, ...]
    joint: tuple[float, ...]

    computed = ("percent", "joint_minus_base", "joint_minus_data")

    @property
    def percent(self) -> dict[str, dict[int, float]]:
        """By body of text and order."""
        bodies = {"data": self.data, "base": self.base, "joint": self.joint}
        return {name: dict(zip(self.orders, values, strict=True)) for name, values in bodies.items()}

    @property
    def joint_minus_base(self) -> list[float]:
        return [joint - base for joint, base in zip(self.joint, self.base, strict=True)]

    @property
    def joint_minus_data(self) -> list[float]:
        return [joint - data for joint, data in zip(self.joint, self.data, strict=True)]


@dataclass(frozen=True, repr=False)
class DensityGap(Record):
    """A model's view of its own samples and of real text; log-probabilities in nats of whole continuations."""

    own_mean: float
    real_mean: float
    difference: float  # |own − real|
    standard_error: float  # of the difference, over texts, as if the two groups were independent
    own: tuple[float, ...]
    real: tuple[float, ...]

    computed = ("curves",)

    @property
    def curves(self) -> dict[str, list[float]]:
        """Kernel density estimates (Scott's rule) of both groups on one axis `x`."""
        everything = np.array([*self.own, *self.real])
        margin = 0.15 * (everything.max() - everything.min()) or 1.0
        grid = np.linspace(everything.min() - margin, everything.max() + margin, POINTS)
        return {"x": grid.tolist(), "real": _density(self.real, grid), "own": _density(self.own, grid)}


@dataclass(frozen=True, repr=False)
class SampledTextResult(Record):
    unique: UniqueNgrams
    base: DensityGap
    joint: DensityGap
    tokens: int  # of each body of text
    median_ess: float  # of the candidates of a joint sample
    convention: str
    warning: str | None  # what is known against the joint model


class SampledText(JointAnalysis):
    """Compare base and joint continuations with real ones: unique n-grams (fig. 2 right), densities (fig. 3)."""

    def run(self, job: Job = DEFAULT_JOB) -> SampledTextResult:
        loaded = JointWindows.load(self)
        contexts, seed = loaded.contexts, self.seed
        options = JointSampling(n=self.n, max_new_tokens=self.new_tokens, truncation=self.truncation, stop_at_eos=False)
        drawn = loaded.joint.sample_batch(contexts, options, seed=derive_seed(seed, "joint samples"))
        pools = [sample.pools[-1] for sample in drawn]
        own_weight = [float(pool.log_prob[pool.kept[0]] - pool.energy[pool.kept[0]]) for pool in pools]
        real_weight = loaded.joint.log_weights(loaded.windows, prefix_tokens=self.prefix_tokens).tolist()
        estimate = loaded.joint.log_partition(
            contexts, n=self.n, max_new_tokens=self.new_tokens, seed=derive_seed(seed, "log partition")
        )
        log_z = ((estimate.lower + estimate.upper) / 2).tolist()
        base = loaded.base_samples.continuations
        texts = {
            "data": loaded.continuations,
            "base": base.tokens[:, 0].tolist(),
            "joint": [sample.tokens[0] for sample in drawn],
        }
        return SampledTextResult(
            unique=UniqueNgrams(ORDERS, **unique_ngrams(texts)),
            base=density_gap(
                base.log_prob[:, 0].tolist(),
                [score.log_prob for score in loaded.lm.score(loaded.windows, prefix_tokens=self.prefix_tokens)],
            ),
            joint=density_gap(
                [weight - z for weight, z in zip(own_weight, log_z, strict=True)],
                [weight - z for weight, z in zip(real_weight, log_z, strict=True)],
            ),
            tokens=sum(map(len, loaded.continuations)),
            median_ess=statistics.median(pool.ess for pool in pools),
            convention=f"{len(contexts)} contexts of {self.prefix_tokens} tokens, {self.new_tokens} new tokens each, "
            f"{_drawn_by(self.truncation)}; joint samples kept of {self.n:,}; log Z midway between the estimates of "
            "theorem 2 from as many others; log-probabilities in nats",
            warning=loaded.joint.caution(self.length),
        )

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.joint.costs import count_sampled_text

        return count_sampled_text(self, around)


def _drawn_by(truncation: Truncation) -> str:
    """In words."""
    if truncation.is_identity:
        return "not truncated"
    narrowed = {"top-k": truncation.top_k, "top-p": truncation.top_p}
    parts = [f"{name} {value:g}" for name, value in narrowed.items() if value is not None]
    parts += [f"temperature {truncation.temperature:g}"] if truncation.temperature != 1.0 else []
    return f"drawn with {', '.join(parts)}"


def unique_ngrams(
    bodies: Mapping[str, Sequence[Sequence[int]]], *, orders: Sequence[int] = ORDERS
) -> dict[str, tuple[float, ...]]:
    """name -> percentage for each order, after cutting all bodies to equal token counts."""
    tokens = min(sum(map(len, texts)) for texts in bodies.values())
    return {
        name: tuple(unique_percentage(first_tokens(texts, tokens), order) for order in orders)
        for name, texts in bodies.items()
    }


def unique_percentage(texts: Sequence[Sequence[int]], order: int) -> float:
    """The percentage of different n-grams among all n-grams of `texts` (token ids)."""
    grams = [tuple(text[start : start + order]) for text in texts for start in range(len(text) - order + 1)]
    if not grams:
        raise DataError(f"no text has {order} tokens, so there are no {order}-grams to count; give longer texts")
    return 100 * len(set(grams)) / len(grams)


def first_tokens(texts: Sequence[Sequence[int]], tokens: int) -> list[Sequence[int]]:
    """The first texts, the last of them cut, so that they have `tokens` tokens together."""
    kept, left = [], tokens
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
        if left == 0:
            break
    return kept


def density_gap(own_log_probs: Sequence[float], real_log_probs: Sequence[float]) -> DensityGap:
    own, real = np.asarray(own_log_probs, dtype=np.float64), np.asarray(real_log_probs, dtype=np.float64)
    if min(own.size, real.size) < 2:
        raise DataError(f"a density needs at least 2 texts a side, came {own.size} and {real.size}; give more contexts")
    return DensityGap(
        own_mean=float(own.mean()),
        real_mean=float(real.mean()),
        difference=abs(float(own.mean() - real.mean())),
        standard_error=math.sqrt(own.var(ddof=1) / own.size + real.var(ddof=1) / real.size),
        own=tuple(own.tolist()),
        real=tuple(real.tolist()),
    )


def _density(values: Sequence[float], grid: NDArray[Any]) -> list[float]:
    if max(values) == min(values):
        raise DataError(f"all {len(values)} texts have the same log-probability, so there is no density to draw")
    with extra("train"):
        from scipy.stats import gaussian_kde

    curve: list[float] = gaussian_kde(np.array(values))(grid).tolist()
    return curve


@dataclass(frozen=True, repr=False)
class Repetition(Record):
    """What the base said again, and what both models think of it."""

    context_end: str  # the last words before it that the base wrote; nothing of the corpus
    repeated: str
    base_probability: float
    joint_probability: float  # 0 where the joint model does not keep the token


@dataclass(frozen=True, repr=False)
class RepetitionsResult(Record):
    repetitions: tuple[Repetition, ...]
    rows: tuple[dict[str, Any], ...]  # the tables of all, each row with the end of its context
    convention: str
    warning: str | None  # what is known against the joint model

    computed = ("base_mean", "joint_mean")

    @property
    def base_mean(self) -> float:
        return statistics.mean(repetition.base_probability for repetition in self.repetitions)

    @property
    def joint_mean(self) -> float:
        return statistics.mean(repetition.joint_probability for repetition in self.repetitions)


class Repetitions(JointAnalysis):
    """Tabulate next tokens where the base model has just repeated itself (app. A.1, table 3)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")
    repetitions: int = Field(3, ge=1, description="Repetitions that are looked at, the first in the samples.")
    within: int = Field(8, ge=1, description="A word repeats itself if it stood among so many tokens before.")
    letters: int = Field(4, ge=1, description="Shorter words repeat themselves in all good text; they do not count.")
    show: int = Field(5, ge=1, description="Rows of each table.")

    def run(self, job: Job = DEFAULT_JOB) -> RepetitionsResult:
        loaded = JointWindows.load(self)
        samples = loaded.base_samples.continuations.tokens[:, 0].tolist()
        texts = [[*context, *sample] for context, sample in zip(loaded.contexts, samples, strict=True)]
        repetitions: list[Repetition] = []
        rows: list[dict[str, Any]] = []
        for text, index in _first_repetitions(loaded, texts, self):
            table = loaded.joint.next_token_table(
                text[:index],
                max_new_tokens=self.length - index,
                candidates=self.candidates,
                n=self.n,
                keep=self.keep,
                stop_at_eos=False,
                seed=self.seed,
            )
            base, joint = (_probability(entries, text[index]) for entries in (table.base, table.joint))
            if base == 0.0:  # the base itself does not keep the token: nothing to compare
                continue
            ending = "…" + loaded.lm.decode(text[max(self.prefix_tokens, index - 2 * self.within) : index])
            repetitions.append(Repetition(ending, loaded.lm.decode([text[index]]), base, joint))
            rows += [
                {"context": ending, **row, "repeats": "yes" if row["token"] == text[index] else ""}
                for row in table.rows(show=self.show)
            ]
            if len(repetitions) == self.repetitions:
                break
        if not repetitions:
            raise DataError(
                f"the base model repeats no word of {self.letters} letters in {len(texts)} samples; give more contexts"
            )
        return RepetitionsResult(
            tuple(repetitions),
            tuple(rows),
            convention=f"probabilities among the {self.keep} tokens kept of {self.candidates} candidates, {self.n:,} "
            f"completions each; a word repeats itself if it stood among the {self.within} tokens before",
            warning=loaded.joint.caution(self.length),
        )

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.joint.costs import count_repetitions

        return count_repetitions(self, around)


def _first_repetitions(
    loaded: JointWindows, texts: Sequence[Sequence[int]], verb: Repetitions
) -> Iterator[tuple[list[int], int]]:
    """The first repetition in the generated part of each text that has one: the text, and the token's index."""
    for text in texts:
        for index in range(verb.prefix_tokens + 1, len(text)):
            if text[index] in text[max(0, index - verb.within) : index] and _is_word(loaded, text[index], verb):
                yield list(text), index
                break


def _is_word(loaded: JointWindows, token: int, verb: Repetitions) -> bool:
    """A token that begins a word and has letters enough."""
    written = loaded.lm.decode([token])
    return written.startswith(" ") and written.strip().isalpha() and len(written.strip()) >= verb.letters


def _probability(entries: Sequence["NextToken"], token: int) -> float:
    return next((entry.probability for entry in entries if entry.token == token), 0.0)
