"""Sampled continuations against exact enumeration, and their independence of batches.

The language has 4 tokens and 3 steps after a context: 64 sequences (or fewer with an end token), so the law of a
continuation is a table. Log-probabilities are compared with it draw by draw; frequencies by chi-square with a false
alarm of 1e-4.
"""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from energylm.config.sampling import Truncation
from energylm.models.causal import CausalLanguageModel
from energylm.models.decoders import PlainDecoder
from energylm.models.shared_prefix import SharedPrefixDecoder
from energylm.numerics import kernels
from energylm.samplers import continuations
from energylm.samplers.continuations import sample_continuations
from energylm.testing import TabularLanguageModel, assert_same_distribution, exact_language_model, exact_proposal

CONTEXT, NEW, DRAWS = [2, 0], 3, 20_000
TRUNCATIONS = [
    Truncation(),
    Truncation(temperature=1.5),
    Truncation(top_k=2),
    Truncation(top_p=0.7),
    Truncation(top_k=3, top_p=0.9, temperature=0.8),
]


def tabular(eos_token_id=None):
    return TabularLanguageModel.random(4, len(CONTEXT) + NEW, seed=3, eos_token_id=eos_token_id)


def tiny_gpt2():
    config = GPT2Config(
        vocab_size=4, n_embd=16, n_layer=2, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = GPT2LMHeadModel(config).eval()
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.5)
    return CausalLanguageModel(network, start_token_id=None, eos_token_id=None)


def draw(decoder, **options):
    defaults = {"n": DRAWS, "max_new_tokens": NEW, "seed": 11}
    return sample_continuations(decoder, [CONTEXT], **(defaults | options))


def check_law(model, decoder, truncation, *, tolerance, **options):
    exact = exact_language_model(model, CONTEXT, max_new_tokens=NEW)
    proposal = exact_proposal(exact, truncation)
    drawn = draw(decoder, truncation=truncation, eos_token_id=model.eos_token_id, **options)
    rows = exact.index(drawn.tokens[0], drawn.lengths[0])
    torch.testing.assert_close(drawn.log_prob[0], exact.log_prob[rows], atol=tolerance, rtol=0)
    torch.testing.assert_close(drawn.proposal_log_prob[0], proposal.log_prob[rows], atol=tolerance, rtol=0)
    assert drawn.lengths[0].equal(exact.lengths[rows])
    assert_same_distribution(proposal.counts(drawn.tokens[0], drawn.lengths[0]), proposal.probabilities)


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("eos_token_id", [None, 1])
def test_law_of_continuations_of_a_table(truncation, eos_token_id):
    model = tabular(eos_token_id)
    check_law(model, model.decoder(), truncation, tolerance=1e-12)


@pytest.mark.parametrize("truncation", [Truncation(), Truncation(top_k=2)], ids=str)
@pytest.mark.parametrize("decoder_class", [SharedPrefixDecoder, PlainDecoder])
def test_law_of_continuations_of_a_transformer(truncation, decoder_class):
    model = tiny_gpt2()
    check_law(model, decoder_class(model.network), truncation, tolerance=1e-4)


def test_one_uniform_for_all_steps_is_caught(monkeypatch):
    """Deliberate mistake: steps that share a random number draw every token rightly and the sequence wrongly."""
    right = continuations.row_uniforms
    monkeypatch.setattr(continuations, "row_uniforms", lambda keys, *, step: right(keys, step=0))
    with pytest.raises(AssertionError, match="chi-square"):
        check_law(tabular(), tabular().decoder(), Truncation(), tolerance=1e-12)


def test_untruncated_log_probability_under_truncation_is_caught(monkeypatch):
    """Deliberate mistake: the proposal's probability given as the model's."""

    def confused(logits, uniform, truncation):
        token, _, proposal = right(logits, uniform, truncation)
        return token, proposal, proposal

    right = continuations.draw_token
    monkeypatch.setattr(continuations, "draw_token", confused)
    with pytest.raises(AssertionError):
        check_law(tabular(), tabular().decoder(), Truncation(top_k=2), tolerance=1e-12)


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_rows_draw_the_same_in_threads_of_their_own(truncation, monkeypatch):
    """Whole, in two parts, and with the second part's numbers given to the first: only that draws anything else."""
    stream = torch.Generator().manual_seed(0)
    logits_RV, uniform_R = torch.randn(40, 300, generator=stream), torch.rand(40, generator=stream, dtype=torch.float64)
    whole = continuations.draw_token(logits_RV, uniform_R, truncation)
    for cuts, same in (([(0, 13), (13, 40)], True), ([(13, 40), (0, 13)], False)):
        monkeypatch.setattr(continuations, "row_parts", lambda logits, cuts=cuts: [slice(*cut) for cut in cuts])
        parts = continuations.draw_token(logits_RV, uniform_R, truncation)
        assert all(mine.equal(theirs) for mine, theirs in zip(whole, parts, strict=True)) == same


def test_threads_share_large_batches_of_rows_on_a_cpu_alone(monkeypatch):
    monkeypatch.setattr(kernels.torch, "get_num_threads", lambda: 2)
    large = torch.zeros(65, 1 << 14)
    assert kernels.row_parts(large) == [slice(0, 32), slice(32, 65)]
    for single in (large[:4], large.to("meta")):
        assert kernels.row_parts(single) == [slice(0, len(single))]


def test_a_row_keeps_its_draw_in_any_micro_batch_and_any_n():
    contexts = [[2, 0], [1], [3, 3], [0, 1]]
    decoder = TabularLanguageModel.random(4, 5, seed=3).decoder()
    whole = sample_continuations(decoder, contexts, n=50, max_new_tokens=NEW, seed=7)
    pieces = sample_continuations(decoder, contexts, n=50, max_new_tokens=NEW, seed=7, memory_budget_bytes=1000)
    fewer = sample_continuations(decoder, contexts, n=9, max_new_tokens=NEW, seed=7)
    later = sample_continuations(decoder, contexts[2:], n=50, max_new_tokens=NEW, seed=7, first_context=2)
    gaps = sample_continuations(
        decoder, [contexts[3], contexts[1]], n=50, max_new_tokens=NEW, seed=7, context_indices=[3, 1]
    )
    other = sample_continuations(decoder, contexts, n=50, max_new_tokens=NEW, seed=8)
    assert whole.tokens.equal(pieces.tokens) and whole.log_prob.equal(pieces.log_prob)
    assert whole.tokens[:, :9].equal(fewer.tokens)
    assert whole.tokens[2:].equal(later.tokens)
    assert whole.tokens[[3, 1]].equal(gaps.tokens)
    assert not whole.tokens.equal(other.tokens)


def test_contexts_with_seeds_limits_and_truncations_of_their_own_travel_together():
    """Each context draws what it draws alone; positions past its own limit hold 0 and do not count."""
    contexts, seeds, limits = [[2, 0], [1], [3], [0, 1]], [7, 2**62, 7, 0], [3, 1, 4, 2]
    truncations = [TRUNCATIONS[1], TRUNCATIONS[2], TRUNCATIONS[0], TRUNCATIONS[2]]
    decoder = TabularLanguageModel.random(4, 6, seed=3, eos_token_id=2).decoder()
    together = sample_continuations(
        decoder,
        contexts,
        n=40,
        max_new_tokens=limits,
        truncation=truncations,
        eos_token_id=2,
        seed=seeds,
        context_indices=[5, 0, 2, 9],
        memory_budget_bytes=9000,
    )
    for row, (context, index) in enumerate(zip(contexts, [5, 0, 2, 9], strict=True)):
        alone = sample_continuations(
            decoder,
            [context],
            n=40,
            max_new_tokens=limits[row],
            truncation=truncations[row],
            eos_token_id=2,
            seed=seeds[row],
            first_context=index,
        )
        assert together.tokens[row, :, : limits[row]].equal(alone.tokens[0])
        assert not together.tokens[row, :, limits[row] :].any()
        for name in ("lengths", "log_prob", "proposal_log_prob"):
            assert getattr(together, name)[row].equal(getattr(alone, name)[0])
    swapped = sample_continuations(decoder, contexts, n=40, max_new_tokens=limits, eos_token_id=2, seed=seeds[::-1])
    assert not swapped.tokens.equal(together.tokens)  # teeth: the seeds are read, and so are the truncations


def test_shared_and_plain_decoders_draw_the_same_tokens():
    model = tiny_gpt2()
    contexts = [[2, 0, 1], [1], [3, 3]]
    drawn = [
        sample_continuations(decoder(model.network), contexts, n=40, max_new_tokens=NEW, seed=2)
        for decoder in (SharedPrefixDecoder, PlainDecoder)
    ]
    assert drawn[0].tokens.equal(drawn[1].tokens)


def test_nothing_asked_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        draw(tabular().decoder(), n=0)
