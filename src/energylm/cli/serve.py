"""`energylm serve`: OpenAI-style completions by joint sampling over HTTP; score, rerank, detect; a page."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, Settings, load_config, needs_extra
from energylm.errors import ConfigError


def serve(
    lm: Annotated[str | None, typer.Option(help="Model folder, GGUF file, known model or hub name.")] = None,
    energy: Annotated[str | None, typer.Option(help="Energy folder; without one the LM is sampled plainly.")] = None,
    detector: Annotated[str | None, typer.Option(help="Detector folder, for /v1/detect.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Model of /v1/score and /v1/rerank; default: the LM.")] = None,
    upstream: Annotated[
        str | None, typer.Option(help="OpenAI-style server that makes the proposals, e.g. http://host:8000/v1.")
    ] = None,
    upstream_model: Annotated[
        str | None, typer.Option(help="Model the upstream is asked for; default: its first.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name under which the model is served.")] = None,
    proposals: Annotated[int | None, typer.Option(help="Candidates of a text where a request does not say.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Truncation of the proposals where a request does not say.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 8000,
    keys: Annotated[Path | None, typer.Option(help="File of API keys' digests, made with --add-key.")] = None,
    add_key: Annotated[
        str | None, typer.Option(help="Make a key, print it once, add its digest with this note to --keys, and leave.")
    ] = None,
    insecure_no_keys: Annotated[
        bool, typer.Option("--insecure-no-keys", help="Let anyone who can reach the address ask.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Serve a language model under an energy to OpenAI-style clients.

    Keys are read from --keys and from ENERGYLM_API_KEYS (comma-separated); without any, only this machine may ask.
    ENERGYLM_UPSTREAM_KEY is the key for the upstream.

    Examples:

      energylm serve --lm runs/tiny/model --energy runs/energy/model

      energylm serve --add-key laboratory --keys keys.txt

      energylm serve --lm smollm2-135m --energy runs/bit/model --host 0.0.0.0 --keys keys.txt

      energylm serve --upstream http://127.0.0.1:9000/v1 --energy runs/text/model --set limits.max_waiting=128
    """
    needs_extra("web", "fastapi", "uvicorn", "httpx", "prometheus_client", "jinja2")
    if add_key is not None:
        if keys is None:
            raise ConfigError("--add-key needs --keys FILE, the file that the key's digest goes into")
        from energylm.apps.serve.keys import add_key as make_key

        typer.echo(make_key(keys, note=add_key))
        return
    from energylm.apps.serve.verb import ServeConfig

    flags = {
        "language_model": lm,
        "energy": energy,
        "detector": detector,
        "scorer": scorer,
        "upstream": upstream,
        "upstream_model": upstream_model,
        "name": name,
        "proposals": proposals,
        "top_k": top_k,
    }
    chosen = load_config(ServeConfig, config, settings=settings or (), overrides=flags)
    if dry_run:
        from energylm.apps.serve.check import check_inputs

        typer.echo(f"{check_inputs(chosen)} at {host} port {port}")
        return
    from energylm.apps.serve.run import run_server

    run_server(chosen, host=host, port=port, keys_file=keys, insecure=insecure_no_keys)
