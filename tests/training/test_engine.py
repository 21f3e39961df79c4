"""The engine's arithmetic: what a batch is divided by, several loss terms, divergence, stopping, precision."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from energylm.config.training import TrainingConfig
from energylm.errors import CheckpointError, ConfigError, NonFiniteLoss
from energylm.training import processes
from energylm.training.engine import train
from energylm.training.journal import read_journal
from energylm.training.task import Sums

ROWS, WIDTH, CLASSES, LENGTH = 8, 4, 5, 6


class RaggedTask:
    """Classify the positions of rows of unequal length, in float64: the simplest task whose counts differ by row."""

    loss_weights = {"loss": 1.0}  # noqa: RUF012
    fingerprint = {"name": "ragged"}  # noqa: RUF012

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.model = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def whole(self, step):
        generator = torch.Generator().manual_seed(step)
        return {
            "x_BTD": torch.randn(ROWS, LENGTH, WIDTH, generator=generator, dtype=torch.float64),
            "target_BT": torch.randint(CLASSES, (ROWS, LENGTH), generator=generator),
            "mask_BT": torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (ROWS, 1), generator=generator),
        }

    def batch(self, step, rows):
        return {name: tensor[rows.start : rows.stop] for name, tensor in self.whole(step).items()}

    def counts(self, batch):
        return {"loss": int(batch["mask_BT"].sum())}

    def tokens(self, batch):
        return int(batch["mask_BT"].sum())

    def nats(self, model, batch):
        return nn.functional.cross_entropy(model(batch["x_BTD"]).mT, batch["target_BT"], reduction="none")

    def loss(self, model, batch):
        return Sums({"loss": (self.nats(model, batch) * batch["mask_BT"]).sum()})

    def validate(self, model, share):
        batch = self.whole(1000)
        return {"loss": (float(self.loss(model, batch).losses["loss"]), self.counts(batch)["loss"])}

    def save(self, model, folder):
        pass


class MeanOfMeansTask(RaggedTask):
    """The mistake: each micro-batch divides by its own count."""

    def counts(self, batch):
        return {"loss": len(batch["x_BTD"]) / ROWS}

    def loss(self, model, batch):
        mean = super().loss(model, batch).losses["loss"] / batch["mask_BT"].sum()
        return Sums({"loss": mean * len(batch["x_BTD"]) / ROWS})


def run(task, folder, **values):
    config = TrainingConfig.checked(
        {"steps": 6, "global_batch": ROWS, "threads": 1, "log_every_steps": 1, "clip_norm": 0.5, **values}
    )
    result = train(task, config, folder=folder)
    return dict(task.model.state_dict()), result


def test_accumulation_equals_one_big_batch(tmp_path):
    """Pieces of 3, 3 and 2 rows with unequal counts, and rows one by one, give the weights of the whole batch."""
    whole, _ = run(RaggedTask(), tmp_path / "whole")
    for size in (3, 1):
        cut, _ = run(RaggedTask(), tmp_path / f"cut{size}", micro_batch=size)
        assert_close(cut, whole, atol=1e-12, rtol=0)


def test_mean_of_means_is_caught(tmp_path):
    whole, _ = run(MeanOfMeansTask(), tmp_path / "whole")
    cut, _ = run(MeanOfMeansTask(), tmp_path / "cut", micro_batch=3)
    with pytest.raises(AssertionError):
        assert_close(cut, whole, atol=1e-5, rtol=0)


def test_the_engine_equals_a_bare_loop(tmp_path):
    """The second route: mean over all positions of the batch, torch's own clipping, AdamW and a hand-made rate."""
    engine_task, bare_task = RaggedTask(), RaggedTask()
    engine_weights, _ = run(engine_task, tmp_path, micro_batch=3, schedule={"kind": "linear", "warmup_steps": 2})
    model = bare_task.model
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias]}], lr=1e-3, eps=1e-6, weight_decay=0.0
    )
    losses = []
    for step, factor in enumerate([1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4], start=1):
        batch = bare_task.whole(step)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * factor
        loss = bare_task.nats(model, batch)[batch["mask_BT"]].mean()
        losses.append(float(loss.detach()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert_close(engine_weights, dict(model.state_dict()), atol=1e-12, rtol=0)
    journal = [record for record in read_journal(tmp_path / "journal.jsonl") if "loss" in record]
    assert_close([record["loss"] for record in journal], losses, atol=1e-12, rtol=0)


class TwoTermsTask(RaggedTask):
    """Two modules trained at once by two terms with different counts, and a metric: the shape of Electric."""

    loss_weights = {"first": 1.0, "second": 50.0}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"generator": self.model, "discriminator": copy.deepcopy(self.model)})

    def counts(self, batch):
        return {"first": int(batch["mask_BT"].sum()), "second": batch["mask_BT"].numel()}

    def loss(self, model, batch):
        first = (self.nats(model["generator"], batch) * batch["mask_BT"]).sum()
        right = model["generator"](batch["x_BTD"]).argmax(-1) == batch["target_BT"]
        return Sums(
            {"first": first, "second": self.nats(model["discriminator"], batch).sum()},
            {"accuracy": (right.sum(), torch.tensor(right.numel()))},
        )

    def validate(self, model, share):
        return {}


def test_several_terms_are_divided_by_their_own_counts_and_journalled(tmp_path):
    """Cut or not, the same weights; each term is told beside the weighted total, metrics as sum over count."""
    options = {"validation": {"every_steps": None}, "clip_norm": None}
    whole, _ = run(TwoTermsTask(), tmp_path / "whole", **options)
    cut, _ = run(TwoTermsTask(), tmp_path / "cut", micro_batch=3, **options)
    assert_close(cut, whole, atol=1e-12, rtol=0)
    first = read_journal(tmp_path / "cut" / "journal.jsonl")[0]
    task = TwoTermsTask()
    batch = task.whole(1)
    nats = task.nats(task.model["generator"], batch).detach()
    assert_close(first["first"], float(nats[batch["mask_BT"]].mean()), atol=1e-12, rtol=0)
    assert_close(first["second"], float(nats.mean()), atol=1e-12, rtol=0)
    assert_close(first["loss"], first["first"] + 50 * first["second"], atol=1e-12, rtol=0)
    right = task.model["generator"](batch["x_BTD"]).argmax(-1) == batch["target_BT"]
    assert_close(first["accuracy"], float(right.double().mean()), atol=1e-6, rtol=0)


def test_a_report_is_a_mean_over_positions_of_all_its_steps(tmp_path):
    run(RaggedTask(), tmp_path / "each")
    run(RaggedTask(), tmp_path / "third", log_every_steps=3)
    each = [record["loss"] for record in read_journal(tmp_path / "each" / "journal.jsonl") if "loss" in record]
    third = [record["loss"] for record in read_journal(tmp_path / "third" / "journal.jsonl") if "loss" in record]
    counts = [int(RaggedTask().whole(step)["mask_BT"].sum()) for step in range(1, 7)]
    weighted = sum(loss * count for loss, count in zip(each[:3], counts[:3], strict=True)) / sum(counts[:3])
    assert_close(third[0], weighted, atol=1e-12, rtol=0)
    assert abs(third[0] - sum(each[:3]) / 3) > 1e-6  # the plain mean of means is another number


class DivergingTask(RaggedTask):
    def __init__(self, what):
        super().__init__()
        self.what, self.step = what, 0

    def batch(self, step, rows):
        self.step = step
        return super().batch(step, rows)

    def loss(self, model, batch):
        loss = super().loss(model, batch).losses["loss"]
        if self.step == 5:
            # The square root has an infinite slope at zero: a finite loss whose gradient is not.
            loss = loss * math.nan if self.what == "loss" else loss + (model.bias * 0).sum().sqrt()
        return Sums({"loss": loss})


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
@pytest.mark.parametrize("log_every_steps", [1, 4])
def test_divergence_names_step_and_last_good_checkpoint(tmp_path, what, log_every_steps):
    """The first bad step is named even when the report comes later, and no damaged weights are written."""
    with pytest.raises(NonFiniteLoss) as error:
        run(DivergingTask(what), tmp_path, steps=12, checkpoint={"every_steps": 4}, log_every_steps=log_every_steps)
    message = str(error.value)
    assert f"the {what} is" in message and "at step 5;" in message and "step-00000004" in message
    assert "\n" not in message and error.value.exit_code == 1
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000004"]


def test_divergence_before_any_checkpoint(tmp_path):
    with pytest.raises(NonFiniteLoss, match="no checkpoint had been written yet"):
        run(DivergingTask("loss"), tmp_path)


class ScriptedValidation(RaggedTask):
    """Validation numbers come from a list; the weights at each validation are remembered."""

    def __init__(self, values):
        super().__init__()
        self.values, self.weights, self.saved = list(values), [], None

    def validate(self, model, share):
        self.weights.append(model.weight.detach().clone())
        return {
            "loss": (self.values[len(self.weights) - 1] * 10, 10),
            "accuracy": (self.values[len(self.weights) - 1], 1),
        }

    def save(self, model, folder):
        self.saved = model.weight.detach().clone()


@pytest.mark.parametrize(
    ("patience", "stops_at"),
    [({"patience_evaluations": 2}, 8), ({"patience_samples": 5 * ROWS}, 10), ({}, 14)],
)
def test_early_stopping_stops_on_time_and_restores_the_best(tmp_path, patience, stops_at):
    """Validations every 2 steps: 3, 1, 2, 1, 2, … The best is step 4 (a tie at step 8 is no improvement).

    Two validations without improvement: steps 6 and 8, so it stops at 8. Five batches without improvement: at step 8
    four have passed, at step 10 six, so it stops at 10. Without patience it goes on to the end.
    """
    task = ScriptedValidation([3, 1, 2, 1, 2, 2, 2])
    _, result = run(task, tmp_path, steps=14, validation={"every_steps": 2, **patience})
    assert (result.steps, result.best_step, result.stopped_early) == (stops_at, 4, stops_at < 14)
    assert result.best_validation["loss"] == 1 and result.validation["loss"] == (1 if stops_at == 8 else 2)
    assert torch.equal(task.saved, task.weights[1]) and torch.equal(task.model.weight, task.weights[1])
    assert not torch.equal(task.saved, task.weights[-1])


def test_larger_may_be_better(tmp_path):
    task = ScriptedValidation([1, 3, 2])
    _, result = run(task, tmp_path, validation={"every_steps": 2, "metric": "accuracy", "larger_is_better": True})
    assert result.best_step == 4 and torch.equal(task.saved, task.weights[1])


def test_without_a_last_step_patience_ends_the_run(tmp_path):
    task = ScriptedValidation([1] * 50)
    schedule = {"kind": "inverse-sqrt", "warmup_steps": 3}
    _, result = run(
        task, tmp_path, steps=None, schedule=schedule, validation={"every_steps": 1, "patience_evaluations": 5}
    )
    assert (result.steps, result.best_step) == (6, 1)


def test_validation_that_diverges_or_lacks_the_metric(tmp_path):
    with pytest.raises(NonFiniteLoss, match="validation loss is nan at step 2"):
        run(ScriptedValidation([math.nan]), tmp_path / "nan", validation={"every_steps": 2})
    with pytest.raises(ConfigError, match="'f1', but this task measures: accuracy, loss"):
        run(ScriptedValidation([1]), tmp_path / "f1", validation={"every_steps": 2, "metric": "f1"})


def test_global_generators_are_left_alone(toy, tmp_path):
    """Dropout draws from torch's global generator, which is put back; what ran before does not matter."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    train(toy.task(), toy.config(steps=3), folder=tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    train(toy.task(), toy.config(steps=3), folder=tmp_path / "b")
    weights = [load_file(tmp_path / run / "model/final.safetensors") for run in "ab"]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_bf16_trains_float32_weights_near_the_float32_run(toy, tmp_path):
    """Autocast is at work (the losses differ) and harmless (they stay within bfloat16's three digits)."""
    options = {"steps": 8, "log_every_steps": 1, "optimizer": {"learning_rate": 1e-2}}
    losses = {}
    for precision in ("fp32", "bf16", "fp32"):
        folder = tmp_path / f"{precision}{len(losses)}"
        train(toy.task(toy.network(dropout=0.0)), toy.config(precision=precision, **options), folder=folder)
        losses[folder.name] = [r["loss"] for r in read_journal(folder / "journal.jsonl") if "loss" in r]
        assert {tensor.dtype for tensor in load_file(folder / "model/final.safetensors").values()} == {torch.float32}
    plain, mixed, plain_again = losses.values()
    assert plain == plain_again and plain != mixed
    assert_close(mixed, plain, atol=0.02, rtol=0)


def test_fp16_is_refused_where_the_device_has_none(tmp_path):
    with pytest.raises(ConfigError, match="cpu has no fp16 training; use precision bf16 or fp32"):
        run(RaggedTask(), tmp_path, precision="fp16")


class ScalingAccelerator(processes.Accelerator):
    """Accelerate makes a loss scaler only on accelerators; this one makes it on the CPU, to test the engine."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=4)

    def unscale_gradients(self, optimizer=None):
        for prepared in self._optimizers:
            self.scaler.unscale_(prepared.optimizer)


def test_a_loss_scaler_skips_updates_and_is_resumed(toy, tmp_path, monkeypatch):
    """Float32 overflows above 3.4e38: from a scale of 2^127 some updates are skipped, until halving has helped."""
    monkeypatch.setattr(processes, "Accelerator", ScalingAccelerator)
    monkeypatch.setattr(ScalingAccelerator, "init_scale", 2.0**127, raising=False)
    options = {"steps": 20, "log_every_steps": 1, "checkpoint": {"every_steps": 5}}
    train(toy.task(), toy.config(**options), folder=tmp_path / "alone")
    journal = [r for r in read_journal(tmp_path / "alone" / "journal.jsonl") if "loss" in r]
    assert 1 <= sum(record["skipped_updates"] for record in journal) < 15
    assert journal[-1]["loss"] < journal[0]["loss"] and journal[0]["loss_scale"] == 2.0**126

    class Interrupted(toy.LanguageModelTask):
        def batch(self, step, rows):
            if step == 13:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(toy.task(task_class=Interrupted), toy.config(**options), folder=tmp_path / "resumed")
    train(toy.task(), toy.config(**options), folder=tmp_path / "resumed")
    alone, resumed = (load_file(tmp_path / run / "model/final.safetensors") for run in ("alone", "resumed"))
    assert all(torch.equal(alone[name], resumed[name]) for name in alone)


def test_a_loss_scale_that_only_falls_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "Accelerator", ScalingAccelerator)
    monkeypatch.setattr(ScalingAccelerator, "init_scale", 2.0**-13, raising=False)

    class InfiniteGradient(DivergingTask):
        def loss(self, model, batch):
            self.step = 5
            return super().loss(model, batch)

    with pytest.raises(NonFiniteLoss, match="loss scale fell to"):
        run(InfiniteGradient("gradient norm"), tmp_path)


def test_tensorboard_files_are_written(tmp_path):
    run(RaggedTask(), tmp_path, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_a_world_that_is_not_as_launched_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2 but Accelerate runs 1"):
        run(RaggedTask(), tmp_path)


def test_rows_and_micro_batches_cover_the_batch_once():
    for world in (1, 2, 3, 5):
        seen = []
        for rank in range(world):
            member = object.__new__(processes.Processes)
            member.rank, member.world = rank, world
            pieces = processes.micro_batches(member.rows(13), 2)
            assert all(1 <= len(piece) <= 2 for piece in pieces)
            seen += [row for piece in pieces for row in piece]
        assert seen == list(range(13))
        member.world = 14
        with pytest.raises(ConfigError, match="smaller than the number of processes"):
            member.rows(13)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    class Other(RaggedTask):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(WIDTH, CLASSES, dtype=torch.float64))

    class Stops(RaggedTask):
        def batch(self, step, rows):
            if step == 3:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        run(Stops(), tmp_path, checkpoint={"every_steps": 2})
    with pytest.raises(CheckpointError, match=r"written by another network: tensor '0\.bias'"):
        run(Other(), tmp_path, checkpoint={"every_steps": 2})


@pytest.mark.parametrize("from_start", [True, False])
def test_the_start_is_a_candidate_where_it_is_asked_for(from_start, tmp_path):
    """Weights that training spoils: validated before the first step they stay the best, else the first step's are."""
    task = RaggedTask()
    batch, optimum = task.whole(1000), torch.optim.LBFGS(task.model.parameters(), max_iter=200)

    def closure():
        optimum.zero_grad()
        loss = task.nats(task.model, batch)[batch["mask_BT"]].mean()
        loss.backward()
        return loss

    optimum.step(closure)  # the best there is on the validation data
    start = copy.deepcopy(dict(task.model.state_dict()))
    validation = {"every_steps": 1, "from_start": from_start}
    weights, result = run(task, tmp_path, validation=validation, optimizer={"learning_rate": 0.3})
    assert (result.best_step == 0) == from_start
    same = all(torch.equal(weights[name], start[name]) for name in start)
    assert same == from_start
    lines = [line for line in read_journal(tmp_path / "journal.jsonl") if "validation_loss" in line]
    assert [line["step"] for line in lines] == list(range(0 if from_start else 1, 7))
    assert "from_start" not in TrainingConfig.checked({"steps": 1}).model_dump()["validation"]  # finished runs stay so
