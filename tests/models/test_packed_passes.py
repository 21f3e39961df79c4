"""Packed passes of BERT's form: the states of a plain pass, by family, with padding and shared out among threads."""

import pytest
import torch
import transformers

from energylm.models import packed, packed_passes
from energylm.models.packed_passes import (
    PackedPrefixEncoder,
    causal_logits,
    encoder_states,
    packed_states,
    packed_states_at,
    prefix_encoder_for,
    why_not_packed_body,
    why_not_packed_encoder,
)
from energylm.models.shared_prefix import SharedPrefixEncoder

SIZES = {
    "vocab_size": 97, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "bert": (transformers.BertModel, transformers.BertConfig, {}),
    "bert, tanh": (transformers.BertModel, transformers.BertConfig, {"hidden_act": "gelu_new"}),
    "electra": (transformers.ElectraModel, transformers.ElectraConfig, {"embedding_size": 8}),
    "roberta": (transformers.RobertaModel, transformers.RobertaConfig, {"pad_token_id": 1}),
}


@pytest.fixture
def threads(monkeypatch):
    """Pretends so many threads; a pool that is made meanwhile would leave torch with them."""
    usual = torch.get_num_threads()

    def pretend(number):
        monkeypatch.setattr(torch, "get_num_threads", lambda: number)

    yield pretend
    monkeypatch.undo()
    torch.set_num_threads(usual)


def make(family="bert", **changes):
    network_class, config_class, own = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = network_class(config_class(**SIZES | own | changes)).eval()
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(0.5, 0.3)
    return network


def texts(rows=7, longest=19):
    stream = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (rows,), generator=stream)
    lengths[3] = longest
    return torch.randint(2, 97, (rows, longest), generator=stream), lengths


def largest_difference(network, tokens, lengths):
    with torch.no_grad():
        states = encoder_states(network, tokens, lengths)
        plain = [
            network(row[None, :length]).last_hidden_state[0]
            for row, length in zip(tokens, lengths.tolist(), strict=True)
        ]
    return max(float((own[: len(one)] - one).abs().max()) for own, one in zip(states, plain, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_those_of_each_text_by_itself(family):
    network = make(family)
    assert why_not_packed_encoder(network) is None
    assert largest_difference(network, *texts()) < 1e-5
    same_length = torch.full((7,), 19)
    assert largest_difference(network, texts()[0], same_length) < 1e-5
    torch.testing.assert_close(encoder_states(network, texts()[0]), encoder_states(network, texts()[0], same_length))


@torch.no_grad()
def test_states_do_not_depend_on_how_rows_are_shared_out(monkeypatch, threads):
    network, (tokens, lengths) = make(), texts()
    together = encoder_states(network, tokens, lengths)
    monkeypatch.setattr(packed_passes, "TOKENS_A_THREAD", 8)
    threads(3)
    pieces = packed_passes._cut(lengths, 3)
    assert len(pieces) == 3 and [row for piece in pieces for row in range(7)[piece]] == list(range(7))
    torch.testing.assert_close(encoder_states(network, tokens, lengths), together, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_at_some_positions_are_those_of_all(family, monkeypatch, threads):
    network, (tokens, lengths) = make(family), texts()
    real = torch.arange(19) < lengths[:, None]
    wanted = real & (torch.rand(real.shape, generator=torch.Generator().manual_seed(2)) < 0.3)
    tokens = tokens.masked_fill(~real, 0)
    everywhere = packed_states(network, tokens, real)
    torch.testing.assert_close(packed_states_at(network, tokens, real, wanted), everywhere[wanted], atol=1e-6, rtol=0)
    monkeypatch.setattr(packed_passes, "TOKENS_A_THREAD", 8)
    threads(3)
    torch.testing.assert_close(packed_states_at(network, tokens, real, wanted), everywhere[wanted], atol=1e-6, rtol=0)


@torch.no_grad()
def test_attention_that_sees_padding_is_found_out_on_first_use(monkeypatch):
    """Deliberate mistake: the mask is forgotten."""
    right = packed.scaled_dot_product_attention
    monkeypatch.setattr(
        packed_passes, "scaled_dot_product_attention", lambda *given, attn_mask: right(*given, attn_mask=None)
    )
    network = make()
    assert why_not_packed_encoder(network) == "its states differ from those of a plain forward pass"
    assert largest_difference(network, *texts()) < 1e-5  # the network itself serves


@torch.no_grad()
def test_weights_that_change_are_packed_again():
    network, (tokens, lengths) = make(), texts()
    before = encoder_states(network, tokens, lengths)
    network.encoder.layer[1].output.dense.weight.data.mul_(1.5)
    assert (encoder_states(network, tokens, lengths) - before).abs().max() > 1e-3
    assert largest_difference(network, tokens, lengths) < 1e-5


@torch.no_grad()
def test_a_part_that_is_replaced_later_is_noticed():
    class Doubled(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    network, (tokens, lengths) = make(), texts()
    before = encoder_states(network, tokens, lengths)
    network.encoder.layer[1].output.dense = Doubled(network.encoder.layer[1].output.dense)
    assert why_not_packed_encoder(network) == "its states differ from those of a plain forward pass"
    assert (encoder_states(network, tokens, lengths) - before).abs().max() > 1e-3
    assert largest_difference(network, tokens, lengths) < 1e-5


@torch.no_grad()
def test_what_is_not_of_the_form_is_left_to_the_network():
    assert why_not_packed_encoder(make(hidden_act="relu")) == "it has an activation or attention that BERT has not"
    assert why_not_packed_encoder(make().train()) == "it is in training mode"
    assert why_not_packed_encoder(make().double()) == "it is not in float32 on a CPU"
    other = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=97, dim=16, n_heads=2, n_layers=1))
    assert why_not_packed_encoder(other) == "its family is of another form"


def test_gradients_take_the_plain_way():
    network, (tokens, lengths) = make(), texts()
    encoder_states(network, tokens, lengths).sum().backward()
    assert network.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    with torch.no_grad():
        real = torch.arange(19) < lengths[:, None]
        assert packed_states(network, tokens.masked_fill(~real, 0), real).grad_fn is None


CAUSAL = {
    "gpt2": lambda: transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=97, n_embd=16, n_layer=2, n_head=4, n_positions=40)
    ),
    "llama": lambda: transformers.LlamaModel(
        transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2})
    ),
}


def causal(family):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = CAUSAL[family]().eval()
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(0.5, 0.3)
    return network


CONTEXTS = [[5, 17, 3, 44, 90, 8], [9, 2, 31]]


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("number", [1, 3])
@torch.no_grad()
def test_continuations_have_the_states_of_whole_texts(family, number, monkeypatch, threads):
    monkeypatch.setattr(packed_passes, "TOKENS_A_THREAD", 4)
    threads(number)
    network = causal(family)
    encoder = prefix_encoder_for(network)
    assert isinstance(encoder, PackedPrefixEncoder)
    prefix, _ = encoder.prefill(CONTEXTS)
    tokens = torch.randint(0, 97, (8, 7), generator=torch.Generator().manual_seed(1))
    states = encoder.read(prefix, tokens)
    for row, new in enumerate(tokens.tolist()):
        context = CONTEXTS[row // 4]
        whole = network(torch.tensor([[*context, *new]])).last_hidden_state[0, len(context) :]
        torch.testing.assert_close(states[row], whole, atol=1e-5, rtol=0)


LANGUAGE_MODELS = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("number", [1, 3])
@torch.no_grad()
def test_logits_of_texts_are_those_of_the_network(family, number, monkeypatch, threads):
    monkeypatch.setattr(packed_passes, "TOKENS_A_THREAD", 4)
    threads(number)
    body = causal(family)
    network = LANGUAGE_MODELS[family](body.config).eval()
    network.base_model.load_state_dict(body.state_dict())
    tokens = torch.randint(0, 97, (5, 11), generator=torch.Generator().manual_seed(1))
    expected = network(tokens, attention_mask=torch.ones_like(tokens)).logits
    torch.testing.assert_close(causal_logits(network, tokens, keep=11), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(causal_logits(network, tokens, keep=4), expected[:, -4:], atol=1e-5, rtol=0)
    # teeth: tokens that see those after them
    right = packed.scaled_dot_product_attention
    monkeypatch.setattr(packed, "scaled_dot_product_attention", lambda *given, **_: right(*given, scale=1.0))
    assert (causal_logits(network, tokens, keep=11) - expected).abs().max() > 0.001


@torch.no_grad()
def test_continuations_that_see_their_future_are_found_out_on_first_use(monkeypatch):
    """Deliberate mistake: every token attends to those after it."""
    monkeypatch.setattr(torch.Tensor, "triu", lambda self, _: torch.zeros_like(self))
    network = causal("llama")
    assert why_not_packed_body(network) == "its states differ from those of a plain forward pass"
    assert type(prefix_encoder_for(network)) is SharedPrefixEncoder
