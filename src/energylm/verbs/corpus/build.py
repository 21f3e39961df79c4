"""Texts tokenised once into memory-mapped shards: `energylm corpus build`. Resumable; a second run is a no-op.

The text is worked off in parts of `part_bytes`. A finished part is recorded, so a killed build goes on after the last
one and ends in the same bytes. All is made in a hidden folder beside the output, which appears at the end, whole.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from energylm.bundles.known_models import locate
from energylm.config.base import Folders
from energylm.config.texts import SourceSettings
from energylm.data.corpus import Corpus
from energylm.data.document import SPLITS, Document, Source, Split, split_of
from energylm.data.draft import DRAFT_FILE, Draft, PartWriter, finished_draft, read_draft, resume_draft
from energylm.data.encoding import Encoder, PartReader, cut_exactly, is_empty, split_of_document
from energylm.data.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    Manifest,
    SourceRecord,
    SplitCounts,
    TokenizerRecord,
    read_manifest,
    token_dtype,
)
from energylm.data.sources import open_sources
from energylm.data.tokenizer import end_token_id, load_tokenizer, plain_encoder, tokenizer_sha256, train_tokenizer
from energylm.errors import DataError, DiskFull, EnergyLMError
from energylm.files import atomic_folder, disk_full_is_said, folder_lock, sha256_of_json, take_place_of, write_json
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import progress, say
from energylm.verbs.corpus.info import CorpusDescription, describe_corpus
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from energylm.jobs.costs import Counted, Surroundings

HUB = "hf:"  # a source that the hub has
WORTH_SAYING = 0.01  # share of the text's characters that the tokenizer cannot read

# nothing; its own result, whole or not; an interrupted build of it or of something else; another corpus
State = Literal["new", "finished", "damaged", "interrupted", "other"]


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

    def run(self, job: Job = DEFAULT_JOB) -> CorpusDescription:
        build_corpus(self, output=job.folder, overwrite=job.overwrite)
        return describe_corpus(job.folder)

    def step_content(self) -> Mapping[str, Any]:
        """The content of the sources and of the tokenizer, wherever they lie. Data sets of the hub go by their names,
        so that planning need not fetch them; so does the tokenizer of another step, which may not be made yet."""
        from energylm.jobs.artefacts import KEY_DIGITS

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

    def shown(self, result: CorpusDescription) -> str:
        return result.in_words()


@dataclass(frozen=True)
class CorpusPlan:
    """What a build would read, and what it finds at the output."""

    sources: tuple[SourceRecord, ...]
    settings: dict[str, Any]
    identity: str
    state: State


def plan_corpus(verb: BuildCorpus, *, output: Path) -> CorpusPlan:
    """Check the inputs (they exist, their first document can be read, the tokenizer loads) without writing anything."""
    sources = open_sources(verb.sources, verb)
    for source in sources:
        for document in islice(source.documents(), 1):
            next(iter(document.pieces), None)
    return _plan(verb, sources, output)


def build_corpus(verb: BuildCorpus, *, output: Path, overwrite: bool = False) -> Manifest:
    """Make the corpus folder `output` and return its manifest. `overwrite` replaces a corpus made from other inputs."""
    sources = open_sources(verb.sources, verb)
    plan = _plan(verb, sources, output)
    if plan.state == "finished":
        say(f"{output} is up to date: nothing to do")
        return read_manifest(output)
    if plan.state == "other" and not overwrite:
        raise DataError(
            f"{output} holds a corpus made otherwise (changed: {_changes(plan, read_manifest(output))}); "
            "choose another --output, or say --overwrite"
        )
    if plan.state in ("new", "interrupted") and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists and is not a corpus; choose another --output")
    hidden = _hidden_folder(output)
    with disk_full_is_said(output), folder_lock(hidden):
        keep = False
        try:
            manifest = _build(verb, sources, plan, hidden / "corpus")
            take_place_of(output, hidden / "corpus")  # a corpus that stood there goes with the hidden folder
            return manifest
        except BaseException as error:
            # Finished parts are worth keeping for the next run, unless the inputs must change first.
            draft = read_draft(hidden / "corpus")
            keep = (hidden / "corpus" / MANIFEST_FILE).exists() or (draft is not None and draft.parts > 0)
            keep = keep and (isinstance(error, DiskFull) or not isinstance(error, EnergyLMError))
            raise
        finally:
            if not keep:
                shutil.rmtree(hidden, ignore_errors=True)


def source_records(sources: Sequence[Source]) -> list[SourceRecord]:
    """What is read, by content."""
    records = []
    for source in sources:
        fingerprint = source.fingerprint()
        records.append(SourceRecord(name=source.name, sha256=fingerprint.sha256, bytes=fingerprint.bytes))
    return records


def corpus_settings(verb: BuildCorpus) -> dict[str, Any]:
    """All that decides the corpus beside its sources, without paths."""
    settings = verb.model_dump(mode="json", exclude={"sources", "tokenizer"})
    if verb.style == "written":  # corpora keep the identity they had before there was a choice
        del settings["style"]
    if verb.tokenizer is not None:
        settings["vocabulary_size"] = None
        settings["tokenizer_sha256"] = tokenizer_sha256(load_tokenizer(locate(verb.tokenizer, what="tokenizer")))
    return settings


def _plan(verb: BuildCorpus, sources: Sequence[Source], output: Path) -> CorpusPlan:
    records, settings = source_records(sources), corpus_settings(verb)
    identity = sha256_of_json([FORMAT_VERSION, settings, [record.model_dump() for record in records]])
    return CorpusPlan(tuple(records), settings, identity, _state(output, identity))


def _state(output: Path, identity: str) -> State:
    if (output / MANIFEST_FILE).exists():
        if read_manifest(output).identity != identity:
            return "other"
        try:
            Corpus.open(output).verify()
        except DataError as damage:
            say(str(damage))
            return "damaged"
        return "finished"
    return "new" if read_draft(_hidden_folder(output) / "corpus") is None else "interrupted"


def _build(verb: BuildCorpus, sources: Sequence[Source], plan: CorpusPlan, folder: Path) -> Manifest:
    if (finished := finished_draft(folder, identity=plan.identity)) is not None:
        return finished
    draft = resume_draft(folder, identity=plan.identity)
    split_of_text = partial(
        split_of, valid_fraction=verb.valid_fraction, test_fraction=verb.test_fraction, seed=verb.split_seed
    )
    tokenizer = _tokenizer(verb, sources, split_of_text, folder / TOKENIZER_FOLDER)
    record = TokenizerRecord(
        sha256=tokenizer_sha256(tokenizer), vocabulary_size=len(tokenizer), end_token_id=end_token_id(tokenizer)
    )
    dtype = token_dtype(record.vocabulary_size)
    encoder = Encoder(plain_encoder(tokenizer), end_token_id=record.end_token_id, unknown_id=tokenizer.unk_token_id)
    documents = islice(_documents(sources), draft.documents_read, None)
    with progress("encoding", total=_expected_megabytes(sources), unit="MB") as bar:
        bar.advance(sum(shard.bytes for shard in draft.shards) / 1e6)
        while True:
            reader = PartReader(documents, part_bytes=verb.part_bytes, split_of_text=split_of_text, cut=encoder.cuts)
            with PartWriter(folder, draft.parts, dtype=dtype) as writer:
                for batch in reader.batches():
                    encoder.write(batch, writer)
                    bar.advance(batch.bytes / 1e6)
            if reader.documents_read == 0:
                break
            draft = draft.with_part(
                writer.records, documents_read=reader.documents_read, empty_documents=reader.empty_documents
            )
            draft.save(folder)
    if encoder.unread_share > WORTH_SAYING:
        say(
            f"the tokenizer has no token for about {encoder.unread_share:.1%} of the text's characters: the corpus "
            "does not hold them; give another tokenizer, or none to train one"
        )
    if not draft.shards:
        raise DataError(f"{_names(sources)} holds no text ({draft.documents_read} documents, none with text in it)")
    manifest = Manifest(
        identity=plan.identity,
        settings=plan.settings,
        sources=plan.sources,
        tokenizer=record,
        origin=verb.origin or _joined(source.origin for source in sources),
        licence=verb.licence or _joined(source.licence for source in sources),
        dtype=dtype.str,
        empty_documents=draft.empty_documents,
        splits={split: _counts(draft, split) for split in SPLITS},
        shards=draft.shards,
    )
    write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
    (folder / DRAFT_FILE).unlink()
    for split, fraction in (("valid", verb.valid_fraction), ("test", verb.test_fraction)):
        if fraction and not manifest.splits[split].documents:
            say(f"no document fell into the {split} split; give more documents, or a larger {split}_fraction")
    return manifest


def _tokenizer(
    verb: BuildCorpus, sources: Sequence[Source], split_of_text: Callable[[str], Split], folder: Path
) -> "PreTrainedTokenizerFast":
    """The tokenizer, saved in `folder`; trained on the train split alone: valid and test stay unseen by it, too."""
    if folder.exists():  # made before the build was interrupted
        return load_tokenizer(folder)
    if verb.tokenizer is not None:
        tokenizer = load_tokenizer(locate(verb.tokenizer, what="tokenizer"))
    else:
        with progress("training the tokenizer", total=_expected_megabytes(sources), unit="MB") as bar:
            texts = _training_texts(sources, split_of_text, bar.advance)
            tokenizer = train_tokenizer(texts, vocabulary_size=verb.vocabulary_size)
        if len(tokenizer) < verb.vocabulary_size:
            say(f"vocabulary: {len(tokenizer):,} tokens, not {verb.vocabulary_size:,}: no pair is left to merge")
    with atomic_folder(folder) as temporary:
        tokenizer.save_pretrained(temporary)
    return load_tokenizer(folder)


def _training_texts(
    sources: Sequence[Source], split_of_text: Callable[[str], Split], advance: Callable[[float], None]
) -> Iterator[str]:
    is_empty_split = True
    for document in _documents(sources):
        blocks = iter(document.pieces)
        first = next(blocks, "")
        if is_empty(first) or split_of_document(first, document, split_of_text) != "train":
            continue
        for piece in cut_exactly(chain((first,), blocks)):
            is_empty_split = False
            advance(len(piece) / 1e6)
            yield piece
    if is_empty_split:
        raise DataError(
            f"{_names(sources)} holds no text for the train split, so there is nothing to train a tokenizer on; "
            "give more documents (--format blocks or lines cuts a file into many), smaller fractions, or --tokenizer"
        )


def _hidden_folder(output: Path) -> Path:
    output = output.absolute()
    return output.with_name(f".{output.name}.building")


def _documents(sources: Sequence[Source]) -> Iterator[Document]:
    return chain.from_iterable(source.documents() for source in sources)


def _expected_megabytes(sources: Sequence[Source]) -> float | None:
    sizes = [source.text_bytes for source in sources]
    return None if None in sizes else sum(size for size in sizes if size is not None) / 1e6


def _counts(draft: Draft, split: str) -> SplitCounts:
    shards = [shard for shard in draft.shards if shard.split == split]
    return SplitCounts(**{name: sum(getattr(shard, name) for shard in shards) for name in SplitCounts.model_fields})


def _joined(statements: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(statement for statement in statements if statement))


def _names(sources: Sequence[Source]) -> str:
    names = [source.name for source in sources]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changes(plan: CorpusPlan, manifest: Manifest) -> str:
    keys = sorted(plan.settings.keys() | manifest.settings.keys())
    changed = [key for key in keys if plan.settings.get(key) != manifest.settings.get(key)]
    return ", ".join(changed + (["sources"] if plan.sources != manifest.sources else []))
