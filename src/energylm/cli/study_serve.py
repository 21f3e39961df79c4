"""`energylm study invite` and `energylm study serve`: personal links, and the pages behind them."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import DryRun, needs_extra

StudyFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A study's folder (`energylm study new`).")]
DEFAULT_PORT = 8321


def invite(
    folder: StudyFolder,
    raters: Annotated[
        int, typer.Option(min=0, help="Invite so many, called rater-001, rater-002 …", show_default=False)
    ] = 0,
    label: Annotated[list[str] | None, typer.Option(help="Invite a rater by this name; repeatable.")] = None,
    owner: Annotated[
        bool, typer.Option("--owner", help="Make the owner's token; an earlier one is no longer valid.")
    ] = False,
    url: Annotated[str, typer.Option(help="Where raters reach the study.")] = f"http://127.0.0.1:{DEFAULT_PORT}",
    dry_run: DryRun = False,
) -> None:
    """Print personal links, one a line: a name, a tab, the link (or the owner's token).

    They are shown this once, and the study keeps hashes. It may be served meanwhile. Whoever loses a link is invited
    anew, by another name.

    Examples:

      energylm study invite studies/news --raters 60 --url https://study.example.org > links.tsv

      energylm study invite studies/news --label ada --label grace

      energylm study invite studies/news --owner
    """
    needs_extra("web", "fastapi", "sqlalchemy")

    from energylm.apps.study.links import invite as invite_raters
    from energylm.apps.study.links import plan

    wanted = {"labels": tuple(label or ()), "raters": raters, "owner": owner, "url": url}
    if dry_run:
        typer.echo(plan(folder, **wanted))
        return
    for one in invite_raters(folder, **wanted):
        typer.echo(f"{one.label}\t{one.secret}")


def serve(
    folder: StudyFolder,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = DEFAULT_PORT,
    dry_run: DryRun = False,
) -> None:
    """Serve a study to its raters, and the owner's view at /owner, until Ctrl-C.

    A vote is on the disk before it is acknowledged; a server that was killed goes on where it stood. Put a proxy with
    TLS in front where raters come over the internet: links hold their tokens.

    Examples:

      energylm study serve studies/news

      energylm study serve studies/news --host 0.0.0.0 --port 8080
    """
    needs_extra("web", "fastapi", "jinja2", "krippendorff", "sqlalchemy", "uvicorn")

    from energylm.data.study_items import read_study
    from energylm.progress import say

    study = read_study(folder)
    if dry_run:
        typer.echo(f"would serve {len(study.pairs):,} pairs for {study.votes_wanted:,} votes on {host} port {port}")
        return

    from energylm.apps import running
    from energylm.apps.study.app import create_study_app
    from energylm.data.study_store import StudyStore

    with StudyStore.open(folder) as store, running.listen(host, port) as listening:
        store.refuse_people()
        quoted = shlex.quote(str(folder))
        say(f"{folder}: {running.address_of(listening)} (Ctrl-C stops)")
        if not store.progress().raters:
            say(f"nobody is invited yet: energylm study invite {quoted} --raters 10")
        if store.owner_hash() is None:
            say(f"the owner's view /owner is closed until there is a token: energylm study invite {quoted} --owner")
        running.run(create_study_app(store), listening, grace_seconds=10)
