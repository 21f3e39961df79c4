"""The one training engine: any task, any number of processes, killed and resumed at will.

    step 1, 2, …:   task.batch(step, my rows)  →  sums  →  gradient of Σ weight·sum/global count  →  clip  →  AdamW

What holds, and is tested: the data order and the size of a batch depend neither on the number of processes nor on the
micro-batch; a run killed at any moment and started again ends with the very bits of one left alone; nothing is pickled;
a loss that is not finite stops the run and names the last good checkpoint.

Relations  `task` says what a family provides, `language_model_task` is the first; `verbs/` wire them for users.
"""

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energylm.config.training import FSDP, TrainingConfig
from energylm.errors import ConfigError, NonFiniteLoss
from energylm.files import read_json, sha256_of_json, write_json
from energylm.progress import Progress, progress, say
from energylm.randomness import seeded
from energylm.training import checkpoint as disk
from energylm.training.journal import Journal, Meter
from energylm.training.optimizer import build_optimizer, learning_rate_factor, set_learning_rate
from energylm.training.processes import LossModule, Processes, cpu_threads, sound_bfloat16
from energylm.training.sharding import Sharding, gathered
from energylm.training.state import MODEL_FOLDER, RunState, TrainingResult
from energylm.training.task import Task

RESULT_FILE = "training.json"
SMALLEST_LOSS_SCALE = 1e-4  # a scaler that has halved this far down will not recover
# Settings that a run may change when it continues: they do not touch the weights.
_FREE_SETTINGS = {"preset", "checkpoint", "log_every_steps", "tensorboard", "threads", "sharding"}


def train(task: Task, config: TrainingConfig, *, folder: Path | str) -> TrainingResult:
    """Train `task` in the run folder `folder`, or resume it there; the task's model ends with its best weights.

    The folder receives `model/` (through the task), `journal.jsonl`, `checkpoints/` and, at the end, `training.json`.
    A run that is already finished is not repeated (and the task's model is left as it came).
    """
    folder = Path(folder)
    processes = Processes(precision=config.precision)
    identity = run_identity(task, config)
    with processes.lock(folder):
        if (folder / RESULT_FILE).exists():
            finished = read_json(folder / RESULT_FILE)
            disk.refuse_another_run(finished["identity"], identity, folder=folder)
            known = {"folder": folder, "parameters": _count_parameters(task), "was_finished": True}
            result = TrainingResult(**finished["result"] | known)
            if processes.is_main:
                say(f"{folder} holds this run, finished at step {result.steps:,}: nothing to do")
            return result
        newest = disk.newest_checkpoint(folder)
        resumed = disk.read_checkpoint(newest) if newest is not None else None
        if resumed is not None:
            disk.refuse_another_run(resumed.state["identity"], identity, folder=folder)
        threads = resumed.state["threads"] if resumed is not None else config.threads or torch.get_num_threads()
        processes.wait()  # rank 0 must not start to write or delete while others still read
        with cpu_threads(threads), sound_bfloat16(needed=config.precision == "bf16" and processes.device.type == "cpu"):
            return _Run(task, config, folder, processes, identity, resumed).to_the_end()


def is_begun(folder: Path) -> bool:
    """Whether `train` would find a finished run or a checkpoint in the run folder `folder`."""
    return (folder / RESULT_FILE).exists() or disk.newest_checkpoint(folder) is not None


def state_of_run(folder: Path) -> str:
    """What `train` would find in the run folder `folder`, in words."""
    if (folder / RESULT_FILE).exists():
        return "is finished: would do nothing, if the settings are the same"
    newest = disk.newest_checkpoint(folder)
    return "would train" if newest is None else f"would continue from {newest.name}"


class _Run:
    """One session of a run: from the start or a checkpoint to the end."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        folder: Path,
        processes: Processes,
        identity: dict[str, Any],
        resumed: disk.Checkpoint | None,
    ) -> None:
        self.task, self.config, self.folder, self.processes, self.identity = task, config, folder, processes, identity
        self.accelerator = processes.accelerator
        self.state = RunState() if resumed is None else RunState.from_json(resumed.state)
        is_sharded = config.sharding == FSDP and processes.world > 1
        if config.sharding == FSDP and not is_sharded:
            say("sharding fsdp: one process has nobody to share with; it trains as without")
        self.rows = processes.micro_batches(config.global_batch, config.micro_batch, equally_many=is_sharded)
        self.meter = Meter(task.loss_weights, processes)
        if resumed is not None:
            disk.load_model(task.model, resumed)
        # Accelerate would wrap it for DDP unless it believes that the model is there for evaluation only.
        self.module = self.accelerator.prepare_model(LossModule(task), evaluation_mode=is_sharded)
        self.sharding = Sharding(self.module, device=processes.device, world=processes.world) if is_sharded else None
        self.optimizer = self.accelerator.prepare_optimizer(build_optimizer(task.model, config.optimizer))
        self.trained = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
        if resumed is not None:
            disk.load_optimizer(task.model, self.optimizer, resumed)
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(resumed.state["scaler"])
            self._announce(resumed)
        self.session_started = time.perf_counter()
        self.seconds_before = self.state.seconds

    def to_the_end(self) -> TrainingResult:
        state, config = self.state, self.config
        left = None if config.steps is None else config.steps - state.step
        with self._journal() as journal, progress("training", total=left, unit="step") as bar:
            if config.validation.from_start and config.validation.every_steps is not None and state.step == 0:
                self._write_validation(journal)
            self.module.train()
            self.window_started = time.perf_counter()
            while state.step != config.steps and not state.early_stopping.exhausted:
                state.step += 1
                self._update(state.step)
                self._after_update(journal, bar)
        return self._finish()

    def _journal(self) -> AbstractContextManager[Journal | None]:
        if not self.processes.is_main:
            return nullcontext()
        disk.remove_leftovers(self.folder)
        return Journal(self.folder, after_step=self.state.step, tensorboard=self.config.tensorboard)

    def _update(self, step: int) -> None:
        """One step of the optimiser on the global batch number `step`."""
        task, processes = self.task, self.processes
        set_learning_rate(self.optimizer, self._learning_rate(step))
        batches = [task.batch(step, rows) for rows in self.rows]
        names = list(task.loss_weights)
        own_counts = [task.counts(batch) for batch in batches]
        counts_K = torch.tensor([sum(float(c[name]) for c in own_counts) for name in names], device=processes.device)
        counts_K = processes.sum(counts_K).clamp(min=1)  # a term without any position adds 0, not 0/0
        sums: list[Tensor] = []
        with seeded(self.config.seed, "dropout", step, processes.rank, device=processes.device):
            for number, batch in enumerate(batches, start=1):
                batch = {name: tensor.to(processes.device, non_blocking=True) for name, tensor in batch.items()}
                with processes.synchronised(self.module, is_last=number == len(batches)):
                    output = self.module(batch)
                    sums_K = [output["losses"][name] for name in names]
                    loss = sum(task.loss_weights[n] * s / c for n, s, c in zip(names, sums_K, counts_K, strict=True))
                    # DDP and FSDP average gradients over processes; the sum is wanted, since the counts are global.
                    self.accelerator.backward(loss * processes.world)
                sums.append(torch.stack(sums_K).detach())
                self.meter.add_metrics(output["metrics"])
        if not self.sharding:
            processes.refuse_idle_parameters(task.model)
        norm = gathered(self.accelerator.clip_grad_norm_(self.trained, self.config.clip_norm or math.inf))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(task.tokens(batch) for batch in batches)
        self.meter.add_step(step, sums_K=torch.stack(sums).sum(0), counts_K=counts_K, gradient_norm=norm, tokens=tokens)

    def _after_update(self, journal: Journal | None, bar: Progress) -> None:
        """Report, validate and write a checkpoint where the step asks for it."""
        step, config = self.state.step, self.config
        is_last = step == config.steps
        validates = config.validation.every_steps is not None and (is_last or step % config.validation.every_steps == 0)
        writes = is_last or step % config.checkpoint.every_steps == 0
        note = None
        # Reports also come before each checkpoint, so that a resumed journal has the lines of one left alone.
        if validates or writes or step % config.log_every_steps == 0:
            values = self._report()
            note = f"loss {values['loss']:.4f}, {values['tokens_per_second']:,.0f} tokens/s"
            if journal is not None:
                journal.write(step, values)
        if self.processes.is_main:
            bar.advance(1, note)
        if validates:
            self._write_validation(journal)
        if writes or self.state.early_stopping.exhausted:
            self._write_checkpoint()
        if validates or writes:
            self.window_started = time.perf_counter()  # the next report's speed is that of updates alone

    def _write_validation(self, journal: Journal | None) -> None:
        with self.sharding.taken_off() if self.sharding else nullcontext():
            values = self._validate()
        if journal is not None:
            journal.write(self.state.step, {f"validation_{name}": value for name, value in values.items()})

    def _report(self) -> dict[str, float]:
        scaler, step = self.accelerator.scaler, self.state.step
        report = self.meter.collect(has_scaler=scaler is not None)
        if report.non_finite is not None:
            bad_step, what, value = report.non_finite
            self._stop_diverged(f"the {what} is {value} at step {bad_step}")
        values = {**report.values, "learning_rate": self._learning_rate(step)}
        if scaler is not None:
            if scaler.get_scale() < SMALLEST_LOSS_SCALE:
                self._stop_diverged(f"the fp16 loss scale fell to {scaler.get_scale():.1e} at step {step}")
            values |= {"loss_scale": scaler.get_scale(), "skipped_updates": report.skipped}
        now = time.perf_counter()
        seconds = max(now - self.window_started, 1e-9)
        self.window_started = now
        self.state.tokens += report.tokens
        self.state.update_seconds += seconds
        return {**values, "tokens_per_second": report.tokens / seconds}

    def _stop_diverged(self, what: str) -> None:
        newest = disk.newest_checkpoint(self.folder)
        last_good = f"the last good checkpoint is {newest}" if newest else "no checkpoint had been written yet"
        raise NonFiniteLoss(
            f"{what}; {last_good}; lower optimizer.learning_rate or clip_norm and train into a new folder"
        )

    def _validate(self) -> dict[str, float]:
        """Means over the validation data of all processes; keeps the weights if they are the best so far."""
        state, config, processes = self.state, self.config.validation, self.processes
        self.module.eval()
        with (
            torch.no_grad(),
            self.accelerator.autocast(),
            seeded(self.config.seed, "validation", state.step, processes.rank, device=processes.device),
        ):
            sums = self.task.validate(self.task.model, processes.share)
        self.module.train()
        names = processes.all_names(sums)  # of a small set, a process may have no share
        pairs = torch.tensor([sums.get(name, (0.0, 0.0)) for name in names], dtype=torch.float64)
        totals = processes.sum(pairs).tolist()
        state.validation = {name: total / max(count, 1) for name, (total, count) in zip(names, totals, strict=True)}
        if config.metric not in state.validation:
            known = ", ".join(names) or "none; set validation.every_steps to null"
            raise ConfigError(f"validation.metric is {config.metric!r}, but this task measures: {known}")
        value = state.validation[config.metric]
        if not math.isfinite(value):
            self._stop_diverged(f"the validation {config.metric} is {value} at step {state.step}")
        if state.early_stopping.update(value, step=state.step, global_batch=self.config.global_batch, config=config):
            state.best_validation = state.validation
            if processes.is_main:
                path = disk.checkpoint_path(self.folder, disk.BEST, state.step)
                disk.write_checkpoint(path, model=self.task.model, state={"step": state.step, **state.validation})
        return state.validation

    def _write_checkpoint(self) -> None:
        state, processes = self.state, self.processes
        state.seconds = self.seconds_before + time.perf_counter() - self.session_started
        if processes.is_main:
            scaler = self.accelerator.scaler
            disk.write_checkpoint(
                disk.checkpoint_path(self.folder, disk.STEP, state.step),
                model=self.task.model,
                optimizer=self.optimizer,
                state={
                    **state.to_json(),
                    "identity": self.identity,
                    "identity_sha256": sha256_of_json(self.identity),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                    **self._circumstances(),
                },
            )
            best_step = state.early_stopping.best_step
            disk.prune_checkpoints(self.folder, keep=self.config.checkpoint.keep, best_step=best_step)
        elif self.sharding:
            disk.take_part(self.task.model, self.optimizer)
        processes.wait()

    def _finish(self) -> TrainingResult:
        """Put the best weights in place, save them through the task, and mark the run finished."""
        state, processes = self.state, self.processes
        stopping = state.early_stopping
        best_step = state.step if stopping.best_value is None else stopping.best_step
        if self.sharding:
            self.sharding.take_off()
        if best_step != state.step:
            path = disk.checkpoint_path(self.folder, disk.BEST, best_step)
            disk.load_model(self.task.model, disk.read_checkpoint(path))
        self.module.eval()
        result = TrainingResult(
            folder=self.folder,
            parameters=_count_parameters(self.task),
            steps=state.step,
            best_step=best_step,
            validation=state.validation,
            best_validation=state.best_validation,
            tokens=state.tokens,
            seconds=state.seconds,
            tokens_per_second=state.tokens / max(state.update_seconds, 1e-9),
            stopped_early=state.early_stopping.exhausted,
        )
        if processes.is_main:
            self.task.save(self.task.model, self.folder / MODEL_FOLDER)
            write_json(self.folder / RESULT_FILE, {"result": result.to_json(), "identity": self.identity})
        processes.wait()
        return result

    def _learning_rate(self, step: int) -> float:
        return self.config.optimizer.learning_rate * learning_rate_factor(self.config, step)

    def _circumstances(self) -> dict[str, Any]:
        """What bit-for-bit equality depends on beside the configuration."""
        return {
            "threads": torch.get_num_threads(),
            "processes": self.processes.world,
            "sharding": self.config.sharding,
            "device": self.processes.device.type,
            "torch": torch.__version__,
        }

    def _announce(self, resumed: disk.Checkpoint) -> None:
        if self.processes.is_main:
            say(f"continuing from {resumed.path}")
            if self.config.threads not in (None, resumed.state["threads"]):
                say(f"threads stay {resumed.state['threads']}, as the run began, not {self.config.threads}")
            for name, now in self._circumstances().items():
                before = resumed.state.get(name, now)
                if before != now:
                    say(f"{name} was {before}, now {now}: same data and schedule, no longer bit for bit")


def _count_parameters(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.model.parameters())


def run_identity(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """What must be equal for a run to continue."""
    training = {key: value for key, value in config.model_dump(mode="json").items() if key not in _FREE_SETTINGS}
    identity: dict[str, Any] = json.loads(json.dumps({"training": training, "task": dict(task.fingerprint)}))
    return identity
