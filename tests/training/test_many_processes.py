"""One, two and four processes (torchrun, gloo) on the same global batch, with DDP and with FSDP: the same training.

Every number of processes is started once and does all its runs in that start (`many.py`).
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from energylm.config.training import TrainingConfig
from energylm.errors import ConfigError
from energylm.training import processes
from energylm.training.journal import read_journal
from energylm.training.sharding import Sharding, blocks

SHARDINGS = ("none", "fsdp")


@pytest.fixture(scope="module")
def many(beside):
    return beside("many")


@pytest.fixture(scope="module")
def runs(many, run_program, tmp_path_factory):
    """The folder that holds the runs of 1, 2 and 4 processes; runs stopped by two are continued by one and by four."""
    root = tmp_path_factory.mktemp("many")
    for count, stopped in ((2, ()), (4, (root / "2",))):
        code, stderr = run_program("many.py", root / str(count), *stopped, processes=count)
        assert code == 0 and "Warning" not in stderr, stderr[-3000:]
    many.main(root / "1", root / "2")
    return root


def losses(folder, key="loss"):
    return [record[key] for record in read_journal(folder / "journal.jsonl") if key in record]


def weights(folder):
    return load_file(folder / "model" / "final.safetensors")


def state(folder):
    return json.loads((max((folder / "checkpoints").glob("step-*")) / "state.json").read_text())


def facts(folder):
    return json.loads((folder / "facts.json").read_text())


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("count", [2, 4])
def test_any_number_of_processes_trains_alike(runs, many, count, sharding):
    """7 rows in micro-batches of at most 3: 3 + 4 rows, or 1 + 2 + 2 + 2. Losses to 1e-5 over 50 steps in float32,
    weights to 1e-10 in float64."""
    run = runs / str(count) / f"{sharding}-float64"
    assert facts(runs / str(count))["world"] == count == state(run)["processes"]
    for key, number in (("loss", many.STEPS), ("validation_loss", 2)):
        one, several = (
            losses(folder, key) for folder in (runs / "1" / "none-float32", run.with_name(f"{sharding}-float32"))
        )
        assert len(one) == number
        assert_close(several, one, atol=1e-5, rtol=0)
    learnt = losses(runs / "1" / "none-float32")
    assert learnt[-1] < learnt[0] - 0.5
    assert_close(weights(run), weights(runs / "1" / "none-float64"), atol=1e-10, rtol=0)
    assert state(run)["tokens"] == state(runs / "1" / "none-float64")["tokens"]


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("count", [1, 4])
def test_what_two_processes_began_any_number_ends(runs, many, count, sharding):
    """Stopped after step 20 and continued by 4, or by 1 without shards, it ends with the weights of one left alone."""
    stopped = runs / "2" / f"{sharding}-stopped"
    assert state(stopped)["step"] == many.STOP_AFTER and not (stopped / "training.json").exists()
    continued = runs / str(count) / f"{sharding}-continued"
    assert state(continued)["processes"] == count
    alone = runs / "1" / "none-float64"
    assert_close(losses(continued), losses(alone), atol=1e-10, rtol=0)
    assert_close(weights(continued), weights(alone), atol=1e-10, rtol=0)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_as_many_processes_as_before_continue_bit_for_bit(runs, sharding):
    again, alone = (weights(runs / "2" / f"{sharding}-{name}") for name in ("continued", "float64"))
    assert again.keys() == alone.keys() and all(torch.equal(again[name], alone[name]) for name in alone)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_dividing_by_a_process_s_own_count_is_caught(runs, many, tmp_path, sharding):
    """The mistake of averaging means of 3 and of 4 rows: after 10 steps weights are off by far more than 1e-10."""
    many.run(tmp_path, sharding="none", steps=10)
    right, wrong = weights(tmp_path), weights(runs / "2" / f"{sharding}-mistaken")
    assert max(float((right[name] - wrong[name]).abs().max()) for name in right) > 1e-4


def test_sharded_parameters_are_dtensors_and_validation_sees_plain_ones(runs):
    """GPT-2's embedding is tied to its output. Each of two processes holds half of the numbers between updates; in the
    loss the blocks' are still apart (they are gathered as they run), everything else is whole."""
    seen = facts(runs / "2")["seen"]
    assert all(seen["none"][when]["sharded"] == 0 for when in ("between", "loss", "validation"))
    between, loss, validation = (seen["fsdp"][when] for when in ("between", "loss", "validation"))
    assert between["sharded"] == between["parameters"] and between["own_part"] == pytest.approx(0.5, abs=0.02)
    assert loss["sharded"] == 24 and validation["sharded"] == 0  # 2 blocks of 12 parameters
    assert validation["own_part"] == 1 and all(look["tied"] for look in (between, loss, validation))


def test_checkpoints_do_not_know_of_shards(runs):
    """The same names and shapes as those of one process, and nothing but safetensors and JSON."""
    folders = [runs / count / name / "checkpoints" for count, name in (("1", "none-float64"), ("4", "fsdp-float64"))]
    for file in ("model.safetensors", "optimizer.safetensors"):
        one, four = (load_file(folder / "step-00000050" / file) for folder in folders)
        assert {name: tensor.shape for name, tensor in one.items()} == {n: tensor.shape for n, tensor in four.items()}
        assert_close(four, one, atol=1e-8, rtol=0)
    suffixes = {path.suffix for path in folders[1].rglob("*") if path.is_file()}
    assert suffixes == {".safetensors", ".json"}


def test_mixed_precision_goes_with_sharding(runs, many, tmp_path):
    """Autocast is at work and the same with both: bf16 losses differ from float32's, but little from each other."""
    plain, sharded = (losses(runs / "2" / f"{sharding}-bf16") for sharding in SHARDINGS)
    many.run(tmp_path, sharding="none", dtype=torch.float32, steps=5)
    exact = losses(tmp_path)
    assert plain != exact
    assert_close(plain, exact, atol=0.02, rtol=0)
    assert_close(sharded, plain, atol=0.02, rtol=0)
    kept = load_file(runs / "2" / "fsdp-bf16" / "model" / "final.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}


def test_a_parameter_without_a_use_is_named(runs):
    """DDP would leave gradients unsummed and complain a step later, in many lines; shards do without it."""
    told = facts(runs / "2")["idle"]
    assert "transformer.idle.weight" in told["none"] and "\n" not in told["none"]
    assert told["fsdp"] is None


def test_every_family_trains_on_two_processes(runs, many, beside):
    """Parameters used outside `forward`, tied tables, two networks, a frozen one, LSTMs: as one process trains them."""
    told = facts(runs / "2")["families"]
    for name in beside("families").FAMILIES:
        many.run_family(name, runs / "1" / "families" / name, sharding="none")
        paths = [runs / "1" / "families" / name, *(runs / "2" / "families" / s / name for s in SHARDINGS)]
        one, *several = (load_file(path / "checkpoints/step-00000003/model.safetensors") for path in paths)
        for weights_of_two in several:
            assert_close(weights_of_two, one, atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
        assert told[name] == {"none": True, "fsdp": True}, "the trained model is plain again"


def test_blocks_are_what_transformers_repeat(toy, beside):
    assert [type(block).__name__ for block in blocks(toy.network())] == ["GPT2Block"] * 2
    assert {type(block).__name__ for block in blocks(beside("families").make("masked").model)} == {
        "ModernBertEncoderLayer"
    }
    assert blocks(nn.Sequential(nn.Linear(2, 2))) == []


def test_sharded_processes_have_equally_many_micro_batches():
    for world, batch, size in ((2, 7, 3), (4, 7, 3), (3, 8, 2), (2, 8, None), (5, 13, 2)):
        cuts = []
        for rank in range(world):
            member = object.__new__(processes.Processes)
            member.rank, member.world = rank, world
            cuts.append(member.micro_batches(batch, size, equally_many=True))
        assert len({len(cut) for cut in cuts}) == 1
        assert [row for cut in cuts for piece in cut for row in piece] == list(range(batch))
        assert all(1 <= len(piece) <= (size or batch) for cut in cuts for piece in cut)
    member.rank, member.world = 0, 2
    with pytest.raises(ConfigError, match="multiple of the number of processes"):
        member.micro_batches(7, 1, equally_many=True)
    assert len(member.micro_batches(7, 1, equally_many=False)) == 3


def test_settings_of_sharding():
    assert "sharding" not in TrainingConfig().model_dump()  # older hashes stay what they are
    assert TrainingConfig(sharding="fsdp").model_dump()["sharding"] == "fsdp"
    with pytest.raises(ConfigError, match="bf16 or fp32"):
        TrainingConfig.checked({"sharding": "fsdp", "precision": "fp16"})


def test_weights_of_two_precisions_are_refused_in_one_line():
    """Before any process meets another, so that all of them say it."""
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="float32 and float64, and sharding fsdp takes one"):
        Sharding(mixed, device=torch.device("cpu"), world=2)


def test_one_process_has_nothing_to_share_out(many, tmp_path, capsys):
    many.run(tmp_path, sharding="fsdp", steps=2)
    assert "one process" in capsys.readouterr().err
    assert state(tmp_path)["processes"] == 1
