"""`energylm mcmc`: sample or refine text with a masked language model read as an energy."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config


def mcmc(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A masked language model: a folder or a hub name. Required, here or in --config."
        ),
    ] = None,
    init: Annotated[
        list[str] | None,
        typer.Option(help="A text to start from, with [MASK] for tokens to fill in; repeatable. Default: mask."),
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="A file of such texts, one a line; - reads stdin.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A text to translate, for a conditional masked model; repeatable.")
    ] = None,
    source_file: Annotated[Path | None, typer.Option(help="A file of such texts, one a line; - reads stdin.")] = None,
    reference_file: Annotated[
        Path | None, typer.Option(help="A translation of each source, one a line: BLEU is reported.")
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens where --init is mask (default: 20, or predicted); mask-predict takes several."),
    ] = None,
    length_beam: Annotated[
        int | None, typer.Option(help="Predicted lengths of a translation that mask-predict tries (default: 1).")
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="mh (default), gibbs or mask-predict.")] = None,
    energy: Annotated[str | None, typer.Option(help="local (default) or raw.")] = None,
    chains: Annotated[int | None, typer.Option(help="Chains of each text (default: 5).")] = None,
    epochs: Annotated[int | None, typer.Option(help="Sweeps over all positions (default: 33).")] = None,
    burn_in: Annotated[int | None, typer.Option(help="First epochs that are not kept (default: 7).")] = None,
    block: Annotated[int | None, typer.Option(help="Positions proposed together (default: 1).")] = None,
    anneal_block: Annotated[bool, typer.Option("--anneal-block", help="Shrink blocks to 1 over the epochs.")] = False,
    anneal: Annotated[
        float | None, typer.Option(help="Lower the target's temperature by this each epoch, e.g. 0.02.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the proposals (default: 1).")] = None,
    top_p: Annotated[float | None, typer.Option(help="Propose from the nucleus of this probability.")] = None,
    forced_epochs: Annotated[int | None, typer.Option(help="First epochs that accept everything.")] = None,
    order: Annotated[str | None, typer.Option(help="Of positions: random (default) or sequential.")] = None,
    fixed: Annotated[
        str | None, typer.Option(help="Positions that stay, e.g. 0-3,7, or unmasked: all but [MASK] (infilling).")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="A word every text must contain; repeatable.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="A word no text may contain; repeatable.")] = None,
    start: Annotated[str | None, typer.Option(help="How masks are filled first: dispersed (default), greedy.")] = None,
    keep: Annotated[str | None, typer.Option(help="Texts of each chain: all (default), last or best.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same texts.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for texts and report; a killed run continues in it.")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Sample or refine text with a masked language model read as an energy.

    Texts go to stdout as JSON Lines, each as soon as its epoch is done; energy and acceptance go to stderr, and at the
    end a verdict on whether the chains mixed.

    Examples:

      energylm mcmc runs/mlm/model --length 20 --chains 8 --block 4 --anneal-block

      energylm mcmc runs/mlm/model --init "The clerk [MASK] the [MASK]." --fixed unmasked --keep best

      energylm mcmc runs/mlm/model --init "A sentence to be refined." --anneal 0.02 --temperature 0.8 --keep last

      energylm mcmc runs/mlm/model --sampler mask-predict --length 8 --length 10 --length 12

      energylm mcmc runs/cmlm/model --source "Ein Hund rennt." --start greedy --anneal 0.02 --keep last

      energylm mcmc runs/cmlm/model --source-file test.de --reference-file test.en --sampler mask-predict
      --length-beam 5
    """
    from energylm.config.mcmc import MCMCConfig

    texts = [*(init or []), *(_lines(input_file) if input_file is not None else [])]
    sources, references = _translations(source, source_file, reference_file)
    flags = {
        "model": model,
        "texts": texts or None,
        "sources": sources or None,
        "references": references or None,
        "lengths": length or None,
        "length_beam": length_beam,
        "fixed": fixed,
        "require": require or None,
        "forbid": forbid or None,
        "start": start,
        "keep": keep,
        "run.sampler": sampler,
        "run.energy": energy,
        "run.chains": chains,
        "run.epochs": epochs,
        "run.burn_in": burn_in,
        "run.forced_epochs": forced_epochs,
        "run.order": order,
        "run.block": block,
        "run.seed": seed,
        "run.proposal.temperature": temperature,
        "run.proposal.top_p": top_p,
        "run.annealing.block": True if anneal_block else None,
        "run.annealing.target": anneal,
    }
    chosen = load_config(MCMCConfig, config, settings=settings or (), overrides=flags, positions={"model": "MODEL"})

    from energylm.pipelines.mcmc import TextSample, plan_mcmc, run_mcmc

    if dry_run:
        typer.echo(plan_mcmc(chosen))
        return

    from json import dumps

    from energylm.cli.options import write_result
    from energylm.progress import say

    def show(sample: TextSample) -> None:
        typer.echo(dumps(sample.to_json(), ensure_ascii=False))

    result = run_mcmc(chosen, output=output, on_sample=show)
    if result.curves.bleu is not None:
        when = "" if result.diagnosis is None else " in the last epoch"
        say(f"energylm: BLEU {result.curves.bleu[-1]:.2f}{when}")
    if result.diagnosis is not None:
        say(f"energylm: {result.diagnosis.facts()}")
        say(f"energylm: {result.diagnosis.verdict}")
    if result.report is not None:
        say(f"energylm: report in {result.report}")
    write_result(json, result)


def _translations(
    source: list[str] | None, source_file: Path | None, reference_file: Path | None
) -> tuple[list[str], list[str]]:
    """Sources and references. Two files are parallel: line n of one belongs to line n of the other."""
    if reference_file is None:
        return [*(source or []), *(_lines(source_file) if source_file is not None else [])], []
    from energylm.data.formats.parallel import read_parallel
    from energylm.errors import ConfigError

    if source or source_file is None or str(source_file) == "-":
        raise ConfigError("--reference-file goes with --source-file, a file whose lines it translates; give both")
    pairs = list(read_parallel(source_file, reference_file))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def _lines(file: Path) -> list[str]:
    import sys

    from energylm.errors import DataError

    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{file} holds no text; give one text a line")
    return lines
