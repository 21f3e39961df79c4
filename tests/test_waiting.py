"""How torch's threads wait: switched while the program runs, unless the user chose; never by an import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from energylm import waiting
from energylm.cli import main
from energylm.waiting import (
    ALLOCATORS,
    Clocks,
    ProcessorUsage,
    is_shared,
    keep_memory,
    read_clocks,
)

UNSET = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
TWO = {"threads": 2, "processors": 2}


def usage(others=0.0, delay=0.0):
    return ProcessorUsage(others, delay)


def test_the_usage_by_hand():
    """In two seconds 3.5 of 4 processor seconds were used, 2.5 by us, whose threads were ready in vain for 0.6."""
    before = Clocks(now=10.0, busy=12.0, own=1.0, delayed=0.2)
    after = Clocks(now=12.0, busy=15.5, own=3.5, delayed=0.8)
    between = ProcessorUsage.between(before, after)
    assert (between.others, between.delay) == pytest.approx((0.5, 0.3))
    alone = Clocks(now=12.0, busy=14.4, own=3.5, delayed=0.1)  # ticks of the machine come later than our own clock's
    assert ProcessorUsage.between(before, alone) == ProcessorUsage(0.0, 0.0)


@pytest.mark.parametrize(
    ("usage", "was_shared", "threads", "processors", "shared"),
    [
        (usage(others=0.1, delay=0.1), False, 2, 2, False),  # free
        (usage(others=0.6, delay=0.6), False, 2, 2, True),  # one busy process
        (usage(others=0.6, delay=0.0), False, 1, 2, False),  # it does not stand in our way
        (usage(others=0.1, delay=1.0), False, 2, 2, False),  # our own threads are too many: nobody to give way to
        (usage(others=1.0, delay=1.0), True, 2, 2, True),  # still there
        (usage(others=0.1, delay=1.0), True, 2, 2, False),  # gone; the delay is of our threads among themselves
        (usage(others=1.0, delay=1.0), True, 4, 8, False),  # half of a large machine is free
    ],
)
def test_when_the_machine_is_shared(usage, was_shared, threads, processors, shared):
    assert is_shared(usage, was_shared=was_shared, threads=threads, processors=processors) == shared


def test_the_clocks_of_this_process_go_on():
    before = read_clocks()
    end = before.own + 0.02
    while read_clocks().own < end:
        pass
    after = read_clocks()
    assert after.own >= end and after.now > before.now and after.delayed >= 0
    assert after.busy > 0


@pytest.mark.parametrize("name", waiting.CHOSEN_BY_THE_USER)
def test_what_the_user_set_is_left(name, monkeypatch):
    started = []
    monkeypatch.setattr(waiting, "WaitingWatch", lambda: started.append(1))
    monkeypatch.setattr(waiting, "_watch", [])
    monkeypatch.setenv(name, "1")
    assert not waiting.adapt_waiting() and started == []


def test_a_machine_without_these_files_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(waiting, "PROC", tmp_path)
    assert not waiting.adapt_waiting()


TEAM = """
import os, threading, time
from energylm.waiting import SleepingTeam, gnu_openmp, own_threads
import torch
torch.ones(1 << 20).add_(1)
before = len(own_threads())
team = SleepingTeam(gnu_openmp())
during = len(own_threads())
team.close()
for _ in range(500):  # threads end in their own time
    after = len(own_threads())
    if after > before:
        time.sleep(0.01)
print(before, during, after, os.cpu_count(), "energylm-waiting" in {thread.name for thread in threading.enumerate()})
"""


def python(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=UNSET, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not Linux")
def test_a_team_has_more_threads_than_there_are_processors_and_goes_away():
    """One thread holds the team, which has one member for each processor beside it; importing starts no watch."""
    before, during, after, processors, is_watched = python(TEAM)
    assert int(during) == int(before) + 1 + int(processors) and int(after) <= int(before) and is_watched == "False"


START = """
import sys, threading
from energylm.cli import main
main.run = lambda arguments: print("torch" in sys.modules, *(thread.name for thread in threading.enumerate()))
sys.argv = ["energylm", "trial"]
main.main()
"""


def test_the_program_watches_before_torch_is_loaded():
    words = python(START)
    assert words[0] == "False"
    if len(os.sched_getaffinity(0)) > 1:
        assert "energylm-waiting" in words


FAULTS = """
import resource, sys
from energylm.waiting import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory()
import torch
torch.empty(1 << 24).fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.empty(1 << 24).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="C's library of Linux")
def test_memory_that_tensors_leave_is_kept():
    environment = {name: value for name, value in os.environ.items() if not name.startswith((*ALLOCATORS, "THP_"))}
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], env=environment, text=True))
        for how in ("keep", "give back")
    }
    assert faults["give back"] > 10 * 64 << 20 >> 13  # teeth: half of all pages at least
    assert faults["keep"] < faults["give back"] / 10  # some kernels take cold pages away by themselves: 0 to 5,440 here


@pytest.mark.parametrize(("verb", "keeps"), [("serve", False), ("score", True)])
def test_a_server_keeps_no_memory(monkeypatch, verb, keeps):
    """It gives back what it has freed; with memory that is kept, and huge pages, 200 clients left 2 MB each time."""
    asked = []
    monkeypatch.setattr(main, "keep_memory", lambda: asked.append(verb))
    monkeypatch.setattr(main, "adapt_waiting", lambda: None)
    monkeypatch.setattr(sys, "argv", ["energylm", verb, "--help"])
    with pytest.raises(SystemExit):
        main.main()
    assert bool(asked) == keeps


def test_a_user_who_chose_an_allocator_keeps_it(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/lib/libjemalloc.so")
    assert not keep_memory()
