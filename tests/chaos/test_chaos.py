"""Every long job, killed with `kill -9` at random moments and started again, ends as one that nobody disturbed:
weights, shards and results byte for byte, timings left out. Three kills a job here; `make chaos` asks for twenty.

Moments are uniform over the time that the undisturbed job took. A job that was faster this time is killed earlier, in a
folder of its own, so that every test kills.
"""

import random
import signal

import pytest

pytestmark = pytest.mark.xdist_group("chaos")  # they share a nursery and what the jobs are made from
JOBS = ("corpus", "lm", "negatives", "energy", "perplexity", "detect", "mcmc", "grid", "reproduce")


def killed_and_resumed(nursery, job, folder, *, moment, seconds):
    """The folder of a job that was killed at a random moment and then run to its end."""
    share = random.Random(f"{job} {moment}").random()
    for attempt in range(8):
        place = folder / str(attempt) / job
        done = nursery.run(job, place, kill_after=share * seconds)
        if done.status == -signal.SIGKILL:
            break
        seconds = 0.6 * min(seconds, done.seconds)
    assert done.status == -signal.SIGKILL, f"never killed, though it takes {seconds:.2f} s: {done.said}"
    resumed = nursery.run(job, place)
    assert resumed.status == 0, resumed.said
    return place


@pytest.mark.parametrize("job", JOBS)
def test_killed_anywhere_and_resumed_ends_in_the_same_bytes(nursery, content, tmp_path, job, moment):
    alone, seconds = nursery.undisturbed(job)
    resumed, expected = (
        content(killed_and_resumed(nursery, job, tmp_path, moment=moment, seconds=seconds)),
        content(alone),
    )
    assert resumed.keys() == expected.keys()
    assert [name for name in expected if resumed[name] != expected[name]] == []


def test_the_check_has_teeth(nursery, content, tmp_path):
    """A job that records nothing as finished repeats some of it, and the comparison sees that."""
    alone, seconds = nursery.undisturbed("careless")
    resumed = killed_and_resumed(nursery, "careless", tmp_path, moment=0, seconds=seconds)
    assert content(resumed) != content(alone)


def test_all_long_jobs_are_here(jobs):
    assert jobs.LONG_JOBS == JOBS


@pytest.mark.parametrize("job", ["perplexity", "mcmc"])  # the others' own tests show it for them
def test_two_processes_on_one_folder_one_does_it_and_the_other_is_told(nursery, content, tmp_path, job):
    alone, _ = nursery.undisturbed(job)
    done = nursery.run(job, tmp_path / job, twice=True)
    assert (done.status, done.other) == (0, 1), done.said
    assert done.said.count("BusyError: ") == 1 and "is in use by process" in done.said
    assert content(tmp_path / job) == content(alone)
