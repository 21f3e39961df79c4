"""What pretraining runs cost by `models.compute`, side by side: whether siblings have equal compute, and who pays for
what. Nothing is trained and no corpus is read.

A run spends its own `compute` or `steps`, or the compute that all are given.
"""

from dataclasses import asdict, dataclass
from typing import Any

from energylm.config.pretrain import PretrainClozeConfig, PretrainConfig
from energylm.config.pretrain_costs import FAMILIES, PretrainCostsConfig
from energylm.config.train_lm import LanguageModelSettings
from energylm.errors import ConfigError
from energylm.models.compute import equal_steps, training_flops_per_step, training_flops_per_token


@dataclass(frozen=True)
class RunCost:
    """Operations in millions a token of training text, and in all."""

    main_mflop_a_token: float
    noise_mflop_a_token: float
    steps: int
    tokens: int
    tflop: float
    noise_share: float  # of the compute

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pretrain_costs(config: PretrainCostsConfig) -> dict[str, RunCost]:
    """The cost of every run of `config`, by name."""
    return {name: _cost(name, settings, config) for name, settings in config.runs.items()}


def _cost(name: str, settings: dict[str, Any], costs: PretrainCostsConfig) -> RunCost:
    values = {key: value for key, value in settings.items() if key != "make"}
    family = FAMILIES[settings["make"]]
    no_corpus = {"corpus": "none"} if "corpus" in family.model_fields else {}
    chosen = family.checked({**no_corpus, **values}, origin=f"run {name!r}")
    sizes = {"vocabulary_size": costs.vocabulary_size}
    parts = training_flops_per_token(chosen, **sizes)
    compute = costs.compute or (chosen.compute if isinstance(chosen, PretrainClozeConfig) else None)
    steps = _own_steps(name, chosen) if compute is None else equal_steps(chosen, compute, **sizes)
    return RunCost(
        main_mflop_a_token=parts["main"] / 1e6,
        noise_mflop_a_token=parts.get("noise", 0.0) / 1e6,
        steps=steps,
        tokens=steps * chosen.window * chosen.training.global_batch,
        tflop=steps * training_flops_per_step(chosen, **sizes) / 1e12,
        noise_share=parts.get("noise", 0.0) / sum(parts.values()),
    )


def _own_steps(name: str, chosen: PretrainConfig | LanguageModelSettings) -> int:
    if chosen.training.steps is None:
        raise ConfigError(f"run {name!r} trains until validation stops improving; give steps or compute")
    return chosen.training.steps
