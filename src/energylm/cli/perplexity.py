"""`energylm perplexity`: base and joint perplexity, as an interval, beside the baselines."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.engine_options import Address, Engine, Gpus, Threads, Workers, engine_config
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, write_result

WHY_UNTRUNCATED = (
    "perplexity needs samples of the whole language model: a truncated or tempered proposal estimates the sum over "
    "what it can draw, not log Z; leave the option out (`energylm generate` takes it)"
)


def perplexity(
    language_model: Annotated[
        str | None, typer.Argument(metavar="LM", help="Model folder, GGUF file, known model or hub name.")
    ] = None,
    source: Annotated[
        str | None, typer.Argument(metavar="FILE|CORPUS", help="A corpus folder, or a text or JSONL file.")
    ] = None,
    energy: Annotated[
        str | None, typer.Option(help="An energy folder (`energylm energy train`); none: language models only.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a corpus (default: test).", show_default=False)] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a window (default: 160).", show_default=False)] = None,
    prefix: Annotated[
        int | None, typer.Option(help="Tokens of it that are given (default: 120).", show_default=False)
    ] = None,
    contexts: Annotated[int | None, typer.Option(help="Windows (default: 100).", show_default=False)] = None,
    n: Annotated[
        int | None, typer.Option("-n", help="Samples a window (default: 1000; the paper: 100,000).", show_default=False)
    ] = None,
    ralm: Annotated[str | None, typer.Option(help="A residual auto-regressive model to compare.")] = None,
    balm: Annotated[str | None, typer.Option(help="A bigger auto-regressive model to compare.")] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Also by position, the last one exactly (fig. 1).")
    ] = False,
    by_samples: Annotated[bool, typer.Option("--by-samples", help="Also from fewer samples (fig. 2, left).")] = False,
    seed: Annotated[int | None, typer.Option(help="Of windows and samples (default: 0).", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for report.html, plots, and what a killed run goes on from."),
    ] = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    threads_per_worker: Threads = None,
    gpus_per_worker: Gpus = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
    top_k: Annotated[str | None, typer.Option(hidden=True)] = None,
    top_p: Annotated[str | None, typer.Option(hidden=True)] = None,
    temperature: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure a language model, its joint model with an energy, and baselines on the same tokens, in one table.

    The joint model's perplexity is an interval. Beside it stands the certified perplexity of text that is drawn with as
    many samples: an upper bound in expectation, and as its upper end one with 95 % confidence, for these texts.
    Windows are measured in blocks; with --output finished blocks are kept, and a killed run goes on when run again.

    Examples:

      energylm perplexity runs/tiny/model corpora/sotu --energy runs/energy/model -n 1000 --contexts 50

      energylm perplexity smollm2-135m book.txt --energy runs/bit/model --by-samples --output out/perplexity

      energylm perplexity runs/base/model corpora/news --energy runs/unit/model --ralm runs/ralm/model --by-position
    """
    from energylm.config import load_config
    from energylm.config.perplexity import PerplexityConfig
    from energylm.errors import ConfigError

    for option, value in (("--top-k", top_k), ("--top-p", top_p), ("--temperature", temperature)):
        if value is not None:
            raise ConfigError(f"{option} {value}: {WHY_UNTRUNCATED}")
    flags = {
        "language_model": language_model,
        "source": source,
        "energy": energy,
        "split": split,
        "length": length,
        "prefix": prefix,
        "contexts": contexts,
        "n": n,
        "ralm": ralm,
        "balm": balm,
        "by_position": by_position or None,
        "by_samples": by_samples or None,
        "seed": seed,
    }
    chosen = load_config(PerplexityConfig, config, settings=settings or (), overrides=flags)
    where = engine_config(engine, address, workers, threads_per_worker, gpus_per_worker)

    from energylm.pipelines.perplexity import check_inputs, run_perplexity

    if dry_run:
        typer.echo(check_inputs(chosen))
        return

    from energylm.progress import say
    from energylm.tables import to_markdown

    run = run_perplexity(chosen, output=output, engine=where)
    typer.echo(to_markdown(run.table), nl=False)
    if run.joint is not None:
        say(run.joint.summary())
    if run.report is not None:
        say(f"report: {run.report}")
    write_result(json, run)
