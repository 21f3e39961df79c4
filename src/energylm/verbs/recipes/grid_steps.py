"""A grid as steps: corpora, generators, negatives, energies, cells; each once, whichever cells share it.

    lm_G_C_train, lm_G_C_test      generator G trained on corpus C, for training and for test texts (another seed)
    neg_G_C_train|valid|test       what it writes on each split; valid and train by the first, test by the second
    E_on_G_C                       energy E, trained on what G writes on C; `G1_G2_C1_C2` is a union
    E_on_G_C_at_H_D                the cell: E judged on what H writes on D

Settings follow Bakhtin et al. 2019 §4.4, table 1: a cell is in-domain, cross-architecture, cross-corpus or unseen by
whether its test generator's architecture, and the corpus that this one was trained on, are among the training set's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from energylm.config.base import merged
from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT, Direction
from energylm.config.texts import Setting
from energylm.errors import ConfigError
from energylm.verbs.recipes.grid import ZERO_SHOT, GeneratorConfig, Grid, TrainingSetConfig
from energylm.verbs.recipes.recipe import BUILD, CORPUS, PRODUCT, StepConfig, corpus_steps

PAPER_TOP_K = 10  # bakhtin2019 §3.2

Steps = dict[str, StepConfig]
SUFFIXES: dict[Direction, str] = {LEFT_TO_RIGHT: "", RIGHT_TO_LEFT: "_backwards"}
SIDES: dict[Direction, str] = {LEFT_TO_RIGHT: "suffix", RIGHT_TO_LEFT: "prefix"}


@dataclass(frozen=True)
class TrainingSet:
    generators: tuple[str, ...]
    corpora: tuple[str, ...]
    energies: tuple[str, ...]

    @property
    def name(self) -> str:
        return "_".join([*self.generators, *self.corpora])


@dataclass(frozen=True)
class JudgedSet:
    generator: str
    corpus: str

    @property
    def name(self) -> str:
        return f"{self.generator}_{self.corpus}"


def expand_grid(name: str, config: Grid, *, corpora: Mapping[str, StepConfig] | None = None) -> Steps:
    """All steps of a grid; the one called `name` gathers its cells. `corpora` are steps that are there already."""
    steps: Steps = {}
    if corpora is None:
        corpora = _corpora(config)
        steps |= corpora
    return steps | _Expansion(name, config, corpora).steps()


class _Expansion:
    def __init__(self, name: str, config: Grid, corpora: Mapping[str, StepConfig]) -> None:
        self.name, self.config, self.corpora = name, config, corpora
        self.made: Steps = {}

    def steps(self) -> Steps:
        config = self.config
        for name, start in config.starts.items():
            if CORPUS not in self.corpora:
                raise ConfigError(
                    f"start {name!r} learns from all corpora together, so these must be given by their sources, not as "
                    "folders; or train it beforehand and give its folder as `init`"
                )
            self.made[name] = StepConfig(make=start.make, config={"corpus": f"{PRODUCT}{CORPUS}", **start.settings})
        cells = [cell for training in training_sets(config) for cell in self._cells(training)]
        if not cells:
            raise ConfigError("no cell is left of this grid; name more training sets, test sets or settings")
        self.made[self.name] = StepConfig(make="grid cells", config={"cells": cells})
        return self.made

    def _cells(self, training: TrainingSet) -> Iterator[dict[str, Any]]:
        for energy in training.energies:
            for test in judged_sets(self.config):
                setting = setting_of(self.config, training, test)
                if setting not in self.config.test.settings:
                    continue
                facts = {
                    "energy": energy,
                    "training": training.name,
                    "test": test.name,
                    "setting": setting,
                    "training_corpora": list(training.corpora),
                    "test_generator": test.generator,
                    "test_corpus": test.corpus,
                }
                note = self._left_out(energy, test)
                yield facts | ({"note": note} if note else {"result": PRODUCT + self._cell(energy, training, test)})

    def _left_out(self, energy: str, test: JudgedSet) -> str:
        """Why a cell is not judged, if it is not."""
        if test.corpus in self.config.energies[energy].pretrained_on:
            return f"{energy} has seen {test.corpus} before its training"
        if test.corpus in self.config.generators[test.generator].pretrained_on:
            return f"{test.generator} has seen {test.corpus} before"
        return ""

    def _cell(self, energy: str, training: TrainingSet, test: JudgedSet) -> str:
        name = f"{energy}_on_{training.name}_at_{test.name}"
        judged, learnt = self._negatives(test.generator, test.corpus, "test"), self._learnt(training, "train")
        self.made[name] = StepConfig(
            make="discrimination",
            config={
                "energy": PRODUCT + self._energy(energy, training),
                **_columns(judged, "negatives", "corpus"),
                **_columns(learnt, "trained_on", "trained_on_corpus"),
                "resamples": self.config.resamples,
            },
        )
        return name

    def _energy(self, energy: str, training: TrainingSet) -> str:
        name = f"{energy}_on_{training.name}"
        if name not in self.made:
            entry, held_out = self.config.energies[energy], self._learnt(training, "valid")
            if entry.init in ZERO_SHOT:
                if len(training.generators) + len(training.corpora) > 2:
                    raise ConfigError(f"energy {energy!r} is one generator's {entry.init}; {training.name} is a union")
                lm = self._generator(training.generators[0], training.corpora[0], "train", LEFT_TO_RIGHT)
                validated = _columns(held_out, "negatives", "corpus")
                step = StepConfig(make="likelihood", config={"language_model": lm, "score": entry.init, **validated})
            else:
                learnt = _columns(self._learnt(training, "train"), "negatives", "corpus")
                validation = [folder for folder, _ in held_out]
                step = StepConfig(
                    make="energy train",
                    config={"init": entry.init, **entry.settings, **learnt, "validation": validation},
                )
            self.made[name] = step
        return name

    def _learnt(self, training: TrainingSet, split: str) -> list[tuple[str, str]]:
        return [
            pair
            for corpus in training.corpora
            for generator in training.generators
            for pair in self._negatives(generator, corpus, split)
        ]

    def _negatives(self, generator: str, corpus: str, split: str) -> list[tuple[str, str]]:
        """What the generator writes on a split: the steps, and the corpus that each continues."""
        config, pairs = self.config, []
        texts = self._texts(generator, corpus)
        for direction in config.generators[generator].directions:
            name = f"neg_{generator}_{corpus}_{split}{SUFFIXES[direction]}"
            held_out = {} if split == "train" else {"k": config.held_out_negatives}
            settings = {
                "documents": "within",
                "truncation": {"top_k": PAPER_TOP_K},
                "contexts": getattr(config.contexts, split),
                **config.negatives,
                **config.negatives_of.get(corpus, {}),
                **config.generators[generator].negatives,
                **held_out,
                "split": split,
                "side": SIDES[direction],
                "corpus": texts,
                "language_model": self._generator(generator, corpus, "test" if split == "test" else "train", direction),
            }
            self.made[name] = StepConfig(make="negatives", config=settings)
            pairs.append((PRODUCT + name, texts))
        return pairs

    def _generator(self, generator: str, corpus: str, purpose: str, direction: Direction) -> str:
        """The model that writes."""
        entry = self.config.generators[generator]
        if entry.language_model is not None:
            return _located(entry.language_model)
        corpus = entry.trained_on or corpus
        name = f"lm_{generator}_{corpus}_{purpose}{SUFFIXES[direction]}"
        seed = self.config.train_seed if purpose == "train" else self.config.test_seed
        settings = merged(entry.train or {}, {"training": {"seed": seed}, "direction": direction})
        self.made[name] = StepConfig(make="lm train", config={**settings, "corpus": self._product(corpus)})
        return PRODUCT + name

    def _texts(self, generator: str, corpus: str) -> str:
        """The corpus in the generator's own tokens; a model that is given brings its own."""
        entry = self.config.generators[generator]
        if entry.language_model is None or corpus not in self.corpora:
            return self._product(corpus)
        name = f"{corpus}_for_{generator}"
        settings = {key: value for key, value in self.corpora[corpus].config.items() if key != "vocabulary_size"}
        self.made[name] = StepConfig(make=BUILD, config={**settings, "tokenizer": _located(entry.language_model)})
        return PRODUCT + name

    def _product(self, corpus: str) -> str:
        folder = self.config.corpora[corpus]
        return PRODUCT + corpus if corpus in self.corpora else _located(str(folder))


def training_sets(config: Grid) -> list[TrainingSet]:
    """Every set to learn from, once."""
    by_name: dict[str, TrainingSet] = {}
    for training in (training for entry in config.training for training in _sets_of(entry, config)):
        known = by_name.get(training.name)
        energies = training.energies if known is None else (*known.energies, *training.energies)
        by_name[training.name] = TrainingSet(training.generators, training.corpora, tuple(dict.fromkeys(energies)))
    return list(by_name.values())


def judged_sets(config: Grid) -> list[JudgedSet]:
    corpora, generators = config.test.corpora or tuple(config.corpora), config.test.generators or config.generators
    return [JudgedSet(generator, corpus) for generator in generators for corpus in corpora]


def setting_of(config: Grid, training: TrainingSet, test: JudgedSet) -> Setting:
    """What training set and test set share. A generator that was not trained here brings a corpus of its own."""
    architecture = test.generator in training.generators
    origins = {
        _origin(config.generators[name], name, corpus) for name in training.generators for corpus in training.corpora
    }
    corpus = (
        test.corpus in training.corpora
        and _origin(config.generators[test.generator], test.generator, test.corpus) in origins
    )
    if corpus:
        return "in-domain" if architecture else "cross-architecture"
    return "cross-corpus" if architecture else "unseen"


def _origin(generator: GeneratorConfig, name: str, corpus: str) -> str:
    """The corpus that a generator was trained on."""
    return f"that of {name}" if generator.language_model is not None else generator.trained_on or corpus


def _sets_of(entry: TrainingSetConfig, config: Grid) -> Iterator[TrainingSet]:
    for corpora in _choices(entry.corpora, tuple(config.corpora)):
        for generators in _choices(entry.generators, tuple(config.generators)):
            yield TrainingSet(generators, corpora, entry.energies or tuple(config.energies))


def _choices(wanted: tuple[str, ...] | str, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    if wanted == "each":
        return [(name,) for name in names]
    if wanted == "pairs":
        return list(combinations(names, 2))
    return [names if isinstance(wanted, str) else wanted]


def _corpora(config: Grid) -> Steps:
    """Steps of the corpora that are given by their sources, with one tokenizer; folders are taken as they are."""
    given = {name: settings for name, settings in config.corpora.items() if not isinstance(settings, str)}
    if CORPUS in given:
        raise ConfigError(f"{CORPUS!r} is the name of the union of all corpora; call this one otherwise")
    return corpus_steps(config.corpus, given) if given else {}


def _columns(pairs: Sequence[tuple[str, str]], first: str, second: str) -> dict[str, list[str]]:
    return {first: [pair[0] for pair in pairs], second: [pair[1] for pair in pairs]}


def _located(path_or_name: str) -> str:
    """An absolute path for a folder or file that is here, so that its step is keyed by its content; else the name."""
    path = Path(path_or_name).expanduser()
    return str(path.resolve()) if path.exists() else path_or_name
