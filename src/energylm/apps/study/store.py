"""Raters, what they were handed and what they answered: the memory of a running study.

One transaction for each item handed out and for each answer, begun with the write lock, so that any number of threads
and processes may work on one folder. An answer is on the disk when `answer` returns, and nothing alters it afterwards.

A pair goes to at most `raters_per_pair` raters at a time and never twice to one. When it lies unanswered for
`abandon_after_seconds` and another rater could take it, it is handed over; its first rater may still answer as long as
nobody has taken it.

The database is SQLite in WAL mode: raters (label, hash of the personal token), assignments (which item was handed to
whom, when, in which order and on which side) and answers, one for an assignment at most, where triggers refuse every
UPDATE and DELETE. `synchronous=FULL` syncs the log at every commit: an answer that was acknowledged survives `kill -9`
and power cuts.

Relations  `design` the folder; `turns` what comes next.
"""

import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DatabaseError, IntegrityError

from energylm.apps.study.design import DATABASE_FILE, Pair, Study, read_study
from energylm.apps.study.turns import (
    CHOICES,
    AnswerStatus,
    Item,
    Rater,
    RaterChoice,
    Standing,
    StudyAnswer,
    StudyProgress,
    Turn,
    may_have_more_pairs,
    next_turn,
    shown,
    standing,
    ties_allowed,
    writers,
)
from energylm.errors import BusyError, DataError, DiskFull, EnergyLMError

BUSY_SECONDS = 30
WRITES = "energylm_writes"  # the execution option that makes a transaction take the write lock at its beginning

METADATA = MetaData()
FACTS = Table("facts", METADATA, Column("name", String, primary_key=True), Column("value", String, nullable=False))
RATERS = Table(
    "raters",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("label", String, nullable=False, unique=True),
    Column("token_hash", String, nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
)
ASSIGNMENTS = Table(
    "assignments",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("rater_id", ForeignKey("raters.id"), nullable=False),
    Column("item", String, nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("position", Integer, nullable=False),
    Column("block", Integer),
    Column("swapped", Integer, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("touched_at", Float, nullable=False),  # handed out again to the same rater
    Column("released_at", Float),  # handed over to another rater
    UniqueConstraint("rater_id", "item"),
    UniqueConstraint("rater_id", "position"),
)
ANSWERS = Table(
    "answers",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("assignment_id", ForeignKey("assignments.id"), nullable=False, unique=True),
    Column("choice", String, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("answered_at", Float, nullable=False),
)
_TRIGGER = (
    "CREATE TRIGGER IF NOT EXISTS answers_{event} BEFORE {event} ON answers "
    "BEGIN SELECT RAISE(ABORT, 'answers are never altered'); END"
)

_STUDY, _OWNER, _SIMULATED = "study", "owner", "simulated"  # facts

# Statements are built once: building one costs more than SQLite takes to answer it.
_BOTH = ASSIGNMENTS.outerjoin(ANSWERS, ANSWERS.c.assignment_id == ASSIGNMENTS.c.id)
_IS_MINE = ASSIGNMENTS.c.rater_id == bindparam("rater")
_IS_ITEM = ASSIGNMENTS.c.item == bindparam("item")
_IS_ANSWERED, _IS_KEPT = ANSWERS.c.id.is_not(None), ASSIGNMENTS.c.released_at.is_(None)
TURNS = (  # what a rater was handed, in order
    select(ASSIGNMENTS, ANSWERS.c.choice, ANSWERS.c.answered_at)
    .select_from(_BOTH)
    .where(_IS_MINE)
    .order_by(ASSIGNMENTS.c.position)
)
TURN = TURNS.where(_IS_ITEM)  # one item of it
HANDS = select(func.count()).select_from(_BOTH).where(_IS_ITEM, _IS_KEPT)  # on one pair
TAKEN = (  # pairs that want no more hands
    select(ASSIGNMENTS.c.item)
    .select_from(_BOTH)
    .where(ASSIGNMENTS.c.kind == "pair", _IS_KEPT, or_(_IS_ANSWERED, ASSIGNMENTS.c.touched_at > bindparam("since")))
    .group_by(ASSIGNMENTS.c.item)
    .having(func.count() >= bindparam("most"))
)
OLDEST = (  # who has left a pair lying longest
    select(ASSIGNMENTS.c.id)
    .select_from(_BOTH)
    .where(_IS_ITEM, _IS_KEPT, ~_IS_ANSWERED)
    .order_by(ASSIGNMENTS.c.touched_at)
    .limit(1)
)
VOTES = (  # on each pair
    select(ASSIGNMENTS.c.item, func.count().label("votes"))
    .select_from(_BOTH)
    .where(ASSIGNMENTS.c.kind == "pair", _IS_ANSWERED)
    .group_by(ASSIGNMENTS.c.item)
)
ALL_ANSWERS = (  # in order
    select(ASSIGNMENTS, ANSWERS.c.choice, ANSWERS.c.seconds, ANSWERS.c.answered_at, RATERS.c.label)
    .select_from(_BOTH.join(RATERS, RATERS.c.id == ASSIGNMENTS.c.rater_id))
    .where(_IS_ANSWERED)
    .order_by(ANSWERS.c.id)
)
HAND_OUT, STORE = insert(ASSIGNMENTS), insert(ANSWERS)
_CHANGE = update(ASSIGNMENTS).where(ASSIGNMENTS.c.id == bindparam("assignment"))
TOUCH = _CHANGE.values(touched_at=bindparam("now"))
RELEASE = _CHANGE.values(released_at=bindparam("now"))


class StudyStore:
    def __init__(self, study: Study, *, clock: Callable[[], float], durable: bool) -> None:
        self.study, self._clock = study, clock
        self._path = study.folder / DATABASE_FILE
        self._engine = _open_database(self._path, durable=durable)
        with self._writing() as database:
            known = _fact(database, _STUDY)
            if known is None:
                _set_fact(database, _STUDY, study.digest)
        if known not in (None, study.digest):
            self.close()
            raise DataError(f"{self._path} holds answers to another study than {study.folder}; keep them apart")

    @classmethod
    def open(cls, folder: Path | str, *, clock: Callable[[], float] = time.time, durable: bool = True) -> Self:
        """The store of a study's folder, made on first use. A simulation need not be durable: it can be run again."""
        return cls(read_study(folder), clock=clock, durable=durable)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_rater(self, label: str, token_hash: str) -> int:
        """A new rater by a label of the owner's choice and the hash of a personal token; the token stays outside."""
        values = {"label": label, "token_hash": token_hash, "created_at": self._clock()}
        try:
            with self._writing() as database:
                key = database.execute(insert(RATERS).values(values)).inserted_primary_key
                assert key is not None
                return int(key[0])
        except IntegrityError:
            raise DataError(f"a rater called {label!r} (or with this token) is there already; choose another") from None

    def rater_by_token_hash(self, token_hash: str) -> Rater | None:
        with self._reading() as database:
            row = database.execute(select(RATERS).where(RATERS.c.token_hash == token_hash)).first()
        return None if row is None else Rater(row.id, row.label)

    def owner_hash(self) -> str | None:
        """The hash of the owner's token, once it was set."""
        with self._reading() as database:
            return _fact(database, _OWNER)

    def set_owner_hash(self, token_hash: str) -> None:
        with self._writing() as database:
            _set_fact(database, _OWNER, token_hash)

    def mark_simulated(self) -> None:
        """Say for good that nobody of flesh answers here."""
        with self._writing() as database:
            _set_fact(database, _SIMULATED, "yes")

    def refuse_people(self) -> None:
        """An error where a simulated panel has answered: its votes and people's must not be counted together."""
        if self.is_simulated():
            raise DataError(f"{self.study.folder} was answered by a simulated panel; make a new study for people")

    def is_simulated(self) -> bool:
        with self._reading() as database:
            return _fact(database, _SIMULATED) is not None

    def next_item(self, rater_id: int) -> Item | None:
        """The rater's open item again, or a new one; None when there is none now (`standing` says why)."""
        now = self._clock()
        with self._writing() as database:
            turns = self._turns(database, rater_id)
            for turn in turns:
                if turn.is_open:
                    database.execute(TOUCH, {"assignment": turn.assignment, "now": now})
                    return shown(self.study, turn)
            free = self._free_pair(database, turns, now) if may_have_more_pairs(self.study, turns) else None
            new = next_turn(self.study, rater_id, turns, free_pair=free)
            if new is None:
                return None
            if new.kind == "pair":
                self._take_over(database, new.item, now)
            values = {"item": new.item, "kind": new.kind, "position": new.position, "block": new.block}
            values |= {"rater_id": rater_id, "swapped": new.swapped, "opened_at": now, "touched_at": now}
            database.execute(HAND_OUT, values)
            return shown(self.study, new)

    def answer(self, rater_id: int, item_id: str, choice: RaterChoice, seconds: float) -> AnswerStatus:
        """Store one answer. Sent again it changes nothing; another answer to the same item is refused, and so is one to
        a pair that lay open too long and went to another rater."""
        if choice not in CHOICES:
            raise DataError(f"an answer is one of {', '.join(CHOICES)}, came {choice!r:.40}")
        if not math.isfinite(seconds) or seconds < 0:
            raise DataError(f"seconds must be a number from 0, came {seconds}")
        now = self._clock()
        with self._writing() as database:
            row = database.execute(TURN, {"rater": rater_id, "item": item_id}).first()
            if row is None:
                raise DataError("this item was not handed to this rater; load the page again")
            turn = _turn(row)
            if choice == "tie" and not ties_allowed(self.study, turn.kind):
                raise DataError('"tie" is not among the answers here; choose left or right')
            if turn.choice == choice:
                return "repeated"
            if turn.choice is not None:
                return "refused"
            if turn.released:
                if self._hands(database, item_id) >= self.study.design.raters_per_pair:
                    return "handed over"
                database.execute(RELEASE, {"assignment": turn.assignment, "now": None})
            values = {"assignment_id": turn.assignment, "choice": choice, "seconds": float(seconds), "answered_at": now}
            database.execute(STORE, values)
        return "stored"

    def standing(self, rater_id: int) -> Standing:
        with self._reading() as database:
            row = database.execute(select(RATERS).where(RATERS.c.id == rater_id)).first()
            if row is None:
                raise DataError(f"there is no rater {rater_id}")
            turns, complete = self._turns(database, rater_id), self._complete(self._votes(database))
        return standing(self.study, Rater(row.id, row.label), turns, complete=complete)

    def progress(self) -> StudyProgress:
        with self._reading() as database:
            votes = self._votes(database)
            raters = database.execute(select(RATERS).order_by(RATERS.c.id)).all()
            turns = {row.id: self._turns(database, row.id) for row in raters}
        complete = self._complete(votes)
        return StudyProgress(
            pairs=len(self.study.pairs),
            pairs_complete=len(complete),
            votes=sum(votes.values()),
            votes_wanted=self.study.votes_wanted,
            open=sum(turn.kind == "pair" and turn.is_open for of_rater in turns.values() for turn in of_rater),
            raters=tuple(
                standing(self.study, Rater(row.id, row.label), turns[row.id], complete=complete) for row in raters
            ),
        )

    def answers(self) -> Iterator[StudyAnswer]:
        """All answers in the order in which they were stored."""
        with self._reading() as database:
            rows = database.execute(ALL_ANSWERS).all()
        for row in rows:
            turn = _turn(row)
            left, right = writers(self.study, turn)
            yield StudyAnswer(
                rater=row.label,
                item=turn.item,
                kind=turn.kind,
                position=turn.position,
                block=turn.block,
                left=left,
                right=right,
                choice=row.choice,
                seconds=row.seconds,
                opened_at=row.opened_at,
                answered_at=row.answered_at,
            )

    def _free_pair(self, database: Connection, turns: list[Turn], now: float) -> Pair | None:
        """The first pair, in the study's order, that wants a vote and that this rater never had in hand."""
        design, seen = self.study.design, {turn.item for turn in turns}
        limits = {"since": now - design.abandon_after_seconds, "most": design.raters_per_pair}
        taken = set(database.execute(TAKEN, limits).scalars().all())
        return next((pair for pair in self.study.pairs if pair.id not in taken and pair.id not in seen), None)

    def _take_over(self, database: Connection, item: str, now: float) -> None:
        """Before a pair goes to one more rater: take it from the one who left it longest ago, if hands are full."""
        if self._hands(database, item) < self.study.design.raters_per_pair:
            return
        oldest = database.execute(OLDEST, {"item": item}).scalar_one()
        database.execute(RELEASE, {"assignment": oldest, "now": now})

    def _hands(self, database: Connection, item: str) -> int:
        """Votes on a pair and raters who have it in hand, however long."""
        return int(database.execute(HANDS, {"item": item}).scalar_one())

    def _votes(self, database: Connection) -> dict[str, int]:
        """Of each pair that has any."""
        return {row.item: row.votes for row in database.execute(VOTES).all()}

    def _complete(self, votes: dict[str, int]) -> set[str]:
        return {item for item, count in votes.items() if count >= self.study.design.raters_per_pair}

    def _turns(self, database: Connection, rater_id: int) -> list[Turn]:
        """All that a rater was handed, in order."""
        return [_turn(row) for row in database.execute(TURNS, {"rater": rater_id}).all()]

    def _writing(self) -> AbstractContextManager[Connection]:
        return _transaction(self._engine, self._path, writes=True)

    def _reading(self) -> AbstractContextManager[Connection]:
        return _transaction(self._engine, self._path, writes=False)


def _open_database(path: Path, *, durable: bool) -> Engine:
    """The engine of a study's database, made where it is not there yet."""
    engine = create_engine(f"sqlite:///{path}", pool_size=8, max_overflow=32)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself: the event below does
        for pragma in (
            f"busy_timeout={1000 * BUSY_SECONDS}",
            "journal_mode=WAL",
            f"synchronous={'FULL' if durable else 'OFF'}",
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    with _transaction(engine, path, writes=True) as database:
        METADATA.create_all(database)
        for altering in ("UPDATE", "DELETE"):
            database.exec_driver_sql(_TRIGGER.format(event=altering))
    return engine


@contextmanager
def _transaction(engine: Engine, path: Path, *, writes: bool) -> Iterator[Connection]:
    """All or nothing. Writers take their turn from the beginning, so what one has read stays true until it commits."""
    try:
        with engine.connect() as connection:
            with connection.execution_options(**{WRITES: writes}).begin():
                yield connection
    except DatabaseError as error:
        explained = _explained(error, path)
        if explained is None:
            raise
        raise explained from error


def _explained(error: DatabaseError, path: Path) -> EnergyLMError | None:
    """The database's own trouble in our words; None for anything else."""
    reason = str(error.orig)
    if "locked" in reason:
        return BusyError(f"{path} was locked by another process for {BUSY_SECONDS} seconds; try again")
    if "full" in reason:
        return DiskFull(f"no space left on the disk while writing {path}; free some space and try again")
    if "not a database" in reason or "malformed" in reason:
        return DataError(f"{path} is damaged ({reason}); restore it from a copy")
    if "unable to open" in reason or "readonly" in reason:
        return DataError(f"{path} cannot be written ({reason}); check the folder and its permissions")
    return None


def _turn(row: Row[Any]) -> Turn:
    return Turn(
        item=row.item,
        kind=row.kind,
        position=row.position,
        block=row.block,
        swapped=bool(row.swapped),
        choice=row.choice,
        released=row.released_at is not None,
        seen_at=row.answered_at or row.touched_at,
        assignment=row.id,
    )


def _fact(database: Connection, name: str) -> str | None:
    return database.execute(select(FACTS.c.value).where(FACTS.c.name == name)).scalar()


def _set_fact(database: Connection, name: str, value: str) -> None:
    database.execute(FACTS.delete().where(FACTS.c.name == name))
    database.execute(insert(FACTS).values(name=name, value=value))
