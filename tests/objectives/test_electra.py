"""ELECTRA's loss, and the cloze probabilities that ELECTRA's appendix G reads off a perfect detector."""

import math

import torch
from torch.testing import assert_close

from energylm.objectives.noised_tokens import detector_log_prob, replaced_token_loss

M = 0.15


def distributions(size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64).softmax(0) for _ in range(2)]


def label_masses(p, q, *, lucky_is_original=True):
    """By enumeration of (text says y, chosen or not, noise says x): the masses of (x, original) and (x, replaced)."""
    original, replaced = torch.zeros_like(p), torch.zeros_like(p)
    for y in range(len(p)):
        original[y] += (1 - M) * p[y]
        for x in range(len(p)):
            is_original = x == y and lucky_is_original
            (original if is_original else replaced)[x] += M * p[y] * q[x]
    return original, replaced


def test_a_perfect_detector_gives_back_the_data():
    p, q = distributions()
    original, replaced = label_masses(p, q)
    detected = original / (original + replaced)
    a = (1 - M) / M
    assert_close(detected, p * (a + q) / (a * p + q))  # the docstring's D
    recovered = detector_log_prob((replaced / original).log(), q.log(), rate=M)
    assert_close(recovered.exp(), p, atol=1e-12, rtol=0)
    assert_close(recovered.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    # Teeth: noise that hits the original must count as original, m must be the share that was drawn, D not 1 − D.
    original, replaced = label_masses(p, q, lucky_is_original=False)
    wrong = [
        detector_log_prob((replaced / original).log(), q.log(), rate=M),
        detector_log_prob((1 / detected - 1).log(), q.log(), rate=0.3),
        detector_log_prob((detected / (1 - detected)).log(), q.log(), rate=M),
    ]
    assert all(float((found.exp() - p).abs().max()) > 0.01 for found in wrong)


def test_the_loss_is_smallest_at_that_detector():
    """A free logit a token, the exact expectation of the loss over all (text, chosen, noise) triples, then eq. G."""
    p, q = distributions(size=4, seed=1)
    rows, weights = [], []
    for y in range(4):
        rows.append((y, y))
        weights.append(float((1 - M) * p[y]))
        for x in range(4):
            rows.append((y, x))
            weights.append(float(M * p[y] * q[x]))
    tokens, noised = torch.tensor(rows).T[:, :, None]
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss_B = replaced_token_loss(
            logits[noised], tokens_BT=tokens, noised_BT=noised, maskable_BT=torch.ones_like(tokens, dtype=torch.bool)
        )
        value = (torch.tensor(weights, dtype=torch.float64) * loss_B).sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert_close(detector_log_prob(logits.detach(), q.log(), rate=M).exp(), p, atol=1e-6, rtol=0)


def test_the_loss_by_hand():
    """Kept, replaced by another, replaced by itself (kept, for ELECTRA), special (not judged): logits 1, 2, 3, 4."""
    tokens, noised = torch.tensor([[5, 6, 7, 0]]), torch.tensor([[5, 9, 7, 0]])
    maskable = torch.tensor([[True, True, True, False]])
    loss = replaced_token_loss(
        torch.tensor([[1.0, 2.0, 3.0, 4.0]]), tokens_BT=tokens, noised_BT=noised, maskable_BT=maskable
    )
    expected = math.log1p(math.exp(1)) + math.log1p(math.exp(-2)) + math.log1p(math.exp(3))
    assert_close(loss, torch.tensor([expected]))
    as_noise = expected - math.log1p(math.exp(3)) + math.log1p(math.exp(-3))  # teeth: lucky noise called noise
    assert abs(float(loss) - as_noise) > 1


def test_extreme_logits_and_probabilities_stay_finite():
    logits = torch.tensor([-80.0, 80.0, 0.0, 0.0])
    log_noise = torch.tensor([-5.0, -5.0, -120.0, 0.0])
    found = detector_log_prob(logits, log_noise, rate=M)
    assert bool(found.isfinite().all()) and bool((found <= 1e-6).all())
    assert float(found[0]) > -1e-4  # surely original: p = 1
