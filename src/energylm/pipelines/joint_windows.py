"""Windows of a corpus and the joint model that continues their beginnings: what the analyses of samples start from."""

from dataclasses import dataclass
from functools import cached_property

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_results import Samples
from energylm.config.analysis import JointWindowsConfig
from energylm.data.source_windows import SourceWindows
from energylm.randomness import derive_seed


@dataclass(frozen=True)
class JointWindows:
    config: JointWindowsConfig
    lm: LanguageModel
    joint: ResidualModel
    windows: list[list[int]]

    @classmethod
    def load(cls, config: JointWindowsConfig) -> "JointWindows":
        """The same windows that `energylm perplexity` measures with this seed."""
        lm = LanguageModel.from_pretrained(config.language_model)
        windows = SourceWindows(config.source, config.length, config.contexts, config.seed, config.split)
        ids = windows.load(lm.tokenizer, model=config.language_model)
        lm = lm.without_special_tokens()  # the windows lie within documents
        return cls(config, lm, ResidualModel(lm, EnergyModel.from_pretrained(config.energy)), ids)

    @property
    def new_tokens(self) -> int:
        return self.config.length - self.config.prefix

    @property
    def contexts(self) -> list[list[int]]:
        return [window[: self.config.prefix] for window in self.windows]

    @property
    def continuations(self) -> list[list[int]]:
        """The real ones."""
        return [window[self.config.prefix :] for window in self.windows]

    @cached_property
    def base_samples(self) -> Samples:
        """One untruncated continuation of each context by the base model."""
        seed = derive_seed(self.config.seed, "base samples")
        return self.lm.sample(self.contexts, n=1, max_new_tokens=self.new_tokens, stop_at_eos=False, seed=seed)
