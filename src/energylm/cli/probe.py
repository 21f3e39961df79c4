"""`energylm probe perturb | attack | differences`: what an energy is sensitive to, and how it is fooled."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

app = typer.Typer(help="Probe an energy: perturbations, gradient attacks, score differences.", no_args_is_help=True)

Energy = Annotated[
    str | None, typer.Argument(metavar="ENERGY", help="An energy folder. Required, here or in --config.")
]
LanguageModel = Annotated[
    str | None,
    typer.Argument(
        metavar="LM", help="Model folder, GGUF file, known model or hub name. Required, here or in --config."
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="A folder for report.html and plots.")]
Seed = Annotated[int | None, typer.Option(help="Of every choice of texts (default: 0).", show_default=False)]

POSITIONS = {"energy": "ENERGY", "language_model": "LM", "source": "FILE|CORPUS"}


@app.command("perturb")
def perturb(
    energy: Energy = None,
    language_model: LanguageModel = None,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|CORPUS",
            help="Real texts: a corpus folder, a text or JSONL file. Required, here or in --config.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a corpus (default: test).", show_default=False)] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a text (default: 160).", show_default=False)] = None,
    texts: Annotated[int | None, typer.Option(help="Texts (default: 100).", show_default=False)] = None,
    ends: Annotated[
        int | None, typer.Option(help="Tokens at either end that count as ends (default: 40).", show_default=False)
    ] = None,
    entity: Annotated[
        str | None, typer.Option(help="The name to put in, one token, e.g. ' John'; none = the commonest name.")
    ] = None,
    common: Annotated[
        str | None, typer.Option(help="The word to put in, one token, e.g. ' the'; none = the commonest word.")
    ] = None,
    seed: Seed = None,
    output: Output = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Change real texts at every position: a name, the commonest word, neighbours swapped; and random texts.

    Told are the changes of the energy and of the language model's negative log-likelihood, by position.

    Examples:

      energylm probe perturb runs/energy/model runs/lm/model corpora/wiki --texts 200 --output out/perturb

      energylm probe perturb runs/energy/model smollm2-135m book.txt --entity ' John' --common ' the' --json out.json
    """
    from energylm.config.probe import PerturbConfig

    flags = {
        "energy": energy,
        "language_model": language_model,
        "source": source,
        "split": split,
        "length": length,
        "texts": texts,
        "ends": ends,
        "entity": entity,
        "common": common,
        "seed": seed,
    }
    chosen = load_config(PerturbConfig, config, settings=settings or (), overrides=flags, positions=POSITIONS)

    from energylm.pipelines.probe_perturb import plan_perturb, run_perturb

    if dry_run:
        typer.echo(plan_perturb(chosen))
        return

    from energylm.tables import to_markdown

    run = run_perturb(chosen, output=output)
    typer.echo(f"{to_markdown(run.found.table)}\n{to_markdown(run.found.random_table)}", nl=False)
    _say_report(run.report)
    write_result(json, run)


@app.command("attack")
def attack(
    energy: Energy = None,
    language_model: LanguageModel = None,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|CORPUS]", help="Texts to edit, a line each, or a corpus; or give --negatives."),
    ] = None,
    negatives: Annotated[
        str | None, typer.Option(help="A folder of `energylm negatives`: its generated (or real) texts are edited.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="The corpus folder that the negatives were made from.")] = None,
    towards: Annotated[
        str | None,
        typer.Option(help="real (lower the energy) or fake (raise it) (default: real).", show_default=False),
    ] = None,
    texts: Annotated[int | None, typer.Option(help="Texts at most (default: 100).", show_default=False)] = None,
    split: Annotated[str | None, typer.Option(help="Split of a corpus (default: test).", show_default=False)] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a window of a corpus (default: 160).", show_default=False)
    ] = None,
    edits: Annotated[
        int | None, typer.Option(help="Tokens that may change in a text (default: 5).", show_default=False)
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Replacements scored exactly each step (default: 160).", show_default=False)
    ] = None,
    perplexity_budget: Annotated[
        float | None, typer.Option(help="Never above this many times a text's own perplexity, e.g. 1.5.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Energy at which the verdict turns (default: 0).", show_default=False)
    ] = None,
    only_generated: Annotated[
        bool, typer.Option("--only-generated", help="With --negatives: leave the context as it is.")
    ] = False,
    seed: Seed = None,
    output: Output = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Turn an energy's verdict by replacing a few tokens that its gradient points to.

    Every position × vocabulary replacement is tried by one backward pass and one matrix product; the best are scored
    exactly. Told are how many edits flip a text, the energy and the perplexity of each step, and how far the first
    order agrees with exact energies.

    Examples:

      energylm probe attack runs/energy/model runs/lm/model --negatives negatives/test --corpus corpora/wiki --edits 5

      energylm probe attack runs/energy/model runs/lm/model corpora/wiki --towards fake --perplexity-budget 1.5

      energylm probe attack runs/energy/model smollm2-135m texts.txt --towards real --output out/attack
    """
    from energylm.config.probe import AttackConfig

    flags = {
        "energy": energy,
        "language_model": language_model,
        "source": source,
        "negatives": negatives,
        "corpus": corpus,
        "towards": towards,
        "texts": texts,
        "split": split,
        "length": length,
        "max_edits": edits,
        "candidates": candidates,
        "perplexity_budget": perplexity_budget,
        "threshold": threshold,
        "only_generated": only_generated or None,
        "seed": seed,
    }
    chosen = load_config(AttackConfig, config, settings=settings or (), overrides=flags, positions=POSITIONS)

    from energylm.pipelines.probe_attack import plan_attack, run_attack

    if dry_run:
        typer.echo(plan_attack(chosen))
        return

    from energylm.tables import to_markdown

    run = run_attack(chosen, output=output)
    typer.echo(f"{to_markdown(run.found.table)}\n{to_markdown(run.found.summary_table)}", nl=False)
    _say_report(run.report)
    write_result(json, run)


@app.command("differences")
def differences(
    energy: Energy = None,
    negatives: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NEGATIVES…", help="Folders made by `energylm negatives`. Required, here or in --config."
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="The corpus folder that they were made from. Required, here or in --config.")
    ] = None,
    contexts: Annotated[
        int | None, typer.Option(help="Contexts of each folder at most (default: 1000).", show_default=False)
    ] = None,
    per_context: Annotated[
        int | None, typer.Option(help="Generated texts of each context (default: 1).", show_default=False)
    ] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Only contexts continued by so many tokens.")] = None,
    margin: Annotated[
        list[float] | None,
        typer.Option(help="A margin to count; repeatable (default: 0, 0.1, 1).", show_default=False),
    ] = None,
    seed: Seed = None,
    output: Output = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """How far apart an energy puts real and generated texts of the same contexts: a distribution, and margins.

    Examples:

      energylm probe differences runs/energy/model negatives/left negatives/right --corpus corpora/wiki --new-tokens 40

      energylm probe differences runs/energy/model negatives/test --corpus corpora/wiki --margin 0.1 -o out/margins
    """
    from energylm.config.probe import DifferencesConfig

    flags = {
        "energy": energy,
        "negatives": negatives or None,
        "corpus": corpus,
        "contexts": contexts,
        "per_context": per_context,
        "new_tokens": new_tokens,
        "margins": margin or None,
        "seed": seed,
    }
    chosen = load_config(
        DifferencesConfig,
        config,
        settings=settings or (),
        overrides=flags,
        positions=POSITIONS | {"negatives": "NEGATIVES"},
    )

    from energylm.pipelines.probe_differences import plan_differences, run_differences

    if dry_run:
        typer.echo(plan_differences(chosen))
        return

    from energylm.tables import to_markdown

    run = run_differences(chosen, output=output)
    typer.echo(to_markdown(run.found.table), nl=False)
    _say_report(run.report)
    write_result(json, run)


def _say_report(page: Path | None) -> None:
    from energylm.progress import say

    if page is not None:
        say(f"report: {page}")
