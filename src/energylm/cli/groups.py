"""The program's groups of verbs: names and one line of help each, from the table; no verb is imported to list them."""

import difflib
from typing import Any

import click

from energylm.verbs import table

MAX_WIDTH = 110
INTERRUPTED = 130  # the exit code of Ctrl-C


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
    from energylm import __version__

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
        from energylm.errors import ConfigError

        raise ConfigError(error.format_message()) from None
