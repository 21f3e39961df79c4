"""Texts tokenised once into memory-mapped shards: `energylm corpus build`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.config.base import Folders
from energylm.config.texts import SourceSettings
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.corpus.describing import CorpusDescription

HUB = "hf:"  # a source that the hub has


class BuildCorpus(Verb, SourceSettings):
    """Tokenise texts once into memory-mapped shards, split by document into train, valid and test.

    Documents are split by a hash of their content. Killed builds go on where they stopped when run again; finished ones
    are not repeated.
    """

    examples = (
        "energylm corpus build --output corpora/sotu",
        'energylm corpus build books/ --output corpora/books --vocabulary-size 16384 --licence "public domain"',
        "energylm corpus build news.jsonl --field body --output corpora/news --tokenizer corpora/books",
        "energylm corpus build wiki:wiki.txt books/ news.jsonl --output corpora/union --valid-fraction 0.1",
    )
    writes = "required"
    overwrites = True

    sources: Annotated[Folders, Positional("SOURCE")] = Field(
        ("sotu",),
        description="Files and folders; hf:NAME or hf:NAME#CONFIGURATION, a Hugging Face data set; sotu, sotu:19th, "
        "sotu:modern, sotu:1946-1990. A format may stand before each, as in wiki:train.txt.",
    )
    tokenizer: str | None = Field(
        None,
        description="An existing tokenizer: of a corpus, model or run folder, a GGUF file, a known model (`energylm "
        "models list`), OWNER/NAME of the hub; none = train one.",
    )
    vocabulary_size: int = Field(
        8192,
        ge=261,
        description="Size of the byte-level BPE that is trained on the train split (the papers use 50,000).",
    )
    valid_fraction: float = Field(0.05, ge=0, le=1, description="Share of documents for validation.")
    test_fraction: float = Field(0.05, ge=0, le=1, description="Share of documents for testing.")
    split_seed: int = Field(0, ge=0, description="Another seed gives other splits of the same documents.")
    part_bytes: int = Field(
        64 << 20, ge=1, description="Text per set of shards: what a killed build has to do again at most."
    )
    origin: str = Field("", description="Where the text comes from, kept in the manifest.")
    licence: str = Field("", description="Under which licence the text stands, kept in the manifest.")

    @model_validator(mode="after")
    def _leave_something_to_split(self) -> Self:
        if self.valid_fraction + self.test_fraction > 1:
            raise ValueError(
                f"valid_fraction {self.valid_fraction} and test_fraction {self.test_fraction} sum to more than 1; "
                "choose smaller ones"
            )
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.corpus.building import plan_corpus

        plan = plan_corpus(self, output=job.folder)
        what = {
            "new": "would build",
            "finished": "is up to date: would do nothing:",
            "damaged": "is damaged: would build again",
            "interrupted": "would go on with the interrupted build of",
            "other": "holds another corpus: would need --overwrite for",
        }[plan.state]
        vocabulary = f"tokenizer {self.tokenizer}" if self.tokenizer else f"a new BPE of {self.vocabulary_size:,}"
        size = sum(source.bytes for source in plan.sources)
        lines = [f"{job.folder}: {what} {len(plan.sources)} sources, {size:,} bytes, {vocabulary}"]
        return "\n".join(lines + [f"{source.name}\t{source.bytes}\t{source.sha256}" for source in plan.sources])

    def run(self, job: Job = DEFAULT_JOB) -> "CorpusDescription":
        from energylm.verbs.corpus.building import build_corpus
        from energylm.verbs.corpus.describing import describe_corpus

        build_corpus(self, output=job.folder, overwrite=job.overwrite)
        return describe_corpus(job.folder)

    def step_content(self) -> Mapping[str, Any]:
        """The content of the sources and of the tokenizer, wherever they lie. Data sets of the hub go by their names,
        so that planning need not fetch them; so does the tokenizer of another step, which may not be made yet."""
        from energylm.data.sources import open_sources
        from energylm.jobs.artefacts import KEY_DIGITS
        from energylm.verbs.corpus.building import corpus_settings, source_records

        sources: list[Any] = []
        for source in self.sources:
            records = [] if source.startswith(HUB) else source_records(open_sources([source], self))
            sources += [record.model_dump() for record in records] or [source]
        is_step = re.fullmatch(rf".+/[0-9a-f]{{{KEY_DIGITS}}}", self.tokenizer or "") is not None
        settings = corpus_settings(self.model_copy(update={"tokenizer": None}) if is_step else self)
        if is_step:
            settings |= {"tokenizer": self.tokenizer, "vocabulary_size": None}
        return {"settings": settings, "sources": sources}

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.data.sources import open_sources
        from energylm.jobs.costs import CorpusSize, Counted, bytes_per_token

        size = 0.0
        for source in self.sources:
            if source.startswith(HUB):
                size += around.dataset_bytes(source)
            else:
                size += sum(opened.text_bytes or opened.fingerprint().bytes for opened in open_sources([source], self))
        counted = Counted()
        counted.count("text.encoded", size)
        vocabulary_size = self.vocabulary_size
        if self.tokenizer is None:
            counted.count("text.learnt_from", size * (1 - self.valid_fraction - self.test_fraction))
        elif isinstance(around.products.get(self.tokenizer), CorpusSize):
            vocabulary_size = around.corpus(self.tokenizer).vocabulary_size
        tokens = size / bytes_per_token(vocabulary_size)
        valid, test = self.valid_fraction * tokens, self.test_fraction * tokens
        counted.product = CorpusSize({"train": tokens - valid - test, "valid": valid, "test": test}, vocabulary_size)
        counted.disk_bytes = tokens * (2 if vocabulary_size <= 1 << 16 else 4)
        return counted

    def shown(self, result: "CorpusDescription") -> str:
        return result.in_words()
