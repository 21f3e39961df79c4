"""The database of a study: SQLite in WAL mode, three tables, answers that cannot be altered.

    raters       label, hash of the personal token
    assignments  which item was handed to whom, when, in which order and on which side
    answers      one for an assignment at most; triggers refuse every UPDATE and DELETE

`synchronous=FULL` syncs the log at every commit: an answer that was acknowledged survives `kill -9` and power cuts.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
)
from sqlalchemy.exc import DatabaseError

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


def open_database(path: Path, *, durable: bool) -> Engine:
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

    with transaction(engine, path, writes=True) as database:
        METADATA.create_all(database)
        for altering in ("UPDATE", "DELETE"):
            database.exec_driver_sql(_TRIGGER.format(event=altering))
    return engine


@contextmanager
def transaction(engine: Engine, path: Path, *, writes: bool) -> Iterator[Connection]:
    """All or nothing. Writers take their turn from the beginning, so what one has read stays true until it commits."""
    try:
        with engine.connect() as connection:
            with connection.execution_options(**{WRITES: writes}).begin():
                yield connection
    except DatabaseError as error:
        said = _said(error, path)
        if said is None:
            raise
        raise said from error


def _said(error: DatabaseError, path: Path) -> EnergyLMError | None:
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
