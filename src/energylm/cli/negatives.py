"""`energylm negatives`: pre-generate continuations of a corpus's contexts."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.engine_options import Address, Engine, Gpus, Threads, Workers, engine_config
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result


def negatives(
    corpus: Annotated[
        str | None, typer.Argument(help="A corpus folder (`energylm corpus build`). Required, here or in --config.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The negatives folder to make.")] = ...,
    lm: Annotated[
        str | None,
        typer.Option(
            help="The model that writes: a folder, a GGUF file, a known or a hub name. Required, here or in --config."
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="Continuations of each context (default: 16).", show_default=False)
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of context and continuation (default: 160).", show_default=False)
    ] = None,
    prefix: Annotated[
        list[int] | None,
        typer.Option(
            "--prefix-tokens",
            help="Tokens of context (default: 120); repeat it to draw one a window.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, valid or test (default: train).", show_default=False)
    ] = None,
    contexts: Annotated[int | None, typer.Option(help="How many contexts at most, at random; none = all.")] = None,
    side: Annotated[
        str | None,
        typer.Option(help="suffix, or prefix for a right-to-left model (default: suffix).", show_default=False),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(help="packed: windows may cross documents; within: they may not (default: packed)."),
    ] = None,
    stop_at_eos: Annotated[
        bool | None,
        typer.Option("--stop-at-eos", help="End continuations at end-of-text: varying length.", show_default=False),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; not for residual energies.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens that reach this probability.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Divide the logits by this before truncating.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same negatives (default: 0).", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace negatives that were made otherwise.")] = False,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    threads_per_worker: Threads = None,
    gpus_per_worker: Gpus = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Let a language model continue contexts of a corpus, k times each: what an energy learns to tell from real text.

    Parquet shards with the log-probability of every continuation. Killed runs go on where they stopped when run again;
    finished ones are not repeated. With --engine ray many machines write, and the shards are the same.

    Examples:

      energylm negatives corpora/sotu --lm runs/tiny/model --output negatives/sotu --contexts 2000

      energylm negatives corpora/sotu --lm runs/tiny/model --output negatives/valid --split valid -k 4

      energylm negatives corpora/news --lm runs/r2l/model --side prefix --prefix-tokens 120 -o negatives/r2l

      energylm negatives corpora/news --lm runs/big/model -o negatives/news --engine ray --address head:6379
    """
    from energylm.config.negatives import NegativesConfig

    flags = {
        "corpus": corpus,
        "lm": lm,
        "k": k,
        "length": length,
        "context_lengths": prefix or None,
        "split": split,
        "contexts": contexts,
        "side": side,
        "documents": documents,
        "stop_at_eos": stop_at_eos,
        "truncation.top_k": top_k,
        "truncation.top_p": top_p,
        "truncation.temperature": temperature,
        "seed": seed,
    }
    chosen = load_config(
        NegativesConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )
    where = engine_config(engine, address, workers, threads_per_worker, gpus_per_worker)

    from energylm.pipelines.negatives import make_negatives, plan_negatives

    if dry_run:
        typer.echo(plan_negatives(chosen, output=output).describe(chosen, output))
        return
    run = make_negatives(chosen, output=output, overwrite=overwrite, engine=where)
    speed = "" if run.tokens_per_second is None else f", {run.tokens_per_second:,.0f} tokens/s"
    made = run.manifest
    typer.echo(f"{output}: {made.contexts:,} contexts × {chosen.k} continuations, {made.tokens:,} tokens{speed}")
    write_result(json, run)
