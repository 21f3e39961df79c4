"""The source strings of a user → readers. Folders are walked in the order of names, whatever the disk says."""

from collections.abc import Callable, Sequence
from pathlib import Path

from energylm.config.corpus import SourceSettings
from energylm.data.document import Source
from energylm.data.readers.huggingface import HuggingFaceDataset, is_saved_dataset
from energylm.data.readers.jsonl import JsonLines
from energylm.data.readers.parquet import ParquetColumn
from energylm.data.readers.sotu import StateOfTheUnion
from energylm.data.readers.text import TextBlocks, TextFile, TextLines
from energylm.data.readers.wiki import WikiArticles
from energylm.data.spoken import Spoken
from energylm.errors import DataError

_SUFFIXES = {
    "text": (".txt", ".text", ".md"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
}
_SUFFIXES |= dict.fromkeys(("blocks", "lines", "wiki"), _SUFFIXES["text"])
_BY_SUFFIX = {suffix: form for form in ("text", "jsonl", "parquet") for suffix in _SUFFIXES[form]}


def open_sources(texts: Sequence[str], settings: SourceSettings) -> list[Source]:
    """The readers of all sources, in the order given. Nothing is read yet, but everything that is named must exist."""
    sources = [source for text in texts for source in _open(text, settings)]
    return [Spoken(source) for source in sources] if settings.style == "spoken" else sources


def _open(text: str, settings: SourceSettings) -> Sequence[Source]:
    form: str = settings.format
    prefix, colon, rest = text.partition(":")
    if form == "auto" and prefix == "sotu":
        form = "sotu"
    elif form == "auto" and colon and prefix in (*_SUFFIXES, "hf"):
        form, text = prefix, rest
    path = Path(text).expanduser()
    if form == "sotu":
        return [StateOfTheUnion.parse(text)]
    if form == "hf" or (form == "auto" and path.is_dir() and is_saved_dataset(path)):
        return [_dataset(text, path, settings)]
    if path.is_dir():
        return _folder(path, form, settings)
    if not path.exists():
        raise DataError(
            f"{text} does not exist; give a file, a folder or `sotu`, or say hf:NAME for a data set of the hub"
        )
    if not path.is_file():
        raise DataError(f"{text} is neither a file nor a folder; save the text to a file first")
    return [_file(path, path.name, form, settings)]


def _folder(folder: Path, form: str, settings: SourceSettings) -> list[Source]:
    suffixes = tuple(_BY_SUFFIX) if form == "auto" else _SUFFIXES[form]
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix.lower() in suffixes]
    if not files:
        raise DataError(f"folder {folder} holds no file ending in {', '.join(suffixes)}; rename the files, or name one")
    return [_file(file, f"{folder.name}/{file.relative_to(folder).as_posix()}", form, settings) for file in files]


def _file(path: Path, name: str, form: str, settings: SourceSettings) -> Source:
    if form == "auto":
        form = _BY_SUFFIX.get(path.suffix.lower(), "")
        if not form:
            raise DataError(f"{path}: its ending does not say what it is; say --format text, lines, jsonl or parquet")
    readers: dict[str, Callable[[], Source]] = {
        "text": lambda: TextFile(path, name),
        "blocks": lambda: TextBlocks(path, name),
        "lines": lambda: TextLines(path, name),
        "wiki": lambda: WikiArticles(path, name),
        "jsonl": lambda: JsonLines(path, name, field=settings.field),
        "parquet": lambda: ParquetColumn(path, name, field=settings.field),
    }
    return readers[form]()


def _dataset(text: str, path: Path, settings: SourceSettings) -> Source:
    name, _, dataset_config = (path.name, "", "") if path.is_dir() else text.partition("#")
    return HuggingFaceDataset(
        location=str(path) if path.is_dir() else name,
        name=name,
        field=settings.field,
        config=dataset_config or settings.dataset_config,
        split=settings.dataset_split,
        revision=settings.dataset_revision,
    )
