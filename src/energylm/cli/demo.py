"""`energylm demo`: the whole story on the built-in corpus, in minutes, ending in one page."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, Settings, load_config


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder that receives corpus, model and report.")
    ] = Path("energylm-demo"),
    steps: Annotated[
        int | None,
        typer.Option(help="Updates of the language model (default: 400, about a minute).", show_default=False),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Train a tiny language model and an energy on top of it, measure both, sample from both, write a report.

    A second run does only what is missing; an interrupted one continues.

    Examples:

      energylm demo

      energylm demo --output out/demo --steps 2000
    """
    from energylm.config.demo import DemoConfig

    chosen = load_config(DemoConfig, config, settings=settings or (), overrides={"steps": steps})
    if dry_run:
        typer.echo(
            f"{output}: would tokenise {chosen.source} ({chosen.vocabulary_size:,} tokens), train a {chosen.preset} "
            f"language model for {chosen.steps:,} steps and an energy for {chosen.energy.steps:,}, measure both, "
            f"continue {len(chosen.prompts)} prompts and write report.html"
        )
        return

    from rich.console import Console

    from energylm.pipelines.demo import run_demo
    from energylm.progress import say
    from energylm.tables import to_rich

    done = run_demo(chosen, output=output)
    Console(stderr=True).print(to_rich(done.perplexity.table, title="Perplexity on unseen documents"))
    joint = done.perplexity.joint
    say(f"effective sample size: median {joint.ess.median:.1f} of {joint.n} samples a context")
    if joint.warning is not None:
        say(f"what it means: {joint.warning}")
    model, energy, prompt = (shlex.quote(str(it)) for it in (done.run.model, done.energy.model, chosen.prompts[0]))
    say("Try next:")
    say(f"  energylm generate {model} --energy {energy} --prompt {prompt} --top-k 10")
    say(f"  energylm serve --lm {model} --energy {energy}    # and open http://127.0.0.1:8000")
    say(f"  energylm lm sample {model} --prompt {prompt} -n 3 --top-k 10 --plain")
    say(f"  energylm corpus info {shlex.quote(str(done.corpus_folder))}")
    say("  energylm corpus build YOUR_TEXTS --output my-corpus && energylm lm train my-corpus --output my-lm")
    typer.echo(done.report)
