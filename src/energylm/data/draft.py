"""The record of a build that is under way: which parts of the text are finished, so that a killed build can go on."""

import shutil
from pathlib import Path

from energylm.config.base import Config
from energylm.data.corpus import Corpus
from energylm.data.manifest import MANIFEST_FILE, TOKENIZER_FOLDER, Manifest, ShardRecord, read_manifest
from energylm.errors import DataError
from energylm.files import read_json, sha256_of_file, write_json
from energylm.progress import say

DRAFT_FILE = "draft.json"


class Draft(Config):
    """Finished parts, and how many documents of the sources they used up. Belongs to one `identity` of inputs."""

    identity: str
    parts: int = 0
    documents_read: int = 0
    empty_documents: int = 0
    shards: tuple[ShardRecord, ...] = ()

    def with_part(self, shards: list[ShardRecord], *, documents_read: int, empty_documents: int) -> "Draft":
        return Draft(
            identity=self.identity,
            parts=self.parts + 1,
            documents_read=self.documents_read + documents_read,
            empty_documents=self.empty_documents + empty_documents,
            shards=(*self.shards, *shards),
        )

    def save(self, folder: Path) -> None:
        write_json(folder / DRAFT_FILE, self.model_dump(mode="json"))


def read_draft(folder: Path) -> Draft | None:
    path = folder / DRAFT_FILE
    return Draft.checked(read_json(path), origin=str(path)) if path.exists() else None


def finished_draft(folder: Path, *, identity: str) -> Manifest | None:
    """The manifest of a corpus of the very same inputs that was finished but not yet put in its place."""
    if (folder / DRAFT_FILE).exists() or not (folder / MANIFEST_FILE).exists():
        return None
    try:
        Corpus.open(folder).verify()
    except DataError as damage:
        say(f"{damage}; starting over")
        return None
    manifest = read_manifest(folder)
    return manifest if manifest.identity == identity else None


def resume_draft(folder: Path, *, identity: str) -> Draft:
    """The draft an earlier run left for the very same inputs, or a new one; whatever else lies there is removed."""
    folder.mkdir(exist_ok=True)
    draft = read_draft(folder)
    if draft is not None and draft.identity != identity:
        say("the inputs or settings have changed since the interrupted build: starting over")
        draft = None
    if draft is not None and (damaged := _damaged(draft, folder)):
        say(f"{damaged} of the interrupted build is damaged: starting over")
        draft = None
    if draft is None:
        shutil.rmtree(folder)
        folder.mkdir()
        draft = Draft(identity=identity)
        draft.save(folder)
    elif draft.parts:
        say(f"going on after {draft.parts} finished parts ({draft.documents_read:,} documents)")
    wanted = {TOKENIZER_FOLDER, DRAFT_FILE}
    wanted.update(name for shard in draft.shards for name in (shard.tokens_file, shard.index_file))
    for entry in folder.iterdir():
        if entry.name not in wanted:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return draft


def _damaged(draft: Draft, folder: Path) -> Path | None:
    """A file of a finished part that is missing or has not the recorded SHA-256."""
    for shard in draft.shards:
        for name, expected in ((shard.tokens_file, shard.tokens_sha256), (shard.index_file, shard.index_sha256)):
            if not (folder / name).is_file() or sha256_of_file(folder / name) != expected:
                return folder / name
    return None
