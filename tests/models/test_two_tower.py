"""The two-tower cloze model: leaks nothing, wraps nothing around, sees no padding, and is what two towers say apart."""

import pytest
import torch
from torch.nn.functional import gelu
from torch.testing import assert_close
from transformers import AutoModel

from energylm.config.models import TransformerShape
from energylm.models import two_tower
from energylm.models.cloze_presets import build_two_tower, electra_config, share_token_embeddings

SHAPE = TransformerShape(layers=2, width=16, heads=2, dropout=0.0)
SIZES = {"vocabulary_size": 23, "max_length": 9, "pad_token_id": None}


def build(embedding_width=24, seed=0, shape=SHAPE):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_two_tower(shape, embedding_width=embedding_width, **SIZES).eval()


@pytest.fixture(scope="module")
def network():
    return build()


def tokens(rows=3, length=9, seed=0):
    return torch.randint(0, 23, (rows, length), generator=torch.Generator().manual_seed(seed))


def changed(tokens_BT, position):
    other = tokens_BT.clone()
    other[:, position] = (other[:, position] + 5) % 23
    return other


def leaks(logits_of, tokens_BT):
    """The positions whose distribution changes with their own token, and the pairs (t, s) where s does not reach t."""
    before, own, deaf = logits_of(tokens_BT), [], []
    for s in range(tokens_BT.shape[1]):
        moved_T = (logits_of(changed(tokens_BT, s)) != before).any(-1).any(0)
        own += [s] if moved_T[s] else []
        deaf += [(t, s) for t in range(tokens_BT.shape[1]) if t != s and not moved_T[t]]
    return own, deaf


@torch.no_grad()
def test_the_distribution_of_a_token_is_the_same_to_the_bit_whatever_it_is(network):
    """And every other token matters, at both ends, too."""
    assert leaks(lambda x: network(x).logits, tokens()) == ([], [])
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] + [0] * 8])  # padded rows among them
    assert leaks(lambda x: network(x, attention_mask=mask).logits * mask[..., None], tokens())[0] == []


@torch.no_grad()
def test_a_leak_and_a_wrap_around_are_caught(network):
    """Teeth: own states instead of the neighbours', and `roll` instead of a shift, which gives x_1 the state of x_n."""

    def head(states):
        return network.decoder(network.norm(gelu(network.narrow(states))))

    def own_states(x):
        return head(network.towers(x).last_hidden_state)

    def rolled(x):
        forward, backward = network.towers(x).last_hidden_state.chunk(2, dim=-1)
        return head(torch.cat([forward.roll(1, dims=1), backward.roll(-1, dims=1)], dim=-1))

    assert leaks(own_states, tokens())[0] == list(range(9))
    assert leaks(rolled, tokens())[0] == [0, 8]


@torch.no_grad()
def test_each_distribution_by_reading_prefix_and_suffix_apart(network):
    """Two routes: a tower over edge + x_<t, one over edge + reversed x_>t, last states joined, softmax by hand."""
    x = tokens(rows=1)[0]
    towers, table = network.towers, network.towers.get_input_embeddings().weight
    for t in range(9):
        halves = []
        for tower, reading, edge in (
            (towers.left, x[:t], towers.edges.weight[0]),
            (towers.right, x[t + 1 :].flip(0), towers.edges.weight[1]),
        ):
            inputs = torch.cat([edge[None], table[reading]])[None]
            halves.append(tower(inputs_embeds=inputs, use_cache=False).last_hidden_state[0, -1])
        hidden = network.norm(gelu(network.narrow(torch.cat(halves))))
        log_prob = (table @ hidden + network.decoder.bias).log_softmax(-1)
        ours = network(x[None]).logits[0, t].log_softmax(-1)
        assert_close(ours, log_prob, atol=1e-5, rtol=0)
        assert_close(ours.exp().sum(), torch.tensor(1.0))


@torch.no_grad()
def test_padding_and_the_batch_do_not_matter(network):
    x, lengths = tokens(), torch.tensor([9, 5, 1])
    mask = (torch.arange(9) < lengths[:, None]).long()
    together = network(x, attention_mask=mask).logits
    junk = torch.where(mask.bool(), x, (x + 7) % 23)
    again = network(junk, attention_mask=mask).logits
    for row, length in enumerate(lengths.tolist()):
        alone = network(x[row : row + 1, :length]).logits[0]
        assert_close(together[row, :length], alone, atol=1e-5, rtol=0)
        assert torch.equal(again[row, :length], together[row, :length])
    # Teeth: a tower that reads the padding (all nine tokens reversed) gives other numbers.
    assert float((network(x).logits[1, :5] - together[1, :5]).abs().max()) > 1e-2
    states = network.towers(x, attention_mask=mask).last_hidden_state
    assert_close(states[1, :5], network.towers(x[1:2, :5]).last_hidden_state[0], atol=1e-5, rtol=0)


def test_embeddings_are_shared_with_an_encoder_and_projected():
    from transformers import ElectraModel

    shape = TransformerShape(layers=1, width=24, heads=2, dropout=0.0)
    encoder, noise = ElectraModel(electra_config(shape, **SIZES)), build()
    share_token_embeddings(encoder, noise)
    table = encoder.get_input_embeddings().weight
    towers = noise.towers
    assert all(t.embeddings.word_embeddings.weight is table for t in (towers.left, towers.right))
    assert noise.decoder.weight is table and towers.left.embeddings_project.weight.shape == (16, 24)
    assert sum(p is table for p in noise.parameters()) == 1
    noise(tokens()).logits.sum().backward()
    assert float(table.grad.abs().max()) > 0
    assert not hasattr(build(embedding_width=16).towers.left, "embeddings_project")  # of equal width nothing is needed


@torch.no_grad()
def test_folders_and_auto_classes(network, tmp_path):
    two_tower.register()
    two_tower.register()
    network.save_pretrained(tmp_path)
    again = two_tower.TwoTowerForCloze.from_pretrained(tmp_path)
    assert torch.equal(again(tokens()).logits, network(tokens()).logits)
    table = again.towers.get_input_embeddings().weight
    assert again.decoder.weight is table is again.towers.right.embeddings.word_embeddings.weight
    encoder = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(encoder(tokens()).last_hidden_state, network.towers(tokens()).last_hidden_state)
    assert encoder.config.hidden_size == 32


def test_it_learns_what_lies_between():
    """Sequences that count by one: each token soon follows from its neighbours. A blind tower would stay at log 23."""
    network = build(shape=TransformerShape(layers=1, width=32, heads=2, dropout=0.0)).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        x = (torch.randint(0, 23, (16, 1), generator=generator) + torch.arange(9)) % 23
        loss = torch.nn.functional.cross_entropy(network(x).logits.flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5
