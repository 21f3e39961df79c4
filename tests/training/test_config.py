"""The presets against the printed tables, copied here row by row; and what a configuration refuses."""

import pytest

from energylm.config import load_config
from energylm.config.training import TRAINING_PRESETS, TrainingConfig
from energylm.errors import ConfigError

# fp16, batch size, warmup steps, max steps, max lr, max grad norm
DENG2020_TABLE_4 = """
base-lm                    - 32 2,000 180,000 0.0001  10
ralm                       - 64 2,000 180,000 0.0001  10
balm                       - 32 2,000 180,000 0.0001  10
joint-unit                 + 64 2,000 180,000 0.0003  10
joint-bit-base             - 60 2,000  90,000 0.00005 0.25
joint-bit-base-pretrained  - 60 2,000  90,000 0.00005 0.25
joint-bit-large-pretrained + 64 2,000  90,000 0.0003  10
"""
# max lr, bsz (per GPU), GPUs, fp16, warmup steps, max steps
BAKHTIN2019_TABLE_11 = """
linear    0.01    1024 1  + 1000 -
bilstm    0.0002  128  8  + 1000 -
unitransf 0.0003  32   64 + 2000 180000
bitransf  0.00005 20   64 + 2000 180000
"""


def rows(table):
    return [line.replace(",", "").split() for line in table.strip().splitlines()]


@pytest.mark.parametrize("row", rows(DENG2020_TABLE_4), ids=lambda row: row[0])
def test_deng2020_table_4(row):
    name, fp16, batch, warmup, steps, rate, norm = row
    config = TrainingConfig.checked({"preset": f"deng2020/{name}"})
    assert config.precision == ("fp16" if fp16 == "+" else "fp32")
    assert (config.global_batch, config.warmup_steps, config.steps) == (int(batch), int(warmup), int(steps))
    assert (config.optimizer.learning_rate, config.clip_norm) == (float(rate), float(norm))
    assert config.schedule.kind == "cosine"


@pytest.mark.parametrize("row", rows(BAKHTIN2019_TABLE_11), ids=lambda row: row[0])
def test_bakhtin2019_table_11(row):
    name, rate, batch, gpus, fp16, warmup, steps = row
    config = TrainingConfig.checked({"preset": f"bakhtin2019/{name}"})
    assert config.precision == ("fp16" if fp16 == "+" else "fp32")
    assert (config.global_batch, config.micro_batch) == (int(batch) * int(gpus), int(batch))
    assert config.optimizer.learning_rate == float(rate) and config.warmup_steps == int(warmup)
    assert config.steps == (None if steps == "-" else int(steps))
    assert config.schedule.kind == ("inverse-sqrt" if steps == "-" else "cosine")
    assert config.validation.patience_samples == 2_500_000


def test_clark2020_table_3():
    """Pre-training and fine-tuning columns; steps of the latter are counted in epochs, so they stay the caller's."""
    pretrain, finetune = (TrainingConfig.checked({"preset": f"clark2020/{name}"}) for name in ("pretrain", "finetune"))
    for config, rate, decay, layer_decay, batch in ((pretrain, 5e-4, 0.01, 1.0, 256), (finetune, 1e-4, 0.0, 0.8, 32)):
        optimizer = config.optimizer
        assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.layer_decay) == (rate, decay, layer_decay)
        assert (optimizer.eps, optimizer.betas) == (1e-6, (0.9, 0.999))
        assert (config.global_batch, config.schedule.kind) == (batch, "linear")
    assert (pretrain.steps, pretrain.warmup_steps) == (700_000, 10_000)
    assert finetune.model_copy(update={"steps": 500}).warmup_steps == 50  # the first 10 %


def test_every_preset_is_tested():
    tested = {f"deng2020/{row[0]}" for row in rows(DENG2020_TABLE_4)}
    tested |= {f"bakhtin2019/{row[0]}" for row in rows(BAKHTIN2019_TABLE_11)}
    tested |= {"clark2020/pretrain", "clark2020/finetune"}
    assert tested == set(TRAINING_PRESETS)


def test_given_keys_win_over_the_preset_at_every_depth():
    settings = ["preset=deng2020/joint-unit", "steps=5000", "optimizer.eps=1.0e-8", "precision=fp32"]
    config = load_config(TrainingConfig, settings=settings)
    assert (config.steps, config.precision, config.optimizer.eps) == (5000, "fp32", 1e-8)
    assert (config.optimizer.learning_rate, config.global_batch, config.warmup_steps) == (3e-4, 64, 2000)


@pytest.mark.parametrize("name", [None, *TRAINING_PRESETS])
def test_a_configuration_survives_its_own_dump(name):
    config = TrainingConfig.checked({"preset": name})
    assert TrainingConfig.checked(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"preset": "deng2020/bse-lm"}, "unknown preset 'deng2020/bse-lm'; known: deng2020/base-lm"),
        ({"steps": None}, "a cosine schedule needs steps"),
        ({"steps": None, "schedule": {"kind": "constant"}}, "never ends"),
        ({"steps": 10, "schedule": {"warmup_steps": 20}}, "exceeds steps (10)"),
        ({"optimizer": {"learning_rat": 1}}, "did you mean 'optimizer.learning_rate'?"),
        ({"precision": "fp8"}, "precision"),
    ],
)
def test_refusals_say_the_cure(values, said):
    with pytest.raises(ConfigError) as error:
        TrainingConfig.checked(values)
    assert said in str(error.value) and "\n" not in str(error.value)
