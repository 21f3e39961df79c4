"""Train a masked language model on a corpus, resume it, or find it finished: `energylm pretrain mlm`.

OUTPUT/model/          the trained model, a folder for `EnergyModel.from_encoder` and for transformers' Auto classes
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.pretrain import PretrainMLMConfig
from energylm.data.corpus import Corpus
from energylm.data.windows import Windows
from energylm.errors import ModelError
from energylm.models.masked_presets import MaskedNetwork, build_masked_network
from energylm.training.engine import MODEL_FOLDER, state_of_run, train
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.masked_lm_task import MaskedLMTask
from energylm.training.seeding import seeded

KIND = "masked-lm"


@dataclass(frozen=True)
class MLMRun:
    """What came of it; of the weights that were saved. None where nothing was validated."""

    folder: Path  # the run
    model: Path  # the model, for `EnergyModel.from_encoder`
    journal: Path
    steps: int
    best_step: int
    nats_per_masked_token: float | None
    accuracy: float | None  # part of the masked tokens whose likeliest prediction is right
    tokens: int
    seconds: float
    tokens_per_second: float
    was_finished: bool

    def summary(self) -> str:
        if self.nats_per_masked_token is None:
            return f"not validated; step {self.steps:,}"
        return (
            f"{self.nats_per_masked_token:.3f} nats per masked token, {self.accuracy:.1%} right on split valid; "
            f"step {self.best_step:,} of {self.steps:,}"
        )

    def to_json(self) -> dict[str, Any]:
        paths = {"folder": self.folder, "model": self.model, "journal": self.journal}
        return asdict(self) | {name: str(path) for name, path in paths.items()}


@dataclass(frozen=True)
class MLMPlan:
    """What a run would do, and what it finds in the output folder."""

    parameters: int
    windows: int
    state: str

    def describe(self, config: PretrainMLMConfig, output: Path) -> str:
        training = config.training
        steps = "until validation stops improving" if training.steps is None else f"{training.steps:,} steps"
        return (
            f"{output}: {self.state}: {config.preset}, {self.parameters:,} parameters, {steps} of "
            f"{training.global_batch} windows of {config.window} tokens ({self.windows:,} windows), "
            f"{config.masking.rate:.0%} masked"
        )


def pretrain_mlm(config: PretrainMLMConfig, *, output: Path | str) -> MLMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    corpus, train_windows, valid_windows = _open(config)
    task = MaskedLMTask(
        _build(config, corpus),
        train_windows,
        valid_windows,
        masking=config.masking,
        mask_token_id=_mask_token_id(corpus),
        ordinary_V=_ordinary_tokens(corpus),
        seed=config.training.seed,
        global_batch=config.training.global_batch,
        max_valid_windows=config.validation_windows,
        valid_batch=config.training.micro_batch or config.training.global_batch,
        fingerprint={
            "corpus": corpus.manifest.identity,
            "window": config.window,
            "validation_windows": config.validation_windows,
            "preset": config.preset,
            "network": config.network,
        },
        save_model=lambda trained, folder: _save(trained, folder, config=config, corpus=corpus),
    )
    result = train(task, config.training, folder=output)
    return MLMRun(
        folder=output,
        model=output / MODEL_FOLDER,
        journal=output / JOURNAL,
        steps=result.steps,
        best_step=result.best_step,
        nats_per_masked_token=result.best_validation.get("loss"),
        accuracy=result.best_validation.get("accuracy"),
        tokens=result.tokens,
        seconds=result.seconds,
        tokens_per_second=result.tokens_per_second,
        was_finished=result.was_finished,
    )


def plan_mlm(config: PretrainMLMConfig, *, output: Path | str) -> MLMPlan:
    """Check all inputs and say what `pretrain_mlm` would do. Writes nothing."""
    output = Path(output)
    corpus, train_windows, _ = _open(config)
    _mask_token_id(corpus)
    with torch.device("meta"):
        network = _build(config, corpus)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return MLMPlan(parameters=parameters, windows=len(train_windows), state=state_of_run(output))


def _open(config: PretrainMLMConfig) -> tuple[Corpus, Windows, Windows | None]:
    corpus = Corpus.open(config.corpus)
    validates = config.training.validation.every_steps is not None
    return (
        corpus,
        Windows(corpus, "train", length=config.window),
        Windows(corpus, "valid", length=config.window) if validates else None,
    )


def _build(config: PretrainMLMConfig, corpus: Corpus) -> MaskedNetwork:
    with seeded(config.training.seed, "initialisation"):
        return build_masked_network(
            config.preset,
            vocabulary_size=corpus.vocabulary_size,
            max_length=config.window,
            pad_token_id=corpus.tokenizer.pad_token_id,
            overrides=config.network,
        )


def _mask_token_id(corpus: Corpus) -> int:
    if corpus.tokenizer.mask_token_id is None:
        raise ModelError(
            f"the tokenizer of {corpus.folder} has no mask token; build the corpus with a tokenizer of its own, or "
            "with a masked model's"
        )
    return int(corpus.tokenizer.mask_token_id)


def _ordinary_tokens(corpus: Corpus) -> Tensor:
    """(V,) true for all tokens but the special ones: the only ones that are hidden or put in at random."""
    ordinary_V = torch.ones(corpus.vocabulary_size, dtype=torch.bool)
    ordinary_V[[*corpus.tokenizer.all_special_ids, corpus.end_token_id]] = False
    return ordinary_V


def _save(network: MaskedNetwork, folder: Path, *, config: PretrainMLMConfig, corpus: Corpus) -> None:
    provenance = {
        "corpus": Path(config.corpus).name,
        "corpus_identity": corpus.manifest.identity,
        "licence": corpus.manifest.licence,
        "config": config.model_dump(mode="json", exclude={"corpus"}),
    }
    facts = {"name": folder.parent.name, "vocabulary_size": corpus.vocabulary_size}
    with new_model_folder(folder) as temporary:
        with quiet_transformers():
            network.save_pretrained(temporary)
            corpus.tokenizer.save_pretrained(temporary)
        write_manifest(temporary, kind=KIND, facts=facts, provenance=provenance)
