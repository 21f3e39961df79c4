"""The source strings of a user → readers of documents, and the readers of files.

    text      the file is one document         blocks   lines up to a blank line are one      lines   each line is one
    wiki      WikiText (Merity et al. 2016): many articles, each opened by a line ` = Title = `
    jsonl     a named field of each record     parquet  a string column, read batch by batch

Folders are walked in the order of names, whatever the disk says. Readers yield documents lazily; what cannot be read is
an error that names file, position and cure.

Any source can be turned into a recogniser's words (`style: spoken`, for language models that rerank n-best lists):
upper-case words, letters and apostrophes only, one sentence a document. What could be read aloud in several ways is
left out with its sentence: numbers, currencies, formulas. Titles are spelled out (Mr. → MISTER), accents dropped,
WikiText's detached clitics joined again. Sentences end at . ! ? before a capital letter, and at blank lines; an initial
(J. Smith) ends none. `style: dictated` is the same in lower case and with documents whole, one sentence running into
the next: for pretrained models, which know lower case better and read a hypothesis after what was heard before.

Relations  `dataset_sources` reads what comes as a data set.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path

from energylm.config.texts import SourceSettings
from energylm.data.dataset_sources import HuggingFaceDataset, StateOfTheUnion, is_saved_dataset
from energylm.data.document import LEADING_CHARACTERS, Document, Fingerprint, Source, guarded
from energylm.data.text_files import decoded_blocks, decoded_lines, json_records, nearest_field, text_field
from energylm.errors import DataError, extra
from energylm.files import sha256_of_file

_TITLES = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR", "ST": "SAINT"}  # LibriSpeech's spellings
_NO_END = "".join(rf"(?<!\b{word}\.)" for word in (*(title.capitalize() for title in _TITLES), "[A-Z]"))
_BOUNDARY = re.compile(rf"""(?<=[.!?]){_NO_END}["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z])|\n\s*\n""")
_UNSPEAKABLE = re.compile(r"[0-9=<>|#%&$£€+]")
_CLITIC = re.compile(r"\s+'(?=(?:S|T|D|M|RE|VE|LL)\b)")
_WORD = re.compile(r"[A-Z]+(?:'[A-Z]+)*")


@dataclass(frozen=True)
class Spoken:
    """A source whose documents are the sentences of another's."""

    source: Source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def origin(self) -> str:
        return self.source.origin

    @property
    def licence(self) -> str:
        return self.source.licence

    @property
    def text_bytes(self) -> int | None:
        return self.source.text_bytes

    def fingerprint(self) -> Fingerprint:
        return self.source.fingerprint()

    def documents(self) -> Iterator[Document]:
        for document in self.source.documents():
            for number, sentence in enumerate(spoken_sentences(document.pieces), start=1):
                yield Document(f"{document.name}, sentence {number}", (sentence,))


@dataclass(frozen=True)
class Dictated(Spoken):
    """A source whose documents are the words of another's, in lower case."""

    def documents(self) -> Iterator[Document]:
        for document in self.source.documents():
            yield Document(document.name, _running(spoken_sentences(document.pieces)))


def _running(sentences: Iterable[str]) -> Iterator[str]:
    words, characters = [], 0
    for sentence in sentences:
        words.append(sentence.lower())
        characters += len(sentence) + 1
        if characters >= LEADING_CHARACTERS:
            yield " ".join([*words, ""])
            words, characters = [], 0
    yield " ".join(words)


def spoken_sentences(pieces: Iterable[str]) -> Iterator[str]:
    """The sentences of a text that comes in pieces, cut anywhere."""
    rest = ""
    for piece in pieces:
        *whole, rest = _BOUNDARY.split(rest + piece)
        yield from filter(None, map(as_spoken, whole))
    if last := as_spoken(rest):
        yield last


def as_spoken(sentence: str) -> str:
    """The words of a sentence; nothing where it cannot be read aloud as it stands."""
    return "" if _UNSPEAKABLE.search(sentence) else spoken_words(sentence)


def spoken_words(sentence: str) -> str:
    """The words of a sentence, whatever else stands in it."""
    decomposed = unicodedata.normalize("NFKD", sentence.replace("’", "'"))
    plain = "".join(character for character in decomposed if not unicodedata.combining(character)).upper()
    return " ".join(_TITLES.get(word, word) for word in _WORD.findall(_CLITIC.sub("'", plain)))


_ROWS_AT_ONCE = 256  # of Parquet
_BUFFER_BYTES = 1 << 20
_TITLE = re.compile(r"^ ?= (?!=)(.*[^=\s]) = *$")


@dataclass(frozen=True)
class FileSource:
    """Base of the readers of one file. `name` is relative to the folder the user gave: no machine paths in a corpus."""

    path: Path
    name: str
    field: str = "text"  # of a record, where the file has records
    origin: str = ""
    licence: str = ""

    @property
    def text_bytes(self) -> int | None:
        return self.path.stat().st_size

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(sha256_of_file(self.path), self.path.stat().st_size)

    def documents(self) -> Iterator[Document]:
        raise NotImplementedError


class TextFile(FileSource):
    """The whole file is one document, read in blocks."""

    def documents(self) -> Iterator[Document]:
        yield Document(self.name, decoded_blocks(self.path))


class TextLines(FileSource):
    """Every line that is not blank is a document."""

    def documents(self) -> Iterator[Document]:
        for number, line in decoded_lines(self.path):
            if line.strip():
                yield Document(f"{self.name}:{number}", (line,))


class TextBlocks(FileSource):
    """Lines up to a blank line are a document."""

    def documents(self) -> Iterator[Document]:
        for is_text, lines in groupby(decoded_lines(self.path), key=lambda numbered: bool(numbered[1].strip())):
            if is_text:
                numbers, block = zip(*lines, strict=True)
                yield Document(f"{self.name}:{numbers[0]}", ("\n".join(block),))


class WikiArticles(FileSource):
    """Articles of a WikiText file with their headings; text before the first title is a document of its own. Sections
    inside an article have two or more equal signs (` = = History = = `). A title line counts as one only between blank
    lines, because tables and formulas hold equal signs too."""

    def documents(self) -> Iterator[Document]:
        article: list[str] = []
        first, after_blank = 1, True
        for (number, line), (_, following) in pairwise(chain(decoded_lines(self.path), ((0, ""),))):
            if after_blank and not following.strip() and _TITLE.match(line):
                yield from self._document(article, first)
                article, first = [], number
            article.append(line)
            after_blank = not line.strip()
        yield from self._document(article, first)

    def _document(self, lines: list[str], first: int) -> Iterator[Document]:
        text = "\n".join(lines).strip("\n")
        if text.strip():
            yield Document(f"{self.name}:{first}", (text,))


class JsonLines(FileSource):
    """A field of each JSON object, one a line."""

    def documents(self) -> Iterator[Document]:
        for number, record in json_records(self.path, cure="mend the line, or read the file with --format lines"):
            text = text_field(record, self.field, location=f"{self.path} line {number}")
            yield Document(f"{self.name}:{number}", (text,))


class ParquetColumn(FileSource):
    """A string column of a Parquet file."""

    @property
    def text_bytes(self) -> int | None:
        return None  # compressed

    def documents(self) -> Iterator[Document]:
        with extra("data"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        try:
            # A small buffer instead of whole row groups: writers often make the file one group.
            file = pq.ParquetFile(self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._unreadable(error) from None
        with file:
            names = file.schema_arrow.names
            if self.field not in names:
                raise DataError(f"{self.path} has no column {self.field!r}; {nearest_field(self.field, names)}")
            batches = guarded(file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[self.field]), self._unreadable)
            values = (value.as_py() for batch in batches for value in batch.column(0))  # a damaged page shows only now
            for row, text in enumerate(values):
                if not isinstance(text, str):
                    raise DataError(
                        f"{self.path} row {row}: column {self.field!r} is {text!r:.40}, expected text; "
                        f"drop such rows, or {nearest_field(self.field, names)}"
                    )
                yield Document(f"{self.name}:{row}", (text,))

    def _unreadable(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(f"{self.path} is not a readable Parquet file ({reason:.160}); make it again")


_TEXT_SUFFIXES = (".txt", ".text", ".md")
_FORMATS: dict[str, tuple[type[FileSource], tuple[str, ...]]] = {  # the first that has a file's ending is its format
    "text": (TextFile, _TEXT_SUFFIXES),
    "jsonl": (JsonLines, (".jsonl", ".ndjson")),
    "parquet": (ParquetColumn, (".parquet",)),
    "blocks": (TextBlocks, _TEXT_SUFFIXES),
    "lines": (TextLines, _TEXT_SUFFIXES),
    "wiki": (WikiArticles, _TEXT_SUFFIXES),
}
_STYLES = {"spoken": Spoken, "dictated": Dictated}
_SUFFIXES = tuple(dict.fromkeys(suffix for _, suffixes in _FORMATS.values() for suffix in suffixes))


def open_sources(texts: Sequence[str], settings: SourceSettings) -> list[Source]:
    """The readers of all sources, in the order given. Nothing is read yet, but everything that is named must exist."""
    sources = [source for text in texts for source in _open(text, settings)]
    style = _STYLES.get(settings.style)
    return [style(source) for source in sources] if style else sources


def _open(text: str, settings: SourceSettings) -> Sequence[Source]:
    form: str = settings.format
    prefix, colon, rest = text.partition(":")
    if form == "auto" and prefix == "sotu":
        form = "sotu"
    elif form == "auto" and colon and prefix in (*_FORMATS, "hf"):
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
    suffixes = _SUFFIXES if form == "auto" else _FORMATS[form][1]
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix.lower() in suffixes]
    if not files:
        raise DataError(f"folder {folder} holds no file ending in {', '.join(suffixes)}; rename the files, or name one")
    return [_file(file, f"{folder.name}/{file.relative_to(folder).as_posix()}", form, settings) for file in files]


def _file(path: Path, name: str, form: str, settings: SourceSettings) -> Source:
    if form == "auto":
        form = next((form for form, (_, suffixes) in _FORMATS.items() if path.suffix.lower() in suffixes), "")
        if not form:
            raise DataError(f"{path}: its ending does not say what it is; say --format text, lines, jsonl or parquet")
    return _FORMATS[form][0](path, name, settings.field)


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
