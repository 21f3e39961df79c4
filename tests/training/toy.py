"""Tiny language-model runs that the tests of this folder share; as a program, the runs that live in other processes.

python toy.py kill-update FOLDER STEP        dies by SIGKILL in the middle of update STEP
python toy.py kill-checkpoint FOLDER STEP    dies by SIGKILL while checkpoint STEP is half-written
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from energylm.config.training import TrainingConfig
from energylm.randomness import seeded
from energylm.training import checkpoint
from energylm.training.engine import train
from energylm.training.language_model_task import LanguageModelTask

VOCABULARY, LENGTH, BATCH = 23, 13, 7
KILLED_RUN = {
    "steps": 30,
    "micro_batch": 3,
    "checkpoint": {"every_steps": 4},
    "validation": {"every_steps": 6},
    "log_every_steps": 3,
}


class ToyWindows:
    """Sequences that count upwards by 1 or 2, modulo the vocabulary: learnable, but never certain."""

    def __init__(self, size=40, seed=0):
        steps = np.random.default_rng(seed).integers(1, 3, (size, LENGTH))
        self.tokens = (np.cumsum(steps, axis=1) % VOCABULARY).astype(np.int64)

    def __len__(self):
        return len(self.tokens)

    def gather(self, indices):
        return self.tokens[indices]


def save_model(model, folder):
    folder.mkdir(exist_ok=True)
    save_file(checkpoint.distinct_tensors(model), folder / "final.safetensors")


def network(dropout=0.1, dtype=torch.float32, seed=0):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    with seeded(seed, "initialisation"):
        return GPT2LMHeadModel(config).to(dtype)


def task(model=None, *, task_class=LanguageModelTask, **options):
    return task_class(
        network() if model is None else model,
        ToyWindows(),
        ToyWindows(size=11, seed=1),
        **{"seed": 0, "global_batch": BATCH, "save_model": save_model, "valid_batch": 4} | options,
    )


def config(**values):
    return TrainingConfig.checked({"global_batch": BATCH, "threads": 1, **values})


class KilledInUpdate(LanguageModelTask):
    kill_step = 0

    def loss(self, model, batch):
        if self.running_step == self.kill_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)

    def batch(self, step, rows):
        self.running_step = step
        return super().batch(step, rows)


def main(mode, folder, *arguments):
    if mode == "kill-update":
        KilledInUpdate.kill_step = int(arguments[0])
        train(task(task_class=KilledInUpdate), config(**KILLED_RUN), folder=folder)
    elif mode == "kill-checkpoint":
        original = checkpoint.optimizer_tensors

        def killing(model, optimizer):
            if f"step-{int(arguments[0]):08}" in " ".join(path.name for path in (folder / "checkpoints").iterdir()):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(model, optimizer)

        checkpoint.optimizer_tensors = killing
        train(task(), config(**KILLED_RUN), folder=folder)
    else:
        raise SystemExit(f"unknown mode {mode}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
