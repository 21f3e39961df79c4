"""Which networks are packed, that packed weights follow the network's, and that draws stay the draws they were.

That packed logits are those of a plain pass is shown form by form in `test_shared_prefix`.
"""

import pytest
import torch
import transformers
from torch import nn

from energylm.config.sampling import Truncation
from energylm.models import packed, shared_prefix_attention
from energylm.models.decoders import decoder_for
from energylm.models.packed import PackedDecoder, why_not_packed
from energylm.models.shared_prefix import SharedPrefixDecoder
from energylm.numerics import kernels
from energylm.samplers.continuations import sample_continuations

CONTEXTS = [[5, 1, 7, 3, 9, 2], [4, 8]]


def llama(**changes):
    sizes = {
        "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes)).eval()
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(1, 0.3)
    return network


def gpt2(**changes):
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | ends | changes)).eval()


def second_logits(network):
    decoder = PackedDecoder(network)
    prefix, _ = decoder.prefill(CONTEXTS)
    return decoder.step(decoder.fork(prefix, copies=1, max_new_tokens=2), torch.tensor([6, 6]))


def plain_logits(network):
    with torch.no_grad():
        return torch.stack([network(torch.tensor([[*context, 6]])).logits[0, -1] for context in CONTEXTS])


def with_hook():
    network = llama()
    network.model.layers[1].mlp.register_forward_hook(lambda module, given, result: 2 * result)
    return network


def with_adapter():
    class Adapter(nn.Linear):
        pass

    network = llama()
    network.model.layers[0].mlp.up_proj = Adapter(16, 24, bias=False)
    return network


REFUSED = {
    "its family is of another form": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ),
    "it is not in float32 on a CPU": lambda: llama().double(),
    "a part of it has been given another forward pass or a hook": with_hook,
    "it has a layer of Adapter": with_adapter,
    "it has an activation or rotation that is not written here": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "it has an activation or attention that GPT-2 has not": lambda: gpt2(activation_function="relu"),
    "it slides an attention window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(
            vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, sliding_window=4,
        )
    ).eval(),
    "it is in training mode": lambda: llama().train(),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_a_network_with_any_other_part_is_left_to_the_shared_prefix_decoder(reason):
    network = REFUSED[reason]()
    assert why_not_packed(network) == reason
    assert isinstance(decoder_for(network), SharedPrefixDecoder)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_known_form_is_packed(make):
    assert isinstance(decoder_for(make()), PackedDecoder)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_one_continuation_of_each_context(make):
    network = make()
    torch.testing.assert_close(second_logits(network), plain_logits(network), atol=1e-4, rtol=0)


def test_big_networks_are_not_copied(monkeypatch):
    monkeypatch.setattr(packed, "MOST_BYTES", 1000)
    assert "would take more than" in why_not_packed(llama())


def test_a_form_that_has_changed_is_found_out_on_first_use(monkeypatch):
    """Deliberate mistake: keys of prefixes keep the order of their own network, queries do not."""
    right = PackedDecoder.fork

    def fork(self, prefix, **sizes):
        packed.packed_network(self.network)
        with monkeypatch.context() as patch:
            patch.setattr(packed, "rotary_pairs", torch.arange)
            return right(self, prefix, **sizes)

    monkeypatch.setattr(PackedDecoder, "fork", fork)
    network = llama()
    assert why_not_packed(network) == "its logits differ from those of a plain forward pass"
    assert isinstance(decoder_for(network), SharedPrefixDecoder)


def written_through_data(network):
    network.model.layers[1].mlp.down_proj.weight.data.mul_(1.5)


def written_in_place(network):
    with torch.no_grad():
        network.model.layers[1].mlp.down_proj.weight[3, 5] += 5.0


def replaced(network):
    network.model.layers[1].mlp.down_proj.weight = nn.Parameter(torch.ones(16, 24))


@pytest.mark.parametrize("change", [written_through_data, written_in_place, replaced])
def test_changed_weights_are_packed_again(change, monkeypatch):
    network = llama()
    before = second_logits(network)
    change(network)
    torch.testing.assert_close(second_logits(network), plain_logits(network), atol=1e-4, rtol=0)
    # teeth: weights that are believed to be the same draw from the network that was
    network = llama()
    monkeypatch.setattr(packed, "weights_version", lambda network: ())
    assert torch.equal(second_logits(network), before)
    change(network)
    assert (second_logits(network) - plain_logits(network)).abs().max() > 0.01


def test_unchanged_weights_are_packed_once():
    network = llama()
    assert packed.packed_network(network) is packed.packed_network(network)


def test_the_same_contexts_are_read_once(monkeypatch):
    decoder, readings, right = PackedDecoder(llama()), [], packed.read_causally
    monkeypatch.setattr(packed, "read_causally", lambda *given: readings.append(given) or right(*given))
    prefix, logits_BV = decoder.prefill(CONTEXTS)
    expected_BV = logits_BV.clone()
    logits_BV[:, 3] = float("-inf")  # as `ForbiddenTokensDecoder` does
    again, others_BV = decoder.prefill([list(context) for context in CONTEXTS])
    assert again is prefix and torch.equal(others_BV, expected_BV) and len(readings) == 1
    decoder.prefill(CONTEXTS[:1])  # in other company a context is read anew
    decoder.prefill(CONTEXTS[::-1])
    assert len(readings) == 3
    # the oldest goes where all would take too much
    monkeypatch.setattr(shared_prefix_attention, "KEPT_BYTES", 2 * (prefix.nbytes + logits_BV.nbytes))
    for contexts, read in ((CONTEXTS, 3), (CONTEXTS[::-1], 3), ([[9] * 9], 4), (CONTEXTS[::-1], 4), (CONTEXTS, 5)):
        decoder.prefill(contexts)
        assert len(readings) == read


@pytest.mark.parametrize("truncation", [Truncation(), Truncation(top_k=5, temperature=0.8)])
def test_draws_are_those_of_the_shared_prefix_decoder(truncation):
    network = llama()
    draws = [
        sample_continuations(decoder, CONTEXTS, n=7, max_new_tokens=9, truncation=truncation, seed=seed)
        for decoder, seed in (
            (PackedDecoder(network), 3),
            (SharedPrefixDecoder(network), 3),
            (PackedDecoder(network), 4),
        )
    ]
    ours, theirs, other = draws
    assert torch.equal(ours.tokens, theirs.tokens)
    torch.testing.assert_close(ours.log_prob, theirs.log_prob, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.proposal_log_prob, theirs.proposal_log_prob, atol=1e-4, rtol=0)
    assert not torch.equal(other.tokens, theirs.tokens)


@pytest.mark.parametrize("network", [llama, gpt2])
def test_without_a_compiler_torch_computes_the_same(network, monkeypatch):
    monkeypatch.setattr(kernels, "compiled_kernels", lambda: None)
    made = network()
    torch.testing.assert_close(second_logits(made), plain_logits(made), atol=1e-4, rtol=0)
