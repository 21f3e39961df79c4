"""Blocks by hand: results in order, kept as they come, found again, done again where input or file changed."""

import json
from functools import partial

import pytest
import torch

from energylm.config.environment import EngineConfig
from energylm.errors import ConfigError
from energylm.jobs.engine import LocalPool, open_engine
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Counter, collected, progress, say


class Doubler:
    """Doubles numbers; stops like a killed process at the number given."""

    def __init__(self, seen, killed_at=None):
        self.seen, self.killed_at = seen, killed_at

    def facts(self):
        return {"name": "doubler"}

    def __call__(self, block, *, progress):
        if self.killed_at in block:
            raise KeyboardInterrupt
        self.seen.append(block)
        progress.advance(len(block))
        return [2 * number for number in block]


FORM = BlockForm(block=list, to_json=list, from_json=list, size=len)
BLOCKS = [[1, 2], [3], [], [4, 5, 6]]
DOUBLED = [[2, 4], [6], [], [8, 10, 12]]


@pytest.fixture
def run(tmp_path):
    def run(blocks=BLOCKS, *, killed_at=None, job="doubling", output=tmp_path, others=()):
        seen, bar = [], Counter()
        pool = LocalPool(partial(Doubler, seen, killed_at))
        found = []
        try:
            for one in KeptBlocks(output, job, FORM, others=others).run(pool, blocks, progress=bar):
                found.append(one)
        except KeyboardInterrupt:
            return found, seen, None
        return found, seen, bar.done

    return run


def test_a_killed_run_does_only_what_is_missing(run, capsys):
    found, seen, _ = run(killed_at=4)
    assert found == DOUBLED[:3] and seen == BLOCKS[:3]
    found, seen, advanced = run()
    assert found == DOUBLED and seen == BLOCKS[3:] and advanced == 6  # the bar knows of kept blocks too
    found, seen, advanced = run()
    assert found == DOUBLED and seen == [] and advanced == 6
    assert capsys.readouterr().err == ""


def test_without_an_output_nothing_is_kept(run):
    assert run(output=None)[1] == run(output=None)[1] == BLOCKS


def test_what_other_runs_kept_is_used_and_left_as_it_is(run, tmp_path):
    run(killed_at=4, output=tmp_path / "first")
    run([[9]], job="another", output=tmp_path / "second")
    before = sorted((tmp_path / "first").rglob("*.json"))
    found, seen, advanced = run(output=tmp_path / "own", others=(tmp_path / "second", tmp_path / "first"))
    assert found == DOUBLED and seen == BLOCKS[3:] and advanced == 6
    assert sorted((tmp_path / "first").rglob("*.json")) == before
    assert len(list((tmp_path / "own").rglob("*.json"))) == 1
    assert run(output=None, others=(tmp_path / "first", tmp_path / "own"))[1] == []


def test_holes_are_filled_in_their_place(run, tmp_path):
    run()
    (folder,) = (tmp_path / "blocks").iterdir()
    for number in (0, 2):
        (folder / f"block-0000{number}.json").unlink()
    found, seen, _ = run()
    assert found == DOUBLED and seen == [BLOCKS[0], BLOCKS[2]]


def test_changed_input_is_noticed_and_said_and_done_again(run, capsys):
    run()
    found, seen, _ = run([[1, 2], [7], [], [8]])
    assert found == [[2, 4], [14], [], [16]] and seen == [[7], [8]]
    assert capsys.readouterr().err.count("the input has changed since") == 1
    found, seen, _ = run([[1, 2], [7], [], [8]])
    assert seen == []


def test_another_job_has_blocks_of_its_own(run):
    run()
    assert run(job="something else")[1] == BLOCKS
    assert run()[1] == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_damage_is_noticed_and_said_and_repaired(run, tmp_path, capsys, damage):
    run()
    (folder,) = (tmp_path / "blocks").iterdir()
    file = folder / "block-00000.json"
    text = file.read_text()
    assert '"found": [\n    2,' in text
    changed = {
        "flip": text.replace("    2,", "    3,"),  # still JSON: only the hash can tell
        "cut": text[: len(text) // 2],
        "empty": "",
        "other": json.dumps([1]),
    }[damage]
    file.write_text(changed)
    found, seen, _ = run()
    assert found == DOUBLED and seen == [BLOCKS[0]]
    assert "block-00000.json is damaged: its block is done again" in capsys.readouterr().err
    assert file.read_text() == text


def test_blocks_are_taken_only_as_they_are_needed():
    """Texts may come from a pipe that never ends."""
    taken = []

    def endless():
        number = 0
        while True:
            taken.append(number)
            yield [number]
            number += 1

    results = KeptBlocks(None, {}, FORM).run(LocalPool(partial(Doubler, [])), endless(), progress=Counter())
    assert [next(results) for _ in range(3)] == [[0], [2], [4]] and len(taken) == 3


def test_the_local_engine_takes_its_threads_and_gives_them_back():
    before = torch.get_num_threads()
    with open_engine(EngineConfig(threads_per_worker=2)) as engine, engine.pool(partial(Doubler, [])) as pool:
        assert torch.get_num_threads() == 2 and pool.facts() == {"name": "doubler"}
    assert torch.get_num_threads() == before


def test_a_model_is_loaded_once_and_only_if_needed():
    loaded = []

    def load():
        loaded.append(1)
        return Doubler([])

    pool = LocalPool(load)
    assert list(pool.run([], progress=Counter())) == [] and not loaded
    pool.facts()
    assert [*pool.run([[1]], progress=Counter()), *pool.run([[2]], progress=Counter())] == [[2], [4]] and loaded == [1]


@pytest.mark.parametrize("option", [{"address": "a:1"}, {"workers": 2}, {"gpus_per_worker": 1}])
def test_options_of_a_cluster_need_the_cluster(option):
    with pytest.raises(ConfigError, match=f"--{next(iter(option)).replace('_', '-')} is for a cluster.* --engine ray"):
        EngineConfig.checked(option)
    EngineConfig.checked({**option, "engine": "ray"})


def test_what_a_worker_says_is_collected(capsys):
    with collected() as outer:
        say("one")
        with collected() as inner:
            say("two")
    say("three")
    assert (outer, inner) == (["one"], ["two"]) and capsys.readouterr().err == "three\n"


def test_work_within_other_work_advances_the_other_bar():
    whole = Counter()
    with progress("a part", total=3, unit="thing", within=whole) as part:
        part.advance(2)
    assert part is whole and whole.done == 2
