"""Scoring n-best lists over their prefix trees against scoring them in plain batches sorted by length.

Both read the same lists (LibriSpeech 10-best where ENERGYLM_DATA has them) with the same causal networks. The tree
reads each shared prefix once, so it can at best need the share of tokens that it keeps, about half.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved, median
from energylm.benchmarks.texts import nbest_texts, tokenizer_for

if TYPE_CHECKING:
    from torch import Tensor

    from energylm.models.causal import CausalLanguageModel

SIZES = ((4, 256), (6, 512))  # layers × width
LISTS, LONGEST = 64, 512


def run(options: Options) -> BenchmarkResult:
    lists = nbest_texts(4 if options.quick else LISTS)
    tokenizer = tokenizer_for([text for texts in lists.texts for text in texts])
    ids = [[tokenizer.encode(text, add_special_tokens=False) for text in texts] for texts in lists.texts]
    bars: list[Bar] = []
    details: dict[str, Any] = {"lists": len(ids), "origin": lists.origin}
    for layers, width in SIZES[:1] if options.quick else SIZES:
        size = f"{layers} × {width}"
        model = make_model(layers, width, vocabulary_size=len(tokenizer))
        seconds = interleaved(
            {"tree": partial(over_trees, model, ids), "plain": partial(in_batches, model, ids)}, repeats=options.repeats
        )
        tree, plain = median(seconds["tree"]), median(seconds["plain"])
        bars += [
            Bar(f"{size}: time over trees / time in plain batches", tree / plain, 0.7, at_least=False),
            Bar(f"{size}: largest difference of a token's score", largest_gap(model, ids), 1e-4, at_least=False),
        ]
        hypotheses = sum(map(len, ids))
        details |= {f"{size}: hypotheses/s, trees": hypotheses / tree, f"{size}: plain": hypotheses / plain}
    details["share of tokens that trees read"] = nodes(ids) / sum(len(one) for of_list in ids for one in of_list)
    return BenchmarkResult(name="rerank", bars=bars, details=details)


def make_model(layers: int, width: int, *, vocabulary_size: int) -> "CausalLanguageModel":
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from energylm.models.causal import CausalLanguageModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        n_positions=LONGEST,
        vocab_size=vocabulary_size,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = GPT2LMHeadModel(config).eval()
    return CausalLanguageModel(network, start_token_id=0, eos_token_id=0)


def over_trees(model: "CausalLanguageModel", lists: Sequence[Sequence[Sequence[int]]]) -> "list[list[Tensor]]":
    from energylm.models.prefix_tree import tree_log_probs

    return tree_log_probs(model, lists)


def in_batches(model: "CausalLanguageModel", lists: Sequence[Sequence[Sequence[int]]]) -> "Tensor":
    """(R, T): every hypothesis by itself; the model sorts them by length."""
    import torch

    rows = [torch.tensor(one) for of_list in lists for one in of_list]
    lengths = torch.tensor([len(row) for row in rows])
    return model.token_log_probs(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)


def largest_gap(model: "CausalLanguageModel", lists: Sequence[Sequence[Sequence[int]]]) -> float:
    plain = iter(in_batches(model, lists))
    gaps = [
        float((values_T - next(plain)[: len(values_T)]).abs().max())
        for of_list in over_trees(model, lists)
        for values_T in of_list
    ]
    return max(gaps)


def nodes(lists: Sequence[Sequence[Sequence[int]]]) -> int:
    """Tokens that the trees read."""
    from energylm.models.prefix_tree import PrefixTree

    return sum(PrefixTree.of(of_list, start_token_id=0).nodes for of_list in lists)
