"""Personal links to a study. A token exists in its link alone; the study keeps its hash.

A link is shown once. Whoever loses it is invited anew by another name, so no answer comes to stand under the wrong one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from energylm.apps.security import hash_token, new_token
from energylm.apps.study.design import DATABASE_FILE, read_study
from energylm.apps.study.store import StudyStore
from energylm.apps.study.verbs import StudyInvite
from energylm.errors import ConfigError
from energylm.records import Record

LONGEST_LABEL = 80


@dataclass(frozen=True)
class Invitation(Record):
    """A rater's name and personal link; or "owner" and the token that opens the owner's view."""

    label: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Invitations(Record):
    invitations: tuple[Invitation, ...]


def invite(wanted: StudyInvite) -> Invitations:
    """New raters by label, and more by number; with `owner` a new owner's token, which ends any other.

    Either all names are good and free, or nobody is invited.
    """
    address = _checked_address(wanted.url)
    with StudyStore.open(wanted.study) as store:
        store.refuse_people()
        invitations = []
        for name in _names(wanted, taken=_labels(store)):
            token = new_token()
            store.add_rater(name, hash_token(token))
            invitations.append(Invitation(name, f"{address}/r/{token}"))
        if wanted.owner:
            token = new_token()
            store.set_owner_hash(hash_token(token))
            invitations.append(Invitation("owner", token))
    return Invitations(tuple(invitations))


def describe_invitations(wanted: StudyInvite) -> str:
    """What `invite` would do, in words; everything that can be checked without writing is."""
    study, address = read_study(wanted.study), _checked_address(wanted.url)
    taken: list[str] = []
    if (study.folder / DATABASE_FILE).exists():
        with StudyStore.open(wanted.study) as store:
            taken = _labels(store)
    names = _names(wanted, taken=taken)
    also = " and make a new owner's token" if wanted.owner else ""
    return (
        f"would invite {len(names):,} raters ({', '.join(names[:3])}{' …' if len(names) > 3 else ''}) to "
        f"{len(study.pairs):,} pairs at {address}{also}; {len(taken):,} are invited already"
    )


def _labels(store: StudyStore) -> list[str]:
    return [standing.rater.label for standing in store.progress().raters]


def _names(wanted: StudyInvite, *, taken: Sequence[str]) -> list[str]:
    labels, raters = wanted.labels, wanted.raters
    if not labels and not raters and not wanted.owner:
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
