"""Fine-tune an encoder on a task of GLUE or SQuAD, once a seed, and judge it: `energylm finetune`. Resumable.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.weights_identity import weights_sha256
from energylm.config.finetune import SPANS, FinetuneConfig
from energylm.estimators.seed_median import SeedMedian
from energylm.evaluation.finetune_report import NAMES, finetune_sections, median_table
from energylm.files import read_json, write_json, write_text
from energylm.pipelines.finetune_sentences import SentenceWork, sentence_files
from energylm.pipelines.finetune_spans import SpanWork, span_files
from energylm.pipelines.finetune_work import FinetunedModel, Work
from energylm.progress import say
from energylm.report.report import PAGE, write_report
from energylm.tables import Table
from energylm.training.checkpoint import FOLDER as CHECKPOINTS
from energylm.training.engine import MODEL_FOLDER, state_of_run, train
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.journal import read_journal
from energylm.training.seeding import seeded

OUTCOME, PREDICTIONS, RUN = "outcome.json", "predictions.jsonl", "finetune.json"


@dataclass(frozen=True)
class FinetuneRun:
    """`medians` are by metric, the paper's first; `model` is that of the median seed."""

    task: str
    init: str
    folder: Path
    model: Path
    report: Path
    medians: dict[str, SeedMedian]
    baseline: dict[str, float]
    seeds: list[dict[str, Any]]  # outcomes
    sizes: dict[str, int]
    notes: list[str]
    convention: str

    @property
    def metric(self) -> str:
        return next(iter(self.medians))

    @property
    def table(self) -> Table:
        return median_table(self.medians, self.baseline, convention=self.convention)

    def summary(self) -> str:
        best = self.medians[self.metric]
        spread = "" if len(best.values) == 1 else f" ({best.lowest:.1f} to {best.highest:.1f})"
        seeds = f"median of {len(best.values)} seeds" if len(best.values) > 1 else "one seed"
        return f"{self.task} from {self.init}: {NAMES[self.metric]} {best.value:.1f}{spread}, {seeds}; {self.report}"

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "init": self.init,
            "metric": self.metric,
            "medians": {name: one.to_json() for name, one in self.medians.items()},
            "baseline": self.baseline,
            "seeds": self.seeds,
            "sizes": self.sizes,
            "notes": self.notes,
            "convention": self.convention,
            "model": str(self.model),
            "report": str(self.report),
        }


def finetune(config: FinetuneConfig, *, output: Path | str) -> FinetuneRun:
    """Fine-tune into the folder `output`, or continue what it holds. Finished seeds are left as they are."""
    output, work = Path(output), open_work(config)
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main:
        for note in work.notes:
            say(note)
    seeds = [_one_seed(config, work, seed, output / f"seed-{seed}") for seed in _seeds(config)]
    medians = {name: SeedMedian.of([one["metrics"][name] for one in seeds]) for name in config.about.metrics}
    median_seed = seeds[medians[config.about.metrics[0]].place]["seed"]
    run = FinetuneRun(
        task=config.task,
        init=config.init,
        folder=output,
        model=output / f"seed-{median_seed}" / MODEL_FOLDER,
        report=output / PAGE,
        medians=medians,
        baseline=work.baseline,
        seeds=seeds,
        sizes=work.sizes,
        notes=work.notes,
        convention=_convention(config, work),
    )
    if is_main:
        journals = {one["seed"]: _losses(output / f"seed-{one['seed']}") for one in seeds}
        sections = finetune_sections(run.table, seeds, journals, about=_about(config, work))
        write_json(output / RUN, run.to_json())
        write_report(output, title=f"{config.task}, fine-tuned from {Path(config.init).name}", sections=sections)
    return run


def plan_finetune(config: FinetuneConfig, *, output: Path | str) -> str:
    """Read and encode everything, and say what `finetune` would do. Writes nothing."""
    work = open_work(config)
    training = config.training_on(work.train_size, seed=config.training.seed)
    states = [f"seed {seed} {state_of_run(Path(output) / f'seed-{seed}')}" for seed in _seeds(config)]
    sizes = ", ".join(f"{count:,} {name}" for name, count in work.sizes.items() if count)
    head = (
        f"{config.task} from {config.init}: {work.parameters:,} parameters, {training.steps:,} steps of "
        f"{training.global_batch} a seed; examples: {sizes}"
    )
    return "\n".join([head, *work.notes, *states])


def open_work(config: FinetuneConfig) -> Work:
    """The data, read, checked and encoded for the encoder."""
    with seeded(config.training.seed, "plan"):
        return SpanWork(config) if config.about.kind == SPANS else SentenceWork(config)


def data_files(config: FinetuneConfig) -> tuple[list[Path], list[Path]]:
    """The files that training and evaluation examples come from."""
    return span_files(config) if config.about.kind == SPANS else sentence_files(config)


def _seeds(config: FinetuneConfig) -> range:
    return range(config.training.seed, config.training.seed + config.seeds)


def _one_seed(config: FinetuneConfig, work: Work, seed: int, folder: Path) -> dict[str, Any]:
    training = config.training_on(work.train_size, seed=seed)
    with seeded(seed, "initialisation"):
        model = work.build()
    fingerprint = {**work.identity, "init_sha256": weights_sha256(config.init)}
    task = work.task(
        model,
        seed=seed,
        global_batch=training.global_batch,
        fingerprint=fingerprint,
        save_model=lambda network, place: _finish(config, work, model, network, place, seed=seed),
    )
    result = train(task, training, folder=folder)
    if os.environ.get("RANK", "0") == "0":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return read_json(folder / OUTCOME) | {
        "steps": result.steps,
        "best_step": result.best_step,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
    }


def _finish(
    config: FinetuneConfig, work: Work, model: FinetunedModel, network: nn.Module, folder: Path, *, seed: int
) -> None:
    """Judge the trained network and write model, predictions and outcome. The weights to keep are in place."""
    judged = work.judge(model, network)
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


def _convention(config: FinetuneConfig, work: Work) -> str:
    judged = work.sizes["evaluation"]
    subset = "" if config.evaluation_examples is None else " chosen at random"
    threshold = f"; no answer above log-odds {config.spans.threshold:g}" if config.task == "squad2" else ""
    seeds = f"median over {config.seeds} seeds" if config.seeds > 1 else "one seed"
    return f"per cent, over {judged:,} evaluation examples{subset}; {seeds}{threshold}"


def _about(config: FinetuneConfig, work: Work) -> str:
    training, name = config.training, Path(config.init).name
    trained = f"{work.sizes['training']:,} examples for {config.chosen_epochs:g} epochs"
    if training.steps is not None:
        trained = f"{work.sizes['training']:,} examples for {training.steps:,} steps"
    chosen = (
        "The last weights were judged; the evaluation examples chose nothing."
        if training.validation.every_steps is None
        else f"The weights that are best on {work.sizes['validation']:,} examples held out of training were judged."
    )
    return "\n\n".join(
        [
            f"The encoder {name} was fine-tuned on {config.task} with {trained}: learning rate "
            f"{training.optimizer.learning_rate:g}, {training.optimizer.layer_decay:g} times that of the layer above "
            f"for each layer, batches of {training.global_batch}. {chosen}",
            *work.notes,
        ]
    )
