"""`energylm detect train / calibrate / eval / run`: human or machine, and how far to trust the answer."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from energylm.cli.engine_options import Address, Engine, Gpus, Keep, Threads, Workers, engine_config
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

app = typer.Typer(help="Tell machine text from human text.", no_args_is_help=True)

DetectorFolder = Annotated[str, typer.Argument(help="A detector's folder (OUTPUT/model of `energylm detect train`).")]
Human = Annotated[
    list[str] | None,
    typer.Option(help="Human text: .jsonl, .txt, {original, sampled} .json (its originals), a folder; repeatable."),
]
Machine = Annotated[
    list[str] | None,
    typer.Option(help="Machine text: .jsonl, .txt, {original, sampled} .json (its samples), a folder; repeatable."),
]
Pairs = Annotated[
    list[str] | None, typer.Option(help="A JSON file {original: […], sampled: […]}, taken as both; repeatable.")
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="text (a file is a text), lines (a line is a text) or jsonl; default: by ending."),
]
JsonField = Annotated[str | None, typer.Option("--field", help="The JSON field with the text (default: text).")]
PartOfTexts = Annotated[
    str | None, typer.Option("--part", help="train or test: a part of the texts by a hash of their first words.")
]
Rate = Annotated[
    float | None, typer.Option("--fpr", help="Share of human texts that may be called machine (default: 0.01).")
]


@app.command("train")
def train(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the detector is its subfolder model.")
    ] = ...,
    human: Human = None,
    machine: Machine = None,
    pairs: Pairs = None,
    init: Annotated[
        str | None,
        typer.Option(help="Start: an encoder's or energy's folder, a known model, a hub name (default: minilm-l6)."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates at most (default: 600).", show_default=False)] = None,
    batch: Annotated[
        int | None, typer.Option(help="Pairs of blocks per update (default: 8).", show_default=False)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest learning rate (default: 5e-5).", show_default=False)
    ] = None,
    block: Annotated[int | None, typer.Option(help="Tokens of a block (default: 160).", show_default=False)] = None,
    fpr: Rate = None,
    part: PartOfTexts = None,
    text_format: Format = None,
    field: JsonField = None,
    seed: Annotated[
        int | None, typer.Option(help="Of data order and dropout (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a detector on human and machine texts, calibrate it on texts held out, and report it.

    Training stops early when texts held out are no longer told apart better. Killed runs go on where they stopped when
    run again; finished ones are not repeated.

    Examples:

      energylm detect train --human webtext.jsonl --machine small-117M.jsonl --output runs/detector

      energylm detect train --pairs xsum_gpt2-xl.json --pairs writing_gpt2-xl.json --fpr 0.05 -o runs/gpt2

      energylm detect train --human essays/ --machine generated/ --init bert-base-uncased -o runs/bert --dry-run
    """
    from energylm.config.detect import DetectTrainConfig

    flags = {
        **_data("data", human, machine, pairs, text_format, field, part),
        "init": init,
        "false_positive_rate": fpr,
        "blocks.tokens": block,
        "blocks.stride": None if block is None else max(1, block // 2),
        "training.steps": steps,
        "training.global_batch": batch,
        "training.optimizer.learning_rate": learning_rate,
        "training.seed": seed,
    }
    chosen = load_config(DetectTrainConfig, config, settings=settings or (), overrides=flags)

    from energylm.pipelines.detect_train import plan_detector, train_detector

    if dry_run:
        typer.echo(plan_detector(chosen, output=output))
        return
    run = train_detector(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    write_result(json, run)


@app.command("calibrate")
def calibrate(
    detector: DetectorFolder,
    human: Human = None,
    machine: Machine = None,
    pairs: Pairs = None,
    fpr: Rate = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Read no more than so many tokens of each text, now and later.")
    ] = None,
    part: PartOfTexts = None,
    text_format: Format = None,
    field: JsonField = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Choose the threshold for a false-positive rate on your own human text; with machine text also the probabilities.

    The calibration is kept in the detector's folder. A rate of 1 % needs at least 99 human texts, one of 5 % needs 19;
    as many of one length promise it for texts of that length. An energy that reads text becomes a detector this way.

    Examples:

      energylm detect calibrate runs/detector/model --human my_essays/ --fpr 0.01

      energylm detect calibrate runs/energy/model --human human.jsonl --machine machine.jsonl --fpr 0.05
    """
    from energylm.config.detect import DetectCalibrateConfig

    flags = {
        **_data("data", human, machine, pairs, text_format, field, part),
        "detector": detector,
        "false_positive_rate": fpr,
        "max_tokens": max_tokens,
    }
    chosen = load_config(
        DetectCalibrateConfig, config, settings=settings or (), overrides=flags, positions={"detector": "DETECTOR"}
    )

    from energylm.pipelines.detect_calibrate import calibrate as run_calibration
    from energylm.pipelines.detect_calibrate import open_inputs

    if dry_run:
        _, data = open_inputs(chosen)
        typer.echo(f"would calibrate {detector} for {chosen.false_positive_rate:.3g} on {data.describe()}")
        return

    from energylm.tables import to_markdown

    run = run_calibration(chosen)
    typer.echo(f"{detector}: {run.summary()}\n\n{to_markdown(run.table())}", nl=False)
    write_result(json, run)


@app.command("eval")
def evaluate(
    detector: DetectorFolder,
    human: Human = None,
    machine: Machine = None,
    pairs: Pairs = None,
    train_human: Annotated[list[str] | None, typer.Option(help="Human text for the TF-IDF baseline.")] = None,
    train_machine: Annotated[list[str] | None, typer.Option(help="Machine text for the TF-IDF baseline.")] = None,
    train_pairs: Annotated[list[str] | None, typer.Option(help="Pairs for the TF-IDF baseline.")] = None,
    drop_overlap: Annotated[
        bool, typer.Option("--drop-overlap", help="Leave out texts that the detector was trained on.")
    ] = False,
    part: PartOfTexts = None,
    text_format: Format = None,
    field: JsonField = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write report.html, results.json, plots into this folder.")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Measure a detector on texts whose writers are known: generators and domains that it has or has not seen.

    AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, each with a bootstrap interval by text; by source
    and by length; TF-IDF with logistic regression beside it where training texts are given.

    Examples:

      energylm detect eval runs/detector/model --human webtext.test.jsonl --machine xl-1542M.test.jsonl

      energylm detect eval runs/gpt2/model --pairs xsum_opt.json --train-pairs xsum_gpt2-xl.json --output out/opt
    """
    from energylm.config.detect import DetectEvalConfig

    flags = {
        **_data("data", human, machine, pairs, text_format, field, part),
        **_data("train", train_human, train_machine, train_pairs, text_format, field, None),
        "detector": detector,
        "drop_overlap": drop_overlap or None,
    }
    chosen = load_config(
        DetectEvalConfig, config, settings=settings or (), overrides=flags, positions={"detector": "DETECTOR"}
    )

    from energylm.pipelines.detect_eval import evaluate as run_evaluation
    from energylm.pipelines.detect_eval import open_inputs

    if dry_run:
        _, data, training = open_inputs(chosen)
        beside = "" if training is None else f", TF-IDF beside it on {training.describe()}"
        typer.echo(f"would judge {data.describe()} with {detector}{beside}")
        return

    from energylm.progress import say
    from energylm.tables import to_markdown

    run = run_evaluation(chosen, output=output)
    typer.echo(to_markdown(run.table), nl=False)
    if run.report is not None:
        say(f"report: {run.report}")
    write_result(json, run)


@app.command("run")
def run(
    detector: DetectorFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|FOLDER|-]…", help="Texts: .txt, .jsonl, .json, folders; - is standard input."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text itself; repeatable.")] = None,
    text_format: Format = None,
    field: JsonField = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Read no more than so many tokens of each text, from its beginning.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print a table for people, not JSON lines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page on which the blocks of each text are coloured.")
    ] = None,
    keep: Keep = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    threads_per_worker: Threads = None,
    gpus_per_worker: Gpus = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Human, machine, or an abstention with its reason: a JSON line a text, with the scores of its blocks.

    Standard input is one text, unless --format says lines or jsonl.

    Examples:

      energylm detect run runs/detector/model essay.txt --table

      energylm detect run runs/detector/model submissions/ --html submissions.html > verdicts.jsonl

      cat article.txt | energylm detect run runs/detector/model -
    """
    import json as json_module

    from energylm.config.detect import DetectionSources
    from energylm.errors import ConfigError

    if not files and not text:
        raise ConfigError("no text came; give a file, a folder, --text, or - for standard input")
    chosen = DetectionSources.checked(
        {name: value for name, value in (("format", text_format), ("field", field)) if value is not None},
        origin="detect run",
    )
    if "-" in (files or ()) and chosen.format == "auto":
        chosen = chosen.model_copy(update={"format": "text"})
    where = engine_config(engine, address, workers, threads_per_worker, gpus_per_worker)
    paths = ["/dev/stdin" if file == "-" else file for file in files or ()]
    if dry_run:
        from energylm.bundles.known_models import locate

        missing = next((path for path in paths if not Path(path).expanduser().exists()), None)
        if missing is not None:
            raise ConfigError(f"{missing} does not exist; give a file or a folder")
        typer.echo(f"would judge {len(text or ())} texts and {len(paths)} files or folders with {locate(detector)}")
        return

    from energylm.pipelines.detect_run import run_detector

    result = run_detector(
        detector,
        files=paths,
        texts=text or (),
        form=chosen.format,
        field=chosen.field,
        max_tokens=max_tokens,
        html=html,
        engine=where,
        keep=keep,
    )
    if table:
        from rich.console import Console
        from rich.markup import escape

        from energylm.tables import to_rich

        console = Console(file=sys.stdout, highlight=False)
        console.print(to_rich(result.table()))
        for number, reason in enumerate(result.reasons(), start=1):
            console.print(f"{number}  {escape(reason)}")
    else:
        for one in result.results:
            typer.echo(json_module.dumps(one.to_json(), ensure_ascii=False))
    write_result(json, result)


def _data(
    key: str,
    human: list[str] | None,
    machine: list[str] | None,
    pairs: list[str] | None,
    text_format: str | None,
    field: str | None,
    part: str | None,
) -> dict[str, Any]:
    """The options that name labelled texts, as keys of a configuration."""
    values = {"human": human, "machine": machine, "pairs": pairs, "format": text_format, "field": field, "part": part}
    return {f"{key}.{name}": value or None for name, value in values.items()}
