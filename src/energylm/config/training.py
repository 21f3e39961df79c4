"""How a model is trained: batches, optimiser, schedule, validation, checkpoints; and the papers' settings by name.

    preset: deng2020/joint-unit      # every key of that row, then …
    steps: 2000                      # … whatever is given beside it wins

Defaults are for small models on a small machine; the published settings (deng2020 table 4, bakhtin2019 table 11,
clark2020 table 3) are one `preset` away. A setting that a table does not print keeps its default.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config, merged

ShardingKind = Literal["none", "fsdp"]
NO_SHARDING: ShardingKind = "none"
FSDP: ShardingKind = "fsdp"

PAPER_WARMUP_STEPS = 2000  # deng2020 table 4, all rows; bakhtin2019 table 11, the transformers


class OptimizerConfig(Config):
    """AdamW. Biases and norms are never decayed."""

    learning_rate: float = Field(1e-3, gt=0, description="The highest learning rate, reached at the end of warm-up.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay rates of Adam's two moving averages.")
    eps: float = Field(
        1e-6,
        gt=0,
        description="Added to Adam's denominator; below 1e-6 rounding differences between machines grow fast.",
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of matrices.")
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Each layer below the head learns at this times the rate of the one above (0.8: ELECTRA).",
    )


class ScheduleConfig(Config):
    """The learning rate of each update as a fraction of the highest."""

    kind: Literal["cosine", "linear", "inverse-sqrt", "constant"] = Field(
        "cosine", description="Decay after warm-up: to zero at the last step (cosine, linear), by 1/√step, or none."
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="Updates of linear warm-up; none = a tenth of the steps, at most the papers' 2,000."
    )


class ValidationConfig(Config):
    """When to validate, which number decides, and how long to wait for a better one."""

    every_steps: int | None = Field(
        500, ge=1, description="Validate this often, and after the last step; none = never."
    )
    patience_samples: int | None = Field(
        None, ge=1, description="Stop after this many training sequences without improvement (bakhtin2019: 2,500,000)."
    )
    patience_evaluations: int | None = Field(
        None, ge=1, description="Stop after this many validations without improvement."
    )
    metric: str = Field("loss", description="The validation number that decides which weights are best.")
    larger_is_better: bool = Field(False, description="Whether the deciding number should grow, e.g. an accuracy.")
    from_start: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Validate before the first step, too: the weights that training starts from may stay the best.",
    )

    @property
    def can_stop(self) -> bool:
        return self.every_steps is not None and bool(self.patience_samples or self.patience_evaluations)


class CheckpointConfig(Config):
    """What a killed run can continue from."""

    every_steps: int = Field(500, ge=1, description="Write a checkpoint this often, and after the last step.")
    keep: int = Field(
        2, ge=1, description="How many of the newest checkpoints stay on disk (the best weights stay too)."
    )


class TrainingConfig(Config):
    """Everything the training engine needs to know that is not the task itself."""

    preset: str | None = Field(None, description="Start from a named published setting, e.g. deng2020/base-lm.")
    seed: int = Field(0, ge=0, description="The one seed: initialisation, data order, dropout.")
    steps: int | None = Field(1000, ge=1, description="Updates; none = until validation stops improving.")
    global_batch: int = Field(32, ge=1, description="Sequences per update, over all processes and micro-batches.")
    micro_batch: int | None = Field(
        None, ge=1, description="Sequences per forward pass of one process; none = its whole share of the batch."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Of forward and backward passes, where the device has it; weights keep their own."
    )
    sharding: ShardingKind = Field(
        NO_SHARDING,
        # Left out of dumps, so that what was made before the key existed keeps its hash.
        exclude_if=lambda value: value == NO_SHARDING,
        description="What processes share out: none = nothing (DDP), fsdp = weights, gradients and optimiser state.",
    )
    clip_norm: float | None = Field(1.0, gt=0, description="Largest norm of the gradient; none = not clipped.")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log_every_steps: int = Field(10, ge=1, description="Write a journal line this often.")
    tensorboard: bool = Field(False, description="Also write the journal's numbers for TensorBoard.")
    threads: int | None = Field(
        None, ge=1, description="CPU threads; none = torch's choice. A resumed run takes the count it began with."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("preset") is None:
            return values
        if values["preset"] not in TRAINING_PRESETS:
            raise ValueError(f"unknown preset {values['preset']!r}; known: {', '.join(TRAINING_PRESETS)}")
        return merged(TRAINING_PRESETS[values["preset"]], values)

    def overlaid(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A preset wins over what was set here, and what is given beside it over the preset."""
        return super().overlaid(merged(TRAINING_PRESETS.get(values.get("preset", ""), {}), values))

    @model_validator(mode="after")
    def _must_be_able_to_end(self) -> Self:
        if self.steps is None and self.schedule.kind in ("cosine", "linear"):
            raise ValueError(
                f"a {self.schedule.kind} schedule needs `steps`; give them, or take inverse-sqrt or constant"
            )
        if self.steps is None and not self.validation.can_stop:
            raise ValueError("without `steps` training never ends; set validation.patience_samples or give steps")
        if self.steps is not None and self.warmup_steps > self.steps:
            raise ValueError(
                f"schedule.warmup_steps ({self.warmup_steps:,}) exceeds steps ({self.steps:,}); "
                "lower it, or set it to null for a tenth of the steps"
            )
        return self

    @model_validator(mode="after")
    def _sharded_gradients_are_not_scaled(self) -> Self:
        if self.sharding == FSDP and self.precision == "fp16":
            raise ValueError("sharding fsdp goes with precision bf16 or fp32; fp16's loss scaler knows no shards")
        return self

    @property
    def warmup_steps(self) -> int:
        if self.schedule.warmup_steps is not None:
            return self.schedule.warmup_steps
        return PAPER_WARMUP_STEPS if self.steps is None else min(self.steps // 10, PAPER_WARMUP_STEPS)

    def length_words(self, sequences: int) -> str:
        """How long it trains on so many sequences, in words."""
        if self.steps is None:
            return "until validation stops improving"
        return f"{self.steps:,} steps ({self.steps * self.global_batch / sequences:.3g} epochs)"


def _deng2020(*, fp16: bool, batch: int, steps: int, learning_rate: float, clip_norm: float) -> dict[str, Any]:
    """A row of deng2020 table 4; warm-up is the same in all rows, the cosine is bakhtin2019's (appendix D)."""
    return {
        "precision": "fp16" if fp16 else "fp32",
        "global_batch": batch,
        "steps": steps,
        "clip_norm": clip_norm,
        "optimizer": {"learning_rate": learning_rate},
        "schedule": {"kind": "cosine", "warmup_steps": PAPER_WARMUP_STEPS},
    }


def _bakhtin2019(
    *, learning_rate: float, batch_per_gpu: int, gpus: int, warmup_steps: int, steps: int | None
) -> dict[str, Any]:
    """A row of bakhtin2019 table 11. The norm at which gradients are clipped is not printed."""
    return {
        "precision": "fp16",
        "global_batch": batch_per_gpu * gpus,
        "micro_batch": batch_per_gpu,
        "steps": steps,
        "optimizer": {"learning_rate": learning_rate},
        "schedule": {"kind": "inverse-sqrt" if steps is None else "cosine", "warmup_steps": warmup_steps},
        "validation": {"patience_samples": 2_500_000},
    }


def _clark2020(
    *,
    learning_rate: float,
    batch: int,
    warmup_steps: int | None,
    weight_decay: float,
    layer_decay: float,
    steps: int | None,
) -> dict[str, Any]:
    """A column of clark2020 table 3, which repeats ELECTRA-Base's. Without steps the caller's or the default stay."""
    return {
        "global_batch": batch,
        **({} if steps is None else {"steps": steps}),
        "optimizer": {
            "learning_rate": learning_rate,
            "betas": (0.9, 0.999),
            "eps": 1e-6,
            "weight_decay": weight_decay,
            "layer_decay": layer_decay,
        },
        "schedule": {"kind": "linear", "warmup_steps": warmup_steps},
    }


# `-pretrained` stands for the paper's asterisk: the energy starts from an encoder trained on additional data.
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "deng2020/base-lm": _deng2020(fp16=False, batch=32, steps=180_000, learning_rate=1e-4, clip_norm=10),
    "deng2020/ralm": _deng2020(fp16=False, batch=64, steps=180_000, learning_rate=1e-4, clip_norm=10),
    "deng2020/balm": _deng2020(fp16=False, batch=32, steps=180_000, learning_rate=1e-4, clip_norm=10),
    "deng2020/joint-unit": _deng2020(fp16=True, batch=64, steps=180_000, learning_rate=3e-4, clip_norm=10),
    "deng2020/joint-bit-base": _deng2020(fp16=False, batch=60, steps=90_000, learning_rate=5e-5, clip_norm=0.25),
    "deng2020/joint-bit-base-pretrained": _deng2020(
        fp16=False, batch=60, steps=90_000, learning_rate=5e-5, clip_norm=0.25
    ),
    "deng2020/joint-bit-large-pretrained": _deng2020(
        fp16=True, batch=64, steps=90_000, learning_rate=3e-4, clip_norm=10
    ),
    "bakhtin2019/linear": _bakhtin2019(learning_rate=0.01, batch_per_gpu=1024, gpus=1, warmup_steps=1000, steps=None),
    "bakhtin2019/bilstm": _bakhtin2019(learning_rate=2e-4, batch_per_gpu=128, gpus=8, warmup_steps=1000, steps=None),
    "bakhtin2019/unitransf": _bakhtin2019(
        learning_rate=3e-4, batch_per_gpu=32, gpus=64, warmup_steps=2000, steps=180_000
    ),
    "bakhtin2019/bitransf": _bakhtin2019(
        learning_rate=5e-5, batch_per_gpu=20, gpus=64, warmup_steps=2000, steps=180_000
    ),
    "clark2020/pretrain": _clark2020(
        learning_rate=5e-4, batch=256, warmup_steps=10_000, weight_decay=0.01, layer_decay=1.0, steps=700_000
    ),
    # The tasks' steps are counted in epochs: 10 for RTE and STS, 2 for SQuAD, 3 otherwise; warm-up is their first 10 %.
    "clark2020/finetune": _clark2020(
        learning_rate=1e-4, batch=32, warmup_steps=None, weight_decay=0.0, layer_decay=0.8, steps=None
    ),
}
