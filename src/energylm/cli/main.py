"""The program `energylm`: argv → verb. Light: nothing here or in its neighbours imports torch at load time.

Groups of verbs, their names and a line of help each come from the table; no verb is imported to list them.

A user's mistake is one line on stderr and exit code 2; never a traceback.
"""

import codecs
import difflib
import errno
import io
import json
import os
import sys
from importlib import import_module
from typing import Any, cast

import click

from energylm import __version__
from energylm.errors import ConfigError, EnergyLMError
from energylm.verbs import table
from energylm.waiting import adapt_waiting, keep_memory

MAX_WIDTH = 110
INTERRUPTED = 130  # the exit code of Ctrl-C
STDERR = 2  # its file descriptor


class VerbGroup(click.Group):
    """The program, or a group such as `energylm corpus`: verbs by name, built when asked for."""

    def __init__(self, prefix: str = "", **options: Any) -> None:
        super().__init__(prefix.rpartition(" ")[2] or "energylm", **options)
        self.prefix = prefix

    def list_commands(self, context: click.Context) -> list[str]:
        above = f"{self.prefix} ".lstrip()
        inside = [name.removeprefix(above) for name in table.VERBS if name.startswith(above)]
        return list(dict.fromkeys(name.partition(" ")[0] for name in inside))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        whole = f"{self.prefix} {name}".strip()
        if whole in table.VERBS:
            from energylm.cli.command import VerbCommand

            return VerbCommand(table.verb_class(whole))
        if any(verb.startswith(f"{whole} ") for verb in table.VERBS):
            return VerbGroup(whole, help=table.GROUPS.get(whole), no_args_is_help=True)
        return None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        nested = " ".join([self.prefix, *args[:2]]).strip()
        if len(args) > 1 and nested in table.VERBS and nested.rpartition(" ")[0] in table.VERBS:
            # `rerank train`: a verb below one that is a verb by itself
            found = VerbGroup(nested.rpartition(" ")[0]).get_command(context, args[1])
            return " ".join(args[:2]), found, args[2:]
        if args and not args[0].startswith("-") and self.get_command(context, args[0]) is None:
            known = self.list_commands(context)
            near = difflib.get_close_matches(args[0], known, n=1, cutoff=0.6)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"there is no {args[0]!r} here; {meant}known: {', '.join(known)}")
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # before click sees it, which would write an empty line
            raise SystemExit(INTERRUPTED) from None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(context):
            whole = f"{self.prefix} {name}".strip()
            rows.append((name, table.short_help(whole) if whole in table.VERBS else table.GROUPS.get(whole, "")))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def program() -> VerbGroup:
    """`energylm` itself."""
    root = VerbGroup(
        help="Energy-based models of text: train, measure, sample, rerank, detect.",
        epilog="Start with: energylm demo. Every verb has --help with examples.",
        no_args_is_help=True,
        context_settings={"max_content_width": MAX_WIDTH, "help_option_names": ["--help", "-h"]},
    )
    return click.version_option(__version__, message="energylm %(version)s", help="Print the version and leave.")(root)


def run(arguments: list[str]) -> None:
    """Carry out a command line; a wrong one is a `ConfigError`."""
    try:
        program()(arguments, prog_name="energylm", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as group_help:
        group_help.show()
        raise SystemExit(group_help.exit_code) from None
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from None


def main() -> None:
    _prepare_streams()
    if sys.argv[1:2] != ["serve"]:  # a server gives back what it has freed, when it is quiet
        keep_memory()
    adapt_waiting()
    try:
        _refuse_unreadable_arguments()
        run(sys.argv[1:])
        sys.exit(0)
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
            _leave("; ".join(["interrupted", *_notes(leaving)]), INTERRUPTED)
        _flush_stdout()
        raise


def lm_eval() -> None:
    """`energylm-lm-eval`: the program of the harness, which knows our models; a line where it is not installed."""
    try:
        import_module("energylm.apps.harness").main()
    except EnergyLMError as error:
        _leave(str(error), error.exit_code)


def _leave(message: str, exit_code: int) -> None:
    _flush_stdout()
    print(f"energylm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)


def _notes(error: BaseException | None) -> list[str]:
    """What was noted on an exception or on those it came from."""
    notes: list[str] = []
    while error is not None:
        notes += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return list(dict.fromkeys(notes))


def _prepare_streams() -> None:
    """Three open streams, of which stdout can write any text, whatever the locale."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:  # closed: `>&-`
        pass
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or open(0), sys.stdout or open(1, "w"), sys.stderr or open(2, "w")
    codecs.register_error("json", _as_json)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="json")  # as JSON writes them: what is inside a string stays what it is


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """What stands in the place of letters that a stream cannot write, and where writing goes on."""
    refused = cast(UnicodeEncodeError, error)  # the handler is given to a stream that is written to
    return json.dumps(refused.object[refused.start : refused.end])[1:-1], refused.end


def _refuse_unreadable_arguments() -> None:
    """Bytes that the locale cannot read arrive as lone surrogates, which no model and no JSON file takes."""
    for argument in sys.argv[1:]:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            raise ConfigError(
                f"argument {argument!r} holds bytes that are not {sys.getfilesystemencoding()}; set PYTHONUTF8=1 if "
                "they are UTF-8"
            )


def _flush_stdout() -> None:
    """A reader that has left (`| head -1`) is no mistake; unless it is noticed here, Python complains at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
