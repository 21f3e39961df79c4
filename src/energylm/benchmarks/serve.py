"""The server under load: many clients against one client after another, and more clients than the queue takes.

Server and clients are two processes on one machine and speak HTTP over the loopback. A GPT-2 of 4 × 256 under a UniT
energy of the same size continues prompts of 64 tokens by 16, every prompt and seed another. One client waits for each
answer before it asks again; of 16, those that ask while the models are busy travel together. That helps while a request
alone cannot fill the machine: with 4 candidates it cannot, with 32 it nearly does, so that has no bar.

Then 200 clients ask a server that lets 64 wait: everybody must get an answer or a clean 429, and memory must not grow.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from energylm.benchmarks.harness import Bar, Options, Result, interleaved_rates

CONTEXT, NEW, CLIENTS, REQUESTS = 64, 16, 16, 128
BARRED_CANDIDATES, SHOWN_CANDIDATES = (1, 4), (32,)
CROWD, CROWD_ROUNDS, WAITING = 200, 6, 64


@dataclass
class Load:
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


def run(options: Options) -> Result:
    clients, requests, crowd, waiting = (4, 8, 24, 4) if options.quick else (CLIENTS, REQUESTS, CROWD, WAITING)
    candidates = (*BARRED_CANDIDATES, *(() if options.quick else SHOWN_CANDIDATES))
    loads = {count: Load() for count in candidates}
    with server(waiting=waiting, quick=options.quick) as (port, process):
        contenders = {}
        for count in candidates:
            contenders[f"{count}: one"] = partial(
                _rate, port, Load(), clients=1, requests=requests // 8, candidates=count
            )
            contenders[f"{count}: many"] = partial(
                _rate, port, loads[count], clients=clients, requests=requests, candidates=count
            )
        rate = interleaved_rates(contenders, repeats=options.repeats)
        memory, crowded = _crowd(port, process, crowd=crowd, rounds=2 if options.quick else CROWD_ROUNDS)
    bars = [
        Bar(f"{clients} clients over one, completions/s, {_words(count)}", _gain(rate, count), 3.0)
        for count in BARRED_CANDIDATES
    ]
    bars += [
        Bar(f"{crowd} clients, {waiting} may wait: answers neither right nor 429", crowded.unclean, 0, at_least=False),
        Bar(f"{crowd} clients, {waiting} may wait: answered", crowded.statuses[200], waiting),
        Bar(f"{crowd} clients, {waiting} may wait: refused with 429", crowded.statuses[429], 1),
        Bar("memory after the last crowd over the second", memory[-1] / memory[0], 1.1, at_least=False),
    ]
    details: dict[str, Any] = {f"completions/s, {name}": value for name, value in rate.items()}
    details |= {f"gain, {_words(count)}": _gain(rate, count) for count in candidates}
    details |= {f"p95 queue time, seconds, {_words(count)}": load.quantile(0.95) for count, load in loads.items()}
    details["p95 queue time, seconds, crowd"] = crowded.quantile(0.95)
    details["megabytes after each crowd"] = memory
    return Result(name="serve", bars=bars, details=details)


def _words(candidates: int) -> str:
    return "the language model alone" if candidates == 1 else f"{candidates} candidates a text"


def _gain(rate: dict[str, float], candidates: int) -> float:
    return rate[f"{candidates}: many"] / rate[f"{candidates}: one"]


@contextmanager
def server(*, waiting: int, quick: bool) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server in a process of its own; its port, and the process."""
    command = [sys.executable, "-m", __name__, str(waiting), "1" if quick else "4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _rate(port: int, load: Load, *, clients: int, requests: int, candidates: int) -> float:
    """Completions a second of so many clients, each with its share of the requests."""
    shares = [range(client, requests, clients) for client in range(clients)]
    start = time.perf_counter()
    _all_ask(port, load, shares, candidates=candidates)
    return requests / (time.perf_counter() - start)


def _crowd(port: int, process: subprocess.Popen[str], *, crowd: int, rounds: int) -> tuple[list[float], Load]:
    """Rounds in which everybody asks once at the same time; anonymous memory after each but the first, in megabytes."""
    load, memory = Load(), []
    for number in range(1 + rounds):
        _all_ask(port, load, [range(client, client + 1) for client in range(crowd)], candidates=8)
        if number:
            memory.append(anonymous_megabytes(process.pid))
    return memory, load


def _all_ask(port: int, load: Load, shares: list[range], *, candidates: int) -> None:
    threads = [
        threading.Thread(target=_ask, args=(port, load, share), kwargs={"candidates": candidates}) for share in shares
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(port: int, load: Load, seeds: range, *, candidates: int) -> None:
    """One client, one connection, one request after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for seed in seeds:
        prompt = [1 + (7 * seed + place) % 200 for place in range(CONTEXT)]
        body = {"prompt": prompt, "max_tokens": NEW, "seed": seed, "top_k": 10, "energy": {"proposals": candidates}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        load.note(answer.status, answer.headers, answer.read())
    connection.close()


def anonymous_megabytes(process: int) -> float:
    """Memory that is the process' own: mapped files do not count."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1000


def _serve(waiting: int, layers: int) -> None:
    """The server's process: prints its port and serves."""
    from energylm.benchmarks.residual import NetworkEnergy
    from energylm.benchmarks.shared_prefix import make_network
    from energylm.bundles.residual_model import ResidualModel
    from energylm.config.serve import ServeLimits
    from energylm.energies.pooled import PooledEnergy
    from energylm.models.causal import CausalLanguageModel
    from energylm.pipelines.serve import Services
    from energylm.pipelines.serve_completions import Completer
    from energylm.web import running
    from energylm.web.serve_app import create_app

    lm = CausalLanguageModel(make_network(layers=layers), start_token_id=None, eos_token_id=None)
    energy = NetworkEnergy(PooledEnergy(make_network(layers=layers).transformer, kind="unit").eval())
    services = Services("bench", Completer(ResidualModel(lm, energy), name="bench"))
    listening = running.listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    running.run(create_app(services, ServeLimits(max_waiting=waiting)), listening)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
