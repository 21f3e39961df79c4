"""Joint sampling against the plain way, memory of log Z, and energy training against a bare loop.

The plain way is what one would write first: `generate(num_return_sequences=…)` at its best chunk, then the energy over
whole sequences in batches of 32, then one draw by weight. Networks are 4 × 256, the context has 120 tokens, 1,000
continuations have 40 each. A UniT energy shares the context as the sampler does; a BiT cannot. The limit is the rate of
torch's square matrix product over the operations of the products that drawing and reading need.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GPT2LMHeadModel

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    interleaved,
    matmul_flops_per_second,
    peak_megabytes,
    print_peak_megabytes,
    seconds_of,
)
from energylm.benchmarks.inputs import bit_energy
from energylm.benchmarks.shared_prefix import (
    CONTEXT,
    LAYERS,
    NEW,
    TOP_K,
    VOCABULARY,
    WIDTH,
    best_chunk_of_generate,
    flops_per_token,
    generate,
    make_network,
)
from energylm.benchmarks.train import TimedUpdates
from energylm.bundles.energy_reading import continuation_energies, sequence_energies
from energylm.bundles.residual_model import ResidualModel
from energylm.energies.pooled import PooledEnergy
from energylm.models.causal import CausalLanguageModel
from energylm.objectives.residual_energy import residual_nce
from energylm.training.energy_task import EnergyTask
from energylm.training.task import Batch

KINDS = ("unit", "bit")
N, CHUNKS, CLASSIFIER_BATCH = 1000, (128, 256, 512), 32
MEMORY_N = (1_000, 100_000)
TRAIN_BATCH, TRAIN_STEPS, LEARNING_RATE, CLIP_NORM = 8, 10, 1e-4, 10.0


def run(options: Options) -> BenchmarkResult:
    n = 32 if options.quick else N
    network, context = make_network(), list(range(1, CONTEXT + 1))
    energies = {kind: make_energy(kind) for kind in KINDS}
    chunk = n if options.quick else best_chunk_of_generate(network, context, list(CHUNKS), TOP_K)
    contenders = {}
    for kind, energy in energies.items():
        contenders[f"ours, {kind}"] = partial(_ours, network, energy, context, n)
        contenders[f"plain, {kind}"] = partial(_plain, network, energy, context, chunk)
        contenders[f"limit, {kind}"] = partial(_limit, kind)
    rate = interleaved(contenders, options, unit="continuations/s", share=0.7)
    updates = TimedUpdates(
        _task,
        _loss,
        per_update=2 * TRAIN_BATCH,
        batch=TRAIN_BATCH,
        steps=3 if options.quick else TRAIN_STEPS,
        learning_rate=LEARNING_RATE,
        clip_norm=CLIP_NORM,
        warmup_steps=1,
    )
    training = updates.compared(options, unit="sequences/s")
    memory = [peak_megabytes(__name__, str(count // 100 if options.quick else count)) for count in MEMORY_N]
    return BenchmarkResult(
        name="residual",
        bars=[
            Bar.on("joint sampling, UniT: times the plain way", rate["ours, unit"] / rate["plain, unit"], 8.0),
            Bar.on("joint sampling, BiT: times the plain way", rate["ours, bit"] / rate["plain, bit"], 4.0),
            Bar("log Z: peak memory, 100,000 over 1,000 samples", memory[1] / memory[0], 1.2, at_least=False),
            Bar.on("energy training: sequences/s over a bare loop's", training["engine"] / training["bare loop"], 0.9),
        ],
        details={f"continuations/s, {name}": value for name, value in rate.items()}
        | {f"{kind}: the limit, times the plain way": rate[f"limit, {kind}"] / rate[f"plain, {kind}"] for kind in KINDS}
        | {f"training, sequences/s, {name}": value for name, value in training.items()}
        | {"best chunk of generate": chunk, "peak megabytes, 1,000 and 100,000": memory},
    )


class BareEnergy:
    """`contracts.ContinuationEnergy` of a bare network, without tokenizer and folder."""

    def __init__(self, network: PooledEnergy) -> None:
        self.network = network

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return sequence_energies(self.network, tokens_BT, lengths_B)

    def continuation_energies(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> Tensor:
        return continuation_energies(self.network, contexts, tokens_BNT, lengths_BN)


def make_energy(kind: str) -> PooledEnergy:
    if kind == "unit":
        return PooledEnergy(make_network().transformer, kind="unit").eval()
    return bit_energy(layers=4, width=WIDTH, heads=4, positions=CONTEXT + NEW, vocabulary_size=VOCABULARY)


def _joint(network: GPT2LMHeadModel, energy: PooledEnergy) -> ResidualModel:
    return ResidualModel(CausalLanguageModel(network, start_token_id=None, eos_token_id=None), BareEnergy(energy))


def _ours(network: GPT2LMHeadModel, energy: PooledEnergy, context: list[int], n: int) -> float:
    """Continuations a second."""
    joint = _joint(network, energy)
    sample = partial(joint.sample, context, n=n, max_new_tokens=NEW, top_k=TOP_K, stop_at_eos=False)
    return n / seconds_of(sample)


def _plain(network: GPT2LMHeadModel, energy: PooledEnergy, context: list[int], n: int) -> float:
    """One chunk of the plain way; all chunks are alike, so its rate is that of any n."""

    @torch.no_grad()
    def sample() -> None:
        parts = generate(network, context, n, TOP_K).split(CLASSIFIER_BATCH)
        energy_R = torch.cat([energy(part, torch.full((len(part),), CONTEXT + NEW)) for part in parts])
        torch.multinomial((-energy_R).softmax(0), 1)

    return n / seconds_of(sample)


def _limit(kind: str) -> float:
    """Continuations a second if drawing and reading ran at the rate of torch's square matrix product, all else free."""
    draw = NEW * flops_per_token()
    new, average = (NEW, CONTEXT + NEW / 2) if kind == "unit" else (CONTEXT + NEW, CONTEXT + NEW)
    read = new * LAYERS * (24 * WIDTH**2 + 4 * WIDTH * average)
    return matmul_flops_per_second(repeats=3) / (draw + read)


class _RandomContrast:
    """Random real and generated sequences: their values do not matter to the speed."""

    def __len__(self) -> int:
        return 1024

    def counts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(contexts), 4)

    def sequences(self, contexts: NDArray[np.int64], copies_BM: NDArray[np.int64]) -> Any:
        rows = len(contexts) * (1 + copies_BM.shape[1])
        return np.random.default_rng(int(contexts[0])).integers(VOCABULARY, size=(rows, CONTEXT + NEW))


def _task() -> EnergyTask:
    def encode(sequences: Any) -> tuple[Tensor, Tensor]:
        tokens_ST = torch.as_tensor(sequences)
        return tokens_ST, torch.full((len(tokens_ST),), tokens_ST.shape[1])

    return EnergyTask(
        make_energy("bit"),
        _RandomContrast(),
        encode=encode,
        seed=0,
        global_batch=TRAIN_BATCH,
        save_model=lambda model, folder: folder.mkdir(),
    )


def _loss(network: Any, batch: Batch) -> Tensor:
    energy_BJ = network(batch["tokens_ST"], batch["lengths_S"]).view(-1, 2)
    return residual_nce(energy_BJ[:, 0], energy_BJ[:, 1:]).mean()


def _estimate_log_z(n: int) -> None:
    """log Z of one context from n samples, by small networks: larger ones would add the same constant for any n."""
    network = make_network(layers=1, width=64)
    energy = PooledEnergy(make_network(layers=1, width=64).transformer, kind="unit").eval()
    estimate = _joint(network, energy).log_partition([list(range(1, CONTEXT + 1))], n=n, max_new_tokens=NEW)
    assert estimate.n == n


if __name__ == "__main__":
    _estimate_log_z(int(sys.argv[1]))
    print_peak_megabytes()
