"""Named parts that a verb can choose: losses, energies, samplers, scorers; of this package and of anybody's.

A part is a name and where it lies ("package.module:attribute"), imported when it is asked for, so listing names is
light. Another package adds its own by an entry point of the registry's group:

    [project.entry-points."energylm.losses"]
    squared-hinge = "my_package.losses:squared_hinge"

and `energylm energy train … --objective squared-hinge` knows it. In a script `LOSSES.add("squared-hinge", function)`
does the same. What a part must look like is said where the registry is made. A field of a config takes the name of a
part as `Annotated[str, Named(LOSSES)]`.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from energylm.errors import ConfigError


@dataclass(frozen=True)
class Named:
    """Marks a field whose value is the name of a part."""

    registry: "Registry"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def checked(name: str) -> str:
            try:
                return self.registry.check(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None

        return core_schema.no_info_after_validator_function(checked, handler(source))


class Registry:
    def __init__(self, what: str, *, group: str, parts: Mapping[str, str]) -> None:
        """`what` is the word for one part in messages; `parts` are this package's own."""
        self.what, self.group = what, group
        self._parts: dict[str, str | Callable[..., Any]] = dict(parts)
        self._own = frozenset(parts)

    @cached_property
    def _installed(self) -> dict[str, str]:
        """Of other packages; a name of ours cannot be taken."""
        return {entry.name: entry.value for entry in entry_points(group=self.group) if entry.name not in self._parts}

    def names(self) -> tuple[str, ...]:
        return (*self._parts, *self._installed)

    def add(self, name: str, part: Callable[..., Any]) -> None:
        if name in self.names():
            raise ConfigError(f"there is a {self.what} {name!r} already; choose another name")
        self._parts[name] = part

    def check(self, name: str) -> str:
        """The name, if there is such a part."""
        if name not in self.names():
            near = difflib.get_close_matches(name, self.names(), n=1, cutoff=0.5)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"there is no {self.what} {name!r}; {meant}known: {', '.join(self.names())}")
        return name

    def named(self, source: str | Path) -> tuple[str, str] | None:
        """NAME and TEXT, where NAME or NAME:TEXT came in place of a model's path, of a part that others have added."""
        name, _, text = str(source).partition(":")
        added = name in self.names() and name not in self._own
        return (name, text) if added and not os.path.exists(source) else None

    def get(self, name: str) -> Any:
        """The part itself."""
        self.check(name)
        part = self._parts.get(name) or self._installed[name]
        if not isinstance(part, str):
            return part
        module, _, attribute = part.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{self.what} {name!r} should lie at {part}, but: {error}") from None


# (B,) energies of real texts and (B, K) of generated ones of the same contexts → (B,) losses; `margin` if it takes one
LOSSES = Registry(
    "loss",
    group="energylm.losses",
    parts={
        "nce": "energylm.objectives.residual_energy:residual_nce",
        "most-offending": "energylm.objectives.residual_energy:most_offending",
        "ranking": "energylm.objectives.residual_energy:ranking",
    },
)

# (target, proposal, temperature, constraint) → a `samplers.chains.Sampler`, whose steps `energylm mcmc` runs
SAMPLERS = Registry(
    "sampler",
    group="energylm.samplers",
    parts={
        "mh": "energylm.samplers.metropolis_hastings:MetropolisHastings",
        "gibbs": "energylm.samplers.degenerate_gibbs:gibbs_of_target",
        "mask-predict": "energylm.samplers.mask_predict:MaskPredict",  # a search, which is run by itself
    },
)

# How a joint model draws: (draws, requests, eos_token_id=…, bar=…) → a `bundles.joint_samplers.CandidatePool` a request
JOINT_SAMPLERS = Registry(
    "joint sampler",
    group="energylm.joint_samplers",
    parts={
        "resample": "energylm.bundles.joint_samplers:plain_pools",
        "rejection": "energylm.bundles.joint_samplers:plain_pools",
        "quasi-rejection": "energylm.bundles.joint_samplers:plain_pools",
        "independence": "energylm.bundles.joint_samplers:plain_pools",
        "suffix": "energylm.bundles.joint_samplers:suffix_chains",
        "smc": "energylm.bundles.joint_samplers:particle_runs",
    },
)

# Kinds of energies: classes (`bundles.text_energy.Energy`) with `from_folder(folder, manifest, device=…)`, which reads
# what they save under this name, and `from_text(text, device=…)`, where NAME:TEXT names one on the command line
ENERGIES = Registry(
    "kind of energy",
    group="energylm.energies",
    parts={
        "similarity": "energylm.bundles.network_energies:SimilarityEnergy",
        "classifier": "energylm.bundles.network_energies:ClassifierEnergy",
        "reward-model": "energylm.bundles.network_energies:RewardEnergy",
        "scorer": "energylm.bundles.score_energies:ScorerEnergy",
        "pattern": "energylm.bundles.score_energies:PatternEnergy",
        "length": "energylm.bundles.score_energies:LengthEnergy",
        "frequency": "energylm.bundles.score_energies:FrequencyEnergy",
        "lexicon": "energylm.bundles.score_energies:LexiconEnergy",
        "recall": "energylm.bundles.score_energies:RecallEnergy",
        "sum": "energylm.bundles.text_energy:WeightedSum",
        "energy": "energylm.bundles.energy_model:EnergyModel",
        "zero-shot-energy": "energylm.bundles.zero_shot_energy:ZeroShotEnergy",
        "combined-energy": "energylm.bundles.combined_energy:CombinedEnergy",
    },
)

# What `fit` of a bundle, and the name of a known model, call: they run verbs, which lie above bundles, so that these
# know their names only
FITS = Registry(
    "fit",
    group="energylm.fits",
    parts={
        "language-model": "energylm.verbs.fitting:fit_language_model",
        "energy": "energylm.verbs.fitting:fit_energy",
        "detector": "energylm.verbs.fitting:fit_detector",
        "reranker": "energylm.verbs.fitting:fit_reranker",
        "list-energy": "energylm.verbs.fitting:learn_reranker",
        "known-model": "energylm.verbs.fitting:get_known_model",
    },
)

# Kinds of models that score texts: classes with `from_pretrained(source, config=…, device=…)`, which gives a
# `bundles.scorer.TokenScorer`. The source is a folder of this kind, or TEXT where NAME or NAME:TEXT stands for a model
SCORERS = Registry(
    "kind of scorer",
    group="energylm.scorers",
    parts={
        "language-model": "energylm.bundles.scorer:CausalScorer",
        "masked-lm": "energylm.bundles.scorer:MaskedScorer",
        "electric": "energylm.bundles.scorer:ClozeScorer",
        "two-tower": "energylm.bundles.scorer:ClozeScorer",
        "electra-tt": "energylm.bundles.scorer:ClozeScorer",
        "energy": "energylm.bundles.score_energies:EnergyScorer",
    },
)

# Kinds of detectors: classes with `from_pretrained(source, device=…)`, likewise, which gives what has a `name` and
# `predict(texts, max_tokens=…)` → `Detection`s; if it is a `bundles.detector.Detector`, it can be calibrated and judged
DETECTORS = Registry(
    "kind of detector", group="energylm.detectors", parts={"energy": "energylm.bundles.detector:Detector"}
)
