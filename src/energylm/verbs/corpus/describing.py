"""What a corpus holds, for people and machines: counts a split, tokenizer, origin, licence, beginnings."""

from dataclasses import dataclass, field
from pathlib import Path

from energylm.data.corpus import Corpus
from energylm.data.document import SPLITS
from energylm.data.manifest import SourceRecord, SplitCounts, TokenizerRecord
from energylm.records import LOCAL, Record
from energylm.tables import Table, to_markdown

_SAMPLE_TOKENS = 40
TOTAL = "total"


@dataclass(frozen=True)
class SplitSize(Record):
    documents: int
    tokens: int
    bytes: int

    computed = ("tokens_per_byte",)

    @property
    def tokens_per_byte(self) -> float | None:
        return self.tokens / self.bytes if self.bytes else None


@dataclass(frozen=True)
class Beginning(Record):
    """Of a document: its first tokens, decoded."""

    split: str
    document: int
    text: str


@dataclass(frozen=True)
class CorpusDescription(Record):
    folder: Path = field(metadata=LOCAL)
    identity: str
    splits: dict[str, SplitSize]  # and the total
    tokenizer: TokenizerRecord
    origin: str
    licence: str
    sources: tuple[SourceRecord, ...]
    empty_documents: int
    shards: int
    verified: bool
    samples: tuple[Beginning, ...]

    @property
    def table(self) -> Table:
        rows = [
            [name, size.documents, size.tokens, size.bytes, size.tokens_per_byte] for name, size in self.splits.items()
        ]
        return Table(["split", "documents", "tokens", "bytes", "tokens/byte"], rows)

    def in_words(self) -> str:
        """The table, and below it what it does not hold."""
        lines = {
            "corpus": str(self.folder),
            "tokenizer": f"{self.tokenizer.vocabulary_size:,} tokens, sha256 {self.tokenizer.sha256[:12]}",
            "origin": self.origin or "not stated",
            "licence": self.licence or "not stated",
            "sources": str(len(self.sources)),
            "empty documents left out": str(self.empty_documents) if self.empty_documents else "",
            "shards": f"{self.shards}{', every byte verified' if self.verified else ''}",
        }
        lines |= {f"{sample.split} {sample.document}": repr(sample.text) for sample in self.samples}
        said = "".join(f"{what}: {value}\n" for what, value in lines.items() if value)
        return f"{to_markdown(self.table)}\n{said}"


def describe_corpus(folder: Path, *, samples: int = 0, verify: bool = False) -> CorpusDescription:
    """Describe a corpus with the beginnings of its first `samples` documents a split; `verify` checks every byte."""
    corpus = Corpus.open(folder)
    if verify:
        corpus.verify()
    manifest = corpus.manifest
    splits: dict[str, SplitSize] = {split: _size(manifest.splits[split]) for split in SPLITS}
    total = SplitSize(*(sum(getattr(size, name) for size in splits.values()) for name in SplitCounts.model_fields))
    return CorpusDescription(
        folder=Path(folder),
        identity=manifest.identity,
        splits={**splits, TOTAL: total},
        tokenizer=manifest.tokenizer,
        origin=manifest.origin,
        licence=manifest.licence,
        sources=manifest.sources,
        empty_documents=manifest.empty_documents,
        shards=len(manifest.shards),
        verified=verify,
        samples=tuple(sample for split in SPLITS for sample in _beginnings(corpus, split, samples)) if samples else (),
    )


def _size(counts: SplitCounts) -> SplitSize:
    return SplitSize(counts.documents, counts.tokens, counts.bytes)


def _beginnings(corpus: Corpus, split: str, samples: int) -> list[Beginning]:
    table, tokens = corpus.documents(split), corpus.split_tokens(split)
    spans = zip(table.starts[:samples].tolist(), table.lengths[:samples].tolist(), strict=True)
    firsts = (tokens[start : start + min(length, _SAMPLE_TOKENS)].tolist() for start, length in spans)
    return [Beginning(split, number, str(corpus.tokenizer.decode(ids))) for number, ids in enumerate(firsts)]
