"""Train a tagger or translator, resume it, or find it finished: `energylm seq2seq train`.

OUTPUT/model/          the trained model, a folder for `Seq2SeqModel.from_pretrained`, there once the run is finished
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerFast

from energylm.bundles.known_models import model_of_run
from energylm.bundles.model_folder import read_manifest
from energylm.bundles.seq2seq_model import Seq2SeqModel, check_soft_beam, search
from energylm.config.seq2seq import (
    DIRECT_LOSS,
    HINGE,
    TRANSLATION,
    NetworkConfig,
    TrainSeq2SeqConfig,
)
from energylm.data.tagging import tag_names, word_tokenizer
from energylm.data.tokenizer import end_token_id, train_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.files import sha256_of_file
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from energylm.objectives.step_costs import OUTSIDE, step_cost
from energylm.pipelines.seq2seq_data import Examples, encode_examples, read_examples
from energylm.progress import say
from energylm.training.engine import state_of_run, train
from energylm.training.seeding import seeded
from energylm.training.seq2seq_task import Seq2SeqTask
from energylm.training.trained_run import TrainedRun

__all__ = ["Seq2SeqPlan", "Seq2SeqRun", "TrainSeq2SeqConfig", "plan_seq2seq", "train_seq2seq"]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqRun(TrainedRun):
    """What came of it; of the weights that were saved."""

    validation: dict[str, float]  # empty where nothing was validated

    def summary(self) -> str:
        if not self.validation:
            return f"not validated; step {self.steps:,}"
        shown = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self.validation.items()))
        return f"{shown} on the validation data; step {self.best_step:,} of {self.steps:,}"


@dataclass(frozen=True)
class Seq2SeqPlan:
    """What a run would do, and what it finds in the output folder."""

    parameters: int
    sequences: int
    epochs: float | None
    outputs: int  # symbols of the output vocabulary
    state: str

    def describe(self, config: TrainSeq2SeqConfig, output: Path) -> str:
        steps = config.training.steps
        length = "until validation stops improving" if steps is None else f"{steps:,} steps ({self.epochs:.3g} epochs)"
        return (
            f"{output}: {self.state}: {config.task} by {config.objective.kind} from {config.init or 'random weights'}, "
            f"{self.parameters:,} parameters, {self.outputs:,} output symbols, {length} of "
            f"{config.training.global_batch} sequences ({self.sequences:,} sequences)"
        )


def train_seq2seq(config: TrainSeq2SeqConfig, *, output: Path | str) -> Seq2SeqRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    task = _task(config)
    result = train(task, config.training, folder=output)
    return Seq2SeqRun.of(result, output, validation=result.best_validation)


def plan_seq2seq(config: TrainSeq2SeqConfig, *, output: Path | str) -> Seq2SeqPlan:
    """Check all inputs and say what `train_seq2seq` would do. Writes nothing."""
    output = Path(output)
    task = _task(config)
    steps = config.training.steps
    return Seq2SeqPlan(
        parameters=sum(parameter.numel() for parameter in task.model.parameters()),
        sequences=len(task.train),
        epochs=None if steps is None else steps / task.batches.batches_an_epoch,
        outputs=task.model.config.vocab_size,
        state=state_of_run(output),
    )


def _task(config: TrainSeq2SeqConfig) -> Seq2SeqTask:
    train_examples = read_examples(config.task, config.train, limit=config.limit)
    valid_examples = read_examples(config.task, config.valid, limit=config.valid_limit)
    model = _model(config, train_examples)
    _check_search(config, model)
    train_pairs, _ = encode_examples(train_examples, model, longest=config.longest)
    valid_pairs, _ = encode_examples(valid_examples, model, unseen_tags=config.unseen_tags)
    if len(train_pairs) < len(train_examples):
        say(
            f"{len(train_examples) - len(train_pairs):,} training sequences have over {config.longest} tokens: left out"
        )
    outside = None if config.task == TRANSLATION or OUTSIDE not in model.tags else model.tags.index(OUTSIDE)

    def judge(indices: Sequence[int], outputs: Sequence[Sequence[int]]) -> dict[str, float]:
        scores = valid_examples.score([model.output(ids) for ids in outputs], indices=indices)
        values = scores.to_json()
        named = {name: float(values[name]) for name in ("f1", "accuracy", "bleu", "length_ratio") if name in values}
        return {"quality": scores.quality, **named}

    def save(network: nn.Module, folder: Path) -> None:
        model.name, model.provenance = folder.parent.name, _provenance(config)
        model.save_pretrained(folder)

    return Seq2SeqTask(
        model.network,
        train_pairs,
        valid_pairs,
        objective=config.objective,
        cost=step_cost(config.objective.cost, vocabulary_size=model.network.config.vocab_size, outside_id=outside),
        decoding=config.decoding,
        decode=search,
        judge=judge,
        seed=config.training.seed,
        global_batch=config.training.global_batch,
        save_model=save,
        fingerprint=_fingerprint(config),
    )


def _model(config: TrainSeq2SeqConfig, examples: Examples) -> Seq2SeqModel:
    if config.init is not None:
        model = Seq2SeqModel.from_pretrained(config.init)
        if model.task != config.task:
            raise ModelError(f"{config.init} was trained for {model.task}, not for {config.task}; give another init")
        if config.network != NetworkConfig():
            raise ConfigError(f"network.… shapes a new network, but the shape is {config.init}'s; leave it out")
        return model
    if config.task == TRANSLATION:
        texts = (
            text for pair in zip(examples.sources, examples.targets, strict=True) for side in pair for text in side
        )
        tokenizer = train_tokenizer(texts, vocabulary_size=config.vocabulary_size)
        return _new_model(config, tokenizer, outputs=len(tokenizer), eos=end_token_id(tokenizer))
    tags = tag_names(examples.tagged)
    tokenizer = word_tokenizer(examples.tagged, least_count=config.least_count)
    model = _new_model(config, tokenizer, outputs=len(tags), eos=None)
    model.network.config.id2label = dict(enumerate(tags))
    model.network.config.label2id = {tag: number for number, tag in enumerate(tags)}
    return model


def _new_model(
    config: TrainSeq2SeqConfig, tokenizer: PreTrainedTokenizerFast, *, outputs: int, eos: int | None
) -> Seq2SeqModel:
    shape = config.network
    if shape.attention == "fixed" and config.task == TRANSLATION:
        raise ConfigError("fixed attention writes as many symbols as the source has; take learned for translation")
    attention = shape.attention or ("learned" if config.task == TRANSLATION else "fixed")
    with seeded(config.training.seed, "initialisation"):
        network = LSTMSeq2Seq(
            LSTMSeq2SeqConfig(
                source_vocab_size=len(tokenizer),
                vocab_size=outputs,
                hidden_size=shape.hidden,
                source_embedding_size=shape.source_embedding,
                embedding_size=shape.embedding,
                bidirectional=shape.bidirectional,
                attention=attention,
                dropout=shape.dropout,
                eos_token_id=eos,
            )
        )
    return Seq2SeqModel(network, tokenizer, task=config.task)


def _check_search(config: TrainSeq2SeqConfig, model: Seq2SeqModel) -> None:
    model.check(config.decoding)
    if config.objective.kind in (DIRECT_LOSS, HINGE):
        check_soft_beam(config.objective.beam, vocabulary=model.network.config.vocab_size, key="objective.beam")
        if config.init is None:
            say(f"{config.objective.kind} from random weights rarely learns; set init to a cross-entropy model")


def _fingerprint(config: TrainSeq2SeqConfig) -> dict[str, Any]:
    files = {"train": config.train, "valid": config.valid}
    settings = config.model_dump(mode="json", exclude={"train", "valid", "init", "training", "objective"})
    init = None if config.init is None else read_manifest(model_of_run(config.init))["weights"]
    return {
        **settings,
        "init": init,
        **{name: [sha256_of_file(Path(file)) for file in paths] for name, paths in files.items()},
    }


def _provenance(config: TrainSeq2SeqConfig) -> dict[str, Any]:
    names = {"train": [Path(file).name for file in config.train], "valid": [Path(file).name for file in config.valid]}
    return {**names, "config": config.model_dump(mode="json", exclude={"train", "valid", "init"})}
