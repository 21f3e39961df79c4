"""Joint sampling against the plain way, memory of log Z, and energy training against a bare loop.

The plain way is what one would write first: `generate(num_return_sequences=…)` at its best chunk, then the energy over
whole sequences in batches of 32, then one draw by weight. Networks are 4 × 256, the context has 120 tokens, 1,000
continuations have 40 each. A UniT energy shares the context as the sampler does; a BiT cannot.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    interleaved_rates,
    peak_megabytes,
    print_peak_megabytes,
)
from energylm.benchmarks.shared_prefix import (
    CONTEXT,
    NEW,
    TOP_K,
    VOCABULARY,
    WIDTH,
    best_chunk_of_generate,
    generate,
    make_network,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import GPT2LMHeadModel

    from energylm.bundles.residual_model import ResidualModel
    from energylm.energies.pooled import PooledEnergy
    from energylm.training.energy_task import EnergyTask
    from energylm.training.task import Batch

N, CHUNKS, CLASSIFIER_BATCH = 1000, (128, 256, 512), 32
MEMORY_N = (1_000, 100_000)
TRAIN_BATCH, TRAIN_STEPS, LEARNING_RATE, CLIP_NORM = 8, 10, 1e-4, 10.0


def run(options: Options) -> BenchmarkResult:
    n = 32 if options.quick else N
    network, context = make_network(), list(range(1, CONTEXT + 1))
    energies = {kind: make_energy(kind) for kind in ("unit", "bit")}
    chunk = n if options.quick else best_chunk_of_generate(network, context, list(CHUNKS), TOP_K)
    contenders = {f"ours, {kind}": partial(_ours, network, energy, context, n) for kind, energy in energies.items()}
    contenders |= {
        f"plain, {kind}": partial(_plain, network, energy, context, chunk) for kind, energy in energies.items()
    }
    rate = interleaved_rates(contenders, repeats=options.repeats)
    steps = 3 if options.quick else TRAIN_STEPS
    training = interleaved_rates(
        {"engine": partial(_engine, steps), "bare loop": partial(_bare_loop, steps)}, repeats=options.repeats
    )
    memory = [peak_megabytes(__name__, str(count // 100 if options.quick else count)) for count in MEMORY_N]
    return BenchmarkResult(
        name="residual",
        bars=[
            Bar("joint sampling, UniT: times the plain way", rate["ours, unit"] / rate["plain, unit"], 5.0),
            Bar("joint sampling, BiT: times the plain way", rate["ours, bit"] / rate["plain, bit"], 2.5),
            Bar("log Z: peak memory, 100,000 over 1,000 samples", memory[1] / memory[0], 1.2, at_least=False),
            Bar("energy training: sequences/s over a bare loop's", training["engine"] / training["bare loop"], 0.9),
        ],
        details={f"continuations/s, {name}": value for name, value in rate.items()}
        | {f"training, sequences/s, {name}": value for name, value in training.items()}
        | {"best chunk of generate": chunk, "peak megabytes, 1,000 and 100,000": memory},
    )


class NetworkEnergy:
    """`contracts.ContinuationEnergy` of a bare network, without tokenizer and folder."""

    def __init__(self, network: "PooledEnergy") -> None:
        self.network = network

    def energies(self, tokens_BT: "Tensor", lengths_B: "Tensor") -> "Tensor":
        from energylm.bundles.energy_reading import sequence_energies

        return sequence_energies(self.network, tokens_BT, lengths_B)

    def continuation_energies(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: "Tensor", lengths_BN: "Tensor"
    ) -> "Tensor":
        from energylm.bundles.energy_reading import continuation_energies

        return continuation_energies(self.network, contexts, tokens_BNT, lengths_BN)


def make_energy(kind: str) -> "PooledEnergy":
    import torch
    from transformers import BertConfig, BertModel

    from energylm.energies.pooled import PooledEnergy

    if kind == "unit":
        return PooledEnergy(make_network().transformer, kind="unit").eval()
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=CONTEXT + NEW,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PooledEnergy(BertModel(config, add_pooling_layer=False), kind="bit").eval()


def _joint(network: "GPT2LMHeadModel", energy: "PooledEnergy") -> "ResidualModel":
    from energylm.bundles.residual_model import ResidualModel
    from energylm.models.causal import CausalLanguageModel

    return ResidualModel(CausalLanguageModel(network, start_token_id=None, eos_token_id=None), NetworkEnergy(energy))


def _ours(network: "GPT2LMHeadModel", energy: "PooledEnergy", context: list[int], n: int) -> float:
    """Continuations a second."""
    joint = _joint(network, energy)
    start = time.perf_counter()
    joint.sample(context, n=n, max_new_tokens=NEW, top_k=TOP_K, stop_at_eos=False)
    return n / (time.perf_counter() - start)


def _plain(network: "GPT2LMHeadModel", energy: "PooledEnergy", context: list[int], n: int) -> float:
    """One chunk of the plain way; all chunks are alike, so its rate is that of any n."""
    import torch

    start = time.perf_counter()
    tokens_RT = generate(network, context, n, TOP_K)
    with torch.no_grad():
        energy_R = torch.cat(
            [energy(part, torch.full((len(part),), CONTEXT + NEW)) for part in tokens_RT.split(CLASSIFIER_BATCH)]
        )
    torch.multinomial((-energy_R).softmax(0), 1)
    return n / (time.perf_counter() - start)


class _RandomContrast:
    """Random real and generated sequences: their values do not matter to the speed."""

    def __len__(self) -> int:
        return 1024

    def counts(self, contexts: "NDArray[np.int64]") -> "NDArray[np.int64]":
        import numpy as np

        return np.full(len(contexts), 4)

    def sequences(self, contexts: "NDArray[np.int64]", copies_BM: "NDArray[np.int64]") -> Any:
        import numpy as np

        rows = len(contexts) * (1 + copies_BM.shape[1])
        return np.random.default_rng(int(contexts[0])).integers(VOCABULARY, size=(rows, CONTEXT + NEW))


def _task() -> "tuple[EnergyTask, list[float]]":
    """The task, and the times at which its batches are asked for."""
    import torch

    from energylm.training.energy_task import EnergyTask

    times: list[float] = []

    class TimedTask(EnergyTask):
        """Notes when each batch is asked for."""

        def batch(self, step: int, rows: range) -> "Batch":
            times.append(time.perf_counter())
            return super().batch(step, rows)

    def encode(sequences: Any) -> "tuple[Tensor, Tensor]":
        tokens_ST = torch.as_tensor(sequences)
        return tokens_ST, torch.full((len(tokens_ST),), tokens_ST.shape[1])

    task = TimedTask(
        make_energy("bit"),
        _RandomContrast(),
        encode=encode,
        seed=0,
        global_batch=TRAIN_BATCH,
        save_model=lambda model, folder: folder.mkdir(),
    )
    return task, times


def _sequences_per_second(times: list[float]) -> float:
    return (len(times) - 2) * 2 * TRAIN_BATCH / (times[-1] - times[1])


def _engine(steps: int) -> float:
    from energylm.config.training import TrainingConfig
    from energylm.training.engine import train

    config = TrainingConfig.checked(
        {
            "steps": steps,
            "global_batch": TRAIN_BATCH,
            "clip_norm": CLIP_NORM,
            "optimizer": {"learning_rate": LEARNING_RATE},
            "schedule": {"kind": "constant", "warmup_steps": 1},
            "validation": {"every_steps": None},
        }
    )
    task, times = _task()
    with tempfile.TemporaryDirectory() as folder:
        train(task, config, folder=Path(folder))
    return _sequences_per_second(times)


def _bare_loop(steps: int) -> float:
    import torch

    from energylm.objectives.residual_energy import residual_nce

    task, times = _task()
    network = task.model.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, eps=1e-6, weight_decay=0.0, fused=True)
    for step in range(1, steps + 1):
        batch = task.batch(step, range(TRAIN_BATCH))
        energy_BJ = network(batch["tokens_ST"], batch["lengths_S"]).view(-1, 2)
        residual_nce(energy_BJ[:, 0], energy_BJ[:, 1:]).mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return _sequences_per_second(times)


def _estimate_log_z(n: int) -> None:
    """log Z of one context from n samples, by small networks: larger ones would add the same constant for any n."""
    from energylm.energies.pooled import PooledEnergy

    network = make_network(layers=1, width=64)
    energy = PooledEnergy(make_network(layers=1, width=64).transformer, kind="unit").eval()
    estimate = _joint(network, energy).log_partition([list(range(1, CONTEXT + 1))], n=n, max_new_tokens=NEW)
    assert estimate.n == n


if __name__ == "__main__":
    _estimate_log_z(int(sys.argv[1]))
    print_peak_megabytes()
