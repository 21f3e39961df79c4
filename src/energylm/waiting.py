"""How torch's threads wait for each other: spinning while the machine is free, asleep while others compute on it.

OpenMP's threads meet at the end of every parallel piece of work, and the early ones spin until the last is there. On a
free machine nothing is quicker. Beside another busy process the last one is a thread whose processor that process has
taken for some milliseconds, while the first one's spinning takes the other: the rate falls to a third. Threads that
sleep while they wait leave their processor to whoever can use it.

It is switched while the program runs, four times a second, by what the kernel says of the last moments:

    others   processor seconds that other processes used, a second           /proc/stat less our own
    delay    seconds that our threads were ready but not running, a second   /proc/self/task/*/schedstat

GNU's OpenMP sleeps almost at once whenever it manages more threads than there are processors, so a team of sleeping
threads makes all others sleep, and its end makes them spin again. Binding all threads to the processors that others
leave was tried as well: two threads on one processor draw and train a seventh slower than two that sleep anywhere
(`energylm bench busy`). So was nothing but a single thread, which trains faster beside others than two; but a result
depends on how many threads there are, and a run must not depend on who else computed.

Memory that tensors leave is kept as well (`keep_memory`). C's library gives every large block back to the kernel and
asks for it again, and the kernel fills it with zeros page by page: up to a quarter of the time of a pass over large
batches. The process keeps it instead, and tensors of 2 MB and more take huge pages where the kernel has them.

Use it     `adapt_waiting()` at the start of a program; the command line and its workers do. `import energylm` does not.
Relations  Linux with GNU's OpenMP (torch from PyPI) only; elsewhere, and where the user chose, nothing is done.
"""

import ctypes
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CHOSEN_BY_THE_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
ALLOCATORS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # a user who sets one of these has chosen
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch's switch
KEPT = {-1: (1 << 31) - 1, -2: 64 << 20, -4: 0}  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX of <malloc.h>
PROC = Path("/proc")
PERIOD_SECONDS = 0.25
OTHERS, DELAY = 0.4, 0.4  # processors: from so much of both on, the machine is shared
ROOM = 0.4  # of a processor that others may use when it counts as free
SAME_PERIODS = 2  # that must agree before anything is changed
FIRST_TRIAL_SECONDS, LAST_TRIAL_SECONDS = 5.0, 60.0  # until spinning is tried again: others may have lower priority


@dataclass(frozen=True)
class Clocks:
    """Seconds since the start of the machine, or of this process."""

    now: float
    busy: float  # of all processors
    own: float  # that this process computed
    delayed: float  # that its threads were ready and did not run


@dataclass(frozen=True)
class ProcessorUsage:
    """Of the processors, between two readings."""

    others: float  # by other processes, on all
    delay: float

    @classmethod
    def between(cls, before: Clocks, after: Clocks) -> "ProcessorUsage":
        seconds = max(after.now - before.now, 1e-9)
        others = (after.busy - before.busy) - (after.own - before.own)
        delay = after.delayed - before.delayed  # a thread that ended takes its own along
        return cls(max(0.0, others) / seconds, max(0.0, delay) / seconds)


def is_shared(usage: ProcessorUsage, *, was_shared: bool, threads: int, processors: int) -> bool:
    """Whether others need what `threads` threads would take; where they sleep, delays are their own doing."""
    if was_shared:
        return usage.others > processors - threads + ROOM
    return usage.others >= OTHERS and usage.delay >= DELAY


def read_clocks() -> Clocks:
    _all, *counts = (PROC / "stat").read_text(encoding="ascii").partition("\n")[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    delayed = 0
    for task in own_threads():
        try:
            delayed += int((PROC / "self" / "task" / str(task) / "schedstat").read_text(encoding="ascii").split()[1])
        except OSError:
            pass  # it has just ended
    return Clocks(time.monotonic(), busy, time.process_time(), delayed / 1e9)


def own_threads() -> list[int]:
    return [int(task.name) for task in (PROC / "self" / "task").iterdir()]


class SleepingTeam:
    """More OpenMP threads than there are processors, all asleep, for as long as this is open."""

    def __init__(self, openmp: ctypes.CDLL) -> None:
        self._openmp, self._over, self._there = openmp, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="energylm-sleeping-team", daemon=True)
        self._thread.start()
        self._there.wait()

    def _hold(self) -> None:
        """A team belongs to the thread that began it, and ends with it."""
        harmless = ctypes.cast(self._openmp.omp_get_thread_num, ctypes.c_void_p)  # what each of the team does, once
        self._openmp.GOMP_parallel(
            harmless, None, ctypes.c_uint(1 + self._openmp.omp_get_num_procs()), ctypes.c_uint(0)
        )
        self._there.set()
        self._over.wait()

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class WaitingWatch(threading.Thread):
    """Looks at the machine and switches between the two ways of waiting."""

    def __init__(self) -> None:
        super().__init__(name="energylm-waiting", daemon=True)
        self._processors = len(os.sched_getaffinity(0))
        self._team: SleepingTeam | None = None
        self._trial_seconds = FIRST_TRIAL_SECONDS
        self._since = time.monotonic()  # of the present way

    @property
    def is_shared(self) -> bool:
        return self._team is not None

    def run(self) -> None:
        while not hasattr(torch := sys.modules.get("torch"), "get_num_threads"):  # not loaded, or not all of it
            time.sleep(PERIOD_SECONDS)
        openmp = gnu_openmp()
        if openmp is None:
            return
        disagreeing, before = 0, read_clocks()
        while True:
            time.sleep(PERIOD_SECONDS)
            threads, after = torch.get_num_threads(), read_clocks()  # type: ignore[union-attr]
            usage, before = ProcessorUsage.between(before, after), after
            shared = is_shared(usage, was_shared=self.is_shared, threads=threads, processors=self._processors)
            disagreeing = disagreeing + 1 if shared != self.is_shared else 0
            is_trial_due = self.is_shared and after.now - self._since > self._trial_seconds
            if disagreeing == SAME_PERIODS or is_trial_due:
                disagreeing = 0
                self.spin() if self.is_shared else self.sleep(openmp, after.now)
                self._since = after.now

    def sleep(self, openmp: ctypes.CDLL, now: float) -> None:
        """After a trial that failed the next comes later."""
        has_failed = now - self._since < FIRST_TRIAL_SECONDS
        self._trial_seconds = min(2 * self._trial_seconds, LAST_TRIAL_SECONDS) if has_failed else FIRST_TRIAL_SECONDS
        self._team = SleepingTeam(openmp)

    def spin(self) -> None:
        """Everything as it was."""
        if self._team is not None:
            self._team.close()
            self._team = None


_watch: list[WaitingWatch] = []


def adapt_waiting() -> bool:
    """Let torch's threads in this process wait as the machine's other work allows, from now on; whether that is
    possible here. Before or after torch is loaded; a second call does nothing."""
    is_possible = sys.platform == "linux" and (PROC / "self" / "schedstat").exists()
    if not is_possible or any(os.environ.get(name) for name in CHOSEN_BY_THE_USER) or len(os.sched_getaffinity(0)) == 1:
        return False
    if not _watch:
        _watch.append(WaitingWatch())
        _watch[0].start()
    return True


def keep_memory() -> bool:
    """Let this process keep the memory that its tensors leave, for its next ones; whether that is possible here. Before
    torch is loaded, whose own switch for huge pages is an environment variable."""
    if sys.platform != "linux" or any(name.startswith(ALLOCATORS) for name in os.environ):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    os.environ.setdefault(HUGE_PAGES, "1")
    return all([set_option(option, value) == 1 for option, value in KEPT.items()])


def gnu_openmp() -> ctypes.CDLL | None:
    """The library that torch has loaded."""
    for line in (PROC / "self" / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.rpartition(" ")[2]
        if "libgomp" in path:
            return ctypes.CDLL(path)
    return None
