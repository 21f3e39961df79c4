"""Train a masked language model on a corpus, resume it, or find it finished: `energylm pretrain mlm`.

OUTPUT/model/          the trained model, a folder for `EnergyModel.from_encoder` and for transformers' Auto classes
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from energylm.bundles.masked_language_model import KIND, save_masked_language_model
from energylm.config.pretrain import PretrainMLMConfig
from energylm.models.masked_presets import MaskedLMNetwork, build_masked_network
from energylm.pipelines.pretrain_common import Ground
from energylm.training.engine import train
from energylm.training.masked_lm_task import MaskedLMTask
from energylm.training.seeding import seeded
from energylm.training.trained_run import TrainedRun


@dataclass(frozen=True, kw_only=True)
class MLMRun(TrainedRun):
    """What came of it; of the weights that were saved. None where nothing was validated."""

    nats_per_masked_token: float | None
    accuracy: float | None  # part of the masked tokens whose likeliest prediction is right
    compute: float  # counted training FLOPs, for siblings at equal compute

    def summary(self) -> str:
        if self.nats_per_masked_token is None:
            return f"not validated; step {self.steps:,}"
        return (
            f"{self.nats_per_masked_token:.3f} nats per masked token, {self.accuracy:.1%} right on split valid; "
            f"step {self.best_step:,} of {self.steps:,}"
        )


@dataclass(frozen=True)
class MLMPlan:
    """What a run would do, and what it finds in the output folder."""

    parameters: int
    windows: int
    flops_per_step: float
    state: str

    def describe(self, config: PretrainMLMConfig, output: Path) -> str:
        training = config.training
        steps = "until validation stops improving" if training.steps is None else f"{training.steps:,} steps"
        return (
            f"{output}: {self.state}: {config.preset}, {self.parameters:,} parameters, {steps} of "
            f"{training.global_batch} windows of {config.window} tokens ({self.windows:,} windows), "
            f"{config.masking.rate:.0%} masked, {self.flops_per_step:.3g} FLOPs a step"
        )


def pretrain_mlm(config: PretrainMLMConfig, *, output: Path | str) -> MLMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    ground = Ground.open(config)
    task = MaskedLMTask(
        _build(config, ground),
        ground.train_windows,
        ground.valid_windows,
        masking=config.masking,
        mask_token_id=ground.mask_token_id,
        save_model=lambda trained, folder: _save(trained, folder, ground),
        **ground.task_options,
    )
    result = train(task, config.training, folder=output)
    return MLMRun.of(
        result,
        output,
        nats_per_masked_token=result.best_validation.get("loss"),
        accuracy=result.best_validation.get("accuracy"),
        compute=result.steps * ground.flops_per_step,
    )


def plan_mlm(config: PretrainMLMConfig, *, output: Path | str) -> MLMPlan:
    """Check all inputs and say what `pretrain_mlm` would do. Writes nothing."""
    ground = Ground.open(config)
    _ = ground.mask_token_id  # refused here already where there is none
    with torch.device("meta"):
        network = _build(config, ground)
    plan = ground.plan(KIND, network, output=Path(output))
    return MLMPlan(plan.parameters, plan.windows, plan.flops_per_step, plan.state)


def _build(config: PretrainMLMConfig, ground: Ground) -> MaskedLMNetwork:
    with seeded(config.training.seed, "initialisation"):
        return build_masked_network(config.preset, overrides=config.network, **ground.sizes)


def _save(network: MaskedLMNetwork, folder: Path, ground: Ground) -> None:
    save_masked_language_model(
        network,
        ground.corpus.tokenizer,
        folder,
        name=folder.parent.name,
        framed=ground.framed,
        provenance=ground.provenance,
    )
