"""What a negatives folder says about itself: who wrote the continuations, for which contexts, how.

A folder holds `manifest.json`, written last, and Parquet shards `block-00000.parquet`, … While it is being made,
`draft.json` stands in the manifest's place and lists the shards that are finished. The order of steps leaves a folder
that can be told at any moment: a new draft before the old manifest goes, the old manifest before its shards, the new
manifest before the draft.
"""

import shutil
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from energylm.config.base import Config
from energylm.config.texts import NegativesSettings
from energylm.data.manifest import MANIFEST_FILE, is_intact, read_versioned
from energylm.errors import DataError
from energylm.files import sha256_of_json, write_json

FORMAT_VERSION = 3  # since 2, windows within documents are continued without special tokens; 3: `prefix_tokens`
DRAFT_FILE, LOCK_FILE = "draft.json", ".lock"

# nothing; an unfinished run of the same settings; a finished one, whole or not; anything made otherwise
State = Literal["new", "interrupted", "finished", "damaged", "other"]


class GeneratorRecord(Config):
    """The language model that wrote the continuations."""

    name: str
    sha256: str = Field(description="Hash of its weights: `bundles.model_folder`.")


class CorpusRecord(Config):
    """The corpus that contexts and real continuations come from."""

    name: str
    identity: str
    end_token_id: int


class NegativesShard(Config):
    file: str
    contexts: int
    tokens: int = Field(description="Generated, over all continuations.")
    sha256: str


class NegativesManifest(Config):
    """The whole story of a negatives folder."""

    format_version: int = FORMAT_VERSION
    identity: str = Field(description="Hash of settings, generator and corpus: an equal one means nothing to do.")
    settings: dict[str, Any] = Field(description="How contexts were continued: `config.texts`.")
    generator: GeneratorRecord
    corpus: CorpusRecord
    contexts: int
    shards: tuple[NegativesShard, ...] = ()

    @classmethod
    def planned(
        cls, chosen: NegativesSettings, *, generator: GeneratorRecord, corpus: CorpusRecord, contexts: int
    ) -> "NegativesManifest":
        """Of a folder without any shard yet."""
        settings = chosen.model_dump(mode="json", include=set(NegativesSettings.model_fields))
        inputs = [FORMAT_VERSION, settings, generator.sha256, corpus.identity]
        return cls(
            identity=sha256_of_json(inputs), settings=settings, generator=generator, corpus=corpus, contexts=contexts
        )

    @property
    def config(self) -> NegativesSettings:
        """The settings by name."""
        return NegativesSettings.checked(self.settings)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    def with_shard(self, shard: NegativesShard) -> "NegativesManifest":
        others = [other for other in self.shards if other.file != shard.file]
        shards = tuple(sorted([*others, shard], key=lambda shard: shard.file))
        return self.model_copy(update={"shards": shards})

    def intact_shards(self, folder: Path) -> tuple[NegativesShard, ...]:
        """Those whose file is there and has the recorded SHA-256."""
        return tuple(shard for shard in self.shards if is_intact(folder / shard.file, shard.sha256))

    def changes_to(self, other: "NegativesManifest") -> str:
        """The keys in which another folder's story differs."""
        keys = sorted(self.settings.keys() | other.settings.keys())
        changed = [key for key in keys if self.settings.get(key) != other.settings.get(key)]
        changed += ["the language model"] if self.generator.sha256 != other.generator.sha256 else []
        return ", ".join(changed + (["the corpus"] if self.corpus.identity != other.corpus.identity else []))

    def save(self, folder: Path, *, file: str) -> None:
        write_json(folder / file, self.model_dump(mode="json"))


def read_negatives_manifest(folder: Path | str, *, file: str = MANIFEST_FILE) -> NegativesManifest:
    """The manifest (or draft) of a folder; what is not one, or is damaged, is a `DataError` that says so."""
    path = Path(folder) / file
    if not path.is_file():
        unfinished = (Path(folder) / DRAFT_FILE).is_file()
        what = "holds unfinished negatives; finish" if unfinished else f"holds no negatives (no {file}); make"
        raise DataError(f"{folder} {what} them with: energylm negatives")
    return read_versioned(
        path, NegativesManifest, version=FORMAT_VERSION, what="negatives", cure="make the negatives again"
    )


def existing_negatives(planned: NegativesManifest, folder: Path) -> tuple[NegativesManifest, State]:
    """The plan with the shards that are already there and intact, and what the folder holds."""
    if not folder.exists() or (folder.is_dir() and not {entry.name for entry in folder.iterdir()} - {LOCK_FILE}):
        return planned, "new"
    recorded = recorded_negatives(folder)
    if recorded.identity != planned.identity:
        return planned, "other"
    manifest = recorded.model_copy(update={"shards": recorded.intact_shards(folder)})
    if (folder / MANIFEST_FILE).exists():
        return manifest, "finished" if manifest.shards == recorded.shards else "damaged"
    return manifest, "interrupted"


def recorded_negatives(folder: Path) -> NegativesManifest:
    """The manifest or draft that stands in `folder`."""
    for file in (MANIFEST_FILE, DRAFT_FILE):
        if (folder / file).is_file():
            return read_negatives_manifest(folder, file=file)
    raise DataError(f"{folder} exists and holds no negatives; choose another --output")


def begin_draft(manifest: NegativesManifest, folder: Path) -> None:
    """Announce `manifest` as what is being made; shards of other settings and half-written ones are removed."""
    manifest.save(folder, file=DRAFT_FILE)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    keep = {shard.file for shard in manifest.shards}
    for path in [*folder.glob("block-*.parquet"), *folder.glob(".block-*.tmp")]:
        if path.name not in keep:
            path.unlink()


def abandon_draft(folder: Path) -> None:
    """After a mistake that the next run would meet again: remove a draft that lists nothing finished, and the folder if
    it then is empty."""
    if read_negatives_manifest(folder, file=DRAFT_FILE).shards:
        return
    (folder / DRAFT_FILE).unlink()
    if {entry.name for entry in folder.iterdir()} <= {LOCK_FILE}:
        shutil.rmtree(folder)


def finish_draft(manifest: NegativesManifest, folder: Path) -> None:
    manifest.save(folder, file=MANIFEST_FILE)
    (folder / DRAFT_FILE).unlink()
