"""How torch's threads wait for each other, chosen before torch is loaded.

OpenMP's threads spin at the end of every parallel piece of work. That is the quickest way to wait on an idle machine;
beside one other busy process the thread that shares its core is late at each of them, and everything becomes 5 to 8
times slower. Threads that sleep instead lose a fifth on an idle machine and hardly anything beside other work
(SmolLM2-135M on two cores, tokens a second idle and beside one busy process: as it comes 185-241 and 22-29;
`GOMP_SPINCOUNT=1000` 173 and 119; `OMP_WAIT_POLICY=PASSIVE` 145-165 and 131-150).

OpenMP reads its variables once, when torch is loaded, so the program chooses; `import energylm` sets nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHOSEN_BY_THE_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "KMP_BLOCKTIME")
LOAD_FILE = Path("/proc/loadavg")  # Linux: "2.42 1.26 0.54 6/185 13676": loads of 1, 5, 15 minutes, running/all tasks
SLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
SPIN_SHORTLY = {"GOMP_SPINCOUNT": "1000"}
RECENT_LOAD = 0.5  # of one processor: less is the system's own


@dataclass(frozen=True)
class OtherLoad:
    """What else runs on the machine: tasks that want a processor now, and their mean number over the last minute."""

    running: int
    of_last_minute: float


def choose_waiting(
    environment: Mapping[str, str], load: OtherLoad | None, *, threads: int, processors: int
) -> dict[str, str]:
    """Variables to set so that `threads` threads on so many `processors` wait well; none where the user chose."""
    if load is None or threads == 1 or any(environment.get(name) for name in CHOSEN_BY_THE_USER):
        return {}
    free = processors - threads
    if load.running > free:
        return SLEEP
    if load.of_last_minute > free + RECENT_LOAD:  # quiet now; it may have been an earlier command of ours, or a pause
        return SPIN_SHORTLY
    return {}


def other_load(text: str) -> OtherLoad | None:
    """Read `LOAD_FILE`'s text; one of the running tasks is this process itself."""
    try:
        of_last_minute, _, _, tasks, _ = text.split()
        return OtherLoad(max(0, int(tasks.partition("/")[0]) - 1), float(of_last_minute))
    except ValueError:
        return None


def set_waiting() -> None:
    """Choose for this process and the processes that it starts. Too late once torch is loaded."""
    try:
        load = other_load(LOAD_FILE.read_text(encoding="ascii"))
    except OSError:
        return  # not Linux
    own = len(os.sched_getaffinity(0))
    os.environ.update(choose_waiting(os.environ, load, threads=own, processors=os.cpu_count() or own))
