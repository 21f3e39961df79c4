"""Eight bits: exact where nothing is rounded, within the derived bound elsewhere; what it costs is told; what cannot be
done is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from energylm import Scorer
from energylm.bundles.devices import move
from energylm.config.cloze import ScorerConfig
from energylm.errors import ConfigError, ModelError
from energylm.models.quantized import (
    Int8Linear,
    agreement,
    forget_float32,
    has_float32,
    in_float32,
    is_quantized,
    quantize,
    rounded,
    scales,
)
from energylm.registry import SCORERS

TEXTS = ["The clerk counts the boats.", "boats", "A sailor mends a bridge, she said.", "seven lamps and winter coats"]


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def test_whole_numbers_up_to_127_are_exact():
    """With 127 in every row of W and x both scales are 1: nothing is rounded."""
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randint(-127, 128, (20, 30), generator=generator).float()
    x_RI = torch.randint(-127, 128, (5, 30), generator=generator).float()
    weight_OI[:, 3], x_RI[:, 7] = 127, -127
    bias_O = torch.arange(20.0)
    layer = Int8Linear(weight_OI, bias_O)
    assert torch.equal(layer(x_RI), x_RI @ weight_OI.T + bias_O)
    assert torch.equal(layer.weight, weight_OI)
    assert not torch.equal(layer(1.5 * x_RI + 0.3), (1.5 * x_RI + 0.3) @ weight_OI.T + bias_O)  # teeth: it does round


def bound(weight_OI, x_RI):
    """(R, O) t s Σ (|Q| + |q| + ½) / 2, by the formula of the header."""
    s_O, t_R = scales(weight_OI), scales(x_RI)
    whole_O, whole_R = rounded(weight_OI, s_O).abs().float().sum(1), rounded(x_RI, t_R).abs().float().sum(1)
    return t_R[:, None] * s_O * (whole_O + whole_R[:, None] + weight_OI.shape[1] / 2) / 2


def test_errors_stay_within_the_bound_row_by_row():
    """Rows and outputs of very different size; one scale for all rows breaks the bound of the small ones (teeth)."""
    generator = torch.Generator().manual_seed(1)
    size_R, size_O = torch.logspace(-3, 2, 6)[:, None], torch.logspace(-2, 1, 24)[:, None]
    x_RI, weight_OI = (size * torch.randn(len(size), 40, generator=generator) for size in (size_R, size_O))
    exact_RO, bound_RO = x_RI.double() @ weight_OI.double().T, bound(weight_OI, x_RI)
    assert ((Int8Linear(weight_OI, None)(x_RI) - exact_RO).abs() <= bound_RO + 1e-5 * exact_RO.abs()).all()
    single_RI = rounded(x_RI, scales(x_RI.reshape(1, -1)).expand(len(x_RI))).float() * scales(x_RI.reshape(1, -1))
    assert not ((single_RI @ weight_OI.T - exact_RO).abs() <= bound_RO).all()


def test_rows_of_zeros_and_any_shape():
    layer = Int8Linear(torch.zeros(16, 4), None)
    assert torch.equal(layer(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 16))
    ones = Int8Linear(torch.ones(16, 4), torch.ones(16))
    assert torch.allclose(ones(torch.ones(2, 3, 4)), torch.full((2, 3, 16), 5.0)) and ones(torch.ones(4)).shape == (16,)


def bert():
    return seeded(
        lambda: BertModel(
            BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64),
            add_pooling_layer=False,
        ).eval()
    )


def gpt2():
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    return seeded(lambda: GPT2LMHeadModel(config).eval())


@pytest.mark.parametrize(("make", "layers"), [(bert, 12), (gpt2, 9)])  # of gpt2: 4 a block, and the output
def test_networks_keep_their_outputs_nearly(make, layers):
    network, ids = make(), torch.arange(10)[None]
    with torch.no_grad():
        before = network(input_ids=ids)[0]
        assert quantize(network) == layers and not any(isinstance(part, Conv1D) for part in network.modules())
        after = network(input_ids=ids)[0]
    error = (after - before).norm() / before.norm()
    assert 0 < error < 0.03
    for part in network.modules():  # teeth: scales of the wrong outputs
        if isinstance(part, Int8Linear):
            part.scale_O = part.scale_O.roll(1)
    with torch.no_grad():
        assert (network(input_ids=ids)[0] - before).norm() / before.norm() > error


def test_heads_and_embeddings_stay():
    network = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1), nn.Embedding(4, 8))
    assert quantize(network) == 1
    assert isinstance(network[0], Int8Linear) and type(network[1]) is nn.Linear and type(network[2]) is nn.Embedding
    assert quantize(network) == 0  # again changes nothing
    with pytest.raises(ModelError, match="no linear layer"):
        quantize(nn.Sequential(nn.Linear(8, 1)))


def test_float32_comes_back_for_a_while_and_is_forgotten():
    network, x = nn.Sequential(nn.Linear(8, 32)), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = network(x)
        quantize(network)
        eight_bits = network(x)
        assert has_float32([network]) and not torch.equal(eight_bits, whole)
        with in_float32([network]):
            assert torch.equal(network(x), whole) and not is_quantized(network)
        assert torch.equal(network(x), eight_bits)
        forget_float32([network])
        with in_float32([network]):
            assert torch.equal(network(x), eight_bits)  # nothing is left to come back
    assert not has_float32([network]) and is_quantized(network)


def test_the_agreement_by_hand():
    """Scores 1, 2, 3, 4 in float32 become 1, 2.5, 2.25, 4: one pair changes its order, so Spearman's is 1 − 6·2/60."""
    network = nn.Sequential(nn.Linear(8, 32))
    quantize(network)
    cost = agreement([network], lambda: [1, 2.5, 2.25, 4] if is_quantized(network) else [1, 2, 3, 4])
    assert cost.rank_correlation == pytest.approx(0.8) and cost.largest_difference == 0.75 and cost.texts == 4
    assert "rank correlation 0.8000, largest difference 0.75 where scores spread by 1.12" in cost.summary()


def test_what_cannot_be_done_is_refused():
    network = nn.Sequential(nn.Linear(8, 32))
    move(network, None, "int8")
    with pytest.raises(ModelError, match=r"in int8 is not saved.*load the model again without"):
        network.state_dict()
    with pytest.raises(ModelError, match="in int8 has no gradients"):
        network(torch.ones(2, 8, requires_grad=True))
    with pytest.raises(ModelError, match="int8 is for CPUs, and the network is on meta"):
        quantize(nn.Sequential(nn.Linear(8, 32, device="meta")))
    assert torch.equal(copy.deepcopy(network)(torch.ones(2, 8)), network(torch.ones(2, 8)))


@pytest.mark.parametrize("kind", ["model_folder", "masked_folder", "electric_folder"])
def test_scorers_tell_what_it_costs_once(kind, request, capsys):
    folder = request.getfixturevalue(kind)
    whole, eight_bits = Scorer.from_pretrained(folder), Scorer.from_pretrained(folder, dtype="int8")
    assert "linear layers in int8" in eight_bits.convention and "int8" not in whole.convention
    scores = eight_bits.score(TEXTS)
    assert scores == pytest.approx(whole.score(TEXTS), rel=0.05) and scores != whole.score(TEXTS)
    assert capsys.readouterr().err.count("int8 against float32 on 4 texts: rank correlation") == 1
    assert eight_bits.score(TEXTS) == scores and "int8 against" not in capsys.readouterr().err


def test_rivals_are_compared_within_their_list(model_folder, monkeypatch, capsys):
    """Lists of long and of short texts: across all texts length decides the ranks, within a list what int8 rounds. The
    numbers that are compared add up to 0 in every list; texts that are no rivals are compared as they are."""
    compared = []

    def watched(networks, score):
        compared.append(np.array(score()))
        return agreement(networks, score)

    monkeypatch.setattr("energylm.bundles.scorer.agreement", watched)
    lists = [["the clerk counts the boats", "the clerk counts a boat"], ["a sailor", "the sailor", "a boat"]]
    Scorer.from_pretrained(model_folder, dtype="int8").list_scores(lists)
    (values,) = compared
    assert values[:2].sum() == pytest.approx(0, abs=1e-9) and values[2:].sum() == pytest.approx(0, abs=1e-9)
    assert np.abs(values).min() > 0
    assert "on 5 texts" in (said := capsys.readouterr().err) and said.rstrip().endswith("within their lists")
    Scorer.from_pretrained(model_folder, dtype="int8").score(TEXTS)
    assert compared[1].max() < 0 and "within their lists" not in capsys.readouterr().err


def test_a_scorer_without_networks_says_so(monkeypatch):
    class Lengths:
        name, method, reads, max_tokens, convention = "lengths", "log-likelihood", "both", None, "letters"

        @classmethod
        def from_pretrained(cls, source, *, config, device):
            return cls()

    monkeypatch.setitem(SCORERS._parts, "lengths", Lengths)
    with pytest.raises(ConfigError, match="dtype int8 is for networks, and lengths shows none"):
        Scorer.from_pretrained("lengths", config=ScorerConfig(dtype="int8"))
