"""What all families of `energylm pretrain` share: corpus and windows, which tokens are text, compute, results.

OUTPUT/model/          the trained model; transformers' AutoModel reads it as an encoder
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energylm.bundles.masked_language_model import KIND as MASKED
from energylm.config.models import TransformerShape
from energylm.config.pretrain import PretrainClozeConfig, masked_preset_shape
from energylm.config.training import TrainingConfig
from energylm.data.corpus import Corpus
from energylm.data.windows import Windows
from energylm.errors import ModelError
from energylm.models.cloze_presets import NetworkSizes
from energylm.models.compute import equal_steps, training_flops_per_step
from energylm.models.presets import count_parameters
from energylm.training.engine import state_of_run, train
from energylm.training.state import TrainedRun
from energylm.verbs.cloze.families import FAMILIES
from energylm.verbs.cloze.pretrain import Pretrain, PretrainMLM

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


@dataclass(frozen=True)
class PretrainPlan:
    """What a run would do, and what it finds in the output folder."""

    family: str
    parameters: int  # of all networks that are trained, shared ones once
    windows: int
    steps: int | None
    flops_per_step: float
    state: str

    @property
    def compute(self) -> float | None:
        return None if self.steps is None else self.steps * self.flops_per_step

    def describe(self, verb: Pretrain, output: Path) -> str:
        steps = "until validation stops improving" if self.steps is None else f"{self.steps:,} steps"
        compute = f"{self.flops_per_step:.3g} FLOPs a step" + (f", {self.compute:.3g} in all" if self.compute else "")
        masked = f"{verb.masking.rate:.0%} masked, " if isinstance(verb, PretrainMLM) else ""
        return (
            f"{output}: {self.state}: {self.family} {verb.preset}, {self.parameters:,} parameters, {steps} of "
            f"{verb.training.global_batch} windows of {verb.window} tokens ({self.windows:,} windows), {masked}"
            f"{compute}"
        )


@dataclass(frozen=True)
class Pretraining:
    """A run's opened corpus and the settings that follow from it."""

    verb: Any  # of one of the families, each with options of its own
    corpus: Corpus
    train_windows: Windows
    valid_windows: Windows | None
    training: TrainingConfig

    @classmethod
    def open(cls, verb: Pretrain, *, metric: str = "loss") -> "Pretraining":
        """`metric` is the validation number that decides, where the configuration leaves that open."""
        corpus = Corpus.open(verb.corpus)
        validates = verb.training.validation.every_steps is not None
        return cls(
            verb,
            corpus,
            Windows(corpus, "train", length=verb.window),
            Windows(corpus, "valid", length=verb.window) if validates else None,
            _training(verb, corpus.vocabulary_size, metric),
        )

    @property
    def shape(self) -> TransformerShape:
        return masked_preset_shape(self.verb.preset, self.verb.network)

    @property
    def sizes(self) -> NetworkSizes:
        """What the networks must know of the corpus."""
        return {
            "vocabulary_size": self.corpus.vocabulary_size,
            "max_length": self.verb.window,
            "pad_token_id": self.corpus.tokenizer.pad_token_id,
        }

    @property
    def ordinary_V(self) -> Tensor:  # noqa: N802
        """(V,) true for all tokens but the special ones: the only ones that are hidden, replaced or judged."""
        ordinary_V = torch.ones(self.corpus.vocabulary_size, dtype=torch.bool)
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
        """What every family's task is told."""
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
            },
        }

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            "corpus": Path(self.verb.corpus).name,
            "corpus_identity": self.corpus.manifest.identity,
            "licence": self.corpus.manifest.licence,
            "config": self.verb.model_dump(mode="json", exclude={"corpus"}),
        }

    @property
    def flops_per_step(self) -> float:
        return training_flops_per_step(self.verb, vocabulary_size=self.corpus.vocabulary_size)


def pretrain(verb: Pretrain, output: Path) -> PretrainRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    family = FAMILIES[verb.family]
    run = Pretraining.open(verb, metric=family.metric)
    result = train(family.task(run), run.training, folder=output)
    return PretrainRun.of(
        result,
        output,
        family=verb.family,
        validation=result.best_validation,
        compute=result.steps * run.flops_per_step,
    )


def plan_pretraining(verb: Pretrain, output: Path) -> PretrainPlan:
    """Check all inputs and say what `pretrain` would do. Writes nothing."""
    family = FAMILIES[verb.family]
    run = Pretraining.open(verb, metric=family.metric)
    if family.needs_mask:
        _ = run.mask_token_id  # refused here already where there is none
    with torch.device("meta"):
        model = family.build(run)
    return PretrainPlan(
        family=verb.family,
        parameters=count_parameters(model),
        windows=len(run.train_windows),
        steps=run.training.steps,
        flops_per_step=run.flops_per_step,
        state=state_of_run(output),
    )


def _training(verb: Pretrain, vocabulary_size: int, metric: str) -> TrainingConfig:
    """The training settings with the steps that `compute` pays for, and the family's deciding number."""
    values = verb.training.model_dump()
    if isinstance(verb, PretrainClozeConfig) and verb.compute is not None:
        values["steps"] = equal_steps(verb, verb.compute, vocabulary_size=vocabulary_size)
    if values["validation"]["metric"] == "loss":
        values["validation"]["metric"] = metric
    return TrainingConfig.checked(values, origin="the training settings")
