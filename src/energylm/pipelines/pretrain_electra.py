"""Train ELECTRA or ELECTRA-TT on a corpus, resume it, or find it finished: `energylm pretrain electra | electra-tt`.

Both save an `ElectraForPreTraining` (shapes with local attention: a ModernBERT token classifier with one label), and
beside it in `noise/` the generator: a masked language model of its own, or a two-tower model. Only the latter makes a
scorer of text (`bundles.cloze_model`).
"""

from pathlib import Path

import torch
from torch import nn

from energylm.bundles.cloze_model import ELECTRA_TT, NOISE_FOLDER, ClozeModel
from energylm.bundles.masked_language_model import save_masked_language_model
from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.pretrain import MASKED_LM, PretrainElectraConfig
from energylm.models.cloze_presets import (
    build_detector,
    build_generator,
    build_two_tower,
    share_token_embeddings,
)
from energylm.pipelines.pretrain_common import Ground, PretrainPlan, PretrainRun
from energylm.training.contrast_task import NOISE_LOSS, ContrastTask
from energylm.training.electra_task import ElectraContrast
from energylm.training.engine import train
from energylm.training.seeding import seeded

ELECTRA = "electra"


def pretrain_electra(config: PretrainElectraConfig, *, output: Path | str) -> PretrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    ground = Ground.open(config, metric=NOISE_LOSS)
    save = _save_electra if config.noise == MASKED_LM else _save_electra_tt
    task = ContrastTask(
        _build(config, ground),
        ground.train_windows,
        ground.valid_windows,
        contrast=ElectraContrast(ground.mask_token_id if config.noise == MASKED_LM else None),
        noise_rate=config.noise_rate,
        contrast_weight=config.contrast_weight,
        save_model=lambda model, folder: save(model, folder, ground),
        **ground.task_options,
    )
    return ground.run(_family(config), train(task, ground.training, folder=output), output=output)


def plan_electra(config: PretrainElectraConfig, *, output: Path | str) -> PretrainPlan:
    """Check all inputs and say what `pretrain_electra` would do. Writes nothing."""
    ground = Ground.open(config, metric=NOISE_LOSS)
    if config.noise == MASKED_LM:
        _ = ground.mask_token_id  # refused here already where there is none
    with torch.device("meta"):
        model = _build(config, ground)
    return ground.plan(_family(config), model, output=Path(output))


def _family(config: PretrainElectraConfig) -> str:
    return ELECTRA if config.noise == MASKED_LM else ELECTRA_TT


def _build(config: PretrainElectraConfig, ground: Ground) -> nn.ModuleDict:
    width = ground.shape.width
    with seeded(config.training.seed, "initialisation"):
        detector = build_detector(ground.shape, **ground.sizes)
        if config.noise == MASKED_LM:
            noise = build_generator(config.noise_shape, embedding_width=width, **ground.sizes)
        else:
            noise = build_two_tower(config.noise_shape, embedding_width=width, **ground.sizes)
    share_token_embeddings(detector, noise)
    return nn.ModuleDict({"noise": noise, "main": detector})


def _save_electra_tt(model: nn.Module, folder: Path, ground: Ground) -> None:
    ClozeModel(
        ELECTRA_TT,
        model["main"],
        ground.corpus.tokenizer,
        noise=model["noise"],
        noise_rate=ground.config.noise_rate,
        framed=ground.framed,
        name=folder.parent.name,
        provenance=ground.provenance,
    ).save_pretrained(folder)


def _save_electra(model: nn.Module, folder: Path, ground: Ground) -> None:
    name, tokenizer = folder.parent.name, ground.corpus.tokenizer
    with new_model_folder(folder) as temporary:
        with quiet_transformers():
            model["main"].save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        save_masked_language_model(
            model["noise"],
            tokenizer,
            temporary / NOISE_FOLDER,
            name=f"generator of {name}",
            framed=ground.framed,
            provenance=ground.provenance,
        )
        facts = {"name": name, "vocabulary_size": ground.corpus.vocabulary_size}
        write_manifest(temporary, kind=ELECTRA, facts=facts, provenance=ground.provenance)
