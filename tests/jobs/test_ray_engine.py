"""Blocks on a cluster: in order, redone where workers are lost, never too many under way, equal to the local engine's.

How blocks are handed out is proved on a Ray of our own in which anything may happen in any order; that it works is
shown on a real one: three simulated machines, five commands, and a machine whose workers are killed at work.
"""

import json
import os
import random
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import ray.exceptions

from energylm.cli.main import run
from energylm.config.environment import EngineConfig
from energylm.data.negatives import Negatives
from energylm.errors import ConfigError, MissingExtra, ModelError, WorkerLost
from energylm.jobs import ray_engine
from energylm.jobs.job import Job
from energylm.progress import Counter, say
from energylm.verbs.cloze.rerank import Rerank
from energylm.verbs.cloze.score import Score
from energylm.verbs.detect.detect import RunDetector
from energylm.verbs.joint import writing_negatives
from energylm.verbs.joint.negatives import MakeNegatives
from energylm.verbs.joint.perplexity import Perplexity

pytestmark = pytest.mark.xdist_group("ray")  # one worker of pytest, so that there is one cluster


class Task:
    def __init__(self, actor, method, arguments):
        self.actor, self.method, self.arguments, self.outcome = actor, method, arguments, None
        actor.tasks.append(self)

    def run(self):
        if self.outcome is None and self.actor.dead:
            self.outcome = (None, ray.exceptions.ActorDiedError())
        elif self.outcome is None:
            try:
                self.outcome = (getattr(self.actor.inner, self.method)(*self.arguments), None)
            except ray.exceptions.ActorDiedError as error:
                self.actor.dead, self.outcome = True, (None, error)
            except Exception as error:
                self.outcome = (None, ray.exceptions.RayTaskError(self.method, "traceback", error))


class Actor:
    def __init__(self, inner):
        self.inner, self.dead, self.tasks = inner, False, []
        self.start = SimpleNamespace(remote=lambda *arguments: Task(self, "start", arguments))
        self.work = SimpleNamespace(remote=lambda *arguments: Task(self, "work", arguments))


class AnythingGoes:
    """A Ray in this process: tasks of an actor run in their order, everything else in any; actors may die any time."""

    def __init__(self, seed=0, *, deaths=0.0, workers=3):
        self.chance, self.deaths, self.workers, self.actors = random.Random(seed), deaths, workers, []

    def remote(self, kind):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *a, **k: self.new(kind, a, k)))

    def new(self, kind, arguments, options):
        self.actors.append(Actor(kind(*arguments, **options)))
        return self.actors[-1]

    def wait(self, references, *, num_returns, timeout):
        assert references and num_returns == 1, "waiting for nothing would never end"
        firsts = {id(task.actor): task for task in reversed(references)}  # of each actor its oldest
        chosen = self.chance.choice(list(firsts.values()))
        chosen.actor.dead |= self.chance.random() < self.deaths
        for task in chosen.actor.tasks:
            if task.outcome is None:
                task.run()
                break
        done = [task for task in references if task.outcome is not None]
        return done[:1], []

    def get(self, task):
        found, error = task.outcome
        if error is not None:
            raise error
        return found

    def kill(self, actor):
        actor.dead = True

    def cluster_resources(self):
        return {"CPU": float(self.workers)}

    available_resources = cluster_resources

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here")


class Tenfold:
    def facts(self):
        return {"name": "tenfold"}

    def __call__(self, block, *, progress):
        say("said by every worker")
        progress.advance(block)
        if block < 0:
            raise ModelError(f"{block} is negative; give another")
        return 10 * block


@pytest.fixture
def pool(monkeypatch):
    def make(load=Tenfold, **settings):
        pretended = AnythingGoes(**settings)
        monkeypatch.setattr(ray_engine, "ray", pretended)
        return ray_engine.RayPool(load, EngineConfig(engine="ray"), weights={})

    return make


@pytest.mark.parametrize("deaths", [0.0, 0.1])
def test_results_come_in_order_whatever_happens(pool, monkeypatch, deaths):
    """200 histories each: workers finish in any order, and every tenth event is the death of one."""
    monkeypatch.setattr(ray_engine, "MAX_LOSSES", 1000)
    lost = 0
    for seed in range(200):
        made = pool(seed=seed, deaths=deaths, workers=1 + seed % 4)
        bar = Counter()
        assert list(made.run(range(23), progress=bar)) == [10 * block for block in range(23)]
        assert bar.done == sum(range(23))  # the work of lost workers is not counted
        lost += sum(actor.dead for actor in ray_engine.ray.actors)
        assert list(made.run([5], progress=bar)) == [50]  # a pool serves again
    assert (lost > 200) == (deaths > 0)


def test_blocks_are_not_begun_far_ahead_of_the_oldest(pool):
    """Back-pressure: while results are not taken, nothing new is begun, however long the input is."""
    for seed in range(50):
        taken, given = [], []

        def endless(taken=taken):
            while True:
                taken.append(len(taken))
                yield len(taken) - 1

        made = pool(seed=seed, workers=2)
        for result in made.run(endless(), progress=Counter()):
            given.append(result)
            assert len(taken) - len(given) <= ray_engine.AHEAD * 2
            in_hand = [len([task for task in actor.tasks if task.outcome is None]) for actor in ray_engine.ray.actors]
            assert len(in_hand) <= 2 and max(in_hand) <= ray_engine.IN_HAND
            if len(given) == 40:
                break
        assert given == [10 * block for block in range(40)]


def test_a_pool_is_no_bigger_than_its_work(pool):
    made = pool(workers=4)
    assert made.facts() == {"name": "tenfold"} and len(ray_engine.ray.actors) == 1
    assert list(made.run([1, 2], progress=Counter())) == [10, 20] and len(ray_engine.ray.actors) <= 2
    assert list(made.run([], progress=Counter())) == []
    made.close()
    assert all(actor.dead for actor in ray_engine.ray.actors)


def test_a_block_that_kills_its_workers_ends_the_run(pool):
    class Poison(Tenfold):
        def __call__(self, block, *, progress):
            if block == 3:
                raise ray.exceptions.ActorDiedError
            return 10 * block

    made = pool(Poison, workers=2)
    with pytest.raises(WorkerLost, match=r"block 3 took its worker down 4 times, .* make blocks smaller") as error:
        list(made.run(range(8), progress=Counter()))
    assert error.value.exit_code == 1 and "\n" not in str(error.value)


def test_workers_that_never_get_ready_end_the_run(pool):
    made = pool(deaths=1.0)
    with pytest.raises(WorkerLost, match="4 workers were lost while they loaded the model"):
        made.facts()


def test_errors_of_workers_arrive_as_themselves_and_messages_once(pool, capsys):
    made = pool(workers=3)
    with pytest.raises(ModelError) as error:
        list(made.run([1, 2, 3, -4], progress=Counter()))
    assert str(error.value) == "-4 is negative; give another"
    assert capsys.readouterr().err == "said by every worker\n"


def test_errors_from_another_machine_say_which(pool, monkeypatch):
    made = pool()
    monkeypatch.setattr(ray_engine.socket, "gethostname", lambda: "far-away")
    with pytest.raises(ModelError, match=r"-1 is negative; give another \(on far-away\)"):
        list(made.run([-1], progress=Counter()))


def test_other_weights_on_another_machine_are_noticed(pool, model_folder, monkeypatch):
    made = pool()
    with_weights = ray_engine.RayPool(Tenfold, EngineConfig(engine="ray"), weights={str(model_folder): "0" * 64})
    with pytest.raises(ModelError, match="holds other weights than where the run was started"):
        with_weights.facts()
    assert made.facts()


def test_room_for_workers(pool, monkeypatch):
    pool(workers=7)
    assert ray_engine._room(2, 0) == 3 and ray_engine._room(8, 0) == 1
    monkeypatch.setattr(ray_engine.ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 4.0})
    assert ray_engine._room(4, 0.5) == 8 and ray_engine._room(4, 1) == 4


def test_no_room_is_said_once(pool, capsys):
    made = pool()
    made.starting[object()] = ray_engine._Hand(None)
    ray_engine.ray.wait = lambda *_, **__: ([], [])
    assert made.wait(()) == made.wait(()) == []
    assert capsys.readouterr().err.count("waiting for a worker, which needs 1 CPUs; 3 of the cluster's 3 CPUs") == 1


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch, model_folder, tmp_path):
    (tmp_path / "a.txt").write_text("boats\n")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "energylm.jobs.ray_engine", raising=False)
    arguments = ["score", str(model_folder), str(tmp_path / "a.txt"), "--engine", "ray"]
    with pytest.raises(MissingExtra) as refused:
        run(arguments)
    assert refused.value.exit_code == 2
    assert str(refused.value) == "this needs ray, which is not installed: pip install 'energylm[ray]'"


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    def refused(*_, **__):
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refused)
    with pytest.raises(ConfigError) as error, ray_engine.connected(EngineConfig(engine="ray", address="head:1")):
        pass
    assert str(error.value).startswith("no Ray cluster at 'head:1' (nobody there); start one with `ray start --head`")


def on_ray(**settings) -> EngineConfig:
    return EngineConfig(engine="ray", **settings)


def all_rows(folder):
    opened = Negatives.open(folder)
    rows = opened.rows(np.arange(len(opened)))
    return rows.take(np.argsort(rows.window_B))


def kill_the_workers_of_a_machine(cluster) -> int:
    """Of the first machine that is seen at work: every process that holds a model, or is about to load one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for node in cluster.list_all_nodes():
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            holding = [child for child in raylet.children(recursive=True) if "ray::Actor" in " ".join(child.cmdline())]
            if any("ray::Actor.work" in " ".join(child.cmdline()) for child in holding):
                for child in holding:
                    os.kill(child.pid, signal.SIGKILL)
                return len(holding)
    return 0


@pytest.mark.slow
def test_negatives_are_the_local_engines_though_a_machine_loses_its_workers(
    ray_cluster, corpus_folder, model_folder, tmp_path, monkeypatch, capsys
):
    values = {"k": 24, "length": 40, "prefix_tokens": (16, 20), "contexts": 48, "block_contexts": 4, "seed": 5}
    config = MakeNegatives.checked({"corpus": str(corpus_folder), "language_model": str(model_folder), **values})
    config.run(Job(output=tmp_path / "local"))
    config.run(Job(output=tmp_path / "ray", engine=on_ray(workers=2)))

    killed, usual = [], writing_negatives.write_shard

    def killing(path, rows, **options):
        if not killed:
            killed.append(kill_the_workers_of_a_machine(ray_cluster))
        return usual(path, rows, **options)

    monkeypatch.setattr(writing_negatives, "write_shard", killing)
    config.run(Job(output=tmp_path / "killed", engine=on_ray(workers=3)))
    assert killed[0] > 0 and "its blocks are done again" in capsys.readouterr().err
    expected = all_rows(tmp_path / "local")
    for name in ("ray", "killed"):
        found = all_rows(tmp_path / name)
        assert all(np.array_equal(getattr(found, key), value) for key, value in vars(expected).items())
        for file in sorted((tmp_path / "local").glob("[a-z]*")):  # and the files are the same to the byte
            assert (tmp_path / name / file.name).read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_scores_lists_verdicts_and_perplexities_are_the_local_engines(
    ray_cluster, model_folder, energy_folder, corpus_folder, electric_folder, detector_folder, texts_folder, tmp_path
):
    (tmp_path / "texts.txt").write_text("".join(f"The clerk counts {number} boats.\n" for number in range(300)))
    lists = {
        f"u{number}": {
            "ref": f"{number} boats",
            "hyp_1": {"score": -1, "text": f"{number} goats"},
            "hyp_2": {"score": -2, "text": f"{number} boats"},
        }
        for number in range(70)
    }
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    scored = Score(model=str(electric_folder), source=str(tmp_path / "texts.txt"))
    reranked = Rerank.checked(
        {"scorers": str(model_folder), "sets": [{"lists": str(tmp_path / "lists.json")}], "weight": [0.5]}
    )
    measured = Perplexity.checked(
        {
            "language_model": str(model_folder),
            "energy": str(energy_folder),
            "source": str(corpus_folder),
            **{"length": 16, "prefix_tokens": 12, "contexts": 5, "n": 20, "position_samples": 10, "block_contexts": 2},
            "by_position": True,
        }
    )

    def everything(engine):
        listed = reranked.run(Job(engine=engine))
        return [
            scored.run(Job(engine=engine, output=tmp_path / "kept" if engine.engine == "ray" else None)).scores,
            (listed.chosen, listed.convention, [outcome.to_json() for outcome in listed.outcomes]),
            RunDetector(detector=str(detector_folder), files=str(texts_folder)).run(Job(engine=engine)).to_json(),
            measured.run(Job(engine=engine)).to_json(),
        ]

    here, there = everything(EngineConfig()), everything(on_ray(workers=1))
    assert here == there
    assert (
        scored.run(Job(output=tmp_path / "kept")).scores == here[0]
    )  # what the cluster kept, this process finds again
    assert len(list((tmp_path / "kept").rglob("block-*.json"))) == 2
