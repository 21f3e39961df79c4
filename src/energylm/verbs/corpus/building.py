"""The build of a corpus: read, train or load a tokenizer, encode, write shards. Resumable; a second run is a no-op.

The text is worked off in parts of `part_bytes`. A finished part is recorded, so a killed build goes on after the last
one and ends in the same bytes. All is made in a hidden folder beside the output, which appears at the end, whole.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from energylm.bundles.known_models import locate
from energylm.data.corpus import Corpus
from energylm.data.cutting import cut_exactly
from energylm.data.document import SPLITS, Document, Source, Split, split_of
from energylm.data.draft import DRAFT_FILE, Draft, finished_draft, read_draft, resume_draft
from energylm.data.encoding import Encoder, PartReader, is_empty, split_of_document
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
from energylm.data.shards import PartWriter
from energylm.data.sources import open_sources
from energylm.data.tokenizer import end_token_id, load_tokenizer, plain_encoder, tokenizer_sha256, train_tokenizer
from energylm.errors import DataError, DiskFull, EnergyLMError
from energylm.files import atomic_folder, disk_full_is_said, folder_lock, sha256_of_json, take_place_of, write_json
from energylm.progress import progress, say
from energylm.verbs.corpus.build import BuildCorpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORTH_SAYING = 0.01  # share of the text's characters that the tokenizer cannot read

# nothing; its own result, whole or not; an interrupted build of it or of something else; another corpus
State = Literal["new", "finished", "damaged", "interrupted", "other"]


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
    return SplitCounts(
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
    )


def _joined(statements: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(statement for statement in statements if statement))


def _names(sources: Sequence[Source]) -> str:
    names = [source.name for source in sources]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changes(plan: CorpusPlan, manifest: Manifest) -> str:
    keys = sorted(plan.settings.keys() | manifest.settings.keys())
    changed = [key for key in keys if plan.settings.get(key) != manifest.settings.get(key)]
    return ", ".join(changed + (["sources"] if plan.sources != manifest.sources else []))
