"""What a corpus folder holds, for people and machines: `energylm corpus info`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from energylm.data.corpus import Corpus
from energylm.data.document import SPLITS
from energylm.data.manifest import SourceRecord, SplitCounts, TokenizerRecord
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import LOCAL, Record
from energylm.tables import Table, to_markdown
from energylm.verbs.verb import Positional, Verb

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
        return f"{to_markdown(self.table)}\n" + "".join(f"{what}: {value}\n" for what, value in lines.items() if value)


class DescribeCorpus(Verb):
    """Show what a corpus holds: documents, tokens and bytes a split, tokenizer, origin, licence, beginnings."""

    examples = (
        "energylm corpus info corpora/sotu",
        "energylm corpus info corpora/sotu --samples 3 --verify --json sotu.json",
    )

    corpus: Annotated[Path, Positional("CORPUS")] = Field(
        description="A corpus folder, made by `energylm corpus build`."
    )
    samples: int = Field(1, ge=0, description="Beginnings of documents to show a split.")
    verify: bool = Field(False, description="Read every shard and check its SHA-256.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        shards = len(Corpus.open(self.corpus).manifest.shards)
        how = "read every byte of" if self.verify else "describe"
        return f"would {how} {self.corpus} ({shards} shards) and show {self.samples} beginnings a split"

    def run(self, job: Job = DEFAULT_JOB) -> CorpusDescription:
        return describe_corpus(self.corpus, samples=self.samples, verify=self.verify)

    def shown(self, result: CorpusDescription) -> str:
        return result.in_words()


def describe_corpus(folder: Path, *, samples: int = 0, verify: bool = False) -> CorpusDescription:
    """Describe a corpus with the beginnings of its first `samples` documents a split; `verify` checks every byte."""
    corpus = Corpus.open(folder)
    if verify:
        corpus.verify()
    manifest = corpus.manifest
    splits: dict[str, SplitSize] = {split: SplitSize(**manifest.splits[split].model_dump()) for split in SPLITS}
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


def _beginnings(corpus: Corpus, split: str, samples: int) -> list[Beginning]:
    table, tokens = corpus.documents(split), corpus.split_tokens(split)
    spans = zip(table.starts[:samples].tolist(), table.lengths[:samples].tolist(), strict=True)
    firsts = (tokens[start : start + min(length, _SAMPLE_TOKENS)].tolist() for start, length in spans)
    return [Beginning(split, number, str(corpus.tokenizer.decode(ids))) for number, ids in enumerate(firsts)]
