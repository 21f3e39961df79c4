"""What pretraining costs by `models.compute`: one run for `energylm plan`, several side by side for recipes.

`PretrainCosts` shows whether siblings have equal compute, and who pays for what; nothing is trained and no corpus is
read. A run spends its own `compute` or `steps`, or the compute that all are given.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, field_validator

from energylm.config.pretrain import (
    LanguageModelSettings,
    PretrainClozeConfig,
    PretrainConfig,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
)
from energylm.errors import ConfigError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

Family = Literal["electric", "electra", "two-tower", "mlm", "lm"]
FAMILIES: dict[Family, type[PretrainConfig | LanguageModelSettings]] = {
    "electric": PretrainElectricConfig,
    "electra": PretrainElectraConfig,
    "two-tower": PretrainTwoTowerConfig,
    "mlm": PretrainMLMConfig,
    "lm": LanguageModelSettings,
}


@dataclass(frozen=True)
class RunCost(Record):
    """Operations in millions a token of training text, and in all."""

    main_mflop_a_token: float
    noise_mflop_a_token: float
    steps: int
    tokens: int
    tflop: float
    noise_share: float  # of the compute


@dataclass(frozen=True)
class PretrainCostsResult(Record):
    runs: dict[str, RunCost]

    computed = ("spread",)

    @property
    def spread(self) -> float:
        """How far the dearest run lies above the cheapest, as a share."""
        spent = [run.tflop for run in self.runs.values()]
        return max(spent) / min(spent) - 1


class PretrainCosts(Verb):
    """Count what several pretraining runs would cost, side by side. None of them is made."""

    vocabulary_size: int = Field(ge=1, description="Of all networks.")
    compute: float | None = Field(
        None, gt=0, description="Training FLOPs that each run gets, in place of its own compute or steps."
    )
    runs: dict[str, dict[str, Any]] = Field(
        min_length=1, description=f"By name: `make` ({', '.join(FAMILIES)}) and the settings of the run, but no corpus."
    )

    @field_validator("runs")
    @classmethod
    def _families_are_known(cls, runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, settings in runs.items():
            if settings.get("make") not in get_args(Family):
                raise ValueError(f"run {name!r} makes {settings.get('make')!r}; expected one of {', '.join(FAMILIES)}")
        return runs

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would count the compute of {', '.join(self.runs)}"

    def run(self, job: Job = DEFAULT_JOB) -> PretrainCostsResult:
        return PretrainCostsResult({name: self._cost(name, settings) for name, settings in self.runs.items()})

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted()

    def _cost(self, name: str, settings: dict[str, Any]) -> RunCost:
        from energylm.models.compute import equal_steps, training_flops_per_step, training_flops_per_token

        values = {key: value for key, value in settings.items() if key != "make"}
        family = FAMILIES[settings["make"]]
        no_corpus = {"corpus": "none"} if "corpus" in family.model_fields else {}
        chosen: Any = family.checked({**no_corpus, **values}, origin=f"run {name!r}")
        sizes = {"vocabulary_size": self.vocabulary_size}
        parts = training_flops_per_token(chosen, **sizes)
        compute = self.compute or (chosen.compute if isinstance(chosen, PretrainClozeConfig) else None)
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


def count_pretraining(config: PretrainConfig, around: "Surroundings") -> "Counted":
    """The work of one run for `energylm plan`."""
    from energylm.jobs.costs import MEASURES, count_training, counted_steps
    from energylm.models.compute import Network, equal_steps, training_flops_per_step

    sizes = {"vocabulary_size": around.corpus(config.corpus).vocabulary_size}
    network = Network.of_preset(config.preset, config.network, **sizes)
    training, share = config.training, 1.0
    if isinstance(config, PretrainClozeConfig) and config.compute is not None:
        training = training.model_copy(update={"steps": equal_steps(config, config.compute, **sizes)})
    if isinstance(config, PretrainMLMConfig):
        share = config.masking.rate
    validated = 0 if training.validation.every_steps is None else config.validation_windows or 0
    counted = count_training(
        network, training, around, rows=1, length=config.window, predicted=share, validated=validated
    )
    if not isinstance(config, PretrainMLMConfig):  # a noise model or a second tower beside the network
        steps = counted_steps(training, counted)
        more = steps * training_flops_per_step(config, **sizes) / around.world / counted.quantities["training.flops"]
        for name in MEASURES:
            counted.quantities[f"training.{name}"] *= max(1.0, more)
    counted.product = network
    return counted
