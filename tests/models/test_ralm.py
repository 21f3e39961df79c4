"""RALM against eq. 6 written out over a vocabulary of five: probabilities, gradients, decoder, folder, frozen base."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from energylm.errors import VocabularyMismatch
from energylm.models.causal import CausalLanguageModel
from energylm.models.decoders import ProductDecoder, decoder_for
from energylm.models.presets import build_network
from energylm.models.ralm import RalmConfig, RalmLM, register
from energylm.objectives.cross_entropy import cross_entropy_sum
from energylm.samplers.continuations import sample_continuations
from energylm.testing import assert_same_distribution, enumerate_sequences

VOCABULARY = 5
TOKENS = torch.tensor([[3, 1, 4, 1, 0], [2, 2, 0, 4, 1]])


def network(seed, *, preset="tiny", vocabulary=VOCABULARY, **overrides):
    sizes = {"layers": 1, "width": 8} | ({"heads": 2} if preset == "tiny" else {}) | overrides
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = build_network(preset, vocabulary_size=vocabulary, max_length=8, eos_token_id=0, overrides=sizes)
        for parameter in made.parameters():  # far from uniform, so that the constant matters
            parameter.data += 0.5 * torch.randn_like(parameter)
    return made.double().eval()


def ralm(**overrides):
    return RalmLM.of(network(1, dropout=0.3), network(2, width=12, **overrides))


def eq_6(model, tokens, *, constant=True):
    """(B, T, V) log-probabilities of every next token, from the two networks' own log-probabilities."""
    logs = model.base(tokens).logits.log_softmax(-1) + model.residual(tokens).logits.log_softmax(-1)
    return logs - logs.exp().sum(-1, keepdim=True).log() if constant else logs


def sequence_probabilities(log_probs_of, length=3):
    """Summed over all continuations of token 3, enumerated."""
    sequences = torch.tensor([[3, *tokens] for tokens in enumerate_sequences(VOCABULARY, length=length)])
    log_probs = log_probs_of(sequences[:, :-1]).gather(2, sequences[:, 1:, None])[..., 0]
    return log_probs.sum(-1).exp().sum()


@torch.no_grad()
def test_it_is_eq_6_and_sums_to_one():
    model = ralm()
    torch.testing.assert_close(model(TOKENS).logits.log_softmax(-1), eq_6(model, TOKENS))
    one = torch.tensor(1.0, dtype=torch.float64)
    torch.testing.assert_close(sequence_probabilities(lambda ids: model(ids).logits.log_softmax(-1)), one)
    # Teeth: without the constant nothing sums to one.
    assert abs(sequence_probabilities(lambda ids: eq_6(model, ids, constant=False)) - 1) > 0.1


def test_exact_likelihood_teaches_the_residual_only():
    """Loss and gradient equal those of eq. 6 written out; dropping the constant gives another gradient."""
    model = ralm().train()
    assert not model.base.training and model.residual.training
    cross_entropy_sum(model(TOKENS[:, :-1]).logits, TOKENS[:, 1:]).backward()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.base.parameters())
    learnt = {name: parameter.grad for name, parameter in model.residual.named_parameters()}
    for constant, equal in ((True, True), (False, False)):
        model.residual.zero_grad()
        log_probs = eq_6(model, TOKENS[:, :-1], constant=constant).gather(2, TOKENS[:, 1:, None])
        (-log_probs.sum()).backward()
        same = [torch.allclose(p.grad, learnt[name], atol=1e-10) for name, p in model.residual.named_parameters()]
        assert all(same) is equal


def test_the_loss_by_labels_is_the_same_mean():
    model, labels = ralm(), TOKENS.clone()
    labels[0, -1] = -100
    expected = cross_entropy_sum(model(TOKENS).logits[:, :-1], labels[:, 1:]) / 7
    torch.testing.assert_close(model(TOKENS, labels=labels).loss, expected)


def test_training_lowers_the_loss_and_leaves_the_base_as_it_was():
    model = ralm().train()
    before = copy.deepcopy(model.base.state_dict())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(30):
        loss = model(TOKENS, labels=TOKENS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.base.state_dict().items())


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@torch.no_grad()
def test_the_decoder_steps_the_product(preset):
    """Logits of the decoder against a forward pass for two contexts of unequal length, two rows each."""
    model = ralm(preset=preset)
    decoder = decoder_for(model)
    assert isinstance(decoder, ProductDecoder) and decoder.vocabulary_size == VOCABULARY
    contexts, new = [[3, 1, 4], [2]], torch.tensor([0, 1, 2, 3])
    prefix, first_BV = decoder.prefill(contexts)
    state = decoder.fork(prefix, copies=2, max_new_tokens=3)
    steps = [decoder.step(state, new), decoder.step(state, new.flip(0))]
    for row in range(4):
        context = contexts[row // 2]
        logits = model(torch.tensor([[*context, int(new[row]), int(new[3 - row])]])).logits[0, len(context) - 1 :]
        torch.testing.assert_close(torch.stack([first_BV[row // 2], *(step[row] for step in steps)]), logits)
    parts = [f.bytes_per_row(context_tokens=3, max_new_tokens=3) for f in decoder.factors]
    assert decoder.bytes_per_row(context_tokens=3, max_new_tokens=3) == sum(parts)


def test_samples_follow_it():
    """20,000 continuations of two tokens against enumerated probabilities, at the declared false-alarm rate."""
    model = ralm()
    drawn = sample_continuations(decoder_for(model), [[3]], n=20_000, max_new_tokens=2, seed=0)
    counts = torch.bincount(drawn.tokens[0, :, 0] * VOCABULARY + drawn.tokens[0, :, 1], minlength=VOCABULARY**2)
    pairs = torch.tensor([[3, *tokens] for tokens in enumerate_sequences(VOCABULARY, length=2)])
    scorer = CausalLanguageModel(model, start_token_id=0, eos_token_id=0)
    log_probs = scorer.token_log_probs(pairs, torch.full((len(pairs),), 3), first=1).sum(-1)
    assert_same_distribution(counts, log_probs.exp())


@torch.no_grad()
def test_folder_round_trip_through_the_auto_class(tmp_path):
    register()
    register()
    model = ralm(preset="conv-tiny")
    model.save_pretrained(tmp_path)
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert isinstance(again, RalmLM) and not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(again.eval()(TOKENS).logits, model(TOKENS).logits)
    assert not any(parameter.requires_grad for parameter in again.base.parameters())
    assert again.config.max_position_embeddings == 8  # the transformer's; a convolution has no bound


def test_refusals():
    with pytest.raises(VocabularyMismatch, match="base knows 5 tokens but the residual 6"):
        RalmLM.of(network(1), network(2, vocabulary=6))
    with pytest.raises(ValueError, match=r"RalmLM\.of"):
        RalmLM(RalmConfig())
