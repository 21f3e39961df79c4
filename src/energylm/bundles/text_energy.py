"""Any score of texts as an energy: `energylm.Energy`. Lower = likelier.

    P(x | c) ∝ P_LM(x | c) · exp(−E(c, x))        E = −β · score: β = 0 is the language model, a large β the best score

    Energy.from_classifier(…)     score = log P(label | text)
    Energy.from_reward_model(…)   score = the reward of the completion of a prompt or a chat
    Energy.from_similarity(…)     score = cosine of sentence embeddings with a target: no training at all
    Energy.from_scorer(…)         score = the (pseudo-)log-likelihood under another model
    Energy.from_function(…)       score = whatever a function of a list of texts gives
    Energy.from_pattern(…), .from_length(…)      a constraint: E = 0 where it holds, +∞ elsewhere
    Energy.from_frequencies(file)                how rare its words are
    2.0 * helpful + 0.5 * fluent                 E = Σ_k λ_k E_k: densities multiply (a product of experts)
    Energy.load(…)                what `--energy` takes: a folder; KIND:TEXT, such as similarity:a storm at sea; a YAML
                                  file that lists such `parts`, each with any of the arguments above

What is judged is the completion alone, or prompt and completion (`judges="text"`). Equal texts are judged once.

Relations  `energy_model` is an energy that was trained, `network_energies` and `score_energies` the kinds above;
           `energy_binding` is the way from token ids; `estimators.tilting` says which β a pool of draws can carry.
"""

import copy
import difflib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from energylm import contracts
from energylm.bundles.devices import Device, DType
from energylm.bundles.energy_binding import BoundEnergy, Passage, SumUnderModel, TextsUnderModel, scaled
from energylm.bundles.hub import OnHub
from energylm.bundles.known_models import is_energy_source, locate_energy
from energylm.bundles.model_folder import open_folder, save_model
from energylm.bundles.text_codec import text_list
from energylm.config.base import Config, load_config
from energylm.config.vocabulary import BETA, RECALL_STRENGTH, SIMILARITY_BETA
from energylm.data.corpus import TextOrCounts, english_words, word_counts
from energylm.errors import ConfigError, DataError, ModelError
from energylm.registry import ENERGIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from energylm.bundles.scorer import Scorer
    from energylm.config.cloze import Normalise

Judges = Literal["completion", "text"]
Better = Literal["higher", "lower"]
Must = Literal["match", "avoid"]
Unit = Literal["words", "characters"]
Options = Mapping[str, Any]  # arguments of a constructor, by name, as a YAML file holds them
LIVE_ARGUMENTS = ("tokenizer", "function")  # of constructors: objects in memory, which no file holds


class Energy(OnHub, ABC):
    """One number for a passage of text. `ResidualModel(lm, energy)` samples under it.

    E = β · U, with U the energy at β = 1; `with_beta` gives the same energy at another β."""

    kind: ClassVar[str]  # its name in `registry.ENERGIES`
    name: str
    beta: float = 1.0

    @abstractmethod
    def passage_energies(self, passages: Sequence[Passage]) -> Tensor:
        """(B,) float64; +inf forbids a passage."""

    def text_energies(self, texts: Sequence[str]) -> Tensor:
        """(B,) energies of texts that stand alone."""
        return self.passage_energies([Passage(text) for text in text_list(texts)])

    def bind(self, lm: contracts.CausalModel) -> BoundEnergy:
        """The same as a function of the language model's token ids."""
        return TextsUnderModel(self.passage_energies, lm)

    def with_beta(self, beta: float) -> "Energy":
        """The same at another β; a constraint is the same at all."""
        return WeightedSum([(1.0, self)], beta=beta)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """Move its networks, if it has any."""
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        raise ModelError(f"{self.name} ({type(self).__name__}) cannot be saved; build it again where it is needed")

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> "Energy":
        """What `save_pretrained` wrote under this kind."""
        raise ModelError(f"{folder}: a {cls.kind} is not read from folders; build it again where it is needed")

    @classmethod
    def from_text(cls, text: str, *, device: Device = None, options: Options = MappingProxyType({})) -> "Energy":
        """What KIND:TEXT names where energies are asked for as text; `options` are what else a YAML file says of it."""
        raise ConfigError(f"{cls.kind}:{text} names no energy; give the folder of a {cls.kind}")

    @staticmethod
    def from_pretrained(folder: str | Path, *, device: Device = None, dtype: DType = None) -> "Energy":
        """Whatever energy lies in a folder: one that was trained, or one that `save_pretrained` wrote."""
        problem = (
            "holds no energy ({kind}); train one with `energylm energy train`, or name a score, e.g. "
            "'similarity:a storm at sea'"
        )
        location, manifest = open_folder(folder, ENERGIES.names(), problem)
        energy: Energy = ENERGIES.get(manifest["kind"]).from_folder(location, manifest, device=device)
        return energy if dtype is None else energy.to(dtype=dtype)

    @staticmethod
    def load(source: str | Path, *, beta: float | None = None, device: Device = None, dtype: DType = None) -> "Energy":
        """What `--energy` takes: a folder, KIND:TEXT, or a YAML file of several `parts`; at `beta`, if it is given."""
        location = locate_energy(source)
        energy: Energy
        if isinstance(location, Path) and is_energy_source(location):
            parts = load_config(EnergyParts, location).parts
            energy = WeightedSum([(1.0, _part(part, device=device)) for part in parts])
        else:
            energy = _part(EnergyPart(energy=str(location)), device=device)
        energy = energy if dtype is None else energy.to(dtype=dtype)
        return energy if beta is None else energy.with_beta(beta)

    def __mul__(self, weight: float) -> "WeightedSum":
        return WeightedSum([(_number(weight), self)])

    __rmul__ = __mul__

    def __add__(self, other: "Energy") -> "WeightedSum":
        if not isinstance(other, Energy):
            raise ConfigError(
                f"{other!r:.40} was added to an energy; add energies, weighed by numbers: 2.0 * a + 0.5 * b"
            )
        return WeightedSum([*self._weighted_parts(), *other._weighted_parts()])

    def _weighted_parts(self) -> "list[tuple[float, Energy]]":
        return [(1.0, self)]

    @staticmethod
    def from_classifier(
        network: "str | Path | PreTrainedModel",
        *,
        label: str | int,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        beta: float = BETA,
        judges: Judges = "completion",
        device: Device = None,
        dtype: DType = None,
    ) -> "Energy":
        """E = −β log P(label | text) of a classifier: a folder, a hub name, or a network with its tokenizer."""
        from energylm.bundles.network_energies import ClassifierEnergy

        return ClassifierEnergy.of(
            network, tokenizer, label=label, beta=beta, judges=judges, device=device, dtype=dtype
        )

    @staticmethod
    def from_reward_model(
        network: "str | Path | PreTrainedModel",
        *,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        beta: float = BETA,
        device: Device = None,
        dtype: DType = None,
    ) -> "Energy":
        """E = −β r(prompt, completion) of a network with one output. Where its tokenizer has a chat template, the
        prompt is the user's turn and the completion the answer; of a chat, the messages are as they came."""
        from energylm.bundles.network_energies import RewardEnergy

        return RewardEnergy.of(network, tokenizer, beta=beta, device=device, dtype=dtype)

    @staticmethod
    def from_similarity(
        encoder: "str | Path | PreTrainedModel",
        target: str | Sequence[str],
        *,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        beta: float = SIMILARITY_BETA,
        judges: Judges = "completion",
        device: Device = None,
        dtype: DType = None,
    ) -> "Energy":
        """E = −β cos(text, target) of sentence embeddings; of several targets the nearest counts."""
        from energylm.bundles.network_energies import SimilarityEnergy

        return SimilarityEnergy.of(
            encoder, tokenizer, target=target, beta=beta, judges=judges, device=device, dtype=dtype
        )

    @staticmethod
    def from_scorer(
        scorer: "Scorer", *, normalise: "Normalise" = "token", beta: float = BETA, judges: Judges = "completion"
    ) -> "Energy":
        """E = −β score(text): another model's (pseudo-)log-likelihood, a token by default: whole ones favour short
        texts. An empty text has no score and is forbidden."""
        from energylm.bundles.score_energies import ScorerEnergy

        return ScorerEnergy(scorer, normalise=normalise, beta=beta, judges=judges)

    @staticmethod
    def from_function(
        function: Callable[[list[str]], Any],
        *,
        better: Better,
        beta: float = BETA,
        judges: Judges = "completion",
        name: str = "function",
    ) -> "Energy":
        """E = −β f(text) where higher values are better, β f(text) where lower ones are. The function takes a list of
        texts and gives one number each."""
        from energylm.bundles.score_energies import FunctionEnergy

        return FunctionEnergy(function, better=better, beta=beta, judges=judges, name=name)

    @staticmethod
    def from_pattern(pattern: str, *, must: Must = "match", judges: Judges = "completion") -> "Energy":
        """0 for texts that a regular expression matches somewhere (or nowhere), +∞ for others."""
        from energylm.bundles.score_energies import PatternEnergy

        return PatternEnergy(pattern, must=must, judges=judges)

    @staticmethod
    def from_length(
        minimum: int = 0,
        maximum: int | None = None,
        *,
        unit: Unit = "words",
        judges: Judges = "completion",
    ) -> "Energy":
        """0 for texts of `minimum` to `maximum` words or characters, +∞ for others."""
        from energylm.bundles.score_energies import LengthEnergy

        return LengthEnergy(minimum, maximum, unit=unit, judges=judges)

    @staticmethod
    def from_frequencies(source: TextOrCounts, *, beta: float = BETA, judges: Judges = "completion") -> "Energy":
        """−β times the sum of log frequencies of the words: in a file of plain text, in the training split of a corpus,
        or of these counts."""
        from energylm.bundles.score_energies import FrequencyEnergy

        name = "frequency" if isinstance(source, Mapping) else f"frequency in {Path(source).name}"
        return FrequencyEnergy(word_counts(source), beta=beta, judges=judges, name=name)

    @staticmethod
    def from_recall(
        source: TextOrCounts, *, strength: float = RECALL_STRENGTH, beta: float = BETA, judges: Judges = "text"
    ) -> "Energy":
        """−β times how much likelier the words are given all before them, in nats: a cache of these, mixed with what
        a file of plain text, the training split of a corpus or these counts say, which counts for `strength` words."""
        from energylm.bundles.score_energies import RecallEnergy

        name = "recall" if isinstance(source, Mapping) else f"recall beside {Path(source).name}"
        return RecallEnergy(word_counts(source), strength=strength, beta=beta, judges=judges, name=name)

    @staticmethod
    def from_lexicon(
        source: str | Path | Collection[str],
        *,
        english: bool = True,
        beta: float = BETA,
        judges: Judges = "completion",
    ) -> "Energy":
        """β times the number of words that are none: not in a file of plain text, or in the training split of a corpus
        (or among these words), nor, unless the language is another, in the CMU pronouncing dictionary of `english`."""
        from energylm.bundles.score_energies import LexiconEnergy

        if isinstance(source, str | Path):
            words, name = set(word_counts(source)), f"words of {Path(source).name}"
        else:
            words, name = set(source), "lexicon"
        if english:
            words |= english_words()
        return LexiconEnergy(words, beta=beta, judges=judges, name=name)


class ScoreEnergy(Energy):
    """E = −β score of what is judged; subclasses say the score."""

    def __init__(self, *, name: str, beta: float, judges: Judges) -> None:
        if judges not in ("completion", "text"):
            raise ConfigError(f"judges {judges!r} came, expected 'completion' or 'text' (prompt and completion)")
        self.name, self.beta, self.judges = name, _number(beta), judges

    @abstractmethod
    def scores(self, texts: list[str]) -> Tensor:
        """(B,) higher = better; −inf forbids a text."""

    def with_beta(self, beta: float) -> Self:
        other = copy.copy(self)
        other.beta = _number(beta)
        return other

    def passage_energies(self, passages: Sequence[Passage]) -> Tensor:
        """Of equal texts the score is asked for once."""
        texts = [self.judged_text(passage) for passage in passages]
        indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        if not indices:
            return torch.zeros(0, dtype=torch.float64)
        score_U = torch.as_tensor(self.scores(list(indices))).double().cpu()
        if score_U.shape != (len(indices),):
            raise DataError(
                f"{self.name} gave {tuple(score_U.shape)} for {len(indices)} texts, expected one number each"
            )
        bad_U = score_U.isnan() | (score_U == math.inf)
        if bad_U.any():
            text = list(indices)[int(bad_U.nonzero()[0])]
            raise DataError(f"{self.name} gave {float(score_U[bad_U][0])} for {text!r:.60}, expected a number or −inf")
        return scaled(-score_U, self.beta)[torch.tensor([indices[text] for text in texts])]

    def judged_text(self, passage: Passage) -> str:
        return passage.completion if self.judges == "completion" else passage.prompt + passage.completion

    def facts(self) -> dict[str, Any]:
        """The arguments of the constructor, as the manifest holds them."""
        return {"name": self.name, "beta": self.beta, "judges": self.judges}

    def save_pretrained(self, folder: str | Path) -> None:
        save_model(folder, kind=self.kind, facts=self.facts(), provenance={})

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        return cls(**saved_facts(manifest))


def saved_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` again."""
    return {name: value for name, value in manifest.items() if name not in ("kind", "provenance", "weights")}


class WeightedSum(Energy):
    """E = β Σ_k λ_k E_k; `part_energies` tells each of them, by name. What a part forbids stays forbidden at any λ."""

    kind = "sum"

    def __init__(self, parts: Sequence[tuple[float, Energy]], *, beta: float = 1.0) -> None:
        self.parts = [(_number(weight), energy) for weight, energy in parts]
        self.beta = _number(beta)
        if not self.parts:
            raise ConfigError("a sum of no energies came; give at least one part")
        self.name = " + ".join(f"{weight:g}·{energy.name}" for weight, energy in self._weighted_parts())

    def __mul__(self, weight: float) -> "WeightedSum":
        return WeightedSum([(_number(weight) * of_part, energy) for of_part, energy in self._weighted_parts()])

    __rmul__ = __mul__

    def with_beta(self, beta: float) -> "WeightedSum":
        return WeightedSum(self.parts, beta=beta)

    def passage_energies(self, passages: Sequence[Passage]) -> Tensor:
        return sum(self.part_energies(passages).values(), torch.zeros(len(passages), dtype=torch.float64))

    def part_energies(self, passages: Sequence[Passage]) -> dict[str, Tensor]:
        """(B,) β λ_k E_k of each part; parts of one name are added."""
        energies: dict[str, Tensor] = {}
        for weight, energy in self._weighted_parts():
            own_B = scaled(energy.passage_energies(passages).double().cpu(), weight)
            energies[energy.name] = energies[energy.name] + own_B if energy.name in energies else own_B
        return energies

    def bind(self, lm: contracts.CausalModel) -> BoundEnergy:
        return SumUnderModel([(weight, energy.bind(lm)) for weight, energy in self._weighted_parts()])

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        for _, energy in self.parts:
            energy.to(device, dtype, batch_tokens)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        energies = {f"part_{number}": energy for number, (_, energy) in enumerate(self.parts, start=1)}
        facts = {"beta": self.beta, "parts": list(energies), "part_weights": [weight for weight, _ in self.parts]}
        save_model(folder, kind=self.kind, facts=facts, provenance={}, parts=energies)

    @classmethod
    def from_folder(cls, folder: Path, manifest: Mapping[str, Any], *, device: Device = None) -> Self:
        energies = [Energy.from_pretrained(folder / name, device=device) for name in manifest["parts"]]
        return cls(list(zip(manifest["part_weights"], energies, strict=True)), beta=manifest["beta"])

    def _weighted_parts(self) -> list[tuple[float, Energy]]:
        return [(self.beta * weight, energy) for weight, energy in self.parts]


class EnergyPart(Config):
    """One energy of a sum; of KIND:TEXT also all arguments of its constructor (`Energy.from_…`), by their names."""

    model_config = ConfigDict(extra="allow")

    energy: str = Field(description="A folder, KIND:TEXT, or another YAML file.")
    beta: float | None = Field(None, description="Inverse temperature; none: its own.")

    @property
    def options(self) -> Options:
        return self.model_extra or {}


class EnergyParts(Config):
    """A YAML file of energies that are added."""

    parts: tuple[EnergyPart, ...] = Field(min_length=1, description="The energies.")


def _part(part: EnergyPart, *, device: Device) -> Energy:
    location = locate_energy(part.energy)
    if isinstance(location, str) and is_energy_source(location):
        kind, _, text = location.partition(":")
        read = ENERGIES.get(kind).from_text
        if part.options and "options" not in inspect.signature(read).parameters:
            raise ConfigError(f"energies of kind {kind} take no {', '.join(part.options)}; give beta alone")
        energy: Energy = read(text, device=device, **({"options": part.options} if part.options else {}))
    elif part.options:
        raise ConfigError(
            f"{part.energy}: {', '.join(part.options)} came, but what lies in a folder or file has its arguments "
            "already; give beta alone"
        )
    else:
        energy = (Energy.load if is_energy_source(location) else Energy.from_pretrained)(location, device=device)
    return energy if part.beta is None else energy.with_beta(part.beta)


def built(constructor: Callable[..., Energy], options: Options, **arguments: Any) -> Energy:
    """The energy of `arguments`, and of `options` over them: names that a YAML file gave, each of which must be one of
    the constructor's."""
    known = [name for name in inspect.signature(constructor).parameters if name not in LIVE_ARGUMENTS]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{constructor.__name__} takes no {name!r}; {cure}")
    given = {name: value for name, value in (arguments | dict(options)).items() if name in known}
    return constructor(**given)


def _number(value: float) -> float:
    """A weight or β, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f"{value!r:.40} came as a weight or β, expected a finite number; energies are added, which multiplies "
            "their densities: 2.0 * a + 0.5 * b"
        )
    return float(value)
