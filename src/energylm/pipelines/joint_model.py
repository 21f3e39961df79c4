"""A language model and an energy, loaded by name, that were made for each other; if not, every result says so."""

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.weights_identity import weights_sha256


def load_joint(language_model: str, energy: str, *, plain_text: bool = False) -> ResidualModel:
    """The joint model of two folders or names; with `plain_text` it writes no special tokens."""
    lm, loaded = LanguageModel.from_pretrained(language_model), EnergyModel.from_pretrained(energy)
    lm = lm.without_special_tokens() if plain_text else lm
    return ResidualModel(lm, loaded, caution=_other_generator(language_model, loaded))


def _other_generator(language_model: str, energy: EnergyModel) -> str | None:
    """An energy corrects the very weights that wrote its negatives: a doubt, in words, where these are others."""
    writers = [source["generator"] for source in energy.provenance.get("sources", [])]
    if not writers or weights_sha256(language_model) in {writer["sha256"] for writer in writers}:
        return None
    names = ", ".join(dict.fromkeys(f"{writer['name']} (weights {writer['sha256'][:12]})" for writer in writers))
    return (
        f"the energy was trained against {names} and not against the "
        "weights of this language model, whose mistakes it need not know; train it on negatives of this one"
    )
