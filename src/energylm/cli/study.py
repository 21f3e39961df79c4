"""`energylm study`: which model's completions do people prefer? Make a study, serve it, report it."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli import study_serve
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, needs_extra, write_result

app = typer.Typer(no_args_is_help=True, help="Pairwise human evaluation: make, serve and report a study.")
app.command("invite")(study_serve.invite)
app.command("serve")(study_serve.serve)

StudyFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A study's folder (`energylm study new`).")]


@app.command("new")
def new(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The study's folder, which must be new.")
    ] = None,
    completions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help='A model\'s completions, JSONL of {"prefix": …, "completion": …}; repeatable.'
        ),
    ] = None,
    real: Annotated[str | None, typer.Option(help="The real endings of the same prefixes, in the same form.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LM[,ENERGY]", help="A model that completes prefixes of --source; repeatable."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="A corpus folder or text file with the prefixes.")] = None,
    split: Annotated[str | None, typer.Option(help="Of a corpus folder (default: test).", show_default=False)] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of prefix and completion (default: 160).", show_default=False)
    ] = None,
    prefix: Annotated[
        int | None, typer.Option("--prefix-tokens", help="Tokens of the prefix (default: 120).", show_default=False)
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(help="Candidates of joint sampling with --model (default: 10,000).", show_default=False),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BASELINE:MODEL", help="A comparison; repeatable (default: every two).", show_default=False
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="Prefixes of each comparison (default: 333).", show_default=False)
    ] = None,
    ties: Annotated[bool, typer.Option("--ties", help="Raters may say that neither is better.")] = False,
    raters_per_pair: Annotated[
        int | None, typer.Option(help="Votes on each pair (default: 3).", show_default=False)
    ] = None,
    max_pairs_per_rater: Annotated[
        int | None, typer.Option(help="Pairs that one rater may answer (default: all).", show_default=False)
    ] = None,
    qualification: Annotated[
        int | None, typer.Option(help="Length of the qualification (default: 24).", show_default=False)
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the raters' page.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, sides, checks and completions (default: 0).")] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Make a study from completions of the same prefixes by two models or more.

    Prints its counts, and how often a coin-tosser passes the qualification.

    Examples:

      energylm study new -o studies/news --completions base=base.jsonl --completions joint=joint.jsonl --real real.jsonl

      energylm study new -o studies/news --model base=runs/lm/model --model joint=runs/lm/model,runs/bit/model \
--source corpora/news --candidates 1000

      energylm study new -o studies/news --config study.yaml --set design.checks.wrong=shuffled
    """
    from energylm.config.study import StudyConfig
    from energylm.errors import ConfigError

    if candidates is not None and not model:
        raise ConfigError("--candidates goes with --model; files hold completions already")
    windows = {"source": source, "split": split, "length": length, "prefix": prefix}
    flags = {
        "completions": [
            {"name": name, "file": file} for name, file in _named(completions, "--completions", "base=b.jsonl")
        ],
        "models": [_model(name, paths, candidates) for name, paths in _named(model, "--model", "base=runs/lm/model")],
        "real": real,
        "comparisons": _comparisons(compare or []),
        "pairs": pairs,
        "design.ties": ties or None,
        "design.raters_per_pair": raters_per_pair,
        "design.max_pairs_per_rater": max_pairs_per_rater,
        "design.qualification.items": qualification,
        "design.title": title,
        "design.seed": seed,
        **{f"windows.{key}": value for key, value in windows.items()},
    }
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    chosen = load_config(StudyConfig, config, settings=settings or (), overrides=given)

    from energylm.pipelines.study_new import describe_study, new_study

    if dry_run:
        typer.echo(describe_study(chosen))
        return
    if output is None:
        raise ConfigError("where to? give the study's folder with --output FOLDER")
    made = new_study(chosen, output=output)
    typer.echo(made.summary())
    write_result(json, made)


@app.command("report")
def report(
    folder: StudyFolder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for report.html, results.md, results.json, plots.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Judge the answers so far: the table of preferences on stdout, everything else in the report.

    Raters and answers that fail the checks are dropped by the rules of the study, which the report states; stored
    answers stay as they are.

    Examples:

      energylm study report studies/news -o out/news-study

      energylm study report studies/news --json outcome.json
    """
    needs_extra("web", "sqlalchemy", "krippendorff")

    from energylm.pipelines.study_report import report_study
    from energylm.progress import say
    from energylm.tables import to_markdown

    found = report_study(folder, output=output)
    typer.echo(to_markdown(found.table), nl=False)
    say(found.summary())
    if found.page is not None:
        say(f"report: {found.page}")
    write_result(json, found)


@app.command("export")
def export(
    folder: StudyFolder,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE|-", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write every answer as a line of JSON: rater, item, order, side, choice, who wrote what, seconds.

    Examples:

      energylm study export studies/news > answers.jsonl

      energylm study export studies/news -o answers.jsonl
    """
    needs_extra("web", "sqlalchemy")

    from energylm.files import write_text
    from energylm.pipelines.study_report import answer_lines

    if output == "-":
        for line in answer_lines(folder):
            typer.echo(line, nl=False)
    else:
        write_text(output, "".join(answer_lines(folder)))


@app.command("simulate")
def simulate(
    folder: StudyFolder,
    good: Annotated[int | None, typer.Option(help="Raters who read (default: 30).", show_default=False)] = None,
    random: Annotated[int | None, typer.Option(help="Coin-tossers (default: 15).", show_default=False)] = None,
    lazy: Annotated[
        int | None, typer.Option(help="Raters who stop reading once qualified (default: 15).", show_default=False)
    ] = None,
    strength: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=S", help="Planted log-strength of a model; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of arrivals and answers (default: 0).", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A folder for the report.")] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Let a simulated panel answer a study that has no raters, and judge it: a trial before people are paid.

    Prints expected and found exclusions; expected ones are binomial tails, known before the first answer. Give the
    study max_pairs_per_rater, or the first raters do everything. A study answered so cannot be served to people.

    Examples:

      energylm study simulate studies/trial --strength joint=0.5 -o out/trial

      energylm study simulate studies/trial --good 40 --random 10 --lazy 10 --set accuracy=0.85
    """
    needs_extra("web", "sqlalchemy", "krippendorff")

    from energylm.config.study import PanelConfig

    flags = {"study": str(folder), "good": good, "random": random, "lazy": lazy, "seed": seed}
    strengths = {f"strengths.{name}": _number(value) for name, value in _named(strength, "--strength", "joint=0.5")}
    chosen = load_config(
        PanelConfig, config, settings=settings or (), overrides=flags | strengths, positions={"study": "FOLDER"}
    )

    from energylm.pipelines.study_panel import describe_panel, exclusions_table, run_panel
    from energylm.progress import say
    from energylm.tables import to_markdown

    if dry_run:
        typer.echo(describe_panel(chosen))
        return
    panel = run_panel(chosen, output=output)
    typer.echo(to_markdown(exclusions_table(panel.exclusions)), nl=False)
    if panel.page is not None:
        say(f"report: {panel.page}")
    write_result(json, panel)


def _named(values: list[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    """NAME=VALUE options, taken apart."""
    from energylm.errors import ConfigError

    found = []
    for text in values or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} {text!r} is not of the form NAME=VALUE, e.g. {option} {example}")
        found.append((name, value))
    return found


def _model(name: str, paths: str, candidates: int | None) -> dict[str, object]:
    lm, _, energy = paths.partition(",")
    given = {"name": name, "language_model": lm, "energy": energy or None, "candidates": candidates}
    return {key: value for key, value in given.items() if value is not None}


def _comparisons(values: list[str]) -> list[list[str]] | None:
    from energylm.errors import ConfigError

    for text in values:
        if text.count(":") != 1:
            raise ConfigError(f"--compare {text!r} is not of the form BASELINE:MODEL, e.g. --compare base:joint")
    return [text.split(":") for text in values] or None


def _number(text: str) -> float:
    from energylm.errors import ConfigError

    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"a strength is a number, came {text!r}; e.g. --strength joint=0.5") from None
