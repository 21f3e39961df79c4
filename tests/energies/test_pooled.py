"""PooledEnergy: pooling by hand, padding that changes nothing, the first energies, causality found out, gradients.

Networks have wide weights, so that what a mistake would change is far from rounding.
"""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedModel, RobertaConfig, RobertaModel

from energylm.energies.pooled import PooledEnergy, attends_causally
from energylm.errors import ConfigError
from energylm.training.processes import sound_bfloat16

VOCABULARY, WIDTH, POSITIONS = 31, 16, 24
BERT_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LENGTHS = torch.tensor([9, 4, 1, 6])
TOKENS = torch.randint(2, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(1))


def encoder(family: str) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "gpt2":
            network = GPT2Model(
                GPT2Config(
                    vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=POSITIONS, embd_pdrop=0.0,
                    resid_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                )
            )  # fmt: skip
        elif family == "bert":
            network = BertModel(BertConfig(**BERT_SIZES, max_position_embeddings=POSITIONS), add_pooling_layer=False)
        else:  # counts positions from the padding index on: 1 + 1 of 26 are reserved
            network = RobertaModel(
                RobertaConfig(**BERT_SIZES, max_position_embeddings=POSITIONS + 2, pad_token_id=1),
                add_pooling_layer=False,
            )
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    return network.eval()


KINDS = {"gpt2": "unit", "bert": "bit", "roberta": "bit"}


def energy(family: str, pooling: str = "mean") -> PooledEnergy:
    network = PooledEnergy(encoder(family), kind=KINDS[family], pooling=pooling)
    network.head.weight.data *= 1000  # far from the start, where all energies are alike
    return network.eval()


@pytest.mark.parametrize(
    ("family", "pooling"),
    [("gpt2", "mean"), ("bert", "mean"), ("bert", "first"), ("roberta", "mean"), ("roberta", "first")],
)
def test_energies_by_hand_and_padding_that_changes_nothing(family, pooling):
    """Each sequence alone, without padding and mask: E = w·h̄ + b with h̄ the mean (or the first) of its last states."""
    network = energy(family, pooling)
    with torch.no_grad():
        expected = []
        for tokens, length in zip(TOKENS, LENGTHS, strict=True):
            hidden_TD = network.encoder(input_ids=tokens[None, :length]).last_hidden_state[0]
            pooled_D = sum(hidden_TD) / length if pooling == "mean" else hidden_TD[0]
            expected.append(float(network.head.weight[0] @ pooled_D + network.head.bias[0]))
        energies = network(TOKENS, LENGTHS)
        assert_close(energies, torch.tensor(expected), atol=1e-4, rtol=0)
        assert energies.std() > 0.1  # the comparison is not between constants
        other = torch.where(torch.arange(9) < LENGTHS[:, None], TOKENS, VOCABULARY - 1)
        longer = torch.nn.functional.pad(other, (0, 5), value=7)
        assert_close(network(longer, LENGTHS), energies, atol=1e-4, rtol=0)
        # The deliberate mistakes: padding pooled, or padding attended to.
        everything = torch.full_like(LENGTHS, 9)
        assert (network(other, everything) - energies).abs().max() > 0.1


def test_pooling_over_padding_is_noticed(monkeypatch):
    """Teeth for the mean alone: the mask is right, but the sum takes every position."""
    network = energy("bert")
    with torch.no_grad():
        right = network(TOKENS, LENGTHS)
        monkeypatch.setattr(network, "sum_real", lambda hidden_BTD, lengths_B: hidden_BTD.sum(1))
        assert (network(TOKENS, LENGTHS) - right).abs().max() > 0.05


@pytest.mark.parametrize("family", KINDS)
def test_a_sequence_may_fill_all_positions_and_no_more(family):
    network = energy(family)
    assert network.max_tokens == POSITIONS and network.vocabulary_size == VOCABULARY
    tokens = TOKENS.repeat(1, 3)
    full = torch.full((4,), POSITIONS)
    with torch.no_grad():
        assert network(tokens[:, :POSITIONS], full).isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):  # teeth: one more does not fit
            network(tokens[:, : POSITIONS + 1], full + 1)


@pytest.mark.parametrize("family", KINDS)
def test_energies_start_near_zero_and_the_seed_decides(family):
    first, again, other = (PooledEnergy(encoder(family), kind=KINDS[family], seed=seed) for seed in (0, 0, 1))
    with torch.no_grad():
        assert 0 < first(TOKENS, LENGTHS).abs().max() < 0.1
    assert torch.equal(first.head.weight, again.head.weight) and not torch.equal(first.head.weight, other.head.weight)
    state = torch.get_rng_state()
    PooledEnergy(encoder(family), kind=KINDS[family])
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone


def test_the_spread_of_first_energies_does_not_depend_on_the_width():
    """Hidden states of unit variance: E has a standard deviation of 0.01 over heads, at any width."""
    for width in (16, 256):
        states_SD = torch.randn(400, width, generator=torch.Generator().manual_seed(2))
        config = GPT2Config(
            vocab_size=8, n_embd=width, n_layer=1, n_head=1, n_positions=4, bos_token_id=0, eos_token_id=0
        )
        body = GPT2Model(config)
        heads = [PooledEnergy(body, kind="unit", seed=seed) for seed in range(30)]
        spread = torch.stack([head.project(states_SD).detach() for head in heads]).std()
        assert float(spread) == pytest.approx(0.01, rel=0.15)


def test_the_first_position_of_a_causal_encoder_is_refused():
    with pytest.raises(ConfigError, match="sees one token only; use 'mean' or 'sum'"):
        PooledEnergy(encoder("gpt2"), kind="unit", pooling="first")


@pytest.mark.parametrize("family", KINDS)
def test_causality_is_found_out(family):
    network = encoder(family).train()
    assert attends_causally(network) == (KINDS[family] == "unit")
    assert network.training


def test_causality_of_fresh_weights_is_found_out():
    """Weights as a preset makes them are small; the difference must still be seen."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert not attends_causally(BertModel(BertConfig(**BERT_SIZES), add_pooling_layer=False))


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_every_parameter_learns(pooling):
    """Distributed training stops at a parameter without a gradient; BERT's pooler would be one."""
    network = energy("bert", pooling)
    network(TOKENS, LENGTHS).sum().backward()
    without = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert without == []
    with_pooler = PooledEnergy(BertModel(BertConfig(**BERT_SIZES)), kind="bit")
    with_pooler(TOKENS, LENGTHS).sum().backward()
    assert any(parameter.grad is None for parameter in with_pooler.parameters())  # teeth


def test_gradients_equal_finite_differences():
    network = energy("gpt2").double()
    weight = network.encoder.wte.weight
    network(TOKENS, LENGTHS).sum().backward()
    row, column, step = int(TOKENS[0, 0]), 3, 1e-6
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            weight[row, column] += sign * step
            values.append(float(network(TOKENS, LENGTHS).sum()))
            weight[row, column] -= sign * step
    assert float(weight.grad[row, column]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_energies_stay_float32_under_mixed_precision():
    network = energy("bert")
    half = PooledEnergy(encoder("bert").to(torch.bfloat16), kind="bit")
    with sound_bfloat16(needed=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert network(TOKENS, LENGTHS).dtype == torch.float32
            assert network.head(torch.zeros(1, WIDTH)).dtype == torch.bfloat16  # teeth: so it would be by itself
        assert half(TOKENS, LENGTHS).dtype == half.head.weight.dtype == torch.float32
