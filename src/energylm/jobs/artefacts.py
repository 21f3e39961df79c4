"""The artefact store: what a recipe makes is kept under a hash of how it was made, and shared by all recipes.

    ENERGYLM_HOME/artefacts/<kind>/<key>/artefact.json     how it was made, what was found; its presence means finished
    ENERGYLM_HOME/artefacts/<kind>/<key>/<kind>/           the product: a corpus, a run folder, negatives …

The kind is a verb (of two words: `lm-train`). The key is a SHA-256 of the kind, its settings with all defaults filled
in, and the keys of everything it is made from. So a changed setting makes a new artefact and everything below it anew,
and nothing is trained or generated twice. A folder without `artefact.json` was interrupted: its step runs again in the
same place and resumes as its verb does.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm import __version__
from energylm.config.environment import home_folder
from energylm.files import folder_lock, read_json, sha256_of_json, write_json

RECORD = "artefact.json"
KEY_DIGITS = 20  # of the SHA-256, enough for file names


@dataclass(frozen=True)
class Artefact:
    kind: str
    key: str
    folder: Path  # the product
    result: dict[str, Any]  # numbers for reports and claims
    seconds: float  # that making it took, once
    reused: bool


def artefact_key(kind: str, identity: Mapping[str, Any]) -> str:
    return sha256_of_json([kind, identity])[:KEY_DIGITS]


class ArtefactStore:
    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else home_folder() / "artefacts"

    def product(self, kind: str, key: str) -> Path:
        """Where the product of a step lies or will lie; its name appears in reports, so it says what it is."""
        return self._folder(kind, key) / kind.replace(" ", "-")

    def _folder(self, kind: str, key: str) -> Path:
        return self.root / kind.replace(" ", "-") / key

    def find(self, kind: str, key: str) -> Artefact | None:
        file = self._folder(kind, key) / RECORD
        if not file.exists():
            return None
        record = read_json(file)
        folder = self.product(kind, key)
        return Artefact(kind, key, folder, record["result"], record["seconds"], reused=True)

    def make(
        self, kind: str, key: str, run: Callable[[Path], Mapping[str, Any]], *, identity: Mapping[str, Any]
    ) -> Artefact:
        """The artefact that is there, or else `run(folder)`, which fills the folder and returns what was found."""
        folder = self._folder(kind, key)
        with folder_lock(folder):  # a second process waits for nothing: it is told who is at work
            if (artefact := self.find(kind, key)) is not None:
                return artefact
            began = time.monotonic()
            result = dict(run(self.product(kind, key)))
            seconds = time.monotonic() - began
            record = {"kind": kind, "identity": identity, "result": result, "seconds": seconds, "energylm": __version__}
            write_json(folder / RECORD, record)
        return Artefact(kind, key, self.product(kind, key), result, seconds, reused=False)
