"""Block Metropolis-Hastings on a masked model against a plain transcription of algorithm 4, and against its own passes.

The plain way is the algorithm as it is printed (goyal2021): one chain, one masked pass at a time, the energy of the
current state kept. Both draw blocks of four positions in random order and accept by E_local; networks are 2 × 128 and
4 × 256 with 8,192 tokens. The limit is the time of the forward passes that our sampler asked for, alone, in batches.
"""

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved
from energylm.benchmarks.inputs import seeded
from energylm.config.sampling import ChainsConfig
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.models.cloze_presets import build_masked_network
from energylm.models.masked import MaskedNetwork
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.epochs import run_epochs
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.samplers.metropolis_hastings import MetropolisHastings

CHAINS, TOKENS, BLOCK, VOCABULARY, MASK_ID = 16, 20, 4, 8192, 2
SHAPES = {"2 × 128": (2, 128, 8.0), "4 × 256": (4, 256, 4.0)}  # layers, width, bar on the ratio
EPOCHS, PLAIN_EPOCHS = 1, 2  # of a repeat: 80 proposals of 16 chains, and 10 of one


def run(options: Options) -> BenchmarkResult:
    bars: list[Bar] = []
    details: dict[str, Any] = {}
    shapes = list(SHAPES.items())[: 1 if options.quick else None]
    for number, (name, (layers, width, bar)) in enumerate(shapes):
        network = make_network(layers=layers, width=width)
        rate = interleaved(
            {
                "ours": partial(sample_chains, MaskedNetwork(network, mask_token_id=MASK_ID)),
                "plain": partial(_plain, network, 1 if options.quick else PLAIN_EPOCHS),
                "passes alone": partial(_passes_alone, network, _passes(network)),
            },
            options,
            unit="proposals/s",
            share=1 / (len(shapes) - number),
        )
        over = rate["passes alone"] / rate["ours"]
        bars += [
            Bar.on(f"{name}: proposals/s, times the plain way", rate["ours"] / rate["plain"], bar),
            Bar.on(f"{name}: time over that of its passes alone", over, 2.0, at_least=False),
        ]
        details |= {f"{name}: proposals/s, {way}": value for way, value in rate.items()}
    return BenchmarkResult(name="mcmc", bars=bars, details=details)


def make_network(*, layers: int, width: int) -> Any:
    shape = {"layers": layers, "width": width, "heads": 4}
    sizes = {"vocabulary_size": VOCABULARY, "max_length": TOKENS, "pad_token_id": 0}
    network: Any = seeded(lambda: build_masked_network("bit-tiny", **sizes, overrides=shape))
    return network.eval()


class _Counted:
    """Counts the sequences that go through a masked model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls: list[tuple[int, int]] = []
        self.vocabulary_size, self.mask_token_id = model.vocabulary_size, model.mask_token_id

    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        self.calls.append((len(tokens_RT), int(hidden_RT.sum()) // len(tokens_RT)))
        logits_NV: Tensor = self.model.masked_logits(tokens_RT, lengths_R, hidden_RT, source_R=source_R)
        return logits_NV


def _passes(network: Any) -> list[tuple[int, int]]:
    """(sequences, hidden positions of each) of every masked pass that our sampler asks for."""
    counted = _Counted(MaskedNetwork(network, mask_token_id=MASK_ID))
    sample_chains(counted)
    return counted.calls[1:]  # the first gives the energies of the start, which takes no part in the rates


def sample_chains(model: Any, chains: int = CHAINS) -> float:
    """Proposals a second of all chains together."""
    target, proposal = MaskedLMEnergy(model), MaskedProposal(_allowed())
    state = MetropolisHastings(target, proposal).init(_start(chains), torch.full((chains,), TOKENS))
    choices = RowChoices(row_keys(0, torch.arange(chains), torch.zeros(chains, dtype=torch.int64)))
    config = ChainsConfig(epochs=EPOCHS, burn_in=0, block=BLOCK)
    free_RT = torch.ones(chains, TOKENS, dtype=torch.bool)
    start = time.perf_counter()
    proposals = sum(
        int(epoch.info.proposed_R.sum())
        for epoch in run_epochs(target, proposal, state, free_RT, choices, config=config)
    )
    return proposals / (time.perf_counter() - start)


def _plain(network: Any, epochs: int) -> float:
    """Proposals a second of algorithm 4 as printed, with blocks."""
    generator = torch.Generator().manual_seed(0)
    forbidden = ~_allowed()

    @torch.no_grad()
    def masked(tokens_T: Tensor, positions: Tensor | list[int]) -> Tensor:
        hidden_T = tokens_T.clone()
        hidden_T[positions] = MASK_ID
        logits_PV: Tensor = network(input_ids=hidden_T[None]).logits[0, positions]
        return logits_PV

    def energy(tokens_T: Tensor) -> Tensor:
        log_probs = (masked(tokens_T, [t]).log_softmax(-1)[0, tokens_T[t]] for t in range(TOKENS))
        return -sum(log_probs, start=torch.zeros(()))

    tokens_T = _start(1)[0]
    old_energy, proposals = energy(tokens_T), 0
    start = time.perf_counter()
    for _ in range(epochs):
        for block in torch.randperm(TOKENS, generator=generator).split(BLOCK):
            log_q = masked(tokens_T, block).masked_fill(forbidden, float("-inf")).log_softmax(-1)
            drawn = torch.multinomial(log_q.exp(), 1, generator=generator)[:, 0]
            proposed_T = tokens_T.clone()
            proposed_T[block] = drawn
            rows = torch.arange(len(block))
            log_ratio = (log_q[rows, tokens_T[block]] - log_q[rows, drawn]).sum()
            new_energy = energy(proposed_T)
            if torch.rand((), generator=generator) < (old_energy - new_energy + log_ratio).exp():
                tokens_T, old_energy = proposed_T, new_energy
            proposals += 1
    return proposals / (time.perf_counter() - start)


def _passes_alone(network: Any, passes: list[tuple[int, int]]) -> float:
    """Proposals a second if the forward passes were all there is to it: body, and output layer where it is needed."""
    steps = [count for count, _ in passes if count == CHAINS]
    start = time.perf_counter()
    with torch.no_grad():
        for count, hidden in passes:
            hidden_RTD = network.bert(input_ids=_start(count)).last_hidden_state
            network.cls(hidden_RTD[:, :hidden].reshape(1, count * hidden, -1))
    return len(steps) * CHAINS / (time.perf_counter() - start)


def _allowed() -> Tensor:
    return torch.arange(VOCABULARY) > MASK_ID


def _start(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(MASK_ID + 1, VOCABULARY, (rows, TOKENS), generator=generator)
