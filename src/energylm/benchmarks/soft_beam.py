"""What search-aware training costs beside cross-entropy, and what decoding in batches saves.

Training by soft beam search is measured against cross-entropy stepped through the very same cell, a symbol at a time
(the ratio to the fused pass, where all steps are one product, is reported beside it): for the thesis's two taggers and
for a translator. Memory is the growth of a training step's peak with the beam, each in a process of its own: what is
kept grows with k |V|, what is computed again with k² |V| lives for one step. Hard beam decoding of a batch is measured
against one sentence at a time.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    interleaved_seconds,
    peak_megabytes,
    print_peak_megabytes,
)
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from energylm.objectives.cross_entropy import cross_entropy_sum
from energylm.objectives.search_losses import soft_direct_loss, step_cost
from energylm.search.beam import beam_search
from energylm.search.continuous_beam import continuous_beam_search

BARS = {3: 4.0, 5: 8.0}  # beam -> how many times the cross-entropy step
ALPHA, STEPS, SOURCE_VOCABULARY = 1.0, 20, 1000
MEMORY_BEAMS = (0, 4, 8)  # 0: everything is built, nothing is searched
MEMORY_BAR = 3.0  # of the growth from 4 to 8 elements: 2 is linear, 4 is quadratic
DECODING_BAR, SENTENCES = 5.0, 64


@dataclass(frozen=True)
class Size:
    vocabulary: int
    hidden: int
    embedding: int
    attention: Literal["fixed", "learned"]
    batch: int
    eos: int | None = None


SIZES = {
    "entities, hidden 64": Size(vocabulary=9, hidden=64, embedding=8, attention="fixed", batch=32),
    "supertags, hidden 512": Size(vocabulary=395, hidden=512, embedding=512, attention="fixed", batch=32),
    "translation, hidden 256": Size(vocabulary=8000, hidden=256, embedding=256, attention="learned", batch=16, eos=0),
}
QUICK = {"quick": Size(vocabulary=12, hidden=8, embedding=4, attention="learned", batch=4, eos=0)}


def run(options: Options) -> BenchmarkResult:
    bars: list[Bar] = []
    details: dict[str, Any] = {}
    sizes = QUICK if options.quick else SIZES
    for number, (name, size) in enumerate(sizes.items()):
        steps = _training_steps(size, beams=tuple(BARS))
        step = interleaved_seconds(steps, options, share=1 / (len(sizes) + 1 - number))
        for beam, bar in BARS.items():
            ratio = step[f"beam {beam}"] / step["stepped"]
            bars.append(Bar.on(f"{name}: soft beam {beam} over stepped cross-entropy", ratio, bar, at_least=False))
            details[f"{name}: soft beam {beam} over fused cross-entropy"] = step[f"beam {beam}"] / step["fused"]
        details |= {f"{name}: milliseconds, {what}": 1000 * value for what, value in step.items()}
    bars.append(_decoding(options, details))
    bars.append(_memory(options, details))
    return BenchmarkResult("soft-beam", bars, details)


def _decoding(options: Options, details: dict[str, Any]) -> Bar:
    size = next(iter(QUICK.values())) if options.quick else SIZES["supertags, hidden 512"]
    network, source_BS, lengths_B, _ = _setting(size, batch=SENTENCES)

    @torch.no_grad()
    def decode(batch: int) -> None:
        for start in range(0, SENTENCES, batch):
            rows = slice(start, start + batch)
            stepper = network.stepper(source_BS[rows], lengths_B[rows])
            beam_search(stepper, beam=3, lengths_B=lengths_B[rows], eos_token_id=size.eos)

    contenders = {"batch": lambda: decode(SENTENCES), "single": lambda: decode(1)}
    rate = {name: SENTENCES / value for name, value in interleaved_seconds(contenders, options).items()}
    details |= {f"sentences/s by hard beam, {name}": value for name, value in rate.items()}
    return Bar.on("hard beam in batches over one sentence at a time", rate["batch"] / rate["single"], DECODING_BAR)


def _memory(options: Options, details: dict[str, Any]) -> Bar:
    name = next(iter(QUICK)) if options.quick else "translation, hidden 256"
    peak = {beam: peak_megabytes(__name__, name, str(beam)) for beam in MEMORY_BEAMS}
    details |= {f"MB at the peak of a step, beam {beam}": value for beam, value in peak.items()}
    none, four, eight = (peak[beam] for beam in MEMORY_BEAMS)
    growth = (eight - none) / max(four - none, 1e-9)
    return Bar("memory of beam 8 over that of beam 4 (linear: 2, quadratic: 4)", growth, MEMORY_BAR, at_least=False)


def _setting(size: Size, *, batch: int | None = None) -> tuple[LSTMSeq2Seq, Tensor, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LSTMSeq2Seq(
            LSTMSeq2SeqConfig(
                source_vocab_size=SOURCE_VOCABULARY,
                vocab_size=size.vocabulary,
                hidden_size=size.hidden,
                source_embedding_size=size.hidden,
                embedding_size=size.embedding,
                attention=size.attention,
                eos_token_id=size.eos,
            )
        )
        shape = (batch or size.batch, STEPS)
        source_BS, gold_BT = torch.randint(SOURCE_VOCABULARY, shape), torch.randint(size.vocabulary, shape)
    return network, source_BS, torch.full(shape[:1], STEPS), gold_BT


def _training_steps(size: Size, *, beams: tuple[int, ...]) -> dict[str, Callable[[], None]]:
    """One forward and backward pass of each kind, on the same batch."""
    network, source_BS, lengths_B, gold_BT = _setting(size)
    cost = step_cost("hamming", vocabulary_size=size.vocabulary)

    def descend(loss: Tensor) -> None:
        loss.backward()
        network.zero_grad()

    def fused() -> None:
        descend(cross_entropy_sum(network.scores(source_BS, lengths_B, gold_BT), gold_BT))

    def stepped() -> None:
        stepper = network.stepper(source_BS, lengths_B)
        state, inputs_B1E = stepper.start()
        losses = []
        for t in range(STEPS):
            state, scores_B1V = stepper.step(state, inputs_B1E, position=t)
            losses.append(cross_entropy_sum(scores_B1V, gold_BT[:, t]))
            inputs_B1E = F.embedding(gold_BT[:, t, None], stepper.embedding_VE)
        descend(sum(losses, start=torch.zeros(())))

    def searched(beam: int) -> None:
        soft = continuous_beam_search(
            network.stepper(source_BS, lengths_B),
            beam=beam,
            alpha=ALPHA,
            lengths_B=lengths_B,
            eos_token_id=size.eos,
            costs=lambda t: cost(gold_BT[:, t]),
        )
        descend(soft_direct_loss(soft.scores_BK, soft.costs_BK, alpha=ALPHA).sum())

    return {"fused": fused, "stepped": stepped} | {f"beam {k}": lambda k=k: searched(k) for k in beams}


if __name__ == "__main__":
    chosen, beam = (SIZES | QUICK)[sys.argv[1]], int(sys.argv[2])
    steps = _training_steps(chosen, beams=(beam,))
    if beam:
        steps[f"beam {beam}"]()
    print_peak_megabytes()
