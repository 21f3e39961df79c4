"""What a negatives folder says about itself: who wrote the continuations, for which contexts, how.

A folder holds `manifest.json`, written last, and Parquet shards `block-00000.parquet`, … While it is being made,
`draft.json` stands in the manifest's place and lists the shards that are finished.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from energylm.config.base import Config
from energylm.config.texts import NegativesSettings
from energylm.errors import ConfigError, DataError
from energylm.files import read_json, sha256_of_file, sha256_of_json, write_json

FORMAT_VERSION = 3  # since 2, windows within documents are continued without special tokens; 3: `prefix_tokens`
MANIFEST_FILE, DRAFT_FILE = "manifest.json", "draft.json"


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
        shards = tuple(sorted([*others, shard], key=lambda one: one.file))
        return self.model_copy(update={"shards": shards})

    def intact_shards(self, folder: Path) -> tuple[NegativesShard, ...]:
        """Those whose file is there and has the recorded SHA-256."""
        return tuple(
            shard
            for shard in self.shards
            if (folder / shard.file).is_file() and sha256_of_file(folder / shard.file) == shard.sha256
        )

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
    values = read_json(path)
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION or "generator" not in values:
        raise DataError(
            f"{path} is no manifest of negatives in format {FORMAT_VERSION}, which this energylm reads; make them again"
        )
    try:
        return NegativesManifest.checked(values, origin=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; the manifest is damaged: make the negatives again") from None
