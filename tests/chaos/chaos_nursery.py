"""A process that has imported everything once; its children do the jobs and are killed.

    stdin    {"job": "lm", "folder": …, "made": …, "log": …, "kill_after": 0.7 | null, "twice": false}   one a line
    stdout   {"status": -9, "seconds": 0.7, "other": null}

Importing torch costs seconds, a job about one: a fork is a process of its own that begins where the imports ended. Each
child leads a session, and its whole group is killed. With `twice` a second child starts on the same folder, and its
status is `other`. What children print goes to `log`.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from chaos_jobs import JOBS

# For the children's sake: what their jobs would import one by one.
for module in (
    "accelerate",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "scipy.stats",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "energylm.verbs.cloze.pretraining",
    "energylm.verbs.chains.mcmc_run",
    "energylm.verbs.corpus.build",
    "energylm.verbs.lm.working",
    *(f"energylm.verbs.joint.{name}" for name in ("writing_negatives", "training_energy", "measuring")),
    "energylm.verbs.detect.discriminating",
    "energylm.verbs.detect.judging",
    "energylm.verbs.recipes.grid_steps",
    "energylm.verbs.recipes.reproducing",
):
    importlib.import_module(module)


def start(job: str, folder: Path, made: Path, log_file: str) -> int:
    """A child that does the job; its process number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        JOBS[job].run(folder, made)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(child: int, *, kill_after: float | None) -> int:
    """The exit code of a child, or minus the signal that ended it."""
    ends = None if kill_after is None else time.monotonic() + kill_after
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if ends is not None and time.monotonic() >= ends:
            os.kill(child, signal.SIGKILL)  # it may not lead its group yet
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            ends = None
        time.sleep(0.002)


def main() -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        what = (task["job"], Path(task["folder"]), Path(task["made"]), task["log"])
        began = time.monotonic()
        child = start(*what)
        other = None
        if task["twice"]:
            time.sleep(0.1)  # the first holds its folder by now
            other = wait(start(*what), kill_after=None)
        status = wait(child, kill_after=task["kill_after"])
        print(json.dumps({"status": status, "seconds": time.monotonic() - began, "other": other}), flush=True)


if __name__ == "__main__":
    main()
