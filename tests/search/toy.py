"""Small random sequence models that the tests of search and its objectives share; every sequence they can write."""

from itertools import product

import torch

from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig

SOURCE_VOCABULARY = 7


def network(*, vocabulary=4, attention="fixed", bidirectional=True, eos=None, seed=0, dtype=torch.float64, spread=2.0):
    """Random weights, spread widely, so that no two sequences score nearly alike."""
    config = LSTMSeq2SeqConfig(
        source_vocab_size=SOURCE_VOCABULARY,
        vocab_size=vocabulary,
        hidden_size=6,
        source_embedding_size=5,
        embedding_size=3,
        bidirectional=bidirectional,
        attention=attention,
        eos_token_id=eos,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LSTMSeq2Seq(config).to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                fan_in = 1 if "embedding" in name else parameter.shape[-1]
                parameter.copy_(torch.randn_like(parameter) * spread / fan_in**0.5 * (parameter.ndim > 1))
    return model.eval()


def sources(*lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    source_BS = torch.randint(SOURCE_VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    return source_BS, torch.tensor(lengths)


def sequences(vocabulary, length, *, eos=None):
    """Every sequence that can be written in `length` symbols: those that end by EOS, and full ones that do not."""
    if eos is None:
        return list(product(range(vocabulary), repeat=length))
    found = []
    for each in product(range(vocabulary), repeat=length):
        end = each.index(eos) + 1 if eos in each else length
        if all(symbol == eos for symbol in each[end:]):
            found.append(each[:end])
    return found


@torch.no_grad()
def exact_scores(model, source_S, each, *, locally_normalized=True):
    """The score of one sequence by the fused pass, one row alone."""
    source_1S, target_1T = source_S[None], torch.tensor([each])
    scores_1TV = model.scores(source_1S, torch.tensor([len(source_S)]), target_1T)
    if locally_normalized:
        scores_1TV = scores_1TV.log_softmax(-1)
    return float(scores_1TV.gather(-1, target_1T[..., None]).sum())
