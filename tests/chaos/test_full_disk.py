"""A disk that really fills (a small tmpfs): one clear line, nothing lost, and once there is room the job ends as one
that always had it. Where a tmpfs cannot be mounted, tests of each part with a simulated full disk remain."""

import subprocess

import pytest

pytestmark = pytest.mark.xdist_group("chaos")


@pytest.fixture
def disk(tmp_path):
    """`disk(size)` mounts a file system of so many bytes, or gives the one that is mounted another size."""
    place, mounted = tmp_path / "disk", []
    place.mkdir()

    def resized(size):
        options = f"{'remount,' if mounted else ''}size={size}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("this machine does not let us mount a tmpfs")
        mounted.append(size)
        return place

    yield resized
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("job", ["lm", "negatives", "perplexity", "mcmc"])  # a corpus has such a test of its own
def test_a_disk_that_fills_is_said_and_nothing_is_lost(nursery, content, disk, job):
    alone, _ = nursery.undisturbed(job)
    blocks = sum(-(-path.stat().st_size // 4096) + 1 for path in alone.rglob("*"))  # as a tmpfs counts
    place = disk(blocks * 4096 // 2)
    failed = nursery.run(job, place / job)
    assert failed.status == 1 and "DiskFull: no space left on the disk while writing" in failed.said, failed.said
    disk(blocks * 4096 * 4)
    done = nursery.run(job, place / job)
    assert done.status == 0, done.said
    assert content(place / job) == content(alone)
