"""The server under load: many clients against one client after another, and more clients than the queue takes.

Server and clients are two processes on one machine and speak HTTP over the loopback. A GPT-2 of 4 × 256 under a UniT
energy of the same size continues prompts of 64 tokens by 16, every prompt and seed another. One client waits for each
answer before it asks again; of 16, those that ask while the models are busy travel together. That helps while a request
alone cannot fill the machine: with 4 candidates it cannot, with 32 it nearly does, so that has no bar. What can be
gained at all is measured beside it: the same requests answered without a server, one after another and 16 at a time.

Then 200 clients ask a server that lets 64 wait, 20 times: everybody must get an answer or a clean 429, and memory must
not grow. Memory is the process' own (RssAnon) after each crowd but the first, read when the server has been quiet long
enough to give back what it freed. What the allocator holds before that goes up and down by chance, and stands in the
details. There are two bars: the last crowd over the second; and what the median slope of all crowds (Theil-Sen)
foresees after 100 more, over the second, which a leak of 1 MB a crowd fails though it passes the other.

The protocol has changed: results without the second bar are of 7 crowds, with memory read at once after each.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from energylm.apps import hosting
from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer, CompletionTask
from energylm.apps.serve.queue import QUIET_SECONDS
from energylm.apps.serve.services import Services
from energylm.apps.serve.verb import ServeLimits
from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    Rounds,
    interleaved,
    private_megabytes,
    seconds_of,
)
from energylm.benchmarks.residual import BareEnergy
from energylm.benchmarks.shared_prefix import make_network
from energylm.bundles.residual_model import ResidualModel
from energylm.energies.pooled import PooledEnergy
from energylm.errors import extra
from energylm.models.causal import CausalLanguageModel
from energylm.waiting import HUGE_PAGES

with extra("web"):
    from scipy.stats import theilslopes

CONTEXT, NEW, CLIENTS, REQUESTS, TOP_K = 64, 16, 16, 128, 10
LAYERS = 4
BARRED_CANDIDATES, SHOWN_CANDIDATES = (1, 4), (32,)
CROWD, CROWDS, WAITING = 200, 20, 64
FORESEEN_CROWDS = 100
BARE = ", no server"  # after the name of a contender


@dataclass
class ClientLoad:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    queue_seconds: list[float] = field(default_factory=list)
    unclean: int = 0  # answers that are neither texts nor a 429 that says when to come back
    lock: Any = field(default_factory=threading.Lock)

    def note(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        answer = json.loads(body)
        is_clean = "choices" in answer if status == 200 else status == 429 and headers["retry-after"].isdigit()
        with self.lock:
            self.statuses[status] += 1
            self.unclean += not is_clean
            if status == 200:
                queue = headers["server-timing"].partition("dur=")[2].partition(",")[0]
                self.queue_seconds.append(float(queue) / 1000)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.queue_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(options: Options) -> BenchmarkResult:
    clients, requests, crowd, waiting = (4, 8, 24, 4) if options.quick else (CLIENTS, REQUESTS, CROWD, WAITING)
    candidates = (*BARRED_CANDIDATES, *(() if options.quick else SHOWN_CANDIDATES))
    loads = {count: ClientLoad() for count in candidates}
    bare = _completer(1 if options.quick else LAYERS)
    with server(__name__, waiting, 1 if options.quick else LAYERS) as (port, process):
        contenders = {}
        for count in candidates:
            ask = partial(_rate, port, candidates=count)
            contenders[f"{count}: one"] = partial(ask, ClientLoad(), clients=1, requests=requests // 8)
            contenders[f"{count}: many"] = partial(ask, loads[count], clients=clients, requests=requests)
        for count in BARRED_CANDIDATES:
            answer = partial(_bare_rate, bare, candidates=count)
            contenders[f"{count}: one{BARE}"] = partial(answer, together=1, requests=requests // 8)
            contenders[f"{count}: many{BARE}"] = partial(answer, together=clients, requests=requests)
        rate = interleaved(contenders, options, unit="completions/s", share=0.6)
        memory, crowded = _crowds(port, process, crowd=crowd, crowds=3 if options.quick else CROWDS)
    bars = [
        Bar.on(f"{clients} clients over one, completions/s, {_words(count)}", _gain(rate, count), 8.0)
        for count in BARRED_CANDIDATES
    ]
    who, foreseen = f"{crowd} clients, {waiting} may wait", foreseen_growth(memory.quiet, crowds=FORESEEN_CROWDS)
    bars += [
        Bar(f"{who}: answers neither right nor 429", crowded.unclean, 0, at_least=False),
        Bar(f"{who}: answered", crowded.statuses[200], waiting),
        Bar(f"{who}: refused with 429", crowded.statuses[429], 1),
        Bar("memory after the last crowd over the second", memory.quiet[-1] / memory.quiet[0], 1.1, at_least=False),
        Bar(f"memory foreseen after {FORESEEN_CROWDS} crowds over the second", foreseen, 1.1, at_least=False),
    ]
    details: dict[str, Any] = {f"completions/s, {name}": value for name, value in rate.items()}
    details |= {f"gain, {_words(count)}": _gain(rate, count) for count in candidates}
    details |= {f"gain without a server, {_words(count)}": _gain(rate, count, BARE) for count in BARRED_CANDIDATES}
    details |= {f"p95 queue time, seconds, {_words(count)}": load.quantile(0.95) for count, load in loads.items()}
    details["p95 queue time, seconds, crowd"] = crowded.quantile(0.95)
    details["megabytes after each crowd, server quiet"] = memory.quiet
    details["megabytes after each crowd, at once"] = memory.at_once
    return BenchmarkResult(name="serve", bars=bars, details=details)


def _words(candidates: int) -> str:
    return "the language model alone" if candidates == 1 else f"{candidates} candidates a text"


def _gain(rate: dict[str, Rounds], candidates: int, where: str = "") -> Rounds:
    return rate[f"{candidates}: many{where}"] / rate[f"{candidates}: one{where}"]


@contextmanager
def server(module: str, *arguments: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server in a process of its own, which `module` runs as a program; its port, and the process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    own = {name: value for name, value in os.environ.items() if name != HUGE_PAGES}  # `energylm serve` takes none
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _rate(port: int, load: ClientLoad, *, clients: int, requests: int, candidates: int) -> float:
    """Completions a second of so many clients, each with its share of the requests."""
    shares = [range(client, requests, clients) for client in range(clients)]
    return requests / seconds_of(partial(_all_ask, port, load, shares, candidates=candidates))


@dataclass
class CrowdMemory:
    """Anonymous megabytes of the server after each crowd but the first."""

    at_once: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)


def _crowds(port: int, process: subprocess.Popen[str], *, crowd: int, crowds: int) -> tuple[CrowdMemory, ClientLoad]:
    """In each crowd everybody asks once at the same time."""
    load, memory = ClientLoad(), CrowdMemory()
    for number in range(crowds):
        _all_ask(port, load, [range(client, client + 1) for client in range(crowd)], candidates=8)
        if number:
            memory.at_once.append(private_megabytes(process.pid))
            time.sleep(QUIET_SECONDS + 1)
            memory.quiet.append(private_megabytes(process.pid))
    return memory, load


def foreseen_growth(megabytes: Sequence[float], *, crowds: int) -> float:
    """So many times the first value is to be expected after as many crowds more, by the median slope of all pairs."""
    return 1 + crowds * float(theilslopes(megabytes).slope) / megabytes[0]


def _all_ask(port: int, load: ClientLoad, shares: list[range], *, candidates: int) -> None:
    threads = [
        threading.Thread(target=_ask, args=(port, load, share), kwargs={"candidates": candidates}) for share in shares
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(port: int, load: ClientLoad, seeds: range, *, candidates: int) -> None:
    """One client, one connection, one request after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for seed in seeds:
        energy = {"proposals": candidates}
        body = {"prompt": _prompt(seed), "max_tokens": NEW, "seed": seed, "top_k": TOP_K, "energy": energy}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        load.note(answer.status, answer.headers, answer.read())
    connection.close()


def _prompt(seed: int) -> list[int]:
    return [1 + (7 * seed + position) % 200 for position in range(CONTEXT)]


def _bare_rate(completer: Completer, *, together: int, requests: int, candidates: int) -> float:
    """Completions a second of so many requests answered at a time, without HTTP."""
    tasks = [
        CompletionTask(
            model="bench",
            prompts=(_prompt(seed),),
            contexts=(completer.read(_prompt(seed)),),
            n=1,
            max_new_tokens=NEW,
            temperature=1.0,
            top_p=1.0,
            top_k=TOP_K,
            proposals=None if candidates == 1 else candidates,
            weights="corrected",
            stop=(),
            seed=seed,
            logprobs=None,
            details=False,
        )
        for seed in range(requests)
    ]

    def answer_all() -> None:
        for start in range(0, requests, together):
            completer.complete(tasks[start : start + together])

    return requests / seconds_of(answer_all)


def _completer(layers: int) -> Completer:
    lm = CausalLanguageModel(make_network(layers=layers), start_token_id=None, eos_token_id=None)
    energy = BareEnergy(PooledEnergy(make_network(layers=layers).transformer, kind="unit").eval())
    return Completer(ResidualModel(lm, energy))


def _serve(waiting: int, layers: int) -> None:
    """The server's process: prints its port and serves."""
    serve_here(Services("bench", _completer(layers)), ServeLimits(max_waiting=waiting))


def serve_here(services: Services, limits: ServeLimits) -> None:
    listening = hosting.listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    hosting.run(create_app(services, limits), listening)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
