"""Train a two-tower cloze model on a corpus, resume it, or find it finished: `energylm pretrain two-tower`."""

from pathlib import Path

import torch
from torch import nn

from energylm.bundles.cloze_model import TWO_TOWER, ClozeModel
from energylm.config.pretrain import PretrainTwoTowerConfig, tower_shape
from energylm.models.cloze_presets import build_two_tower
from energylm.models.two_tower import TwoTowerForCloze
from energylm.pipelines.pretrain_common import Ground, PretrainPlan, PretrainRun
from energylm.training.engine import train
from energylm.training.seeding import seeded
from energylm.training.two_tower_task import TwoTowerTask


def pretrain_two_tower(config: PretrainTwoTowerConfig, *, output: Path | str) -> PretrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    ground = Ground.open(config)

    def save(model: nn.Module, folder: Path) -> None:
        ClozeModel(
            TWO_TOWER,
            model,
            ground.corpus.tokenizer,
            framed=ground.framed,
            name=folder.parent.name,
            provenance=ground.provenance,
        ).save_pretrained(folder)

    options = ground.task_options
    task = TwoTowerTask(
        _build(config, ground),
        ground.train_windows,
        ground.valid_windows,
        save_model=save,
        **options | {"fingerprint": options["fingerprint"] | {"size": config.size}},
    )
    return ground.run(TWO_TOWER, train(task, ground.training, folder=output), output=output)


def plan_two_tower(config: PretrainTwoTowerConfig, *, output: Path | str) -> PretrainPlan:
    """Check all inputs and say what `pretrain_two_tower` would do. Writes nothing."""
    ground = Ground.open(config)
    with torch.device("meta"):
        model = _build(config, ground)
    return ground.plan(TWO_TOWER, model, output=Path(output))


def _build(config: PretrainTwoTowerConfig, ground: Ground) -> TwoTowerForCloze:
    with seeded(config.training.seed, "initialisation"):
        return build_two_tower(tower_shape(ground.shape, config.size), **ground.sizes)
