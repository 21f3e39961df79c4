"""`energylm rerank`: n-best lists of a recogniser or translator, reranked with language models."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.engine_options import Address, Engine, Gpus, Threads, Workers, engine_config
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result
from energylm.cli.score import Casing, Device, Dtype, Eos, Masking, Method, RefuseLong


def rerank(
    model: Annotated[
        str | None, typer.Argument(help="The scorer: a model folder, a GGUF file, a known model or a hub name.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|-...", help="N-best lists: ESPnet JSON, JSONL, TSV or Moses; - is standard input."
        ),
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(help="Lists on which λ is tuned: one for all files, or one for each, in their order; repeatable."),
    ] = None,
    scorer: Annotated[list[str] | None, typer.Option(help="One more scorer, with its own λ; repeatable.")] = None,
    weight: Annotated[
        list[float] | None, typer.Option(help="A fixed λ in place of tuning, one for each scorer; repeatable.")
    ] = None,
    references: Annotated[
        list[str] | None, typer.Option(help="A file of references, a line each, for each FILE; repeatable.")
    ] = None,
    dev_references: Annotated[
        list[str] | None, typer.Option(help="A file of references for each --dev; repeatable.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="espnet, jsonl, tsv or moses (default: by name or content).", show_default=False),
    ] = None,
    step: Annotated[
        float | None, typer.Option(help="The grid's step and lowest λ (default: 0.05).", show_default=False)
    ] = None,
    highest: Annotated[float | None, typer.Option(help="The highest λ (default: 1).", show_default=False)] = None,
    length_normalisation: Annotated[
        str | None, typer.Option(help="Divide whole scores by word or character (default: none).", show_default=False)
    ] = None,
    metric: Annotated[str | None, typer.Option(help="wer (default) or bleu.", show_default=False)] = None,
    method: Method = None,
    masking: Masking = None,
    casing: Casing = None,
    eos: Eos = False,
    refuse_long: RefuseLong = False,
    device: Device = None,
    dtype: Dtype = None,
    limit: Annotated[
        int | None, typer.Option(help="Take this many lists of each file, at random.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of that choice and of the bootstrap (default: 0).", show_default=False)
    ] = None,
    best: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write `utterance TAB chosen text` lines there.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for report.html and best-N.tsv.")
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
) -> None:
    """Choose the hypothesis with the highest f + λ·score, with λ tuned on dev lists, for each file by itself.

    Prints a table: 1-best, reranked with interval and p of the paired bootstrap, oracle. Casing, method and the like
    hold for all scorers; a YAML file can give each its own. Lists without references are reranked with a fixed λ, and
    what was chosen is printed.

    Examples:

      energylm rerank smollm2-135m test_clean.json --dev dev_clean.json --casing lower -o out/rerank

      energylm rerank runs/electric/model test_clean.json test_other.json --dev dev_clean.json --dev dev_other.json

      energylm rerank runs/mlm/model lists.jsonl --weight 0.4 --best chosen.tsv

      cat lists.jsonl | energylm rerank runs/mlm/model - --weight 0.4

      energylm rerank lm/model test.nbest --references test.en --dev dev.nbest --dev-references dev.en --metric bleu
    """
    from energylm.config.rerank import RerankConfig
    from energylm.errors import ConfigError

    if not files and config is None and not settings:
        raise ConfigError("which lists? give a scorer and its files: energylm rerank MODEL FILE... --dev DEV")
    names = [*([model] if model else []), *(scorer or [])]
    how = {
        "method": method,
        "masking": masking,
        "casing": casing,
        "eos": eos or None,
        "long_texts": "refuse" if refuse_long else None,
        "device": device,
        "dtype": dtype,
    }
    given = {key: value for key, value in how.items() if value is not None}
    flags = {
        "scorers": [{"model": name, **given} for name in names] or None,
        "sets": _sets(files or [], dev or [], references or [], dev_references or []) or None,
        "weights": weight,
        "format": form,
        "grid.step": step,
        "grid.highest": highest,
        "length_normalisation": length_normalisation,
        "metric": metric,
        "limit": limit,
        "seed": seed,
    }
    if given and not names:
        raise ConfigError(f"--{next(iter(given))} goes with a scorer named on the command line; write it into the file")
    chosen = load_config(RerankConfig, config, settings=settings or (), overrides=flags)
    where = engine_config(engine, address, workers, threads_per_worker, gpus_per_worker)

    from energylm.pipelines.rerank import best_lines, check_inputs
    from energylm.pipelines.rerank import rerank as rerank_files

    if dry_run:
        typer.echo(check_inputs(chosen))
        return
    from energylm.files import write_text
    from energylm.progress import say
    from energylm.tables import to_markdown

    run = rerank_files(chosen, output=output, engine=where)
    lines = "".join(best_lines(of_set) for of_set in run.chosen)
    if best is not None and best != "-":
        write_text(best, lines)
    if best == "-" or not run.outcomes:  # without references the choice is all there is
        typer.echo(lines, nl=False)
    else:
        typer.echo(to_markdown(run.table), nl=False)
    say(run.summary())
    if run.report is not None:
        say(f"report: {run.report}")
    write_result(json, run)


def _sets(files: list[str], dev: list[str], references: list[str], dev_references: list[str]) -> list[dict[str, str]]:
    """Each file with its dev lists and references."""
    from energylm.errors import ConfigError

    for option, values in (("--dev", dev), ("--references", references)):
        if len(values) not in (0, 1, len(files)) or (option == "--references" and len(values) not in (0, len(files))):
            raise ConfigError(
                f"{len(values)} × {option} came for {len(files)} files; give one for each"
                + (", or one for all" if option == "--dev" else "")
            )
    if len(dev_references) not in (0, len(dev)):
        raise ConfigError(f"{len(dev_references)} × --dev-references came for {len(dev)} × --dev; give one for each")
    sets = []
    for place, file in enumerate(files):
        one = {"lists": file}
        if dev:
            which = min(place, len(dev) - 1)
            one["dev"] = dev[which]
            if dev_references:
                one["dev_references"] = dev_references[which]
        if references:
            one["references"] = references[place]
        sets.append(one)
    return sets
