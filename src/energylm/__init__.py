"""Energy-based models of text: train, measure, sample, rerank, detect.

Heavy imports wait until a name is used, so that `import energylm` and `energylm --help` stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from energylm.bundles.detector import Detector
    from energylm.bundles.energy_model import EnergyModel
    from energylm.bundles.language_model import LanguageModel
    from energylm.bundles.reranker import Reranker
    from energylm.bundles.residual_model import ResidualModel
    from energylm.bundles.scorer import Scorer
    from energylm.bundles.text_energy import Energy

_HOMES = {
    "Detector": "energylm.bundles.detector",
    "Energy": "energylm.bundles.text_energy",
    "EnergyModel": "energylm.bundles.energy_model",
    "LanguageModel": "energylm.bundles.language_model",
    "Reranker": "energylm.bundles.reranker",
    "ResidualModel": "energylm.bundles.residual_model",
    "Scorer": "energylm.bundles.scorer",
}
__all__ = ["Detector", "Energy", "EnergyModel", "LanguageModel", "Reranker", "ResidualModel", "Scorer", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'energylm' has no attribute {name!r}")
