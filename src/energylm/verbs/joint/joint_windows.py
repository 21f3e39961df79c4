"""Windows of a corpus and the joint model that continues their beginnings: what the analyses of samples start from."""

from dataclasses import dataclass
from functools import cached_property

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_results import SampledTexts
from energylm.randomness import derive_seed
from energylm.verbs.joint.analyses import JointAnalysis


@dataclass(frozen=True)
class JointWindows:
    verb: JointAnalysis
    lm: LanguageModel
    joint: ResidualModel
    windows: list[list[int]]

    @classmethod
    def load(cls, verb: JointAnalysis) -> "JointWindows":
        lm = LanguageModel.from_pretrained(verb.language_model)
        windows = verb.windows.load(lm.tokenizer, model=verb.language_model)
        lm = lm.without_special_tokens()  # the windows lie within documents
        return cls(verb, lm, ResidualModel(lm, EnergyModel.from_pretrained(verb.energy)), windows)

    @property
    def new_tokens(self) -> int:
        return self.verb.length - self.verb.prefix_tokens

    @property
    def contexts(self) -> list[list[int]]:
        return [window[: self.verb.prefix_tokens] for window in self.windows]

    @property
    def continuations(self) -> list[list[int]]:
        """The real ones."""
        return [window[self.verb.prefix_tokens :] for window in self.windows]

    @cached_property
    def base_samples(self) -> SampledTexts:
        """One untruncated continuation of each context by the base model."""
        seed = derive_seed(self.verb.seed, "base samples")
        return self.lm.sample(self.contexts, n=1, max_new_tokens=self.new_tokens, stop_at_eos=False, seed=seed)
