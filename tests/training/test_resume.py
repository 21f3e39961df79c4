"""A run may be killed at any moment: it continues bit for bit, its journal tells no step twice, damage is named."""

import json
import os
import random
import signal
import time

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from energylm.errors import BusyError, CheckpointError, DiskFull
from energylm.files import folder_lock
from energylm.training import checkpoint
from energylm.training.engine import train
from energylm.training.journal import Journal, read_journal


@pytest.fixture(scope="module")
def left_alone(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    result = train(toy.task(), toy.config(**toy.KILLED_RUN), folder=folder)
    return folder, result


def same_bits(first, second):
    """Whether two files of tensors hold the same names and bits."""
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_times(records):
    return [{key: value for key, value in record.items() if key != "tokens_per_second"} for record in records]


def test_killed_twice_and_resumed_gives_the_same_bits(toy, run_toy, left_alone, tmp_path):
    """kill -9 first in the middle of a random update, then while a checkpoint is half-written. Dropout is on."""
    alone, result = left_alone
    kill_step = random.Random(2020).randrange(9, 20)
    assert run_toy("kill-update", tmp_path, kill_step)[0] == -signal.SIGKILL
    assert 0 < len(read_journal(tmp_path / "journal.jsonl")) and not (tmp_path / "training.json").exists()
    assert run_toy("kill-checkpoint", tmp_path, 24)[0] == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "checkpoints").glob(".*")]  # the half-written one, never looked at
    resumed = train(toy.task(), toy.config(**toy.KILLED_RUN), folder=tmp_path)

    assert same_bits(alone / "model/final.safetensors", tmp_path / "model/final.safetensors")
    last = "checkpoints/step-00000030/"
    assert same_bits(alone / last / "optimizer.safetensors", tmp_path / last / "optimizer.safetensors")
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert (resumed.best_validation, resumed.tokens) == (result.best_validation, result.tokens)

    records = read_journal(tmp_path / "journal.jsonl")
    assert without_times(records) == without_times(read_journal(alone / "journal.jsonl"))
    kinds = [(record["step"], "validation_loss" in record) for record in records]
    assert len(kinds) == len(set(kinds)) and kinds == sorted(kinds)


@pytest.mark.parametrize("mistake", ["dropout of another step", "optimiser forgotten"])
def test_the_bitwise_check_has_teeth(toy, left_alone, tmp_path, monkeypatch, mistake):
    """A resume that forgets Adam's averages, or draws dropout from a stream that went on, gives other bits."""
    from energylm.training import engine

    interrupted = toy.config(**toy.KILLED_RUN)
    with pytest.raises(KeyboardInterrupt):
        train(toy.task(task_class=Interrupted(toy)), interrupted, folder=tmp_path)
    if mistake == "optimiser forgotten":
        monkeypatch.setattr(engine.disk, "load_optimizer", lambda *_: None)
    else:
        monkeypatch.setattr(engine, "seeded", lambda seed, *names, device: toy.seeded(seed, "one stream"))
    train(toy.task(), interrupted, folder=tmp_path)
    assert not same_bits(left_alone[0] / "model/final.safetensors", tmp_path / "model/final.safetensors")


def Interrupted(toy):  # noqa: N802 - makes a class
    class InterruptedTask(toy.LanguageModelTask):
        def batch(self, step, rows):
            if step == 15:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    return InterruptedTask


def test_checkpoints_hold_only_safetensors_and_json(left_alone):
    folder, _ = left_alone
    files = [path for path in (folder / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_keeps_the_newest_checkpoints_and_the_best_weights(left_alone):
    """Every 4 of 30 steps and the last: 28 and 30 stay; the best weights that either refers to stay beside them."""
    folder, result = left_alone
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert [name for name in names if name.startswith("step")] == ["step-00000028", "step-00000030"]
    assert f"best-{result.best_step:08}" in names and len(names) <= 4


def interrupted_run(toy, folder):
    with pytest.raises(KeyboardInterrupt):
        train(toy.task(task_class=Interrupted(toy)), toy.config(**toy.KILLED_RUN), folder=folder)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_a_flipped_byte_is_named_with_its_cure(toy, tmp_path, name):
    interrupted_run(toy, tmp_path)
    checkpoint = tmp_path / "checkpoints" / "step-00000012"
    content = bytearray((checkpoint / name).read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / name).write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        train(toy.task(), toy.config(**toy.KILLED_RUN), folder=tmp_path)
    message = str(error.value)
    # A flip inside the manifest looks like damage to the file whose hash it changed.
    assert name == "manifest.json" or str(checkpoint / name) in message
    assert f"delete {checkpoint}" in message and "\n" not in message


def test_deleting_the_damaged_checkpoint_continues_from_the_one_before(toy, left_alone, tmp_path):
    import shutil

    interrupted_run(toy, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000012")
    train(toy.task(), toy.config(**toy.KILLED_RUN), folder=tmp_path)
    assert same_bits(left_alone[0] / "model/final.safetensors", tmp_path / "model/final.safetensors")


def test_another_configuration_is_refused_by_key(toy, tmp_path):
    interrupted_run(toy, tmp_path)
    changed = toy.config(**toy.KILLED_RUN, optimizer={"learning_rate": 0.5}, seed=3)
    with pytest.raises(CheckpointError) as error:
        train(toy.task(direction="right-to-left"), changed, folder=tmp_path)
    message = str(error.value)
    for part in ("training.optimizer.learning_rate (was 0.001, now 0.5)", "training.seed", "task.direction"):
        assert part in message
    assert "\n" not in message and "training.steps" not in message


def test_settings_that_leave_the_weights_alone_may_change(toy, left_alone, tmp_path):
    interrupted_run(toy, tmp_path)
    changed = toy.KILLED_RUN | {"checkpoint": {"every_steps": 7, "keep": 1}, "log_every_steps": 1}
    train(toy.task(), toy.config(**changed), folder=tmp_path)
    assert same_bits(left_alone[0] / "model/final.safetensors", tmp_path / "model/final.safetensors")


def test_a_finished_run_is_not_repeated(toy, left_alone):
    folder, result = left_alone
    before = (folder / "journal.jsonl").read_bytes()
    started = time.perf_counter()
    again = train(toy.task(), toy.config(**toy.KILLED_RUN), folder=folder)
    assert again.was_finished and not result.was_finished and time.perf_counter() - started < 1
    assert (again.best_validation, again.steps) == (result.best_validation, result.steps)
    tied_once = sum(weight.numel() for weight in checkpoint.distinct_tensors(toy.network()).values())
    assert again.parameters == result.parameters == tied_once
    assert (folder / "journal.jsonl").read_bytes() == before
    with pytest.raises(CheckpointError, match=r"training\.seed"):
        train(toy.task(), toy.config(**toy.KILLED_RUN, seed=9), folder=folder)


def test_resuming_takes_the_thread_count_of_the_start(toy, tmp_path, capsys):
    interrupted_run(toy, tmp_path)
    path = tmp_path / "checkpoints" / "step-00000012" / "state.json"
    assert json.loads(path.read_text())["threads"] == 1
    threads = []

    class Watching(toy.LanguageModelTask):
        def loss(self, model, batch):
            threads.append(torch.get_num_threads())
            return super().loss(model, batch)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(toy.task(task_class=Watching), toy.config(**toy.KILLED_RUN | {"threads": None}), folder=tmp_path)
        assert torch.get_num_threads() == 2  # put back
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}
    assert "continuing from" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(toy, tmp_path):
    with folder_lock(tmp_path), pytest.raises(BusyError, match=str(os.getpid())):
        train(toy.task(), toy.config(steps=1), folder=tmp_path)


def test_journal_drops_a_half_written_line_and_later_steps(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    assert [record["step"] for record in read_journal(path)] == [1, 2]
    with Journal(tmp_path, after_step=1) as journal:
        journal.write(2, {"loss": 1.5})
    assert read_journal(path) == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.5}]


def test_a_full_disk_is_one_clear_line_and_leaves_the_last_checkpoint_whole(toy, left_alone, tmp_path, monkeypatch):
    """Simulated at checkpoint 8 with the exception that safetensors raises, which is no OSError."""
    original = toy.checkpoint.save_file

    def filling(tensors, path):
        if "step-00000008" in path.parent.name:
            path.write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        original(tensors, path)

    monkeypatch.setattr(toy.checkpoint, "save_file", filling)
    with pytest.raises(DiskFull) as error:
        train(toy.task(), toy.config(**toy.KILLED_RUN), folder=tmp_path)
    assert "step-00000008" in str(error.value) and "free some space" in str(error.value)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*step*")) == ["step-00000004"]
    monkeypatch.undo()
    train(toy.task(), toy.config(**toy.KILLED_RUN), folder=tmp_path)
    assert same_bits(left_alone[0] / "model/final.safetensors", tmp_path / "model/final.safetensors")
