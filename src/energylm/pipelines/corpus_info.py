"""What a corpus holds, for people and machines: counts a split, tokenizer, origin, licence, beginnings."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energylm.data.corpus import Corpus
from energylm.data.manifest import Manifest, SplitCounts
from energylm.data.splits import SPLITS

_SAMPLE_TOKENS = 40


@dataclass(frozen=True)
class Sample:
    split: str
    document: int
    text: str  # the first tokens, decoded


@dataclass(frozen=True)
class CorpusInfo:
    folder: str
    manifest: Manifest
    samples: tuple[Sample, ...]

    @property
    def counts(self) -> dict[str, SplitCounts]:
        """Per split, and in total."""
        return {split: self.manifest.splits[split] for split in SPLITS} | {"total": self._total()}

    def _total(self) -> SplitCounts:
        counts = self.manifest.splits.values()
        return SplitCounts(
            documents=sum(count.documents for count in counts),
            tokens=sum(count.tokens for count in counts),
            bytes=sum(count.bytes for count in counts),
        )

    def to_json(self) -> dict[str, Any]:
        counts = {
            name: count.model_dump() | {"tokens_per_byte": count.tokens_per_byte if count.bytes else None}
            for name, count in self.counts.items()
        }
        return {
            "folder": self.folder,
            "splits": counts,
            "tokenizer": self.manifest.tokenizer.model_dump(),
            "origin": self.manifest.origin,
            "licence": self.manifest.licence,
            "sources": [source.model_dump() for source in self.manifest.sources],
            "empty_documents": self.manifest.empty_documents,
            "shards": len(self.manifest.shards),
            "samples": [asdict(sample) for sample in self.samples],
        }


def corpus_info(folder: Path | str, *, samples: int = 1, verify: bool = False) -> CorpusInfo:
    """Describe a corpus with the beginnings of its first `samples` documents a split; `verify` checks every byte."""
    corpus = Corpus.open(folder)
    if verify:
        corpus.verify()
    beginnings = [sample for split in SPLITS for sample in _beginnings(corpus, split, samples)] if samples else []
    return CorpusInfo(folder=str(folder), manifest=corpus.manifest, samples=tuple(beginnings))


def _beginnings(corpus: Corpus, split: str, samples: int) -> list[Sample]:
    table, tokens = corpus.documents(split), corpus.split_tokens(split)
    spans = zip(table.starts[:samples].tolist(), table.lengths[:samples].tolist(), strict=True)
    texts = (
        corpus.tokenizer.decode(tokens[start : start + min(length, _SAMPLE_TOKENS)].tolist()) for start, length in spans
    )
    return [Sample(split, number, text) for number, text in enumerate(texts)]
