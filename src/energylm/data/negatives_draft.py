"""A negatives folder while it is being made: what lies there, and the draft that lists what is finished.

The order of steps leaves a folder that can be told at any moment: a new draft before the old manifest goes, the old
manifest before its shards, the new manifest before the draft.
"""

import shutil
from pathlib import Path
from typing import Literal

from energylm.data.negatives_manifest import DRAFT_FILE, MANIFEST_FILE, NegativesManifest, read_negatives_manifest
from energylm.errors import DataError

# nothing; an unfinished run of the same settings; a finished one, whole or not; anything made otherwise
State = Literal["new", "interrupted", "finished", "damaged", "other"]
LOCK_FILE = ".lock"


def found_negatives(planned: NegativesManifest, folder: Path) -> tuple[NegativesManifest, State]:
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
