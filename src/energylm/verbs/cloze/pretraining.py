"""The work of `energylm pretrain`: corpus and windows, which tokens are text, compute; the networks of each family,
the task that trains them, how they are saved.

OUTPUT/model/          the trained model; transformers' AutoModel reads it as an encoder
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished

A new family is a class here, an entry of `FAMILIES` and a verb in `pretrain`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.bundles.cloze_model import ELECTRA_TT, ELECTRIC, NOISE_FOLDER, TWO_TOWER, ClozeKind, ClozeModel
from energylm.bundles.encoder_start import EncoderStart, copy_token_embeddings
from energylm.bundles.masked_language_model import KIND as MASKED
from energylm.bundles.masked_language_model import save_masked_language_model
from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.pretrain import PretrainClozeConfig, masked_preset_shape, tower_shape
from energylm.config.training import TrainingConfig
from energylm.data.corpus import Corpus
from energylm.data.windows import Windows
from energylm.energies.electric import TokenEnergy
from energylm.errors import ModelError
from energylm.models.cloze_presets import (
    MaskedLMNetwork,
    NetworkSizes,
    build_detector,
    build_encoder,
    build_generator,
    build_masked_network,
    build_two_tower,
    share_token_embeddings,
)
from energylm.models.compute import equal_steps, training_flops_per_step
from energylm.models.presets import count_parameters
from energylm.models.two_tower import TwoTowerForCloze
from energylm.randomness import seeded
from energylm.training.contrast_task import NOISE_LOSS, ContrastTask, ElectraContrast, ElectricContrast
from energylm.training.engine import state_of_run, train
from energylm.training.language_model_task import MaskedLMTask, TwoTowerTask
from energylm.training.state import TrainedRun
from energylm.verbs.cloze.pretrain import Pretrain, PretrainMLM

ELECTRA = "electra"
BOUNDARIES_A_WINDOW = 0.01  # on average, from which on the end-of-text token counts as learnt: hundreds in a short run
MEASURES = {  # validation numbers, as a person reads them
    "loss": "{:.3f} nats per token",
    "accuracy": "{:.1%} predicted right",
    "noise_loss": "noise model {:.3f} nats per token it predicts",
    "contrast_loss": "contrast {:.3f} nats per token",
    "real_accuracy": "{:.1%} of real tokens told right",
    "noise_accuracy": "{:.1%} of noise tokens told right",
}


@dataclass(frozen=True, kw_only=True)
class PretrainRun(TrainedRun):
    """What came of it; `validation` is of the weights that were saved, empty where nothing was validated."""

    family: str
    validation: dict[str, float]
    compute: float  # counted training FLOPs

    def summary(self) -> str:
        if not self.validation:
            return f"not validated; step {self.steps:,}, {self.compute:.3g} FLOPs"
        words = MEASURES | ({"loss": "{:.3f} nats per masked token"} if self.family == MASKED else {})
        said = ", ".join(text.format(self.validation[name]) for name, text in words.items() if name in self.validation)
        return f"{said} on split valid; step {self.best_step:,} of {self.steps:,}, {self.compute:.3g} FLOPs"


class Pretraining:
    """A run's opened corpus, the settings that follow from it, and its networks."""

    metric: ClassVar[str] = "loss"  # the validation number that decides, where the configuration leaves that open
    needs_mask: ClassVar[bool] = False

    def __init__(self, verb: Any) -> None:
        """`verb` is that of the family, with options of its own."""
        self.given, self.corpus = verb, Corpus.open(verb.corpus)
        self.start = None if verb.start is None else EncoderStart(verb.start, verb.network.get("dropout"))
        self.verb = verb if self.start is None else verb.shaped(**self.start.sizes)
        verb = self.verb
        self.train_windows = Windows(self.corpus, "train", length=verb.window)
        validates = verb.training.validation.every_steps is not None
        self.valid_windows = Windows(self.corpus, "valid", length=verb.window) if validates else None
        self.training = self._training()
        self.shape = masked_preset_shape(verb.preset, verb.network)
        self.sizes: NetworkSizes = {
            "vocabulary_size": self.corpus.vocabulary_size,
            "max_length": verb.window,
            "pad_token_id": self.corpus.tokenizer.pad_token_id,
        }
        if self.start is not None:
            self.start.check(self.corpus.manifest.tokenizer.sha256, verb.corpus, window=verb.window)
            self.sizes |= {"vocabulary_size": self.start.vocabulary_size, "max_length": self.start.max_length}
        self.flops_per_step = training_flops_per_step(verb, vocabulary_size=self.corpus.vocabulary_size)
        if self.needs_mask:
            _ = self.mask_token_id  # refused here already where there is none

    def build(self) -> nn.Module:
        """The networks, with weights from torch's global generator."""
        raise NotImplementedError

    def task(self) -> Any:
        """What the engine trains."""
        raise NotImplementedError

    def built(self) -> Any:
        with seeded(self.verb.training.seed, "initialisation"):
            return self.build()

    @property
    def parameters(self) -> int:
        """Of all networks that are trained, shared ones once."""
        with torch.device("meta") if self.start is None else nullcontext():
            return count_parameters(self.build())

    @property
    def ordinary_V(self) -> Tensor:  # noqa: N802
        """(V,) true for all tokens but the special ones: the only ones that are hidden, replaced or judged."""
        ordinary_V = torch.arange(self.sizes["vocabulary_size"]) < self.corpus.vocabulary_size
        ordinary_V[[*self.corpus.tokenizer.all_special_ids, self.corpus.end_token_id]] = False
        return ordinary_V

    @property
    def framed(self) -> bool:
        """Whether the training windows show where documents begin and end, so that the networks know the end-of-text
        token: then a text by itself is read between two of them."""
        train = self.corpus.manifest.splits["train"]
        return bool(train.documents * self.verb.window >= BOUNDARIES_A_WINDOW * train.tokens)

    @property
    def mask_token_id(self) -> int:
        if self.corpus.tokenizer.mask_token_id is None:
            raise ModelError(
                f"the tokenizer of {self.corpus.folder} has no mask token; build the corpus with a tokenizer of its "
                "own, or with a masked model's"
            )
        return int(self.corpus.tokenizer.mask_token_id)

    @property
    def task_options(self) -> dict[str, Any]:
        """What every family's task is told beside its network and windows."""
        verb, training = self.verb, self.training
        return {
            "ordinary_V": self.ordinary_V,
            "seed": training.seed,
            "global_batch": training.global_batch,
            "max_valid_windows": verb.validation_windows,
            "valid_batch": training.micro_batch or training.global_batch,
            "fingerprint": {
                "corpus": self.corpus.manifest.identity,
                "window": verb.window,
                "validation_windows": verb.validation_windows,
                "preset": verb.preset,
                "network": verb.network,
                **({} if self.start is None else {"start": self.start.identity}),
            },
        }

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            "corpus": Path(self.verb.corpus).name,
            "corpus_identity": self.corpus.manifest.identity,
            "licence": self.corpus.manifest.licence,
            "config": self.given.model_dump(mode="json", exclude={"corpus", "start"}),
            **({} if self.start is None else {"start": self.start.name}),
        }

    def saved_cloze(self, kind: ClozeKind) -> Callable[[Any, Path], None]:
        """Saves a `ClozeModel`: one network, or one with its noise model."""

        def save(model: Any, folder: Path) -> None:
            alone = kind == TWO_TOWER
            noise: dict[str, Any] = {} if alone else {"noise": model["noise"], "noise_rate": self.verb.noise_rate}
            ClozeModel(
                kind,
                model if alone else model["main"],
                self.corpus.tokenizer,
                **noise,
                framed=self.framed,
                name=folder.parent.name,
                provenance=self.provenance,
            ).save_pretrained(folder)

        return save

    def save_masked(self, network: Any, folder: Path, *, name: str) -> None:
        facts: dict[str, Any] = {"name": name, "framed": self.framed, "provenance": self.provenance}
        save_masked_language_model(network, self.corpus.tokenizer, folder, **facts)

    def _training(self) -> TrainingConfig:
        """The training settings with the steps that `compute` pays for, and the family's deciding number."""
        verb, values = self.verb, self.verb.training.model_dump()
        if isinstance(verb, PretrainClozeConfig) and verb.compute is not None:
            values["steps"] = equal_steps(verb, verb.compute, vocabulary_size=self.corpus.vocabulary_size)
        if values["validation"]["metric"] == "loss":
            values["validation"]["metric"] = self.metric
        return TrainingConfig.checked(values, origin="the training settings")


class MaskedPretraining(Pretraining):
    needs_mask = True

    def build(self) -> MaskedLMNetwork:
        if self.start is not None:
            return self.start.masked_network()
        return build_masked_network(self.verb.preset, overrides=self.verb.network, **self.sizes)

    def task(self) -> MaskedLMTask:
        return MaskedLMTask(
            self.built(),
            self.train_windows,
            self.valid_windows,
            masking=self.verb.masking,
            mask_token_id=self.mask_token_id,
            save_model=lambda network, folder: self.save_masked(network, folder, name=folder.parent.name),
            **self.task_options,
        )


class TwoTowerPretraining(Pretraining):
    def build(self) -> TwoTowerForCloze:
        tower = tower_shape(self.shape, self.verb.size)
        if self.start is None:
            return build_two_tower(tower, **self.sizes)
        towers = build_two_tower(tower, embedding_width=self.shape.width, **self.sizes)
        copy_token_embeddings(self.start.encoder(), towers)
        return towers

    def task(self) -> TwoTowerTask:
        options = self.task_options
        options["fingerprint"]["size"] = self.verb.size
        save = self.saved_cloze(TWO_TOWER)
        return TwoTowerTask(self.built(), self.train_windows, self.valid_windows, save_model=save, **options)


class _ContrastPretraining(Pretraining):
    """A main network beside its noise model, which share the table of token embeddings."""

    metric = NOISE_LOSS

    def build(self) -> nn.ModuleDict:
        is_electric = self.verb.family == ELECTRIC
        main: PreTrainedModel
        if self.start is None:
            main = (build_encoder if is_electric else build_detector)(self.shape, **self.sizes)
        else:
            main = self.start.encoder() if is_electric else self.start.detector()
        build_noise = build_generator if self.verb.family == ELECTRA else build_two_tower
        noise = build_noise(self.verb.noise_shape, embedding_width=self.shape.width, **self.sizes)
        if self.start is not None:
            copy_token_embeddings(main, noise)
        share_token_embeddings(main, noise)
        headed = TokenEnergy(main, seed=self.verb.training.seed) if is_electric else main
        return nn.ModuleDict({"noise": noise, "main": headed})

    def _task(self, contrast: ElectricContrast | ElectraContrast, save: Callable[[Any, Path], None]) -> ContrastTask:
        return ContrastTask(
            self.built(),
            self.train_windows,
            self.valid_windows,
            contrast=contrast,
            noise_rate=self.verb.noise_rate,
            contrast_weight=self.verb.contrast_weight,
            save_model=save,
            **self.task_options,
        )


class ElectricPretraining(_ContrastPretraining):
    def task(self) -> ContrastTask:
        return self._task(ElectricContrast(self.verb.algorithm), self.saved_cloze(ELECTRIC))


class ElectraPretraining(_ContrastPretraining):
    """Saves an `ElectraForPreTraining` (shapes with local attention: a ModernBERT token classifier with one label), and
    beside it in `noise/` the generator, a masked language model of its own."""

    needs_mask = True

    def task(self) -> ContrastTask:
        return self._task(ElectraContrast(self.mask_token_id), self._save)

    def _save(self, model: Any, folder: Path) -> None:
        name = folder.parent.name
        with new_model_folder(folder) as temporary:
            with quiet_transformers():
                model["main"].save_pretrained(temporary)
                self.corpus.tokenizer.save_pretrained(temporary)
            self.save_masked(model["noise"], temporary / NOISE_FOLDER, name=f"generator of {name}")
            facts = {"name": name, "vocabulary_size": self.corpus.vocabulary_size}
            write_manifest(temporary, kind=ELECTRA, facts=facts, provenance=self.provenance)


class ElectraTTPretraining(_ContrastPretraining):
    def task(self) -> ContrastTask:
        return self._task(ElectraContrast(None), self.saved_cloze(ELECTRA_TT))


FAMILIES: dict[str, type[Pretraining]] = {
    MASKED: MaskedPretraining,
    ELECTRIC: ElectricPretraining,
    ELECTRA: ElectraPretraining,
    ELECTRA_TT: ElectraTTPretraining,
    TWO_TOWER: TwoTowerPretraining,
}


def pretrain(verb: Pretrain, output: Path) -> PretrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    run = FAMILIES[verb.family](verb)
    result = train(run.task(), run.training, folder=output)
    return PretrainRun.of(
        result,
        output,
        family=verb.family,
        validation=result.best_validation,
        compute=result.steps * run.flops_per_step,
    )


def describe_pretraining(verb: Pretrain, output: Path) -> str:
    """Check all inputs and say what `pretrain` would do. Writes nothing."""
    run = FAMILIES[verb.family](verb)
    steps, flops = run.training.steps, run.flops_per_step
    until = "until validation stops improving" if steps is None else f"{steps:,} steps"
    compute = f"{flops:.3g} FLOPs a step" + (f", {steps * flops:.3g} in all" if steps else "")
    masked = f"{verb.masking.rate:.0%} masked, " if isinstance(verb, PretrainMLM) else ""
    return (
        f"{output}: {state_of_run(output)}: {verb.family} {verb.start or verb.preset}, {run.parameters:,} parameters, "
        f"{until} of {verb.training.global_batch} windows of {verb.window} tokens "
        f"({len(run.train_windows):,} windows), {masked}{compute}"
    )
