"""What a corpus folder holds: `energylm corpus info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.corpus.describing import CorpusDescription


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
        from energylm.data.corpus import Corpus

        shards = len(Corpus.open(self.corpus).manifest.shards)
        how = "read every byte of" if self.verify else "describe"
        return f"would {how} {self.corpus} ({shards} shards) and show {self.samples} beginnings a split"

    def run(self, job: Job = DEFAULT_JOB) -> "CorpusDescription":
        from energylm.verbs.corpus.describing import describe_corpus

        return describe_corpus(self.corpus, samples=self.samples, verify=self.verify)

    def shown(self, result: "CorpusDescription") -> str:
        return result.in_words()
