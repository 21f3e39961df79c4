"""Pseudo-log-likelihoods: ours against minicons, against the bare network, and Electric's single pass against both.

Sentences are the first hypotheses of LibriSpeech lists (made up where those are absent); networks are random, with a
vocabulary of BERT's size, though the sentences use few of its tokens: what an output layer costs is part of it.
minicons (0.3.39, which needs transformers 4) runs in a process of its own with packages of its own, at the batch size
that suits it best on this machine, found first; its scores must be ours. "Bare" is the network alone over the very
batches that our scorer makes: body, and output layer at the hidden positions; no text, no packing, no softmax.

Electric reads the sentences sixteen times over: with one row a sentence, not one a token, a few dozen sentences fill no
matrix product and a third of them is padding, where users bring thousands. So it is since 2026-11-17, after 19 to 21 ×
were measured on single sentences against a bar of 25; what these give is among the details.

The peer's packages are put once into ENERGYLM_HOME/peers by pip; a quick run leaves the peer out.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from transformers import BertModel, PreTrainedTokenizerFast

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, seconds_of
from energylm.benchmarks.inputs import nbest_texts, seeded, tokenizer_for, widened
from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.model_folder import quiet_transformers
from energylm.bundles.scorer import ClozeScorer, MaskedScorer, Scorer
from energylm.config.environment import home_folder
from energylm.energies.electric import TokenEnergy
from energylm.errors import ModelError
from energylm.files import atomic_folder
from energylm.models.cloze_presets import build_masked_network
from energylm.progress import say

SIZES = ((4, 256), (6, 512))  # layers × width
SENTENCES, LONGEST = 96, 256
BRIEF = {256: 48, 512: 16}  # sentences of a width without `--full`
LEAST_SECONDS = 0.5  # of a measurement
COPIES = 16  # of each sentence for Electric
VOCABULARY = 30_522  # of BERT: the output layer that users of masked language models have
PEER = ("minicons==0.3.39", "transformers==4.57.6", "tokenizers>=0.22,<0.23", "huggingface_hub<1", "wonderwords")
PEER_ALSO = ("pandas", "openai", "urllib3")  # what minicons imports; torch and numpy are taken from here
BATCHES = (1, 4, 16)  # sentences that minicons gets at a time


def run(options: Options) -> BenchmarkResult:
    lists = nbest_texts(6 if options.quick else SENTENCES)
    sentences = [texts[0] for texts in lists.texts]
    tokenizer = widened(tokenizer_for(sentences), VOCABULARY)
    bars: list[Bar] = []
    details: dict[str, object] = {"sentences": len(sentences), "origin": lists.origin, "vocabulary": VOCABULARY}
    sizes = SIZES[:1] if options.quick else SIZES
    for number, (layers, width) in enumerate(sizes):
        own = sentences if options.full else sentences[: BRIEF.get(width)]
        with tempfile.TemporaryDirectory() as folder:
            scorers = make_scorers(layers, width, tokenizer, Path(folder))
            more_bars, more = _measure(
                f"{layers} × {width}", own, scorers, Path(folder), options, share=1 / (len(sizes) - number)
            )
        bars, details = bars + more_bars, details | more
    return BenchmarkResult(name="pll", bars=bars, details=details)


def _measure(
    size: str, sentences: list[str], scorers: dict[str, Scorer], folder: Path, options: Options, *, share: float
) -> tuple[list[Bar], dict[str, Any]]:
    masked, electric = scorers["masked"], scorers["electric"]
    reader: Any = masked.reader
    contenders: dict[str, Callable[[], float]] = {
        "ours": partial(_rate, masked, sentences),
        "bare": bare_forward(reader, sentences),
        "Electric": partial(_rate, electric, sentences * COPIES),
        "Electric, each once": partial(_rate, electric, sentences),
        "int8": partial(_rate, scorers["int8"], sentences),
    }
    peer = None if options.quick else Minicons(folder / "masked")
    best = None
    if peer is not None:
        say(f"{size}: finding the best batch of minicons")
        trial = {batch: peer.score(sentences[::3], batch)[0] for batch in BATCHES}
        best = max(trial, key=lambda batch: trial[batch])
        _, scores = peer.score(sentences, best)
        gap = max(abs(a - b) for a, b in zip(scores, masked.score(sentences), strict=True))
        contenders["minicons"] = lambda: peer.score(sentences, best)[0]
    rate = interleaved(contenders, options, unit="sentences/s", share=share)
    bars = [
        Bar.on(f"{size}: sentences/s over the bare forward's", rate["ours"] / rate["bare"], 0.8),
        Bar.on(f"{size}: Electric, times the masked LM", rate["Electric"] / rate["ours"], 25.0),
    ]
    details: dict[str, Any] = {f"{size}: sentences/s, {name}": value for name, value in rate.items()}
    details[f"{size}: int8, times float32"] = rate["int8"] / rate["ours"]
    config, lengths = reader.model.network.config, [len(reader.read(text)) for text in sentences]
    details[f"{size}: operations of the masked LM over Electric's, counted"] = operations_saved(
        lengths, layers=config.num_hidden_layers, width=config.hidden_size, vocabulary_size=config.vocab_size
    )
    if peer is not None:
        peer.close()
        bars += [
            Bar.on(f"{size}: times minicons", rate["ours"] / rate["minicons"], 1.5),
            Bar(f"{size}: largest difference of a sentence's score", gap, 1e-4, at_least=False),
        ]
        details[f"{size}: best batch of minicons"] = best
    return bars, details


def operations_saved(lengths: list[int], *, layers: int, width: int, vocabulary_size: int) -> float:
    """Of the matrix products of a pass for each token, with its output layer, over those of a single pass: what
    Electric could gain if neither of the two lost anything to padding or to passes too short for the machine."""
    passes = [layers * length * (24 * width**2 + 4 * width * length) for length in lengths]
    outputs = 2 * width * vocabulary_size
    return sum(length * (single + outputs) for length, single in zip(lengths, passes, strict=True)) / sum(passes)


def make_scorers(layers: int, width: int, tokenizer: PreTrainedTokenizerFast, folder: Path) -> dict[str, Scorer]:
    """A masked language model, also in int8, and an Electric of one size; the first also lies in `folder`/masked for
    the peer."""
    shape = {"layers": layers, "width": width, "heads": width // 64}
    sizes = {"vocabulary_size": VOCABULARY, "max_length": LONGEST, "pad_token_id": tokenizer.pad_token_id}
    network: Any = seeded(lambda: build_masked_network("bit-mini", **sizes, overrides=shape))
    network.eval()
    encoder: Any = seeded(lambda: BertModel(network.config, add_pooling_layer=False))
    encoder.eval()
    with quiet_transformers():
        network.save_pretrained(folder / "masked")
        tokenizer.save_pretrained(folder / "masked")
    return {
        "masked": Scorer(MaskedScorer(MaskedLanguageModel(network, tokenizer))),
        "int8": Scorer(MaskedScorer(MaskedLanguageModel(deepcopy(network), tokenizer))).to(dtype="int8"),
        "electric": Scorer(ClozeScorer(ClozeModel("electric", TokenEnergy(encoder), tokenizer))),
    }


def _rate(scorer: Scorer, sentences: list[str]) -> float:
    seconds, passes = 0.0, 0
    while seconds < LEAST_SECONDS:
        seconds, passes = seconds + seconds_of(partial(scorer.score, sentences)), passes + 1
    return passes * len(sentences) / seconds


def bare_forward(reader: Any, sentences: list[str]) -> Callable[[], float]:
    """A function that runs the network alone over the batches of `reader` and tells its sentences/s."""
    network = reader.model.network
    batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def note(tokens_RS: Tensor, lengths_R: Tensor, hidden_RS: Tensor, **source: Any) -> Any:
        batches.append((tokens_RS, lengths_R, hidden_RS))
        return usual(tokens_RS, lengths_R, hidden_RS, **source)

    usual = reader.model.model._logits_at
    reader.model.model._logits_at = note
    try:
        reader.token_scores([reader.read(sentence) for sentence in sentences])
    finally:
        del reader.model.model._logits_at

    @torch.no_grad()
    def forward() -> None:
        for tokens_RS, lengths_R, hidden_RS in batches:
            real_RS = torch.arange(tokens_RS.shape[1]) < lengths_R[:, None]
            hidden_RSD = network.bert(input_ids=tokens_RS, attention_mask=real_RS.long()).last_hidden_state
            network.cls(hidden_RSD[hidden_RS])

    return lambda: len(sentences) / seconds_of(forward)


class Minicons:
    """The peer in a process of its own: sentences in, sentences/s and scores out."""

    def __init__(self, model: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(peer_packages()), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", _WORKER, str(model)]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nowhere, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        if self._answers.readline().strip() != "ready":
            raise ModelError("minicons did not start; remove ENERGYLM_HOME/peers and run again, or use --quick")

    def score(self, sentences: list[str], batch: int) -> tuple[float, list[float]]:
        self._requests.write(json.dumps({"sentences": sentences, "batch": batch}) + "\n")
        self._requests.flush()
        answer = json.loads(self._answers.readline())
        return len(sentences) / answer["seconds"], answer["scores"]

    def close(self) -> None:
        self._requests.close()
        self._process.wait()
        self._answers.close()


def peer_packages() -> Path:
    """The folder of minicons and what it needs beside torch, filled by pip on first use."""
    folder = home_folder() / "peers" / PEER[0].replace("==", "-")
    if not folder.is_dir():
        with atomic_folder(folder) as temporary:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(temporary)]
            done = subprocess.run([*command, *PEER, *PEER_ALSO], capture_output=True, text=True, check=False)
            if done.returncode:
                reason = " ".join(done.stderr.split())
                raise ModelError(f"minicons cannot be installed to compare with ({reason:.200}); use --quick")
    return folder


_WORKER = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast
from minicons.scorer import MaskedLMScorer

folder = sys.argv[1]
network = AutoModelForMaskedLM.from_pretrained(folder)
scorer = MaskedLMScorer(network, "cpu", tokenizer=PreTrainedTokenizerFast.from_pretrained(folder))
print("ready", flush=True)
for line in sys.stdin:
    task = json.loads(line)
    start, scores = time.perf_counter(), []
    for first in range(0, len(task["sentences"]), task["batch"]):
        batch = task["sentences"][first : first + task["batch"]]
        scores += scorer.sequence_score(batch, reduction=lambda values: values.sum().item())
    print(json.dumps({"seconds": time.perf_counter() - start, "scores": scores}), flush=True)
"""
