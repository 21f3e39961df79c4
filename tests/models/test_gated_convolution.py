"""The gated convolutional LM: its formula by hand, causality, loss, padding, and the folder round trip."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from energylm.models.gated_convolution import GatedConvolutionConfig, GatedConvolutionLM, register

VOCABULARY, KERNEL, WIDTH = 13, 3, 8


@pytest.fixture
def network():
    config = GatedConvolutionConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, embedding_size=6, num_hidden_layers=3, kernel_size=KERNEL
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = GatedConvolutionLM(config).double().eval()
        for parameter in network.parameters():  # no zero biases, no unit norms: every term of the formula counts
            parameter.data += 0.3 * torch.randn_like(parameter)
    return network


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


def test_a_block_is_two_convolutions_and_a_gate(network):
    """x + (X * W + b) ⊗ σ(X * V + c) with torch's own `conv1d`, values and gradients; X is the normalised input behind
    kernel − 1 columns of zeros. Row j of a block's weight reads window column k at k·D … k·D + D − 1."""
    block = network.blocks[0]
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = block.convolution.weight.unflatten(1, (KERNEL, WIDTH)).transpose(1, 2)  # (2D, D, K)
    padded = F.pad(block.norm(x).transpose(1, 2), (KERNEL - 1, 0))
    linear = F.conv1d(padded, weight[:WIDTH], block.convolution.bias[:WIDTH])
    gate = F.conv1d(padded, weight[WIDTH:], block.convolution.bias[WIDTH:])
    expected = x + (linear * gate.sigmoid()).transpose(1, 2)
    got, _ = block(x, network.nothing_before(x))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)))


def changes_after_editing(network, position):
    """Which positions' logits change when the token at `position` does."""
    edited = TOKENS.clone()
    edited[:, position] = (edited[:, position] + 1) % VOCABULARY
    with torch.no_grad():
        difference = network(input_ids=edited).logits - network(input_ids=TOKENS).logits
    return set(torch.nonzero(difference.abs().amax(dim=(0, 2)) > 1e-12)[:, 0].tolist())


def test_a_position_sees_itself_and_the_past_only(network):
    """Three layers of kernel 3 see 1 + 3·2 = 7 tokens: an edit at t reaches t … t + 6 and nothing before t."""
    last = TOKENS.shape[1] - 1
    for position in range(last + 1):
        assert changes_after_editing(network, position) == set(range(position, min(position + 6, last) + 1))


def test_padding_on_the_wrong_side_is_caught(network, monkeypatch):
    """Teeth: centred padding (one column of the two on the right) lets the future leak."""
    for block in network.blocks:
        convolve = block.convolution.forward
        monkeypatch.setattr(block.convolution, "forward", lambda columns, f=convolve: f(columns.roll(-1, dims=1)))
    assert 3 in changes_after_editing(network, 4)


def test_loss_is_the_shifted_cross_entropy_without_ignored_labels(network):
    labels = TOKENS.clone()
    labels[0, -2:] = -100
    output = network(input_ids=TOKENS, labels=labels)
    log_prob = output.logits.log_softmax(-1)
    terms = [-log_prob[row, t - 1, TOKENS[row, t]] for row in range(2) for t in range(1, 8) if labels[row, t] != -100]
    torch.testing.assert_close(output.loss, torch.stack(terms).mean())


@pytest.mark.parametrize("side", ["left", "right"])
def test_masked_padding_changes_nothing(network, side):
    padding = torch.full((2, 3), 7)
    real, pad = torch.ones_like(TOKENS), torch.zeros_like(padding)
    parts = [(padding, pad), (TOKENS, real)] if side == "left" else [(TOKENS, real), (padding, pad)]
    ids, mask = (torch.cat(pair, dim=1) for pair in zip(*parts, strict=True))
    with torch.no_grad():
        padded = network(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        unmasked = network(input_ids=ids).logits[mask.bool()]
        expected = network(input_ids=TOKENS).logits.flatten(0, 1)
    torch.testing.assert_close(padded, expected)
    if side == "left":  # teeth: without the mask the padding is read as text
        assert (unmasked - expected).abs().max() > 1e-3


def test_only_the_last_logits_on_request(network):
    with torch.no_grad():
        some, every = network(input_ids=TOKENS, logits_to_keep=3).logits, network(input_ids=TOKENS).logits
    torch.testing.assert_close(some, every[:, -3:])


def test_folder_round_trip_through_the_auto_class(network, tmp_path):
    register()
    register()
    network.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert isinstance(again, GatedConvolutionLM) and not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(again.eval()(input_ids=TOKENS).logits, network(input_ids=TOKENS).logits)
