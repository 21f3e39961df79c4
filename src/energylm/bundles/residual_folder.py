"""A joint model as a folder: `language_model/` and `energy/`, each readable by itself, and a manifest that says so."""

from pathlib import Path

from energylm import contracts
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import new_model_folder, read_manifest, write_manifest
from energylm.errors import ModelError

KIND = "residual-model"
LM_FOLDER, ENERGY_FOLDER = "language_model", "energy"


def save_parts(lm: contracts.CausalModel, energy: contracts.Energy, folder: str | Path) -> None:
    """Write both models; the folder appears whole or not at all."""
    if not isinstance(lm, LanguageModel) or not isinstance(energy, EnergyModel):
        raise ModelError(
            f"a {type(lm).__name__} with a {type(energy).__name__} cannot be saved; wrap your networks in "
            "energylm.LanguageModel and energylm.EnergyModel"
        )
    with new_model_folder(folder) as temporary:
        _copy(lm).save_pretrained(temporary / LM_FOLDER)
        energy.save_pretrained(temporary / ENERGY_FOLDER)
        write_manifest(temporary, kind=KIND, facts={}, provenance={})


def _copy(lm: LanguageModel) -> LanguageModel:
    """The same model, which remembers what its weights are known as: written anew, their file may have another hash."""
    provenance = lm.provenance | {"copied_weights": sorted(lm.weights_hashes)}
    return LanguageModel(lm.model, lm.tokenizer, name=lm.name, provenance=provenance)


def load_parts(folder: str | Path) -> tuple[LanguageModel, EnergyModel]:
    """Language model and energy from a folder that `save_parts` wrote."""
    folder = Path(folder).expanduser()
    if read_manifest(folder).get("kind") != KIND:
        raise ModelError(
            f"{folder} holds no residual model; give a folder that ResidualModel.save_pretrained wrote, or load "
            "language model and energy apart"
        )
    return LanguageModel.from_pretrained(folder / LM_FOLDER), EnergyModel.from_pretrained(folder / ENERGY_FOLDER)
