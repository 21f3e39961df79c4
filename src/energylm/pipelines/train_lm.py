"""Train a language model on a corpus, resume it, or find it finished: `energylm lm train`.

OUTPUT/model/          the trained model, a folder for `LanguageModel.from_pretrained`, there once the run is finished
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

import math
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.train_lm import TrainLMConfig
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import ConfigError, ModelError, VocabularyMismatch
from energylm.estimators.perplexity import Perplexity
from energylm.models.causal import CausalLanguageModel
from energylm.models.parity import count_parameters, width_for
from energylm.models.presets import build_network
from energylm.models.ralm import RalmLM
from energylm.training.engine import state_of_run, train
from energylm.training.language_model_task import LanguageModelTask
from energylm.training.seeding import seeded
from energylm.training.trained_run import TrainedRun

__all__ = ["LMPlan", "LMRun", "TrainLMConfig", "plan_lm", "train_lm"]


@dataclass(frozen=True, kw_only=True)
class LMRun(TrainedRun):
    """What came of it. Perplexities are None where nothing was validated."""

    final_perplexity: Perplexity | None  # after the last step
    best_perplexity: Perplexity | None  # of the saved weights


@dataclass(frozen=True)
class LMPlan:
    """What a run would do, and what it finds in the output folder."""

    parameters: int
    windows: int
    epochs: float | None  # None where only validation ends the run
    state: str

    def describe(self, config: TrainLMConfig, output: Path) -> str:
        steps = (
            "until validation stops improving" if config.training.steps is None else f"{config.training.steps:,} steps"
        )
        epochs = "" if self.epochs is None else f", {self.epochs:.3g} epochs"
        return (
            f"{output}: {self.state}: {_title(config)}, {self.parameters:,} parameters, "
            f"{config.direction}, {steps} of {config.training.global_batch} windows of {config.window} tokens "
            f"({self.windows:,} windows{epochs})"
        )


def train_lm(config: TrainLMConfig, *, output: Path | str) -> LMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    corpus, train_windows, valid_windows = _open(config)
    network = _build(config, corpus)
    task = LanguageModelTask(
        network,
        train_windows,
        valid_windows,
        seed=config.training.seed,
        global_batch=config.training.global_batch,
        direction=config.direction,
        max_valid_windows=config.validation_windows,
        valid_batch=config.training.micro_batch or config.training.global_batch,
        fingerprint=_fingerprint(config, corpus),
        save_model=lambda trained, folder: _save(trained, folder, config=config, corpus=corpus),
    )
    result = train(task, config.training, folder=output)
    return LMRun.of(
        result,
        output,
        final_perplexity=_perplexity(result.validation, config, corpus, task),
        best_perplexity=_perplexity(result.best_validation, config, corpus, task),
    )


def plan_lm(config: TrainLMConfig, *, output: Path | str) -> LMPlan:
    """Check all inputs and say what `train_lm` would do. Writes nothing."""
    output = Path(output)
    corpus, train_windows, _ = _open(config)
    with torch.device("meta") if config.pretrained is config.base is None else nullcontext():
        network = _build(config, corpus)
    steps = config.training.steps
    return LMPlan(
        parameters=count_parameters(network),
        windows=len(train_windows),
        epochs=None if steps is None else steps * config.training.global_batch / len(train_windows),
        state=state_of_run(output),
    )


def _open(config: TrainLMConfig) -> tuple[Corpus, Windows, Windows | None]:
    corpus = Corpus.open(config.corpus)
    validates = config.training.validation.every_steps is not None
    return (
        corpus,
        Windows(corpus, "train", length=config.window),
        Windows(corpus, "valid", length=config.window) if validates else None,
    )


def _build(config: TrainLMConfig, corpus: Corpus) -> PreTrainedModel:
    if config.pretrained is not None:
        if config.network:
            raise ConfigError(
                f"network.{next(iter(config.network))} changes a preset, but the shape is {config.pretrained}'s"
            )
        return _existing(config.pretrained, config, corpus)
    if config.base is None:
        return _new(config, corpus, overrides=config.network)
    base = _existing(config.base, config, corpus)
    if config.kind == "ralm":
        return RalmLM.of(base, _new(config, corpus, overrides=config.network))
    with torch.device("meta"):  # only to be counted
        residual = _new(config, corpus, overrides=config.network)
    width = width_for(
        count_parameters(base) + count_parameters(residual),
        config.preset,
        vocabulary_size=corpus.vocabulary_size,
        max_length=config.window,
        overrides=config.network,
    )
    return _new(config, corpus, overrides={**config.network, "width": width})


def _new(config: TrainLMConfig, corpus: Corpus, *, overrides: Mapping[str, Any]) -> PreTrainedModel:
    with seeded(config.training.seed, "initialisation"):
        return build_network(
            config.preset,
            vocabulary_size=corpus.vocabulary_size,
            max_length=config.window,
            eos_token_id=corpus.end_token_id,
            overrides=overrides,
        )


def _existing(name: str, config: TrainLMConfig, corpus: Corpus) -> PreTrainedModel:
    """The network of a model that reads this corpus, in this direction, in windows as long as these."""
    model = LanguageModel.from_pretrained(name, device="cpu", dtype=torch.float32)
    if tokenizer_sha256(model.tokenizer) != corpus.manifest.tokenizer.sha256:
        raise VocabularyMismatch(
            f"{name} reads other tokens than {config.corpus} holds; build the corpus with "
            f"--tokenizer {shlex.quote(str(name))}"
        )
    if model.model.direction != config.direction:
        raise ConfigError(f"{name} reads {model.model.direction}; set direction to that, not {config.direction}")
    if model.model.max_length is not None and config.window > model.model.max_length:
        raise ModelError(f"{name} holds {model.model.max_length} tokens, not {config.window}; set a shorter window")
    return model.model.network


def _title(config: TrainLMConfig) -> str:
    if config.kind == "ralm":
        return f"ralm of {config.base} and {config.preset}"
    return f"balm as large as {config.base} and {config.preset}" if config.base else config.pretrained or config.preset


def _fingerprint(config: TrainLMConfig, corpus: Corpus) -> dict[str, Any]:
    network = {"preset": config.preset, "network": config.network}
    return {
        "corpus": corpus.manifest.identity,
        "window": config.window,
        "validation_windows": config.validation_windows,
        **({"pretrained": weights_sha256(config.pretrained)} if config.pretrained else network),
        **({"kind": config.kind, "base": weights_sha256(config.base)} if config.base else {}),
    }


def _save(network: PreTrainedModel, folder: Path, *, config: TrainLMConfig, corpus: Corpus) -> None:
    end = corpus.end_token_id
    model = CausalLanguageModel(network, start_token_id=end, eos_token_id=end, direction=config.direction)
    provenance = {
        "corpus": Path(config.corpus).name,
        "corpus_identity": corpus.manifest.identity,
        "licence": corpus.manifest.licence,
        "config": config.model_dump(mode="json", exclude={"corpus", "pretrained", "base"}),
    }
    LanguageModel(model, corpus.tokenizer, name=folder.parent.name, provenance=provenance).save_pretrained(folder)


def _perplexity(
    validation: dict[str, float], config: TrainLMConfig, corpus: Corpus, task: LanguageModelTask
) -> Perplexity | None:
    if not validation:
        return None
    nats, windows = validation["loss"], len(task.validated_windows)
    return Perplexity(
        value=math.exp(nats) if nats < 700 else math.inf,
        standard_error=None,
        nats_per_token=nats,
        bits_per_byte=nats / math.log(2) * corpus.manifest.splits["valid"].tokens_per_byte,
        sequences=windows,
        tokens=windows * (config.window - 1),
        bytes=None,
        convention=f"nats per token of the corpus's tokenizer ({corpus.vocabulary_size:,} tokens), {config.direction}, "
        f"packed windows of {config.window} tokens of split valid whose first token is given, end-of-text counted; "
        "bits per byte at the split's tokens per byte",
    )
