"""A tagger's or translator's run: its data, network and task for the training engine, and the best of several runs.

A new network begins with weights of its own in each restart; with a warm start the runs differ in data order and coins.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerFast

from energylm.bundles.known_models import model_of_run
from energylm.bundles.model_folder import read_manifest
from energylm.bundles.seq2seq_model import Seq2SeqModel, check_soft_beam, search
from energylm.bundles.sequence_examples import Examples, encode_examples, read_examples
from energylm.config.seq2seq import DIRECT_LOSS, HINGE, TRANSLATION
from energylm.data.tagging import tag_names, word_tokenizer
from energylm.data.tokenizer import end_token_id, train_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.files import read_json, sha256_of_file, write_json
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from energylm.models.presets import count_parameters
from energylm.objectives.search_losses import OUTSIDE, step_cost
from energylm.progress import say
from energylm.randomness import seeded
from energylm.training import engine
from energylm.training.checkpoint import FOLDER as CHECKPOINTS
from energylm.training.checkpoint import refuse_another_run
from energylm.training.sequence_pair_task import Seq2SeqTask
from energylm.training.state import MODEL_FOLDER, TrainedRun
from energylm.verbs.seq2seq.train import NetworkConfig, TrainSeq2Seq

JUDGED = ("quality", "f1", "accuracy", "bleu", "length_ratio")  # numbers that validation reports, where a task has them


@dataclass(frozen=True, kw_only=True)
class Seq2SeqRun(TrainedRun):
    """What came of it; of the weights that were saved."""

    validation: dict[str, float]  # empty where nothing was validated
    restarts: list[float] = field(default_factory=list)  # of several runs, the number that decides for each
    kept: int = 0  # the run of these that was kept; `seconds` are those of all

    def summary(self) -> str:
        if not self.validation:
            return f"not validated; step {self.steps:,}"
        shown = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self.validation.items()))
        return f"{shown} on the validation data; step {self.best_step:,} of {self.steps:,}"


def train(verb: TrainSeq2Seq, output: Path) -> Seq2SeqRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    result = engine.train(_task(verb), verb.training, folder=output)
    return Seq2SeqRun.of(result, output, validation=result.best_validation)


def train_restarts(verb: TrainSeq2Seq, output: Path) -> Seq2SeqRun:
    """Runs that are finished are not repeated, one that was interrupted goes on."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("restarts follow one another in one process; leave out torchrun, or train each seed alone")
    identity = {**engine.run_identity(_task(verb), verb.training), "restarts": verb.restarts}
    if (output / engine.RESULT_FILE).exists():
        finished = read_json(output / engine.RESULT_FILE)
        refuse_another_run(finished["identity"], identity, folder=output)
        run = Seq2SeqRun.from_json(finished["result"])  # whose paths are those of where it was made
        journal = output / f"restart-{run.kept}" / run.journal.name
        return replace(run, folder=output, model=output / MODEL_FOLDER, journal=journal)
    runs = [train(verb.restart(number), output / f"restart-{number}") for number in range(verb.restarts)]
    deciding = verb.training.validation
    values = [run.validation[deciding.metric] for run in runs]
    kept = values.index(max(values) if deciding.larger_is_better else min(values))
    model = Seq2SeqModel.from_pretrained(runs[kept].model)
    model.name = output.name
    model.save_pretrained(output / MODEL_FOLDER)
    result = replace(
        runs[kept],
        folder=output,
        model=output / MODEL_FOLDER,
        restarts=values,
        kept=kept,
        seconds=sum(run.seconds for run in runs),
        was_finished=True,
    )
    write_json(output / engine.RESULT_FILE, {"result": result.to_json(), "identity": identity})
    for run in runs:  # what a killed run would have needed; journals stay
        for leftover in (run.model, run.folder / CHECKPOINTS):
            shutil.rmtree(leftover, ignore_errors=True)
    return replace(result, was_finished=False)


def describe(verb: TrainSeq2Seq, output: Path) -> str:
    """Check all inputs and say what a run would do. Writes nothing."""
    task = _task(verb)
    training = verb.training
    length = "until validation stops improving"
    if training.steps is not None:
        length = f"{training.steps:,} steps ({training.steps / task.batches.batches_an_epoch:.3g} epochs)"
    runs = "" if verb.restarts == 1 else f", the best of {verb.restarts} runs"
    return (
        f"{output}: {engine.state_of_run(output)}: {verb.task} by {verb.objective.kind} from "
        f"{verb.init or 'random weights'}, {count_parameters(task.model):,} parameters, "
        f"{task.model.config.vocab_size:,} output symbols, {length} of {training.global_batch} sequences "
        f"({len(task.train):,} sequences){runs}"
    )


def _task(verb: TrainSeq2Seq) -> Seq2SeqTask:
    train_examples = read_examples(verb.task, verb.train, limit=verb.limit)
    valid_examples = read_examples(verb.task, verb.valid, limit=verb.valid_limit)
    model = _model(verb, train_examples)
    _check_search(verb, model)
    train_pairs, _ = encode_examples(train_examples, model, longest=verb.longest)
    valid_pairs, _ = encode_examples(valid_examples, model, unseen_tags=verb.unseen_tags)
    if len(train_pairs) < len(train_examples):
        say(f"{len(train_examples) - len(train_pairs):,} training sequences have over {verb.longest} tokens: left out")
    outside = None if verb.task == TRANSLATION or OUTSIDE not in model.tags else model.tags.index(OUTSIDE)

    def judge(indices: Sequence[int], outputs: Sequence[Sequence[int]]) -> dict[str, float]:
        values = valid_examples.score([model.output(ids) for ids in outputs], indices=indices).to_json()
        return {name: float(values[name]) for name in JUDGED if name in values}

    def save(network: nn.Module, folder: Path) -> None:
        model.name, model.provenance = folder.parent.name, _provenance(verb)
        model.save_pretrained(folder)

    return Seq2SeqTask(
        model.network,
        train_pairs,
        valid_pairs,
        objective=verb.objective,
        cost=step_cost(verb.objective.cost, vocabulary_size=model.network.config.vocab_size, outside_id=outside),
        decoding=verb.decoding,
        decode=search,
        judge=judge,
        seed=verb.training.seed,
        global_batch=verb.training.global_batch,
        save_model=save,
        fingerprint=_fingerprint(verb),
    )


def _model(verb: TrainSeq2Seq, examples: Examples) -> Seq2SeqModel:
    if verb.init is not None:
        model = Seq2SeqModel.from_pretrained(verb.init)
        if model.task != verb.task:
            raise ModelError(f"{verb.init} was trained for {model.task}, not for {verb.task}; give another init")
        if verb.network != NetworkConfig():
            raise ConfigError(f"network.… shapes a new network, but the shape is {verb.init}'s; leave it out")
        return model
    if verb.task == TRANSLATION:
        texts = (
            text for pair in zip(examples.sources, examples.targets, strict=True) for side in pair for text in side
        )
        tokenizer = train_tokenizer(texts, vocabulary_size=verb.vocabulary_size)
        return _new_model(verb, tokenizer, outputs=len(tokenizer), eos=end_token_id(tokenizer))
    tags = tag_names(examples.tagged)
    tokenizer = word_tokenizer(examples.tagged, least_count=verb.least_count)
    model = _new_model(verb, tokenizer, outputs=len(tags), eos=None)
    model.network.config.id2label = dict(enumerate(tags))
    model.network.config.label2id = {tag: number for number, tag in enumerate(tags)}
    return model


def _new_model(
    verb: TrainSeq2Seq, tokenizer: PreTrainedTokenizerFast, *, outputs: int, eos: int | None
) -> Seq2SeqModel:
    shape = verb.network
    if shape.attention == "fixed" and verb.task == TRANSLATION:
        raise ConfigError("fixed attention writes as many symbols as the source has; take learned for translation")
    settings = shape.settings(verb.task, sources=len(tokenizer), outputs=outputs, eos=eos)
    with seeded(verb.training.seed, "initialisation"):
        network = LSTMSeq2Seq(LSTMSeq2SeqConfig(**settings))
    return Seq2SeqModel(network, tokenizer, task=verb.task)


def _check_search(verb: TrainSeq2Seq, model: Seq2SeqModel) -> None:
    model.check(verb.decoding)
    if verb.objective.kind in (DIRECT_LOSS, HINGE):
        check_soft_beam(verb.objective.beam, vocabulary=model.network.config.vocab_size, key="objective.beam")
        if verb.init is None:
            say(f"{verb.objective.kind} from random weights rarely learns; set init to a cross-entropy model")


def _fingerprint(verb: TrainSeq2Seq) -> dict[str, Any]:
    files = {"train": verb.train, "valid": verb.valid}
    settings = verb.model_dump(mode="json", exclude={"train", "valid", "init", "restarts", "training", "objective"})
    init = None if verb.init is None else read_manifest(model_of_run(verb.init))["weights"]
    return {
        **settings,
        "init": init,
        **{name: [sha256_of_file(Path(file)) for file in paths] for name, paths in files.items()},
    }


def _provenance(verb: TrainSeq2Seq) -> dict[str, Any]:
    names = {"train": [Path(file).name for file in verb.train], "valid": [Path(file).name for file in verb.valid]}
    return {**names, "config": verb.model_dump(mode="json", exclude={"train", "valid", "init", "restarts"})}
