"""A language model that knows chats, an energy that reads text, and both together, for servers and proxies alike."""

import pytest

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from tests.apps.conftest import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def lm(model_folder):
    made = LanguageModel.from_pretrained(model_folder)
    made.tokenizer.chat_template = CHAT_TEMPLATE.replace("<|sep|>", made.tokenizer.eos_token)
    return made


@pytest.fixture(scope="module")
def text_energy(model_folder):
    """Reads text, so that it is the same function here and behind a proxy."""
    energy = EnergyModel.from_encoder(model_folder, kind="unit", reads="text")
    energy.scale, energy.provenance["loss"] = 50.0, "nce"
    return energy


@pytest.fixture(scope="module")
def joint(lm, text_energy):
    return ResidualModel(lm, text_energy)
