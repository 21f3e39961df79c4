"""Cross-entropy by hand, by enumeration, its gradient, and what is left out."""

import math

import torch
from torch.testing import assert_close

from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum


def test_by_hand():
    """Probabilities (¼, ¾) and (½, ½): −log ¾ − log ½ = log(8/3)."""
    logits = torch.tensor([[[0.0, math.log(3)], [5.0, 5.0]]], dtype=torch.float64)
    targets = torch.tensor([[1, 0]])
    assert_close(float(cross_entropy_sum(logits, targets)), math.log(8 / 3), atol=1e-12, rtol=0)
    assert count_targets(targets) == 2


def test_ignored_positions_add_neither_loss_nor_gradient_nor_count():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, IGNORED, 4], [IGNORED, IGNORED, 0]])
    loss = cross_entropy_sum(logits, targets)
    log_probs = logits.log_softmax(-1)
    assert_close(loss, -(log_probs[0, 0, 1] + log_probs[0, 2, 4] + log_probs[1, 2, 0]))
    assert count_targets(targets) == 3
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = logits.softmax(-1) - torch.nn.functional.one_hot(targets.clamp(min=0), 5)
    expected = expected * (targets != IGNORED)[..., None]
    assert_close(gradient, expected.detach(), atol=1e-12, rtol=0)
    assert gradient[0, 1].abs().max() == 0 and gradient[0, 0].abs().max() > 0


def test_a_uniform_model_has_the_vocabulary_as_perplexity():
    logits, targets = torch.zeros(4, 7, 11), torch.arange(28).view(4, 7) % 11
    assert_close(math.exp(cross_entropy_sum(logits, targets) / count_targets(targets)), 11.0, atol=1e-4, rtol=0)


def test_half_precision_logits_are_summed_in_float32():
    """4,096 terms of log 2: a bfloat16 sum would stop growing at 256 terms of its own spacing."""
    loss = cross_entropy_sum(torch.zeros(64, 64, 2, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert_close(float(loss), 4096 * math.log(2), atol=0.01, rtol=0)
    assert (
        cross_entropy_sum(torch.zeros(1, 1, 2, dtype=torch.float64), torch.zeros(1, 1, dtype=int)).dtype
        == torch.float64
    )
