"""API keys: who may ask. A file of SHA-256 digests, or keys in the environment that are hashed at once.

# keys file, one a line; what follows the digest is a note
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 laboratory
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from energylm.apps.security import hash_token, new_token, token_matches
from energylm.errors import ConfigError

ENVIRONMENT = "ENERGYLM_API_KEYS"
SHORTEST_KEY = 20  # characters; a shorter one might be guessed, and a plain hash would not protect it
_LINE = re.compile(r"sha256:([0-9a-f]{64})(\s.*)?")


class ApiKeys:
    """The digests of the keys that are allowed; none: everyone is."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._digests = tuple(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def load(cls, file: Path | None) -> Self:
        """Keys of the file, and those of the environment, from which they are removed."""
        return cls([*([] if file is None else _from_file(file)), *_from_environment()])

    def allow(self, authorization: str | None) -> bool:
        """Whether the header holds one of the keys. Every digest is compared, so time tells nothing."""
        scheme, _, key = (authorization or "").partition(" ")
        matches = [token_matches(key.strip(), digest) for digest in self._digests]
        return not self._digests or (scheme.lower() == "bearer" and any(matches))


def add_key(file: Path, *, note: str = "") -> str:
    """A new key, whose digest is appended to `file`; the key itself is kept nowhere."""
    key = new_token()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as out:
        out.write(f"sha256:{hash_token(key)} {' '.join(note.split())}".rstrip() + "\n")
    return key


def _from_file(file: Path) -> list[str]:
    digests = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        digest = _LINE.fullmatch(text)
        if digest is None:
            raise ConfigError(
                f"{file} line {number} is no digest of the form sha256:<64 hexadecimal digits>; "
                "make keys with --add-key"
            )
        digests.append(digest[1])
    if not digests:
        raise ConfigError(f"{file} holds no key, so nobody could ask; make one with --add-key")
    return digests


def _from_environment() -> list[str]:
    keys = [key.strip() for key in os.environ.pop(ENVIRONMENT, "").split(",") if key.strip()]
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ConfigError(f"a key in {ENVIRONMENT} has fewer than {SHORTEST_KEY} characters; take a random one")
    return [hash_token(key) for key in keys]
