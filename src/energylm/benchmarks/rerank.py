"""Scoring n-best lists over their prefix trees against scoring them in plain batches sorted by length.

Both read the same lists (LibriSpeech 10-best where ENERGYLM_DATA has them) with the same causal networks. The tree
reads each shared prefix once, so it can at best need the share of tokens that it keeps, about half.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved_seconds
from energylm.benchmarks.inputs import gpt2, nbest_texts, tokenizer_for
from energylm.models.causal import CausalLanguageModel
from energylm.models.prefix_tree import PrefixTree, tree_log_probs

SIZES = ((4, 256), (6, 512))  # layers × width
LISTS, LONGEST = 64, 512


def run(options: Options) -> BenchmarkResult:
    lists = nbest_texts(4 if options.quick else LISTS)
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
    return BenchmarkResult(name="rerank", bars=bars, details=details)


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
