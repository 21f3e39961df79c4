"""Files appear whole or not at all: temporary name, fsync, rename. Also checksums and the lock of an output folder.

Everything energylm writes for keeps goes through this module, so that a process killed at any moment leaves either the
old file or the new one, and a full disk leaves one clear line and nothing half-written.
"""

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from energylm.errors import BusyError, DataError, DiskFull

KEPT = "what was finished is kept, run the same command to continue"


@contextmanager
def disk_full_is_said(path: Path) -> Iterator[None]:
    """Turn the operating system's "no space left" into an error that names the file and the cure."""
    try:
        yield
    except Exception as error:
        # Libraries written in Rust (safetensors, tokenizers) wrap the same failure in exceptions of their own.
        is_wrapped = f"(os error {errno.ENOSPC})" in str(error)
        if is_wrapped or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            raise DiskFull(f"no space left on the disk while writing {path}; free some space and run again") from error
        raise


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on a clean exit it is synced and renamed over `path`, else removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    try:
        with disk_full_is_said(path):
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on a clean exit it takes `path`'s place, else it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    _remove(temporary)
    temporary.mkdir()
    try:
        with disk_full_is_said(path):
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            _sync(temporary)
            take_place_of(path, temporary)
    finally:
        _remove(temporary)  # what failed or, after an exchange, what `path` was before


def write_text(path: Path | str, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """NaN and infinities are refused: they are not JSON, and other readers fail on them."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file we wrote; a missing or damaged one is a `DataError` naming it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); it is damaged: make it again") from None


def sha256_of_file(path: Path | str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """A hash of a JSON-able value that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextmanager
def folder_lock(folder: Path | str) -> Iterator[None]:
    """Hold `folder` for this process. The lock is the kernel's and dies with the process, so a killed run never blocks
    the next one; what `.lock` says (process, machine, since when) is for those who find it held.

    Jobs hold the folder that they can go on in, so whoever interrupts one is told (`KEPT`, a note on the exception).
    """
    folder = Path(folder)
    with _locked(folder) as file:
        file.truncate(0)
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
        file.flush()
        with interrupts_say_it_is_kept():
            yield


@contextmanager
def interrupts_say_it_is_kept() -> Iterator[None]:
    """Around work that goes on where it stopped when it is run again."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(KEPT)
        raise


def take_place_of(path: Path, made: Path) -> None:
    """Put the finished folder `made` where `path` is. An older `path` changes places with it in one step; where the
    file system cannot do that (NFS), it is moved aside first, and a process killed between the two moves leaves it as
    `.NAME.….old`."""
    if not path.exists():
        os.replace(made, path)
    elif not _exchange(path, made):
        aside = made.with_suffix(".old")
        os.replace(path, aside)
        os.replace(made, path)
        _remove(aside)
    _sync(path.parent)


def _locked(folder: Path) -> TextIO:
    """The open and locked `.lock` of `folder`, which is made if need be."""
    path = folder / ".lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
            file.close()  # its holder removed the folder, lock and all, before we had it: what we hold is no one's lock
        except BlockingIOError:
            with file:
                file.seek(0)
                raise BusyError(_busy(folder, file.read().strip())) from None


def _busy(folder: Path, holder: str) -> str:
    told = re.fullmatch(r"process (\d+) on (\S+) since .+", holder)
    if told and told[2] == socket.gethostname() and not _is_running(int(told[1])):
        return f"{folder} is in use by a child of {holder}, which has ended; wait for the child, or end it"
    return f"{folder} is in use by {holder or 'another process'}; wait for it, or choose another output folder"


def _sync(path: Path) -> None:
    _share(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _share(path: Path) -> None:
    """Whoever may read the folder may read its files; safetensors writes them for their owner alone."""
    mode, allowed = path.stat().st_mode, path.parent.stat().st_mode & 0o044
    if mode & allowed != allowed:
        path.chmod(mode | allowed)


def _temporary_beside(path: Path) -> Path:
    """A hidden name that says whose it is, after removing what killed processes of this machine left there."""
    ours = f".{path.name}.{socket.gethostname()}-"
    for leftover in path.parent.glob(f"{glob.escape(ours)}*.tmp"):
        owner = leftover.name.removeprefix(ours).removesuffix(".tmp")
        if owner.isdecimal() and not _is_running(int(owner)):
            _remove(leftover)
    return path.with_name(f"{ours}{os.getpid()}.tmp")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 asks and does nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step by Linux's renameat2; False where system or file system does not offer it."""
    relative_to_here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(relative_to_here, os.fsencode(first), relative_to_here, os.fsencode(second), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(first))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
