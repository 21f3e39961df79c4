"""A language model and an energy, loaded by name, as one."""

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel


def load_joint(language_model: str, energy: str, *, plain_text: bool = False) -> ResidualModel:
    """The joint model of two folders or names; with `plain_text` it writes no special tokens."""
    lm = LanguageModel.from_pretrained(language_model)
    return ResidualModel(lm.without_special_tokens() if plain_text else lm, EnergyModel.from_pretrained(energy))
