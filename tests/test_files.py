"""Files appear whole or not at all: after exceptions, a full disk, and kill -9 at the worst moments."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from energylm import files
from energylm.errors import BusyError, DataError, DiskFull
from energylm.files import (
    atomic_file,
    atomic_folder,
    folder_lock,
    read_json,
    sha256_of_file,
    sha256_of_json,
    write_json,
    write_text,
)


def kill_at(moment: str, folder) -> None:
    """Run Python lines in a process that kills itself with SIGKILL where they say `die()`."""
    code = "import os, signal, sys\nfrom pathlib import Path\nfrom energylm import files\n"
    code += "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n" + moment
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def holder(folder):
    """Another process that holds the lock of `folder`; yields it."""
    code = "import sys\nfrom energylm.files import folder_lock\n"
    code += "with folder_lock('.'):\n    print('held', flush=True)\n    sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with atomic_file(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent and not target.exists()
    assert target.read_text() == "new" and names(target.parent) == ["a.txt"]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_an_exception_leaves_the_old_folder_and_nothing_else(tmp_path):
    with atomic_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("old")
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("half")
        raise RuntimeError
    assert (tmp_path / "model" / "weights").read_text() == "old" and names(tmp_path) == ["model"]


def test_a_folder_replaces_the_old_one_entirely(tmp_path):
    for text in ("old", "new"):
        with atomic_folder(tmp_path / "model") as temporary:
            (temporary / text).mkdir()
            (temporary / text / "weights").write_text(text)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["new"]


def test_a_file_system_that_cannot_exchange_still_replaces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    test_a_folder_replaces_the_old_one_entirely(tmp_path)


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # as safetensors and tokenizers say it
    ],
)
def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path, failure):
    write_text(tmp_path / "a.txt", "old")
    for write in (atomic_file, atomic_folder):
        path = tmp_path / ("a.txt" if write is atomic_file else "model")
        with pytest.raises(DiskFull, match=f"no space left .* while writing {re.escape(str(path))}; free"), write(path):
            raise failure
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_disk_that_turns_out_full_at_the_sync_is_named_too(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        write_text(tmp_path / "a.txt", "text")
    assert names(tmp_path) == []


def test_other_errors_stay_themselves(tmp_path):
    with pytest.raises(PermissionError), atomic_file(tmp_path / "a.txt"):
        raise PermissionError(errno.EACCES, "no")


def test_kill_in_the_middle_of_a_file_leaves_the_old_one_and_the_next_writer_cleans_up(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    kill_at("with files.atomic_file('a.txt') as t:\n    t.write_text('half'); die()", tmp_path)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(names(tmp_path)) == 2  # the dead process could not remove its temporary file
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("die_in", "left"),
    [
        ("files._sync = die", "old"),  # before anything moved
        ("moved = files.take_place_of\nfiles.take_place_of = lambda *a: (moved(*a), die())", "new"),  # right after
        ("files._remove = lambda p, remove=files._remove: die() if (p / 'weights').exists() else remove(p)", "new"),
    ],
)
def test_kill_around_the_exchange_leaves_the_old_folder_or_the_new_one(tmp_path, die_in, left):
    with atomic_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("old")
    kill_at(f"{die_in}\nwith files.atomic_folder('model') as t:\n    (t / 'weights').write_text('new')", tmp_path)
    assert (tmp_path / "model" / "weights").read_text() == left
    with atomic_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("newer")
    assert names(tmp_path) == ["model"]


def test_no_instant_without_a_folder(tmp_path):
    """Teeth: dying between two renames leaves no folder under the name; the exchange has no between."""
    with atomic_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("old")
    die_after_the_first_move = "replace = os.replace\nos.replace = lambda *a: (replace(*a), die())\n"
    body = "with files.atomic_folder('model') as t:\n    (t / 'weights').write_text('new')\ndie()"
    kill_at(die_after_the_first_move + body, tmp_path)
    assert (tmp_path / "model" / "weights").read_text() == "new"
    kill_at("files._exchange = lambda *a: False\n" + die_after_the_first_move + body, tmp_path)
    assert not (tmp_path / "model").exists()
    (aside,) = tmp_path.glob(".model.*.old")
    assert (aside / "weights").read_text() == "new"  # nothing is lost, only hidden


def test_temporary_files_of_living_processes_and_other_machines_are_left_alone(tmp_path):
    here = socket.gethostname()
    others = [f".a.txt.{here}-{os.getppid()}.tmp", ".a.txt.elsewhere-999999999.tmp", f".b.txt.{here}-999999999.tmp"]
    for name in [*others, f".a.txt.{here}-999999999.tmp"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "a.txt", "text")
    assert names(tmp_path) == sorted([*others, "a.txt"])


def test_names_with_pattern_characters_clean_up_only_their_own(tmp_path):
    here = socket.gethostname()
    (tmp_path / f".ab.{here}-999999999.tmp").touch()
    write_text(tmp_path / "[a]*", "text")
    assert names(tmp_path) == sorted([f".ab.{here}-999999999.tmp", "[a]*"])


def test_json_goes_round_and_damage_is_named(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None], "a": "ü"})
    assert read_json(tmp_path / "a.json") == {"a": "ü", "b": [1, 2.5, None]}
    assert (tmp_path / "a.json").read_text("utf-8").startswith('{\n  "a": "ü"')
    (tmp_path / "b.json").write_text('{"a": ')
    (tmp_path / "c.json").write_bytes(b'"\xff"')
    for name in ("b.json", "c.json", "missing.json"):
        with pytest.raises(DataError, match=re.escape(str(tmp_path / name))):
            read_json(tmp_path / name)


def test_hashes(tmp_path):
    (tmp_path / "empty").touch()
    assert sha256_of_file(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256_of_json({"a": 1, "b": 2}) == sha256_of_json(json.loads('{"b": 2, "a": 1}'))
    assert sha256_of_json({"a": 1, "b": 2}) != sha256_of_json({"a": 2, "b": 1})


def test_a_folder_in_use_names_its_holder_and_is_free_afterwards(tmp_path):
    with holder(tmp_path) as process:
        message = re.escape(f"{tmp_path} is in use by process {process.pid} on {socket.gethostname()} since ")
        with pytest.raises(BusyError, match=rf"{message}\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d; wait"), folder_lock(tmp_path):
            pass
        process.communicate()  # the holder leaves in peace
        with folder_lock(tmp_path):
            pass


def test_a_killed_holder_does_not_block(tmp_path):
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        with folder_lock(tmp_path), pytest.raises(BusyError, match=f"process {os.getpid()} "), folder_lock(tmp_path):
            pass  # the lock is ours now, and names us


def test_a_child_that_outlives_the_holder_is_told_from_it(tmp_path):
    """A worker that inherited the lock keeps the folder held; the process that the lock names is no more."""
    code = "import os, sys, time\nfrom energylm.files import folder_lock\n"
    code += "with folder_lock('.'):\n    child = os.fork()\n    if child:\n        print(child, flush=True)\n"
    code += "        os._exit(0)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.wait()
        try:
            message = f"in use by a child of process {process.pid} on .*, which has ended"
            with pytest.raises(BusyError, match=message), folder_lock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_whose_folder_was_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    """The holder of a workplace removes it while another process has opened its lock file and not yet locked it: what
    that process would hold is a file without a name, and a third one could enter the folder beside it."""
    folder, locked = tmp_path / "workplace", files.fcntl.flock

    def removed_first(file, how):
        monkeypatch.setattr(files.fcntl, "flock", locked)
        shutil.rmtree(folder)
        locked(file, how)

    monkeypatch.setattr(files.fcntl, "flock", removed_first)
    with folder_lock(folder), pytest.raises(BusyError, match=f"process {os.getpid()} "), folder_lock(folder):
        pass


def test_weights_are_as_readable_as_their_folder(tmp_path):
    """safetensors creates files of mode 0600: a model in a shared folder would be closed to everybody else."""
    from safetensors.torch import save_file
    from torch import zeros

    tmp_path.chmod(0o755)
    with files.atomic_file(tmp_path / "weights.safetensors") as temporary:
        save_file({"x": zeros(1)}, temporary)
    assert (tmp_path / "weights.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_number_that_is_not_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert not (tmp_path / "x.json").exists()
