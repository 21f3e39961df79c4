"""`energylm lm train / score / sample`: the proposal language models."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli import lm_train
from energylm.cli.options import DryRun, JsonFile, write_result

app = typer.Typer(help="Train a language model, score texts with it, sample from it.", no_args_is_help=True)
app.command("train")(lm_train.train)

MODEL_HELP = "A model's or run's folder, a GGUF file, a known model (`energylm models list`), OWNER/NAME of the hub."


@app.command("score")
def score(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A text a line, or JSONL by its ending; - is standard input.")
    ] = "-",
    field: Annotated[str, typer.Option(help="The JSONL field that holds the text.")] = "text",
    windows: Annotated[
        int | None, typer.Option(min=1, help="Score this many evenly spaced windows of the whole file instead.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a window.")] = 160,
    prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of each text or window that are given and not scored.")
    ] = 0,
    eos: Annotated[bool, typer.Option("--eos", help="Score and count the end-of-sequence token too.")] = False,
    per_token: Annotated[bool, typer.Option("--per-token", help="Print each token's log-probability too.")] = False,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Print a JSON line a text (log-probability, perplexity, bits per byte); the total, with its convention, on stderr.

    Examples:

      energylm lm score smollm2-135m sentences.txt

      energylm lm score runs/tiny/model news.jsonl --field text --eos --json scores.json

      energylm lm score smollm2-135m book.txt --windows 20 --length 160 --prefix-tokens 120

      echo "A text to score." | energylm lm score smollm2-135m -
    """
    import json as json_module

    from energylm.bundles.known_models import locate
    from energylm.errors import ConfigError
    from energylm.pipelines.score_lm import existing, score_lm
    from energylm.progress import say

    if windows is not None and prefix_tokens >= length:
        raise ConfigError(f"--prefix-tokens {prefix_tokens} leaves nothing of --length {length} to score; lower it")
    path, location = existing(Path("/dev/stdin" if file == "-" else file)), locate(model)
    if dry_run:
        what = f"{windows} windows of {length} tokens" if windows else "every text"
        typer.echo(f"would score {what} of {'standard input' if file == '-' else file} with {location}")
        return

    from energylm.bundles.language_model import LanguageModel
    from energylm.bundles.text_results import SequenceScore

    def show(one: SequenceScore) -> None:
        row = one.to_json()
        if not per_token:
            del row["token_log_probs"]
        typer.echo(json_module.dumps(row))

    result = score_lm(
        LanguageModel.from_pretrained(model),
        path,
        field=field,
        windows=windows,
        length=length,
        prefix_tokens=prefix_tokens,
        eos=eos,
        on_score=show,
    )
    say(result.perplexity.summary())
    write_result(json, result)


@app.command("sample")
def sample(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text to continue; repeatable. None starts a new document.")
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Continuations of each prompt.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation at most.")] = 40,
    fixed_length: Annotated[
        bool, typer.Option("--fixed-length", help="Go on after the end-of-sequence token: exactly that many tokens.")
    ] = False,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens (the papers use 10).")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens that reach this probability.")] = None,
    temperature: Annotated[float, typer.Option(help="Divide the logits by this before truncating.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same samples.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Print prompt and continuation as text, not as JSON.")] = False,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Continue prompts. A JSON line a sample: text, tokens, log-probability under the model and under the proposal.

    A right-to-left model writes what comes before the prompt.

    Examples:

      energylm lm sample smollm2-135m --prompt "The city council" -n 4 --top-k 10 --plain

      energylm lm sample runs/tiny/model -n 100 --max-new-tokens 40 --fixed-length --seed 7 > samples.jsonl
    """
    import json as json_module

    from energylm.bundles.known_models import locate
    from energylm.config.sampling import Truncation

    truncation = Truncation.checked({"top_k": top_k, "top_p": top_p, "temperature": temperature}, origin="truncation")
    prompts, location = prompt or [""], locate(model)
    if dry_run:
        typer.echo(f"would draw {n} × {max_new_tokens} tokens for each of {len(prompts)} prompts from {location}")
        return

    from energylm.bundles.language_model import LanguageModel
    from energylm.pipelines.sample_lm import sample_lm

    loaded = LanguageModel.from_pretrained(model)
    samples = sample_lm(
        loaded,
        prompts,
        n=n,
        max_new_tokens=max_new_tokens,
        truncation=truncation,
        stop_at_eos=not fixed_length,
        seed=seed,
    )
    for row in samples.rows():
        given = prompts[row["context"]]
        if plain:
            typer.echo((given + row["text"] if loaded.codec.forward else row["text"] + given) + "\n")
        else:
            typer.echo(json_module.dumps({"prompt": given, **row}, ensure_ascii=False))
    write_result(json, samples)
