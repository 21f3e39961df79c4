"""Which pretraining runs are compared by the compute that they are counted for."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from energylm.config.base import Config
from energylm.config.pretrain import (
    PretrainConfig,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
)
from energylm.config.train_lm import LanguageModelSettings

Family = Literal["electric", "electra", "two-tower", "mlm", "lm"]  # as recipes name the steps that train them
FAMILIES: dict[Family, type[PretrainConfig | LanguageModelSettings]] = {
    "electric": PretrainElectricConfig,
    "electra": PretrainElectraConfig,
    "two-tower": PretrainTwoTowerConfig,
    "mlm": PretrainMLMConfig,
    "lm": LanguageModelSettings,
}


class PretrainCostsConfig(Config):
    """The account of several pretraining runs; none of them is made."""

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
