"""What `energylm grid` makes: which energies, trained on whose text, judged on whose (Bakhtin et al. 2019 §4.4).

    corpora      books: {sources: […]}                  texts; one byte-level BPE, trained on the union, for all of them
    generators   small: {train: {preset: small}}        language models: trained on each corpus, or any model you have
    energies     unit: {init: tiny}                     what learns to tell real from generated text
    training     {corpora: pairs, generators: each}     sets to learn from; several corpora or generators are a union
    test         {corpora: …, generators: …}            every pair is a set to be judged on

Generators of training and of test texts differ in their seed, test texts come from the test split. What a cell shows
(in-domain, cross-architecture, cross-corpus, unseen) is derived from what its two sides share, never typed in.
"""

import difflib
from collections.abc import Collection, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.models import LEFT_TO_RIGHT, Direction
from energylm.config.train_energy import Folders

Setting = Literal["in-domain", "cross-architecture", "cross-corpus", "unseen"]
SETTINGS: tuple[Setting, ...] = ("in-domain", "cross-architecture", "cross-corpus", "unseen")
PAPER_TOP_K = 10  # bakhtin2019 §3.2
LIKELIHOOD = "log-likelihood"  # as `init`: the training generator's own log-probability


class GeneratorConfig(Config):
    """A language model that writes: one trained here on each corpus, or one that exists."""

    train: dict[str, Any] | None = Field(
        None,
        description="Settings of `energylm lm train` (preset, network, window, training …); the seed is the grid's.",
    )
    lm: str | None = Field(None, description="In place of `train`: a folder, a GGUF file, a known model, a hub name.")
    trained_on: str | None = Field(
        None, description="Train on this corpus alone, whatever text is continued (table 5: TransfHuge on CC-News)."
    )
    directions: tuple[Direction, ...] = Field(
        (LEFT_TO_RIGHT,),
        min_length=1,
        description="left-to-right writes ends of windows, right-to-left writes beginnings; the paper mixes both.",
    )
    negatives: dict[str, Any] = Field({}, description="Settings of its negatives that differ, e.g. their length.")
    pretrained_on: tuple[str, ...] = Field((), description="Corpora of the grid that a given `lm` may have seen.")

    @model_validator(mode="after")
    def _is_trained_or_given(self) -> Self:
        if (self.train is None) == (self.lm is None):
            raise ValueError("a generator has either `train` (settings) or `lm` (a model that exists)")
        if self.lm is not None and (self.trained_on or self.directions != (LEFT_TO_RIGHT,)):
            raise ValueError("a given `lm` writes as it does; leave out trained_on and directions")
        if self.train is not None and self.pretrained_on:
            raise ValueError("pretrained_on is for a given `lm`; a trained one has seen what it is trained on")
        return self


class EnergyEntry(Config):
    """An energy: settings of `energylm energy train`."""

    init: str = Field(
        description="As for `energylm energy train`; `@name` is one of `starts`; `log-likelihood` is the training "
        "generator's own log-probability, with threshold and sign fitted on validation texts."
    )
    settings: dict[str, Any] = Field(
        {}, description="Other settings of `energylm energy train`: kind, pooling, objective, training …"
    )
    pretrained_on: tuple[str, ...] = Field(
        (), description="Corpora that its start has seen: it is not judged on these (the paper's BiTransf on Wiki)."
    )


class StartConfig(Config):
    """Weights that energies start from, trained on the training texts of all corpora together."""

    make: Literal["lm", "mlm"] = Field("lm", description="lm for causal energies, mlm for bidirectional ones.")
    settings: dict[str, Any] = Field({}, description="Of `energylm lm train` or `energylm pretrain mlm`.")


class TrainingSetConfig(Config):
    """Sets of texts to learn from."""

    corpora: tuple[str, ...] | Literal["each", "pairs", "all"] = Field(
        "each", description="Names (their union), each by itself, every union of two, or the union of all."
    )
    generators: tuple[str, ...] | Literal["each", "all"] = Field("each", description="Names, each, or their union.")
    energies: tuple[str, ...] | None = Field(None, description="Which energies learn from it; none = all.")


class TestSetsConfig(Config):
    """Sets of texts to be judged on: every generator on every corpus."""

    corpora: tuple[str, ...] | None = Field(None, description="Names; none = all.")
    generators: tuple[str, ...] | None = Field(None, description="Names; none = all.")
    settings: tuple[Setting, ...] = Field(SETTINGS, min_length=1, description="Fill only cells that show these.")


class SplitSizes(Config):
    """Contexts of each split, at most, for each generator and corpus."""

    train: int | None = Field(None, ge=1, description="none = all of the split.")
    valid: int | None = Field(1024, ge=2, description="For early stopping and calibration.")
    test: int | None = Field(60_000, ge=1, description="The paper's cap on test texts.")


class GridConfig(Config):
    """A generalization study: training sets by test sets, for one or several energies."""

    corpora: dict[str, str | dict[str, Any]] = Field(
        min_length=1, description="By name: settings with `sources` as for `energylm corpus build`, or a corpus folder."
    )
    corpus: dict[str, Any] = Field({}, description="Settings that all corpora share, e.g. vocabulary_size.")
    generators: dict[str, GeneratorConfig] = Field(min_length=1)
    starts: dict[str, StartConfig] = Field({}, description="Trained weights that energies refer to as `@name`.")
    energies: dict[str, EnergyEntry] = Field(min_length=1)
    negatives: dict[str, Any] = Field(
        {}, description="Settings of `energylm negatives` for all: length, context_lengths, k … (top-k is 10)."
    )
    negatives_of: dict[str, dict[str, Any]] = Field(
        {}, description="By corpus, settings that differ, e.g. the stride (bakhtin2019: 160 on news, else 40)."
    )
    contexts: SplitSizes = SplitSizes()
    held_out_negatives: int = Field(1, ge=1, description="Continuations of each validation and test context.")
    training: tuple[TrainingSetConfig, ...] = Field((TrainingSetConfig(),), min_length=1)
    test: TestSetsConfig = TestSetsConfig()
    train_seed: int = Field(0, ge=0, description="Of the generators that training negatives come from.")
    test_seed: int = Field(1, ge=0, description="Of the generators that test negatives come from.")
    resamples: int = Field(1000, ge=1, description="Of the bootstrap intervals.")

    @model_validator(mode="after")
    def _names_and_seeds(self) -> Self:
        for name in (*self.corpora, *self.generators, *self.energies, *self.starts):
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name; use letters, digits and _, and begin with a letter")
        if self.train_seed == self.test_seed:
            raise ValueError(
                f"train_seed and test_seed are both {self.train_seed}: the generators of training and test texts would "
                "be one and the same; choose two seeds"
            )
        for place, names, known in self._named():
            for name in names:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                    cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                    raise ValueError(f"{place} names {name!r}, which is unknown; {cure}")
        return self

    def _named(self) -> list[tuple[str, tuple[str, ...], Collection[str]]]:
        """Where names stand, which, and the names that may stand there."""
        corpora, generators, energies = self.corpora, self.generators, self.energies
        found: list[tuple[str, tuple[str, ...], Collection[str]]] = [
            ("test.corpora", self.test.corpora or (), corpora),
            ("negatives_of", tuple(self.negatives_of), corpora),
            ("test.generators", self.test.generators or (), generators),
        ]
        for name, generator in generators.items():
            given = (generator.trained_on,) if generator.trained_on else ()
            found += [(f"generators.{name}.trained_on", given, corpora)]
            found += [(f"generators.{name}.pretrained_on", generator.pretrained_on, corpora)]
        for name, energy in energies.items():
            found += [(f"energies.{name}.pretrained_on", energy.pretrained_on, corpora)]
        for number, one in enumerate(self.training):
            if isinstance(one.corpora, tuple):
                found += [(f"training.{number}.corpora", one.corpora, corpora)]
            if isinstance(one.generators, tuple):
                found += [(f"training.{number}.generators", one.generators, generators)]
            found += [(f"training.{number}.energies", one.energies or (), energies)]
        return found

    def on(self, corpora: Sequence[str]) -> Self:
        """The same grid on some of its corpora: what it says of the others falls away."""
        generators = {
            name: one.model_copy(update={"pretrained_on": tuple(c for c in one.pretrained_on if c in corpora)})
            for name, one in self.generators.items()
            if one.trained_on is None or one.trained_on in corpora
        }
        energies = {
            name: one.model_copy(update={"pretrained_on": tuple(c for c in one.pretrained_on if c in corpora)})
            for name, one in self.energies.items()
        }
        training = tuple(
            one
            for one in self.training
            if (isinstance(one.corpora, str) or set(one.corpora) <= set(corpora))
            and (isinstance(one.generators, str) or set(one.generators) <= generators.keys())
        )
        test = self.test
        if test.corpora is not None:
            test = test.model_copy(update={"corpora": tuple(name for name in test.corpora if name in corpora)})
        if test.generators is not None:
            test = test.model_copy(update={"generators": tuple(name for name in test.generators if name in generators)})
        kept = {name: self.corpora[name] for name in corpora}
        changed = {"corpora": kept, "generators": generators, "energies": energies, "training": training, "test": test}
        return self.model_copy(update=changed)


class DiscriminationConfig(Config):
    """A cell: an energy judged on generated texts beside the real ones."""

    energy: str = Field(description="The energy's folder.")
    negatives: Folders = Field(description="Folders of generated continuations of test texts.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")
    trained_on: tuple[str, ...] = Field((), description="Negatives that the energy learnt from: must not overlap.")
    trained_on_corpus: tuple[str, ...] = Field((), description="The corpus of each of these, or one for all.")
    resamples: int = Field(1000, ge=1, description="Of the bootstrap intervals.")
    seed: int = Field(0, ge=0, description="Of the bootstrap.")


class LikelihoodConfig(Config):
    """The log-likelihood of a language model as an energy."""

    lm: str = Field(description="The language model.")
    negatives: Folders = Field(description="Generated continuations of validation texts, for threshold and sign.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")


class CellConfig(Config):
    """Where a cell stands in the grid; without `result` it was left out, and `note` says why."""

    energy: str
    training: str
    test: str
    setting: Setting
    training_corpora: tuple[str, ...]
    test_generator: str
    test_corpus: str
    result: str | None = None
    note: str = ""


class GridSummaryConfig(Config):
    """All cells of a grid."""

    cells: tuple[CellConfig, ...] = Field(min_length=1)
