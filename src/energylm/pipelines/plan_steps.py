"""The work of each kind of step, counted from its settings and from what it is made from. Nothing is loaded or made.

A step's `quantities` say how much of what it does ("training.flops", "drawing.operations", "text.encoded" …); `plan`
turns them into seconds with the rates of a machine and the measured factors. Its `product` is what later steps need to
know of it: the size of a corpus, a network, how many texts were generated.

Kinds that are not here (search, fine-tuning, chains …) have no counted work; a plan names them and leaves them out.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from energylm.config.base import Config
from energylm.config.corpus import CorpusConfig
from energylm.config.grid import DiscriminationConfig, GridSummaryConfig, LikelihoodConfig
from energylm.config.negatives import NegativesConfig
from energylm.config.pretrain import (
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
)
from energylm.config.pretrain_costs import PretrainCostsConfig
from energylm.config.train_energy import TrainEnergyConfig
from energylm.config.train_lm import TrainLMConfig
from energylm.data.sources import open_sources
from energylm.errors import ConfigError
from energylm.jobs.costs import CorpusSize, Counted, Surroundings
from energylm.pipelines.plan_reading import count_discrimination, count_likelihood
from energylm.pipelines.plan_training import count_cloze, count_energy, count_lm
from energylm.pipelines.recipe_steps.corpus import CORPUS, located
from energylm.verbs.joint.costs import count_negatives
from energylm.verbs.recipes.step_kind import located as located_strings
from energylm.verbs.table import STEPS_ONLY, VERBS, verb_class


def count_step(kind: str, values: Mapping[str, Any], around: Surroundings) -> Counted | None:
    """The work of a step; None where its kind has no counted work."""
    if kind in VERBS | STEPS_ONLY:
        counted = verb_class(kind).checked(located_strings(values), origin=f"a step that makes {kind}").cost(around)
        if counted is not None:
            counted.count(f"start.{kind}", 1)
        return counted
    if kind not in _KINDS:
        return None
    config_class, count = _KINDS[kind]
    config = (
        located(values) if kind == CORPUS else config_class.checked(dict(values), origin=f"a step that makes {kind}")
    )
    counted = count(config, around)
    counted.count(f"start.{kind}", 1)
    return counted


def _count_corpus(config: CorpusConfig, around: Surroundings) -> Counted:
    size = 0.0
    for source in config.sources:
        if source.startswith("hf:"):
            size += _dataset_bytes(source, around)
        else:
            opened = open_sources(config.model_copy(update={"sources": (source,)}))
            size += sum(one.text_bytes or one.fingerprint().bytes for one in opened)
    counted = Counted()
    counted.count("text.encoded", size)
    vocabulary_size = config.vocabulary_size
    if config.tokenizer is None:
        counted.count("text.learnt_from", size * (1 - config.valid_fraction - config.test_fraction))
    elif isinstance(around.products.get(config.tokenizer), CorpusSize):
        vocabulary_size = around.corpus(config.tokenizer).vocabulary_size
    tokens = size / bytes_per_token(vocabulary_size)
    valid, test = config.valid_fraction * tokens, config.test_fraction * tokens
    counted.product = CorpusSize({"train": tokens - valid - test, "valid": valid, "test": test}, vocabulary_size)
    counted.disk_bytes = tokens * (2 if vocabulary_size <= 1 << 16 else 4)
    return counted


def bytes_per_token(vocabulary_size: int) -> float:
    """Of a byte-level BPE on English text; measured here at 2,048 and 8,192 tokens."""
    return 2.9 + 0.33 * math.log2(max(vocabulary_size, 256) / 2048)


def _dataset_bytes(source: str, around: Surroundings) -> float:
    if around.config.text_gigabytes is not None:
        return around.config.text_gigabytes * 1e9
    known: Mapping[str, float] = around.facts["dataset_bytes"]
    if source not in known:
        raise ConfigError(f"the size of {source} is not known here; say --text-gigabytes")
    return known[source]


def _nothing(config: Config, around: Surroundings) -> Counted:
    return Counted()


_KINDS: dict[str, tuple[type[Config], Callable[[Any, Surroundings], Counted]]] = {
    "corpus": (CorpusConfig, _count_corpus),
    "lm": (TrainLMConfig, count_lm),
    "mlm": (PretrainMLMConfig, count_cloze),
    "electric": (PretrainElectricConfig, count_cloze),
    "electra": (PretrainElectraConfig, count_cloze),
    "two-tower": (PretrainTwoTowerConfig, count_cloze),
    "negatives": (NegativesConfig, count_negatives),
    "energy": (TrainEnergyConfig, count_energy),
    "discrimination": (DiscriminationConfig, count_discrimination),
    "likelihood": (LikelihoodConfig, count_likelihood),
    "grid": (GridSummaryConfig, _nothing),
    "pretrain-costs": (PretrainCostsConfig, _nothing),
}
