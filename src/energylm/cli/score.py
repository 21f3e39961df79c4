"""`energylm score`: a number for every text, from any model that has one."""

from typing import Annotated

import typer

from energylm.cli.engine_options import Address, Engine, Gpus, Keep, Threads, Workers, engine_config
from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

METHOD_HELP = "log-likelihood or pseudo-log-likelihood; by default what the model has."
MASKING_HELP = "What a masked model hides while it scores a token: token, or within-word (the word's later tokens too)."
CASING_HELP = "Read texts in lower, upper or sentence case (default: keep)."
EOS_HELP = "Score the end-of-sequence token too (causal models)."
LONG_HELP = "Refuse texts longer than the model; by default they are read in overlapping windows, and it is said."
DEVICE_HELP = "cpu, cuda, cuda:1 or mps (default: a GPU where there is one, else the CPU)."
DTYPE_HELP = (
    "float32, float64, bfloat16 or float16 weights of causal models (default: float32 on a CPU, else as saved)."
)

Method = Annotated[str | None, typer.Option(help=METHOD_HELP, show_default=False)]
Masking = Annotated[str | None, typer.Option(help=MASKING_HELP, show_default=False)]
Casing = Annotated[str | None, typer.Option(help=CASING_HELP, show_default=False)]
Eos = Annotated[bool, typer.Option("--eos", help=EOS_HELP)]
RefuseLong = Annotated[bool, typer.Option("--refuse-long", help=LONG_HELP)]
Device = Annotated[str | None, typer.Option(help=DEVICE_HELP, show_default=False)]
Dtype = Annotated[str | None, typer.Option(help=DTYPE_HELP, show_default=False)]


def score(
    model: Annotated[
        str | None,
        typer.Argument(help="A model folder, a GGUF file, a known model or a hub name. Required, here or in --config."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|-", help="A text a line, or TSV or JSONL by its ending (default: - , standard input)."
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="JSONL field or TSV column of the text (default: text).", show_default=False)
    ] = None,
    per: Annotated[
        str | None, typer.Option(help="The finest scores: sentence (default), word or token.", show_default=False)
    ] = None,
    normalise: Annotated[
        str | None, typer.Option(help="Divide by token or word (default: none).", show_default=False)
    ] = None,
    method: Method = None,
    masking: Masking = None,
    casing: Casing = None,
    eos: Eos = False,
    refuse_long: RefuseLong = False,
    device: Device = None,
    dtype: Dtype = None,
    keep: Keep = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    threads_per_worker: Threads = None,
    gpus_per_worker: Gpus = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Score texts: log-likelihood of causal models, pseudo-log-likelihood of masked and cloze models. Higher = better.

    Prints a JSON line a text, in the order of the file; rates and the convention go to stderr. Electric, two-tower and
    ELECTRA-TT models take one pass, masked models one for each token.

    Examples:

      energylm score smollm2-135m sentences.txt

      energylm score runs/electric/model sentences.tsv --field sentence --per word

      energylm score google-bert/bert-base-uncased texts.jsonl --masking within-word --normalise token

      echo "A text to score." | energylm score runs/mlm/model -
    """
    import json as json_module

    from energylm.config.score import ScoreConfig

    flags = {
        "model": model,
        "source": file,
        "field": field,
        "per": per,
        "normalise": normalise,
        "method": method,
        "masking": masking,
        "casing": casing,
        "eos": eos or None,
        "long_texts": "refuse" if refuse_long else None,
        "device": device,
        "dtype": dtype,
    }
    chosen = load_config(
        ScoreConfig, config, settings=settings or (), overrides=flags, positions={"model": "MODEL", "source": "FILE"}
    )
    where = engine_config(engine, address, workers, threads_per_worker, gpus_per_worker)

    from energylm.pipelines.score import check_inputs
    from energylm.pipelines.score import score as score_file
    from energylm.progress import say

    if dry_run:
        typer.echo(check_inputs(chosen))
        return
    run = score_file(
        chosen,
        on_score=lambda one: typer.echo(
            json_module.dumps(one.to_json(per=chosen.per, normalise=chosen.normalise), ensure_ascii=False)
        ),
        engine=where,
        keep=keep,
    )
    say(run.summary())
    write_result(json, run)
