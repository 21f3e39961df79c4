"""The work of `energylm finetune`: an encoder trained on a task of GLUE or SQuAD, once a seed, and judged. Resumable.

OUTPUT/seed-N/model/               the model, for `SentenceModel` or `SpanModel` and for transformers' Auto classes
OUTPUT/seed-N/predictions.jsonl    a line an evaluation example; .tsv (GLUE's form) or .json (SQuAD's official form)
OUTPUT/seed-N/outcome.json         the metrics of that seed; journal.jsonl and training.json as for every run
OUTPUT/results.json, report.html   medians over seeds with their spread

The evaluation examples choose nothing: the last weights are judged, or, where validation is asked for, those that are
best on training examples held out. Checkpoints go once a seed is finished.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.model_folder import weights_sha256
from energylm.config.cloze import SPANS
from energylm.errors import DataError
from energylm.estimators.task_metrics import SeedMedian
from energylm.files import read_json, sha256_of_file, write_json, write_text
from energylm.progress import say
from energylm.randomness import seeded
from energylm.report.report import PAGE, write_report
from energylm.training.checkpoint import FOLDER as CHECKPOINTS
from energylm.training.engine import state_of_run, train
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.journal import read_journal
from energylm.verbs.cloze.finetune import RESULT, Finetune, FinetuneResult, SeedOutcome
from energylm.verbs.cloze.finetune_data import FinetunedModel, SentenceData, SpanData, TaskData, data_files

OUTCOME, PREDICTIONS = "outcome.json", "predictions.jsonl"


def finetune(config: Finetune, output: Path) -> FinetuneResult:
    """Fine-tune into the folder `output`, or continue what it holds. Finished seeds are left as they are."""
    data = open_data(config)
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main:
        for note in data.notes:
            say(note)
    seeds = [_train_seed(config, data, seed, output / f"seed-{seed}") for seed in config.all_seeds]
    result = FinetuneResult(
        task=config.task,
        init=config.init,
        metric=config.about.metrics[0],
        medians={name: SeedMedian.of([seed.metrics[name] for seed in seeds]) for name in config.about.metrics},
        baseline=data.baseline,
        seeds=seeds,
        sizes=data.sizes,
        notes=data.notes,
        convention=_convention(config, data),
        folder=output,
        report=output / PAGE,
    )
    if is_main:
        journals = {seed.seed: _losses(output / f"seed-{seed.seed}") for seed in seeds}
        sections = result.sections(journals, about=_about(config, data))
        write_json(output / RESULT, result.to_json())
        write_report(output, title=f"{config.task}, fine-tuned from {Path(config.init).name}", sections=sections)
    return result


def plan_finetuning(config: Finetune, output: Path) -> str:
    """Read and encode everything, and say what `finetune` would do. Writes nothing."""
    data = open_data(config)
    training = config.training_on(data.train_size, seed=config.training.seed)
    states = [f"seed {seed} {state_of_run(output / f'seed-{seed}')}" for seed in config.all_seeds]
    sizes = ", ".join(f"{count:,} {name}" for name, count in data.sizes.items() if count)
    head = (
        f"{config.task} from {config.init}: {data.parameters:,} parameters, {training.steps:,} steps of "
        f"{training.global_batch} a seed; examples: {sizes}"
    )
    return "\n".join([head, *data.notes, *states])


def open_data(config: Finetune) -> TaskData:
    """The data, read, checked and encoded for the encoder."""
    with seeded(config.training.seed, "plan"):
        return SpanData(config) if config.about.kind == SPANS else SentenceData(config)


def data_hashes(config: Finetune) -> dict[str, list[str]]:
    """The content of the files that examples come from."""
    hashes = {}
    for part, files in zip(("train", "evaluation"), data_files(config), strict=True):
        missing = next((file for file in files if not file.is_file()), None)
        if missing is not None:
            raise DataError(f"{missing} does not exist; put the data set there, or set ENERGYLM_DATA to where it is")
        hashes[part] = [sha256_of_file(file) for file in files]
    return hashes


def _train_seed(config: Finetune, data: TaskData, seed: int, folder: Path) -> SeedOutcome:
    training = config.training_on(data.train_size, seed=seed)
    with seeded(seed, "initialisation"):
        model = data.build()
    fingerprint = {**data.identity, "init_sha256": weights_sha256(config.init)}
    task = data.task(
        model,
        seed=seed,
        global_batch=training.global_batch,
        fingerprint=fingerprint,
        save_model=lambda network, path: _finish(config, data, model, network, path, seed=seed),
    )
    result = train(task, training, folder=folder)
    if os.environ.get("RANK", "0") == "0":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return SeedOutcome(
        **read_json(folder / OUTCOME),
        steps=result.steps,
        best_step=result.best_step,
        seconds=result.seconds,
        tokens_per_second=result.tokens_per_second,
    )


def _finish(
    config: Finetune, data: TaskData, model: FinetunedModel, network: nn.Module, folder: Path, *, seed: int
) -> None:
    """Judge the trained network and write model, predictions and outcome. The weights to keep are in place."""
    judged = data.judge(model, network)
    model.name = f"{config.task} {model.name}"
    model.provenance = {
        "task": config.task,
        "init": Path(config.init).name,
        "init_sha256": weights_sha256(config.init),
        "seed": seed,
        "config": config.model_dump(mode="json", exclude={"data", "train", "evaluation", "init"}),
        "metrics": judged.metrics,
    }
    model.save_pretrained(folder)
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in judged.predictions)
    for name, text in {PREDICTIONS: lines, **judged.files}.items():
        write_text(folder.parent / name, text)
    write_json(folder.parent / OUTCOME, {"seed": seed, "metrics": judged.metrics, "parts": judged.parts})


def _losses(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_journal(folder / JOURNAL) if "loss" in line]


def _convention(config: Finetune, data: TaskData) -> str:
    judged = data.sizes["evaluation"]
    subset = "" if config.evaluation_examples is None else " chosen at random"
    threshold = f"; no answer above log-odds {config.spans.threshold:g}" if config.task == "squad2" else ""
    seeds = f"median over {config.seeds} seeds" if config.seeds > 1 else "one seed"
    return f"per cent, over {judged:,} evaluation examples{subset}; {seeds}{threshold}"


def _about(config: Finetune, data: TaskData) -> str:
    training, name = config.training, Path(config.init).name
    trained = f"{data.sizes['training']:,} examples for {config.chosen_epochs:g} epochs"
    if training.steps is not None:
        trained = f"{data.sizes['training']:,} examples for {training.steps:,} steps"
    chosen = (
        "The last weights were judged; the evaluation examples chose nothing."
        if training.validation.every_steps is None
        else f"The weights that are best on {data.sizes['validation']:,} examples held out of training were judged."
    )
    return "\n\n".join(
        [
            f"The encoder {name} was fine-tuned on {config.task} with {trained}: learning rate "
            f"{training.optimizer.learning_rate:g}, {training.optimizer.layer_decay:g} times that of the layer above "
            f"for each layer, batches of {training.global_batch}. {chosen}",
            *data.notes,
        ]
    )
