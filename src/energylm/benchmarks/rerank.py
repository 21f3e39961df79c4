"""Scoring n-best lists over their prefix trees against scoring them in plain batches sorted by length.

Both read the same lists (LibriSpeech 10-best where ENERGYLM_DATA has them) with the same causal networks. The tree
reads each shared prefix once, so it can at best need the share of tokens that it keeps, about half.

Then an Electric of MiniLM's size reranks the lists behind `POST /v1/rerank`, in a process of its own on this machine:
how long one client waits for a list, and each of 16 that ask at once, whose lists travel together. No bar.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energylm.apps.serve.services import Services
from energylm.apps.serve.verb import ServeLimits
from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved_seconds
from energylm.benchmarks.inputs import bit_energy, gpt2, nbest_texts, tokenizer_for
from energylm.benchmarks.serve import serve_here, server
from energylm.bundles.cloze_model import ELECTRIC, ClozeModel
from energylm.bundles.scorer import ClozeScorer, Scorer
from energylm.energies.electric import TokenEnergy
from energylm.models.causal import CausalLanguageModel
from energylm.models.prefix_tree import PrefixTree, tree_log_probs

SIZES = ((4, 256), (6, 512))  # layers × width
LISTS, LONGEST = 64, 512
SERVED_LAYERS, SERVED_WIDTH, SERVED_HEADS = 6, 384, 12  # MiniLM's
CLIENTS = 16


def run(options: Options) -> BenchmarkResult:
    count = 4 if options.quick else LISTS
    lists = nbest_texts(count)
    tokenizer = tokenizer_for([text for texts in lists.texts for text in texts])
    ids = [[tokenizer.encode(text, add_special_tokens=False) for text in texts] for texts in lists.texts]
    bars: list[Bar] = []
    details: dict[str, Any] = {"lists": len(ids), "origin": lists.origin}
    sizes = SIZES[:1] if options.quick else SIZES
    for number, (layers, width) in enumerate(sizes):
        size = f"{layers} × {width}"
        model = make_model(layers, width, vocabulary_size=len(tokenizer))
        contenders: dict[str, Callable[[], object]] = {
            "tree": partial(tree_log_probs, model, ids),
            "plain": partial(in_batches, model, ids),
        }
        seconds = interleaved_seconds(contenders, options, share=1 / (len(sizes) - number))
        tree, plain = seconds["tree"], seconds["plain"]
        bars += [
            Bar.on(f"{size}: time over trees / time in plain batches", tree / plain, 0.7, at_least=False),
            Bar(f"{size}: largest difference of a token's score", largest_gap(model, ids), 1e-4, at_least=False),
        ]
        hypotheses = sum(map(len, ids))
        details |= {f"{size}: hypotheses/s, trees": hypotheses / tree, f"{size}: plain": hypotheses / plain}
    details["share of tokens that trees read"] = nodes(ids) / sum(len(text) for of_list in ids for text in of_list)
    with server(__name__, count, 1 if options.quick else SERVED_LAYERS) as (port, _):
        ask_all(port, lists.texts, clients=2)  # weights are packed on first use
        for clients in (1, 2 if options.quick else CLIENTS):
            who = f"served, {clients} client{'s' if clients > 1 else ''}"
            begun = time.perf_counter()
            seconds_L = ask_all(port, lists.texts, clients=clients)
            details[f"{who}: lists/s"] = len(seconds_L) / (time.perf_counter() - begun)
            for name, share in (("median", 0.5), ("95 %", 0.95)):
                details[f"{who}: seconds until a list is back, {name}"] = float(np.quantile(seconds_L, share))
    return BenchmarkResult(name="rerank", bars=bars, details=details)


def ask_all(port: int, lists: Sequence[Sequence[str]], *, clients: int) -> list[float]:
    """Seconds that each list took; every client has its share, one list after another over one connection."""
    seconds: list[float] = []

    def ask(own: Sequence[Sequence[str]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        for texts in own:
            body = {"hypotheses": [{"text": text, "score": -float(rank)} for rank, text in enumerate(texts)]}
            begun = time.perf_counter()
            connection.request("POST", "/v1/rerank", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            seconds.append(time.perf_counter() - begun)
            if answer.status != 200:
                raise RuntimeError(f"the server answered {answer.status}: {said[:200]!r}")
        connection.close()

    threads = [threading.Thread(target=ask, args=(lists[client::clients],)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(seconds) < len(lists):
        raise RuntimeError(f"{len(lists) - len(seconds)} of {len(lists)} lists did not come back")
    return seconds


def electric_scorer(lists: Sequence[Sequence[str]], *, layers: int) -> Scorer:
    tokenizer = tokenizer_for([text for texts in lists for text in texts])
    shape = {"layers": layers, "width": SERVED_WIDTH, "heads": SERVED_HEADS, "positions": LONGEST}
    encoder = bit_energy(**shape, vocabulary_size=len(tokenizer)).encoder
    return Scorer(ClozeScorer(ClozeModel(ELECTRIC, TokenEnergy(encoder), tokenizer)))


def make_model(layers: int, width: int, *, vocabulary_size: int) -> CausalLanguageModel:
    heads = width // 64
    network = gpt2(layers=layers, width=width, heads=heads, positions=LONGEST, vocabulary_size=vocabulary_size)
    return CausalLanguageModel(network, start_token_id=0, eos_token_id=0)


def in_batches(model: CausalLanguageModel, lists: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """(R, T): every hypothesis by itself; the model sorts them by length."""
    rows = [torch.tensor(text) for of_list in lists for text in of_list]
    lengths = torch.tensor([len(row) for row in rows])
    return model.token_log_probs(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)


def largest_gap(model: CausalLanguageModel, lists: Sequence[Sequence[Sequence[int]]]) -> float:
    plain = iter(in_batches(model, lists))
    gaps = [
        float((values_T - next(plain)[: len(values_T)]).abs().max())
        for of_list in tree_log_probs(model, lists)
        for values_T in of_list
    ]
    return max(gaps)


def nodes(lists: Sequence[Sequence[Sequence[int]]]) -> int:
    """Tokens that the trees read."""
    return sum(PrefixTree.of(of_list, start_token_id=0).nodes for of_list in lists)


def _serve(count: int, layers: int) -> None:
    """The server's process: prints its port and serves."""
    scorer = electric_scorer(nbest_texts(count).texts, layers=layers)
    serve_here(Services("bench", scorer=scorer), ServeLimits())


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
