"""The program's groups of verbs: names and one line of help each, from the table; no verb is imported to list them."""

from typing import Any

import click

from energylm.verbs import table

MAX_WIDTH = 110


class VerbGroup(click.Group):
    """The program, or a group such as `energylm corpus`: verbs by name, built when asked for."""

    def __init__(self, prefix: str = "", **options: Any) -> None:
        super().__init__(prefix.rpartition(" ")[2] or "energylm", **options)
        self.prefix = prefix

    def list_commands(self, context: click.Context) -> list[str]:
        inside = [name.removeprefix(self.prefix).strip() for name in table.VERBS if name.startswith(self.prefix)]
        return list(dict.fromkeys(name.partition(" ")[0] for name in inside))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        whole = f"{self.prefix} {name}".strip()
        if whole in table.VERBS:
            from energylm.cli.command import VerbCommand

            return VerbCommand(table.verb_class(whole))
        if any(verb.startswith(f"{whole} ") for verb in table.VERBS):
            return VerbGroup(whole, help=table.GROUPS.get(whole), no_args_is_help=True)
        return None

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


def is_declared(arguments: list[str]) -> bool:
    """Whether a command line calls a verb of the table, or a group for its help."""
    words = " ".join(arguments[:2])
    if arguments and arguments[0] in table.GROUPS and all(word.startswith("-") for word in arguments[1:2]):
        return True
    return any(words == name or words.startswith(f"{name} ") for name in table.VERBS)


def run_declared(arguments: list[str]) -> None:
    """Run a verb of the table; a wrong command line is a `ConfigError`."""
    try:
        program()(arguments, prog_name="energylm", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as group_help:
        group_help.show()
        raise SystemExit(group_help.exit_code) from None
    except click.ClickException as error:
        from energylm.errors import ConfigError

        raise ConfigError(error.format_message()) from None
    except click.Abort:
        raise SystemExit(130) from None
