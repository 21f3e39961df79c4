"""Train Electric on a corpus, resume it, or find it finished: `energylm pretrain electric`."""

from pathlib import Path

import torch
from torch import nn

from energylm.bundles.cloze_model import ELECTRIC, ClozeModel
from energylm.config.pretrain import PretrainElectricConfig
from energylm.energies.electric import TokenEnergy
from energylm.models.cloze_presets import build_encoder, build_two_tower, share_token_embeddings
from energylm.pipelines.pretrain_common import Ground, PretrainPlan, PretrainRun
from energylm.training.contrast_task import NOISE_LOSS, ContrastTask
from energylm.training.electric_task import ElectricContrast
from energylm.training.engine import train
from energylm.training.seeding import seeded


def pretrain_electric(config: PretrainElectricConfig, *, output: Path | str) -> PretrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    ground = Ground.open(config, metric=NOISE_LOSS)

    def save(model: nn.Module, folder: Path) -> None:
        ClozeModel(
            ELECTRIC,
            model["main"],
            ground.corpus.tokenizer,
            noise=model["noise"],
            noise_rate=config.noise_rate,
            framed=ground.framed,
            name=folder.parent.name,
            provenance=ground.provenance,
        ).save_pretrained(folder)

    task = ContrastTask(
        _build(config, ground),
        ground.train_windows,
        ground.valid_windows,
        contrast=ElectricContrast(config.algorithm),
        noise_rate=config.noise_rate,
        contrast_weight=config.contrast_weight,
        save_model=save,
        **ground.task_options,
    )
    return ground.run(ELECTRIC, train(task, ground.training, folder=output), output=output)


def plan_electric(config: PretrainElectricConfig, *, output: Path | str) -> PretrainPlan:
    """Check all inputs and say what `pretrain_electric` would do. Writes nothing."""
    ground = Ground.open(config, metric=NOISE_LOSS)
    with torch.device("meta"):
        model = _build(config, ground)
    return ground.plan(ELECTRIC, model, output=Path(output))


def _build(config: PretrainElectricConfig, ground: Ground) -> nn.ModuleDict:
    with seeded(config.training.seed, "initialisation"):
        encoder = build_encoder(ground.shape, **ground.sizes)
        noise = build_two_tower(config.noise_shape, embedding_width=ground.shape.width, **ground.sizes)
    share_token_embeddings(encoder, noise)
    return nn.ModuleDict({"noise": noise, "main": TokenEnergy(encoder, seed=config.training.seed)})
