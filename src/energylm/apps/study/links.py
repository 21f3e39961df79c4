"""Personal links to a study. A token exists in its link alone; the study keeps its hash.

A link is shown once. Whoever loses it is invited anew by another name, so no answer comes to stand under the wrong one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from energylm.apps.security import hash_token, new_token
from energylm.data.study_items import DATABASE_FILE, read_study
from energylm.data.study_store import StudyStore
from energylm.errors import ConfigError

LONGEST_LABEL = 80


@dataclass(frozen=True)
class Invitation:
    """A rater's name and personal link; or "owner" and the token that opens the owner's view."""

    label: str
    secret: str


def invite(
    folder: Path, *, labels: Sequence[str] = (), raters: int = 0, owner: bool = False, url: str
) -> list[Invitation]:
    """New raters by `labels`, and `raters` more by number; with `owner` a new owner's token, which ends any other.

    Either all names are good and free, or nobody is invited.
    """
    address = _checked_address(url)
    with StudyStore.open(folder) as store:
        store.refuse_people()
        names = _names(labels, raters, taken=[one.rater.label for one in store.progress().raters], owner=owner)
        found = []
        for name in names:
            token = new_token()
            store.add_rater(name, hash_token(token))
            found.append(Invitation(name, f"{address}/r/{token}"))
        if owner:
            token = new_token()
            store.set_owner_hash(hash_token(token))
            found.append(Invitation("owner", token))
    return found


def plan(folder: Path, *, labels: Sequence[str] = (), raters: int = 0, owner: bool = False, url: str) -> str:
    """What `invite` would do, in words; everything that can be checked without writing is."""
    study, address = read_study(folder), _checked_address(url)
    taken: list[str] = []
    if (folder / DATABASE_FILE).exists():
        with StudyStore.open(folder) as store:
            taken = [one.rater.label for one in store.progress().raters]
    names = _names(labels, raters, taken=taken, owner=owner)
    also = " and make a new owner's token" if owner else ""
    return (
        f"would invite {len(names):,} raters ({', '.join(names[:3])}{' …' if len(names) > 3 else ''}) to "
        f"{len(study.pairs):,} pairs at {address}{also}; {len(taken):,} are invited already"
    )


def _names(labels: Sequence[str], raters: int, *, taken: Sequence[str], owner: bool) -> list[str]:
    if not labels and not raters and not owner:
        raise ConfigError("nobody to invite; give --raters 10, --label NAME or --owner")
    known = set(taken)
    for label in labels:
        if not label.strip() or label != label.strip() or len(label) > LONGEST_LABEL or not label.isprintable():
            raise ConfigError(
                f"label {label[:LONGEST_LABEL]!r} is no name: 1 to {LONGEST_LABEL} printable characters are, without "
                "spaces around them"
            )
        if label in known:
            raise ConfigError(f"a rater called {label!r} is invited already; a lost link needs another name")
        known.add(label)
    numbers = [int(match.group(1)) for name in known if (match := re.fullmatch(r"rater-(\d{1,9})", name))]
    first = max(numbers, default=0) + 1
    return [*labels, *(f"rater-{number:03}" for number in range(first, first + raters))]


def _checked_address(url: str) -> str:
    parts = urlsplit(url)
    more = (parts.path.strip("/"), parts.query, parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.netloc or any(more):
        raise ConfigError(f"--url {url!r} is no address of a study; expected e.g. https://study.example.org")
    return url.rstrip("/")
