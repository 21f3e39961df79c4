"""A verb's declaration as a command: flags, positions, help, `--config`, `--set`, `--json`, `--dry-run`, the engine.

Values travel as text to the verb's own model, which checks types and bounds, so there is one place that judges them and
one kind of message.

Relations  `verbs.verb` reads the fields; `main` builds a command when it is called for.
"""

import os
from pathlib import Path
from typing import Any

import click

from energylm.config.base import load_config
from energylm.config.environment import EngineConfig, without_fetching
from energylm.jobs.job import Job
from energylm.verbs import table
from energylm.verbs.verb import Option, Verb, options_of

ENGINE = "Engine"


class VerbCommand(click.Command):
    def __init__(self, verb: type[Verb]) -> None:
        self.verb = verb
        self.options = options_of(verb)
        self.engine_options = options_of(EngineConfig) if verb.blocks else []
        parameters = _parameters(verb, self.options, self.engine_options)
        super().__init__(table.name_of(verb), params=parameters, callback=self._run)

    def configured(self, values: dict[str, Any]) -> tuple[Verb, Job]:
        """The verb and what surrounds it, from what was typed."""
        values = dict(values)
        flags = {option.name: _given(option, values.pop(option.name)) for option in self.options}
        where = {option.name: _given(option, values.pop(option.name)) for option in self.engine_options}
        flags |= {name: values.pop(name) for name in self.verb.refused}
        names = {option.key: _spelling(option) for option in [*self.options, *self.engine_options]}
        names |= {name: _flag(name) for name in self.verb.refused}
        verb = load_config(self.verb, values["config_file"], settings=values["settings"], overrides=flags, names=names)
        output = values.get("output")
        job = Job(
            output=None if output is None else Path(output),
            overwrite=values.get("overwrite", False),
            engine=load_config(EngineConfig, overrides=where, names=names),
            emit=click.echo,
        )
        return verb, job

    def _run(self, **values: Any) -> None:
        verb, job = self.configured(values)
        if values["dry_run"]:
            with without_fetching():
                click.echo(verb.check(job))
            return
        result = verb.run(job)
        if os.environ.get("RANK", "0") != "0":
            return  # started by torchrun: one process speaks
        click.echo(verb.shown(result), nl=False)
        from energylm.progress import say

        for line in verb.remarks(result):
            say(line)
        if values["json_file"] is not None:
            from energylm.files import write_json

            write_json(values["json_file"], result.to_json())
        if code := verb.exit_code(result):
            raise SystemExit(code)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """Positions that have no default are shown as required, though a --config file may give them instead."""
        return ["[OPTIONS]", *(_position(option) for option in self.options if option.positional)]

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for paragraph in self.verb.help_text().split("\n\n"):
            formatter.write_paragraph()
            formatter.write_text(" ".join(paragraph.split()))

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        positions = [(option.positional or "", _described(option)) for option in self.options if option.positional]
        engine = {option.name for option in self.engine_options}
        records = [
            (parameter.name in engine, record)
            for parameter in self.get_params(context)
            if not isinstance(parameter, click.Argument)  # positions have a section of their own
            and (record := parameter.get_help_record(context)) is not None
        ]
        for title, rows in (
            ("Arguments", positions),
            ("Options", [record for is_engine, record in records if not is_engine]),
            (ENGINE, [record for is_engine, record in records if is_engine]),
        ):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=34)
        if self.verb.examples:
            with formatter.section("Examples"):
                for example in self.verb.examples:
                    formatter.write(f"  {example}\n")


def _parameters(verb: type[Verb], options: list[Option], engine: list[Option]) -> list[click.Parameter]:
    parameters = [_parameter(option) for option in options]
    if verb.writes != "nothing":
        optional = "A folder for the report, and for what a killed run goes on from."
        text = "Folder of what is made." if verb.writes == "required" else optional
        parameters.append(click.Option(["--output", "-o", "output"], metavar="FOLDER", help=text))
    if verb.overwrites:
        text = "Replace what stands there and was made otherwise."
        parameters.append(click.Option(["--overwrite"], is_flag=True, help=text))
    parameters += [_parameter(option) for option in engine]
    parameters += [click.Option([_flag(name), name], hidden=True) for name in verb.refused]
    return [
        *parameters,
        click.Option(["--config", "config_file"], metavar="FILE", help="YAML file with any keys of the configuration."),
        click.Option(["--set", "settings"], metavar="KEY=VALUE", multiple=True, help=_set_help(verb)),
        click.Option(["--json", "json_file"], metavar="FILE", help="Write the result as JSON."),
        click.Option(["--dry-run"], is_flag=True, help="Check the inputs and print what would be done; write nothing."),
    ]


def _parameter(option: Option) -> click.Parameter:
    if option.positional:
        return click.Argument(
            [option.name], nargs=-1 if option.is_many else 1, required=False, metavar=option.positional
        )
    spellings = [*([option.short] if option.short else []), option.name]
    if option.is_switch:
        return click.Option(
            [f"{option.flag}/--no-{option.flag.removeprefix('--')}", *spellings], default=None, help=_described(option)
        )
    shown: Any = {"metavar": option.metavar, "help": _described(option), "shell_complete": _completion(option)}
    return click.Option([option.flag, *spellings], multiple=option.is_many, default=None, **shown)


def _completion(option: Option) -> Any:
    from click.shell_completion import CompletionItem

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if option.choices:
            return [CompletionItem(choice) for choice in option.choices if choice.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file")]

    return complete


def _given(option: Option, value: Any) -> Any:
    """None where the option was not typed."""
    return (list(value) or None) if option.is_many else value


def _described(option: Option) -> str:
    """Help with its default, which is written in the field alone."""
    default = option.default
    repeat = " Repeatable." if option.is_many and not option.positional else ""
    if option.is_required and not option.positional:
        return f"{option.help}{repeat} Required, here or in --config."
    if default in (None, "", (), ("",)) or option.is_required or (option.is_switch and not default):
        return option.help + repeat
    shown = ", ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return f"{option.help}{repeat} [default: {shown}]"


def _position(option: Option) -> str:
    many = "..." if option.is_many else ""
    return f"{option.positional}{many}" if option.is_required else f"[{option.positional}]{many}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _spelling(option: Option) -> str:
    """How an error names the option: as it is typed."""
    return option.positional or option.flag


def _set_help(verb: type[Verb]) -> str:
    """An example that this verb has: a key of a nested config where there is one."""
    nested = next(iter([*verb.shortcuts.values(), *verb.model_fields]), "a.b")
    return f"Any key of the configuration, e.g. {nested}=…; repeatable."
