"""The program `energylm`: argv → pipeline. Light: nothing here or in its neighbours imports torch at load time.

A user's mistake is one line on stderr and exit code 2; never a traceback.
"""

import errno
import os
import sys
from typing import Annotated

import typer

from energylm import __version__
from energylm.cli import (
    bench,
    corpus,
    demo,
    detect,
    energy,
    evaluate,
    finetune,
    generate,
    grid,
    lm,
    mcmc,
    models,
    negatives,
    perplexity,
    plan,
    pretrain,
    probe,
    reproduce,
    rerank,
    score,
    seq2seq,
    serve,
    study,
)
from energylm.cli.waiting import set_waiting
from energylm.errors import EnergyLMError

INTERRUPTED = 130  # the exit code that Typer gives to Ctrl-C

app = typer.Typer(
    name="energylm",
    help="Energy-based models of text: train, measure, sample, rerank, detect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with [bold]energylm demo[/bold]. Every verb has --help with examples.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"energylm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


app.command("demo")(demo.demo)
app.add_typer(corpus.app, name="corpus")
app.add_typer(lm.app, name="lm")
app.command("negatives")(negatives.negatives)
app.add_typer(energy.app, name="energy")
app.command("perplexity")(perplexity.perplexity)
app.command("generate")(generate.generate)
app.command("grid")(grid.grid)
app.add_typer(models.app, name="models")
app.add_typer(pretrain.app, name="pretrain")
app.command("reproduce")(reproduce.reproduce)
app.command("plan")(plan.plan)
app.add_typer(detect.app, name="detect")
app.add_typer(probe.app, name="probe")
app.command("score")(score.score)
app.command("rerank")(rerank.rerank)
app.add_typer(evaluate.app, name="evaluate")
app.command("finetune")(finetune.finetune)
app.add_typer(seq2seq.app, name="seq2seq")
app.command("mcmc")(mcmc.mcmc)
app.add_typer(study.app, name="study")
app.command("serve")(serve.serve)
app.command("bench")(bench.bench)


def main() -> None:
    set_waiting()
    try:
        app()
    except EnergyLMError as error:
        _leave(str(error), error.exit_code)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _leave(f"no space left on the disk ({error.filename or 'unknown file'}); free some space and run again", 2)
        if error.filename is not None:  # a path the user gave: no such file, no permission, a folder for a file
            _leave(f"{error.filename}: {error.strerror}; check the path and its permissions", 2)
        raise
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _leave("interrupted; what was finished is kept, run the same command to continue", INTERRUPTED)
        _flush_stdout()
        raise


def _leave(message: str, exit_code: int) -> None:
    print(f"energylm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)


def _flush_stdout() -> None:
    """A reader that has left (`| head -1`) is no mistake; unless it is noticed here, Python complains at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
