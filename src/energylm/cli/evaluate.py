"""`energylm evaluate`: judged sets that any scorer can be tried on."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result
from energylm.cli.score import Casing, Eos, Masking, Method, RefuseLong

app = typer.Typer(help="Try a scorer on judged sets: minimal pairs.", no_args_is_help=True)


@app.command("blimp")
def blimp(
    model: Annotated[
        str | None,
        typer.Argument(help="A model folder, a GGUF file, a known model or a hub name. Required, here or in --config."),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|FOLDER]...", help="Pairs in JSONL (default: blimp/ in ENERGYLM_DATA)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Pairs of each paradigm at most.", show_default=False)] = None,
    normalise: Annotated[
        str | None, typer.Option(help="Compare scores by token or word (default: none).", show_default=False)
    ] = None,
    method: Method = None,
    masking: Masking = None,
    casing: Casing = None,
    eos: Eos = False,
    refuse_long: RefuseLong = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A folder for report.html.")] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Minimal pairs: how often does the grammatical sentence score higher? By paradigm, with intervals.

    Any file of JSON lines with `sentence_good`, `sentence_bad` and `UID` (the paradigm) will do.

    Examples:

      energylm evaluate blimp smollm2-135m --limit 100 --output out/blimp

      energylm evaluate blimp runs/electric/model my_pairs.jsonl --json pairs.json
    """
    from energylm.config.evaluate import MinimalPairsConfig

    flags = {
        "model": model,
        "sources": sources or None,
        "limit": limit,
        "normalise": normalise,
        "method": method,
        "masking": masking,
        "casing": casing,
        "eos": eos or None,
        "long_texts": "refuse" if refuse_long else None,
    }
    chosen = load_config(
        MinimalPairsConfig,
        config,
        settings=settings or (),
        overrides=flags,
        positions={"model": "MODEL", "sources": "FILE|FOLDER"},
    )

    from energylm.pipelines.minimal_pairs import check_inputs, judge_minimal_pairs

    if dry_run:
        typer.echo(check_inputs(chosen))
        return
    from energylm.progress import say
    from energylm.tables import to_markdown

    run = judge_minimal_pairs(chosen, output=output)
    typer.echo(to_markdown(run.table), nl=False)
    say(run.summary())
    if run.report is not None:
        say(f"report: {run.report}")
    write_result(json, run)
