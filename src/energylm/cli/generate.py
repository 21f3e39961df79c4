"""`energylm generate`: text from a language model and an energy together."""

from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config


def generate(
    language_model: Annotated[
        str | None,
        typer.Argument(
            metavar="LM", help="Model folder, GGUF file, known model or hub name. Required, here or in --config."
        ),
    ] = None,
    energy: Annotated[
        str | None, typer.Option(help="An energy folder (`energylm energy train`). Required, here or in --config.")
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text to continue; repeatable. None starts a new document.")
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", "-n", help="Candidates, 2 to 100,000 or more (default: 256).", show_default=False),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a continuation at most (default: 40).", show_default=False)
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Candidates' tokens among the k likeliest (paper: 10).")] = None,
    top_p: Annotated[float | None, typer.Option(help="… among the likeliest that reach this probability.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Divide logits by this first (default: 1).", show_default=False)
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="paper (default) or corrected, which divides the truncation out.", show_default=False),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Different texts of one pool; only the first has the sampler's law (default: 1).", show_default=False
        ),
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Go on so many times: a longer text (default: 1).", show_default=False)
    ] = None,
    context_tokens: Annotated[
        int | None, typer.Option(help="Read only the last tokens of the context; long texts need it.")
    ] = None,
    fixed_length: Annotated[
        bool, typer.Option("--fixed-length", help="Go on after the end-of-sequence token.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="joint (default), autoregressive, or next-token: probabilities, joint against base.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default=False)] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Continue prompts: draw candidates from the language model, keep one by its energy.

    Text on stdout; effective sample size, largest weight and energies on stderr.

    Examples:

      energylm generate runs/tiny/model --energy runs/energy/model --prompt "The city council" -n 256 --top-k 10

      energylm generate smollm2-135m --energy runs/bit/model --prompt "It was late" --chunks 5 --context-tokens 120

      energylm generate runs/tiny/model --energy runs/energy/model --prompt "He was willing and" --method next-token
    """
    from energylm.config.generate import GenerateConfig

    flags = {
        "language_model": language_model,
        "energy": energy,
        "prompts": prompt or None,
        "method": method,
        "seed": seed,
        "sampling.n": n,
        "sampling.max_new_tokens": max_new_tokens,
        "sampling.truncation.top_k": top_k,
        "sampling.truncation.top_p": top_p,
        "sampling.truncation.temperature": temperature,
        "sampling.weights": weights,
        "sampling.draws": draws,
        "sampling.chunks": chunks,
        "sampling.context_tokens": context_tokens,
        "sampling.stop_at_eos": False if fixed_length else None,
    }
    chosen = load_config(
        GenerateConfig, config, settings=settings or (), overrides=flags, positions={"language_model": "LM"}
    )

    from energylm.pipelines.generate import check_inputs, generate_text

    if dry_run:
        typer.echo(check_inputs(chosen))
        return

    from energylm.files import write_json
    from energylm.progress import say

    results = []
    for result in generate_text(chosen):
        typer.echo(result.shown())
        say(result.facts())
        results.append(result)
    if json is not None:
        write_json(json, {"results": [result.to_json() for result in results]})
