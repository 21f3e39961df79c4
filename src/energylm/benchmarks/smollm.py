"""Sampling from SmolLM2-135M on a CPU: ours against OpenVINO GenAI, transformers' `generate`, and the machine's limit.

A context of 127 tokens is continued 64 and 256 times by 40 tokens, top-k 10, float32 throughout. The limit is the rate
of torch's square matrix product over the operations of the products that a continuation token needs (projections,
attention, output layer); the packed limit is that of the same product with weights in oneDNN's layout. `generate` works
off any number in calls of `CHUNK`, all alike, so one call gives its rate.

OpenVINO GenAI needs packages of its own and runs in a process of its own. It is compared where its interpreter is:

    python -m venv ENERGYLM_HOME/peers/openvino
    ENERGYLM_HOME/peers/openvino/bin/pip install openvino-genai==2026.4.1 optimum-intel==2.2.0
    ENERGYLM_HOME/peers/openvino/bin/pip uninstall torchvision                       (whose build does not fit)

The model is exported once, in about two minutes. A quick run has a tiny network of random weights and no such peer.
"""

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, matmul_flops_per_second, seconds_of
from energylm.benchmarks.inputs import seeded
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.config.environment import home_folder
from energylm.config.sampling import Truncation
from energylm.contracts import Decoder
from energylm.errors import ModelError
from energylm.files import atomic_folder
from energylm.models.decoders import decoder_for
from energylm.progress import say
from energylm.samplers.continuations import sample_continuations

NAME = "smollm2-135m"
CONTEXT, NEW, TOP_K = 127, 40, 10
NS = (64, 256)
CHUNK = 16
PEER = "OpenVINO GenAI"


def run(options: Options) -> BenchmarkResult:
    network, peer = (_tiny_network(), None) if options.quick else (_network(), OpenVino.where_installed())
    vocabulary = network.get_output_embeddings().weight.shape[0]
    context = [(37 * position + 11) % vocabulary for position in range(CONTEXT)]
    ns = (4, 8) if options.quick else NS
    flops, draw = flops_per_token(network), partial(_draw, decoder_for(network), context)
    contenders: dict[str, Callable[[], float]] = {}
    for n in ns:
        contenders[f"ours, n = {n}"] = partial(draw, n)
        if peer is not None:
            contenders[f"{PEER}, n = {n}"] = partial(peer.tokens_per_second, context, n)
    contenders["generate"] = partial(_generate, network, context)
    contenders["limit"] = lambda: matmul_flops_per_second(repeats=3) / flops
    contenders["packed limit"] = lambda: packed_flops_per_second(repeats=3) / flops
    rate = interleaved(contenders, options, unit="tokens/s")
    bars: list[Bar] = []
    details: dict[str, Any] = {"MFLOP a token": flops / 1e6} | {f"tokens/s, {name}": of for name, of in rate.items()}
    for n in ns:
        ours = rate[f"ours, n = {n}"]
        bars.append(Bar.on(f"n = {n}: fraction of the matrix-multiply limit", ours / rate["limit"], 0.6))
        bars.append(Bar.on(f"n = {n}: times generate", ours / rate["generate"], 1.0))
        if peer is not None:
            bars.append(Bar.on(f"n = {n}: times {PEER}", ours / rate[f"{PEER}, n = {n}"], 1.0))
        details[f"n = {n}: fraction of the packed limit"] = ours / rate["packed limit"]
    if peer is None:
        details[PEER] = "not installed, so not compared (the benchmark's file says how)"
    else:
        peer.close()
    return BenchmarkResult(name="smollm", bars=bars, details=details)


def flops_per_token(network: PreTrainedModel) -> float:
    """Multiplications and additions of the matrix products of one continuation token, averaged over all."""
    config = network.config
    weights = sum(module.weight.numel() for module in network.modules() if isinstance(module, torch.nn.Linear))
    keys = CONTEXT + (NEW + 1) / 2
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * keys
    return float(2 * (weights + attention))


def packed_flops_per_second(*, size: int = 2048, repeats: int = 3) -> float:
    """Of the same square product with weights in oneDNN's layout, which our step multiplies by."""
    a = torch.randn(size, size)
    packed = torch.ops.mkldnn._reorder_linear_weight(a, size)
    multiply = partial(torch.ops.mkldnn._linear_pointwise, a, packed, None, "none", [], "")
    seconds = sorted(seconds_of(multiply) for _ in range(1 + repeats))
    return 2 * size**3 / seconds[repeats // 2]


def _draw(decoder: Decoder, context: list[int], n: int) -> float:
    """Our tokens/s."""
    truncation = Truncation(top_k=TOP_K)
    ours = partial(sample_continuations, decoder, [context], n=n, max_new_tokens=NEW, truncation=truncation)
    return n * NEW / seconds_of(ours)


def _network() -> PreTrainedModel:
    return LanguageModel.from_pretrained(NAME, dtype=torch.float32).model.network


def _tiny_network() -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=512
    )
    network: LlamaForCausalLM = seeded(lambda: LlamaForCausalLM(config)).eval()
    return network


def _generate(network: PreTrainedModel, context: list[int]) -> float:
    """Tokens/s of transformers' own sampling."""
    ids = torch.tensor([context])
    writer: Any = network
    draw = partial(
        writer.generate,
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=TOP_K,
        top_p=1.0,
        temperature=1.0,
        num_return_sequences=CHUNK,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        eos_token_id=None,
    )
    return CHUNK * NEW / seconds_of(draw)


class OpenVino:
    """The peer in a process of its own: a context and a number in, seconds out."""

    def __init__(self, interpreter: Path) -> None:
        command = [str(interpreter), "-c", _WORKER, str(_exported(interpreter)), str(NEW), str(TOP_K)]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        if self._answers.readline().strip() != "ready":
            raise ModelError("OpenVINO GenAI did not start; make ENERGYLM_HOME/peers/openvino again, or remove it")

    @classmethod
    def where_installed(cls) -> "OpenVino | None":
        interpreter = home_folder() / "peers" / "openvino" / "bin" / "python"
        return cls(interpreter) if interpreter.is_file() else None

    def tokens_per_second(self, context: list[int], n: int) -> float:
        self._requests.write(json.dumps({"context": context, "n": n}) + "\n")
        self._requests.flush()
        answer = json.loads(self._answers.readline())
        return float(answer["tokens"] / answer["seconds"])

    def close(self) -> None:
        self._requests.close()
        self._process.wait()
        self._answers.close()


def _exported(interpreter: Path) -> Path:
    """The model as OpenVINO reads it, made on first use."""
    folder = home_folder() / "peers" / f"{NAME}-openvino"
    if not folder.is_dir():
        say(f"exporting {NAME} for OpenVINO, once; about two minutes")
        with atomic_folder(folder) as temporary:
            options = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
            source = ["--model", str(locate(NAME))]
            command = [str(interpreter.with_name("optimum-cli")), "export", "openvino", *source, *options]
            done = subprocess.run(
                [*command, str(temporary)],
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                reason = " ".join(done.stderr.split())[-200:]
                raise ModelError(
                    f"{NAME} cannot be exported for OpenVINO ({reason}); remove ENERGYLM_HOME/peers/openvino"
                )
    return folder


_WORKER = """
import json, sys, time
import numpy, openvino, openvino_genai as genai

folder, new, top_k = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
scheduler = genai.SchedulerConfig()
scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.max_num_seqs = 4, True, 256
precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
pipeline = genai.LLMPipeline(folder, "CPU", scheduler_config=scheduler, **precision)
print("ready", flush=True)
for line in sys.stdin:
    task = json.loads(line)
    ids = numpy.array([task["context"]], dtype=numpy.int64)
    config = genai.GenerationConfig()
    config.do_sample, config.top_k, config.top_p, config.temperature = True, top_k, 1.0, 1.0
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = new, True, False
    config.num_return_sequences = task["n"]
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    start = time.perf_counter()
    result = pipeline.generate(inputs, config)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "tokens": sum(map(len, result.tokens))}), flush=True)
"""
