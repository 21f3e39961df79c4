"""`energylm pretrain`: cloze models trained on a corpus, to score text, to start energies from, to fine-tune."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

if TYPE_CHECKING:
    from energylm.config.pretrain import PretrainConfig

app = typer.Typer(help="Pretrain a cloze model on a corpus.", no_args_is_help=True)

Corpus = Annotated[
    str | None, typer.Argument(help="A corpus folder (`energylm corpus build`). Required, here or in --config.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The run folder; the model is its subfolder model.")]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Shape: bit-local-tiny, bit-local-mini, bit-tiny, bit-base … (default: bit-local-tiny).",
        show_default=False,
    ),
]
Steps = Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)]
Compute = Annotated[
    float | None,
    typer.Option(help="Training FLOPs to spend in place of --steps, e.g. those of another run.", show_default=False),
]
Window = Annotated[
    int | None, typer.Option(help="Tokens of a window, the most it reads (default: 160).", show_default=False)
]
Seed = Annotated[
    int | None, typer.Option(help="Of weights, data order, noise and dropout (default: 0).", show_default=False)
]


@app.callback()
def _pretrain() -> None:
    """Pretrain a cloze model on a corpus."""


@app.command("mlm")
def mlm(
    corpus: Corpus = None,
    output: Output = ...,
    preset: Preset = None,
    steps: Steps = None,
    window: Window = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a masked language model, the start of a bidirectional energy (BiT).

    Killed runs go on where they stopped when run again; finished ones are not repeated. The folder OUTPUT/model is for
    `energylm energy train`, and for transformers' AutoModelForMaskedLM and AutoModel.

    Examples:

      energylm pretrain mlm corpora/sotu --output runs/mlm --preset bit-tiny --steps 1000

      energylm pretrain mlm corpora/news --output runs/bit --preset bit-base --set training.precision=bf16 --dry-run
    """
    from energylm.config.pretrain import PretrainMLMConfig

    flags = _flags(corpus, preset, steps, window, seed)
    chosen = load_config(
        PretrainMLMConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )

    from energylm.pipelines.pretrain_mlm import plan_mlm, pretrain_mlm

    _carry_out(chosen, plan_mlm, pretrain_mlm, output=output, json=json, dry_run=dry_run)


@app.command("electric")
def electric(
    corpus: Corpus = None,
    output: Output = ...,
    preset: Preset = None,
    steps: Steps = None,
    compute: Compute = None,
    window: Window = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train Electric: an energy for every token, by noise-contrastive estimation against a two-tower noise model.

    OUTPUT/model scores text in one pass (`energylm score`), and is an encoder for transformers' AutoModel.

    Examples:

      energylm pretrain electric corpora/sotu --output runs/electric --steps 1000

      energylm pretrain electric corpora/wiki -o runs/base --preset bit-base --set training.preset=clark2020/pretrain
    """
    from energylm.config.pretrain import PretrainElectricConfig

    flags = _flags(corpus, preset, steps, window, seed, compute=compute)
    chosen = load_config(
        PretrainElectricConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )

    from energylm.pipelines.pretrain_electric import plan_electric, pretrain_electric

    _carry_out(chosen, plan_electric, pretrain_electric, output=output, json=json, dry_run=dry_run)


@app.command("electra")
def electra(
    corpus: Corpus = None,
    output: Output = ...,
    preset: Preset = None,
    steps: Steps = None,
    compute: Compute = None,
    window: Window = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train ELECTRA: a detector of tokens that a small masked language model replaced.

    OUTPUT/model loads with transformers' ElectraForPreTraining and AutoModel, OUTPUT/model/noise is the generator.

    Examples:

      energylm pretrain electra corpora/sotu --output runs/electra --compute 1e13
    """
    from energylm.config.pretrain import MASKED_LM

    flags = _flags(corpus, preset, steps, window, seed, compute=compute) | {"noise": MASKED_LM}
    _pretrain_electra(flags, config, settings, output=output, json=json, dry_run=dry_run)


@app.command("electra-tt")
def electra_tt(
    corpus: Corpus = None,
    output: Output = ...,
    preset: Preset = None,
    steps: Steps = None,
    compute: Compute = None,
    window: Window = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train ELECTRA-TT: ELECTRA with Electric's two-tower noise model, which makes it a scorer of text, too.

    Examples:

      energylm pretrain electra-tt corpora/sotu --output runs/electra-tt --compute 1e13
    """
    from energylm.config.pretrain import TWO_TOWER

    flags = _flags(corpus, preset, steps, window, seed, compute=compute) | {"noise": TWO_TOWER}
    _pretrain_electra(flags, config, settings, output=output, json=json, dry_run=dry_run)


@app.command("two-tower")
def two_tower(
    corpus: Corpus = None,
    output: Output = ...,
    preset: Preset = None,
    steps: Steps = None,
    compute: Compute = None,
    window: Window = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a two-tower cloze model by itself: exact probabilities of every token given all others, in one pass.

    Each tower is two thirds of PRESET (`--set size=…`), so that both together cost about one of its size.

    Examples:

      energylm pretrain two-tower corpora/sotu --output runs/two-tower --compute 1e13
    """
    from energylm.config.pretrain import PretrainTwoTowerConfig

    flags = _flags(corpus, preset, steps, window, seed, compute=compute)
    chosen = load_config(
        PretrainTwoTowerConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )

    from energylm.pipelines.pretrain_two_tower import plan_two_tower, pretrain_two_tower

    _carry_out(chosen, plan_two_tower, pretrain_two_tower, output=output, json=json, dry_run=dry_run)


def _pretrain_electra(
    flags: dict[str, Any],
    config: Path | None,
    settings: list[str] | None,
    *,
    output: Path,
    json: Path | None,
    dry_run: bool,
) -> None:
    from energylm.config.pretrain import PretrainElectraConfig

    chosen = load_config(
        PretrainElectraConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )

    from energylm.pipelines.pretrain_electra import plan_electra, pretrain_electra

    _carry_out(chosen, plan_electra, pretrain_electra, output=output, json=json, dry_run=dry_run)


def _flags(
    corpus: str | None,
    preset: str | None,
    steps: int | None,
    window: int | None,
    seed: int | None,
    *,
    compute: float | None = None,
) -> dict[str, Any]:
    """The options that all families have, as keys of their configurations; masked models have no budget."""
    from energylm.errors import ConfigError

    if steps is not None and compute is not None:
        raise ConfigError(
            f"--steps {steps} and --compute {compute:g} came together; one follows from the other: give one"
        )
    return ({} if compute is None else {"compute": compute}) | {
        "corpus": corpus,
        "preset": preset,
        "window": window,
        "training.steps": steps,
        "training.seed": seed,
    }


def _carry_out(
    chosen: "PretrainConfig",
    plan: Callable[..., Any],
    pretrain: Callable[..., Any],
    *,
    output: Path,
    json: Path | None,
    dry_run: bool,
) -> None:
    if dry_run:
        typer.echo(plan(chosen, output=output).describe(chosen, output))
        return
    run = pretrain(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    write_result(json, run)
