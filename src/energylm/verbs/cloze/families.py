"""The families of cloze models: which networks each builds, which task trains them, how they are saved.

A new family is an entry of `FAMILIES` and a verb in `pretrain`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from energylm.bundles.cloze_model import ELECTRA_TT, ELECTRIC, NOISE_FOLDER, TWO_TOWER, ClozeModel
from energylm.bundles.masked_language_model import KIND as MASKED
from energylm.bundles.masked_language_model import save_masked_language_model
from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.pretrain import tower_shape
from energylm.energies.electric import TokenEnergy
from energylm.models.cloze_presets import (
    MaskedLMNetwork,
    build_detector,
    build_encoder,
    build_generator,
    build_masked_network,
    build_two_tower,
    share_token_embeddings,
)
from energylm.models.two_tower import TwoTowerForCloze
from energylm.randomness import seeded
from energylm.training.contrast_task import NOISE_LOSS, ContrastTask, ElectraContrast, ElectricContrast
from energylm.training.language_model_task import MaskedLMTask, TwoTowerTask

if TYPE_CHECKING:
    from energylm.verbs.cloze.pretraining import Pretraining

ELECTRA = "electra"


@dataclass(frozen=True)
class Family:
    """`build` makes the networks with random weights, `task` what the engine trains."""

    build: "Callable[[Pretraining], nn.Module]"
    task: "Callable[[Pretraining], Any]"
    metric: str = "loss"  # the validation number that decides, where the configuration leaves that open
    needs_mask: bool = False


def _build_mlm(run: "Pretraining") -> MaskedLMNetwork:
    with seeded(run.verb.training.seed, "initialisation"):
        return build_masked_network(run.verb.preset, overrides=run.verb.network, **run.sizes)


def _mlm_task(run: "Pretraining") -> MaskedLMTask:
    def save(network: Any, folder: Path) -> None:
        facts: dict[str, Any] = {"framed": run.framed, "provenance": run.provenance}
        save_masked_language_model(network, run.corpus.tokenizer, folder, name=folder.parent.name, **facts)

    return MaskedLMTask(
        _build_mlm(run),
        run.train_windows,
        run.valid_windows,
        masking=run.verb.masking,
        mask_token_id=run.mask_token_id,
        save_model=save,
        **run.task_options,
    )


def _build_electric(run: "Pretraining") -> nn.ModuleDict:
    verb, seed = run.verb, run.verb.training.seed
    with seeded(seed, "initialisation"):
        encoder = build_encoder(run.shape, **run.sizes)
        noise = build_two_tower(verb.noise_shape, embedding_width=run.shape.width, **run.sizes)
    share_token_embeddings(encoder, noise)
    return nn.ModuleDict({"noise": noise, "main": TokenEnergy(encoder, seed=seed)})


def _electric_task(run: "Pretraining") -> ContrastTask:
    return _contrast_task(run, _build_electric(run), ElectricContrast(run.verb.algorithm), _saved_cloze(run, ELECTRIC))


def _build_electra(run: "Pretraining") -> nn.ModuleDict:
    build_noise = build_generator if run.verb.family == ELECTRA else build_two_tower
    with seeded(run.verb.training.seed, "initialisation"):
        detector = build_detector(run.shape, **run.sizes)
        noise = build_noise(run.verb.noise_shape, embedding_width=run.shape.width, **run.sizes)
    share_token_embeddings(detector, noise)
    return nn.ModuleDict({"noise": noise, "main": detector})


def _electra_task(run: "Pretraining") -> ContrastTask:
    """Saves an `ElectraForPreTraining` (shapes with local attention: a ModernBERT token classifier with one label), and
    beside it in `noise/` the generator, a masked language model of its own."""

    def save(model: Any, folder: Path) -> None:
        name, tokenizer = folder.parent.name, run.corpus.tokenizer
        facts: dict[str, Any] = {"framed": run.framed, "provenance": run.provenance}
        with new_model_folder(folder) as temporary:
            with quiet_transformers():
                model["main"].save_pretrained(temporary)
                tokenizer.save_pretrained(temporary)
            noise = temporary / NOISE_FOLDER
            save_masked_language_model(model["noise"], tokenizer, noise, name=f"generator of {name}", **facts)
            manifest = {"name": name, "vocabulary_size": run.corpus.vocabulary_size}
            write_manifest(temporary, kind=ELECTRA, facts=manifest, provenance=run.provenance)

    return _contrast_task(run, _build_electra(run), ElectraContrast(run.mask_token_id), save)


def _electra_tt_task(run: "Pretraining") -> ContrastTask:
    return _contrast_task(run, _build_electra(run), ElectraContrast(None), _saved_cloze(run, ELECTRA_TT))


def _contrast_task(run: "Pretraining", model: nn.ModuleDict, contrast: Any, save: Any) -> ContrastTask:
    return ContrastTask(
        model,
        run.train_windows,
        run.valid_windows,
        contrast=contrast,
        noise_rate=run.verb.noise_rate,
        contrast_weight=run.verb.contrast_weight,
        save_model=save,
        **run.task_options,
    )


def _build_two_tower(run: "Pretraining") -> TwoTowerForCloze:
    with seeded(run.verb.training.seed, "initialisation"):
        return build_two_tower(tower_shape(run.shape, run.verb.size), **run.sizes)


def _two_tower_task(run: "Pretraining") -> TwoTowerTask:
    options = run.task_options
    return TwoTowerTask(
        _build_two_tower(run),
        run.train_windows,
        run.valid_windows,
        save_model=_saved_cloze(run, TWO_TOWER),
        **options | {"fingerprint": options["fingerprint"] | {"size": run.verb.size}},
    )


def _saved_cloze(run: "Pretraining", kind: Any) -> Callable[[Any, Path], None]:
    """Saves a `ClozeModel`: one network, or one with its noise model."""

    def save(model: Any, folder: Path) -> None:
        alone = kind == TWO_TOWER
        noise: dict[str, Any] = {} if alone else {"noise": model["noise"], "noise_rate": run.verb.noise_rate}
        ClozeModel(
            kind,
            model if alone else model["main"],
            run.corpus.tokenizer,
            **noise,
            framed=run.framed,
            name=folder.parent.name,
            provenance=run.provenance,
        ).save_pretrained(folder)

    return save


FAMILIES: dict[str, Family] = {
    MASKED: Family(_build_mlm, _mlm_task, needs_mask=True),
    ELECTRIC: Family(_build_electric, _electric_task, metric=NOISE_LOSS),
    ELECTRA: Family(_build_electra, _electra_task, metric=NOISE_LOSS, needs_mask=True),
    ELECTRA_TT: Family(_build_electra, _electra_tt_task, metric=NOISE_LOSS),
    TWO_TOWER: Family(_build_two_tower, _two_tower_task),
}
