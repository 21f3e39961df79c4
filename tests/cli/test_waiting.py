"""How torch's threads wait: chosen by the program before torch is loaded, unless the user chose; never by an import."""

import os
import re
import subprocess
import sys

import pytest

from energylm.cli.waiting import SLEEP, SPIN_SHORTLY, OtherLoad, choose_waiting, other_load

UNSET = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}


@pytest.mark.parametrize(
    ("load", "threads", "processors", "chosen"),
    [
        (OtherLoad(0, 0.3), 2, 2, {}),  # idle: spin as OpenMP does
        (OtherLoad(1, 0.0), 2, 2, SLEEP),  # one busy process just started: two threads and it want two processors
        (OtherLoad(0, 1.2), 2, 2, SPIN_SHORTLY),  # quiet now, busy within the last minute
        (OtherLoad(1, 1.0), 4, 8, {}),  # bound to half of the machine: there is room for it elsewhere
        (OtherLoad(5, 5.0), 4, 8, SLEEP),  # more than there is room for
        (OtherLoad(9, 9.0), 1, 8, {}),  # one thread waits for nobody
        (None, 2, 2, {}),  # unknown
    ],
)
def test_the_choice(load, threads, processors, chosen):
    assert choose_waiting({}, load, threads=threads, processors=processors) == chosen


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "KMP_BLOCKTIME"])
def test_what_the_user_set_is_left(name):
    busy = {"load": OtherLoad(1, 1.0), "threads": 2, "processors": 2}
    assert choose_waiting({name: "1"}, **busy) == {}
    assert choose_waiting({name.lower(): "1"}, **busy) == SLEEP  # teeth: only these names count


def test_the_load_of_others_by_hand():
    """Six tasks run, of which one reads the file."""
    assert other_load("2.42 1.26 0.54 6/185 13676\n") == OtherLoad(5, 2.42)
    assert other_load("0.00 0.00 0.00 0/185 13676\n") == OtherLoad(0, 0.0)
    assert other_load("not what was expected") is None


def python(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=UNSET, check=True)
    return done.stdout.strip(), done.stderr


START = """
import os, sys
from pathlib import Path
from energylm.cli import main, waiting
waiting.LOAD_FILE = Path({file!r})
main.run = lambda arguments: print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"))
sys.argv = ["energylm", "trial"]
main.main()
"""


def test_the_program_chooses_before_torch_is_loaded(tmp_path):
    busy, idle = tmp_path / "busy", tmp_path / "idle"
    busy.write_text("0.00 0.00 0.00 999/1000 1\n")
    idle.write_text("0.00 0.00 0.00 1/1000 1\n")
    assert python(START.format(file=str(idle)))[0] == "False None"
    assert python(START.format(file=str(tmp_path / "absent")))[0] == "False None"
    if len(os.sched_getaffinity(0)) > 1:
        assert python(START.format(file=str(busy)))[0] == "False PASSIVE"


SPINS = re.compile(r"GOMP_SPINCOUNT = '(\d+)'")


def test_openmp_heeds_a_variable_that_the_running_process_set():
    """OMP_DISPLAY_ENV lets OpenMP tell what it read; set after the import of torch (teeth) it comes too late."""
    tell, sleep = "os.environ['OMP_DISPLAY_ENV'] = 'VERBOSE'", "os.environ['OMP_WAIT_POLICY'] = 'PASSIVE'"
    before, after = f"import os\n{tell}\n{sleep}\nimport torch", f"import os\n{tell}\nimport torch\n{sleep}"
    assert SPINS.findall(python(before)[1]) == ["0"]
    assert int(SPINS.findall(python(after)[1])[0]) > 0


def test_importing_the_package_sets_no_variable():
    changed = "import os; before = dict(os.environ); import energylm; energylm.LanguageModel; print("
    assert (
        python(changed + "sorted(k for k in os.environ if k.startswith(('OMP_', 'GOMP_')) and k not in before))")[0]
        == "[]"
    )
