"""The masking's law, which tokens it spares, that it depends on (seed, step, row) alone, and the loss by hand."""

import pytest
import torch
from torch.testing import assert_close

from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.objectives.masking import mask_tokens, masking_uniforms
from energylm.testing import assert_same_distribution

VOCABULARY, MASK = 12, 2
ORDINARY = torch.arange(VOCABULARY) >= 4  # 0 … 3 are special
BERT = {"rate": 0.15, "mask_share": 0.8, "random_share": 0.1}


def masked(tokens, uniforms, **options):
    return mask_tokens(tokens, uniforms, ordinary_V=ORDINARY, mask_token_id=MASK, **(BERT | options))


def test_by_hand():
    """Five tokens, three numbers each. Ordinary ids are 4 … 11, so 0.99 · 8 = 7.92 picks the last, 11.

    chosen < 0.15      fate < 0.8: mask; < 0.9: random; else kept        special tokens (id 3) are never chosen
    """
    tokens = torch.tensor([[5, 6, 7, 8, 3]])
    uniforms = torch.tensor(
        [[[0.14, 0.14, 0.14, 0.16, 0.0]], [[0.79, 0.85, 0.95, 0.0, 0.0]], [[0.5, 0.99, 0.5, 0.5, 0.5]]]
    )
    inputs, targets = masked(tokens, uniforms)
    assert inputs.tolist() == [[MASK, 11, 7, 8, 3]]
    assert targets.tolist() == [[5, 6, 7, IGNORED, IGNORED]]
    inputs, _ = masked(tokens, uniforms, mask_share=1.0, random_share=0.0)
    assert inputs.tolist() == [[MASK, MASK, MASK, 8, 3]]


def law(options, *, spare_special=True):
    """Counts over 400 × 200 positions, a third of them special: not chosen, masked, kept, and each random token."""
    tokens = torch.arange(400 * 200).view(400, 200) % VOCABULARY
    ordinary = ORDINARY if spare_special else torch.ones(VOCABULARY, dtype=torch.bool)
    uniforms = masking_uniforms(0, "train", 1, rows_B=torch.arange(400), length=200)
    inputs, targets = mask_tokens(tokens, uniforms, ordinary_V=ordinary, mask_token_id=MASK, **options)
    chosen = targets != IGNORED
    assert torch.equal(targets[chosen], tokens[chosen]) and torch.equal(inputs[~chosen], tokens[~chosen])
    is_text = ORDINARY[tokens]
    put_in = inputs[chosen & (inputs != MASK) & (inputs != tokens)]
    counts = [
        int((is_text & ~chosen).sum()),
        int((inputs[chosen] == MASK).sum()),
        int((inputs == tokens)[chosen].sum()),
    ]
    return torch.tensor(counts + torch.bincount(put_in, minlength=VOCABULARY)[ORDINARY].tolist()), chosen & ~is_text


def test_the_law_of_masking():
    """Of ordinary tokens 85 % are left alone; of the rest 80 % are masked, 10 % get one of 8 tokens (the token itself
    is one, so an eighth of these looks kept), 10 % are kept. False alarm 1e-4."""
    counts, special = law(BERT)
    assert not special.any()
    random_token = 0.15 * 0.1 * (7 / 8) / 8
    probabilities = torch.tensor([0.85, 0.15 * 0.8, 0.15 * (0.1 + 0.1 / 8), *[random_token] * 8], dtype=torch.float64)
    assert_same_distribution(counts, probabilities)
    for mistake in ({"rate": 0.16}, {"mask_share": 0.78, "random_share": 0.12}, {"random_share": 0.12}):
        with pytest.raises(AssertionError):
            assert_same_distribution(law(BERT | mistake)[0], probabilities)
    assert law(BERT, spare_special=False)[1].any()  # teeth: special tokens would be chosen if nothing spared them


def test_numbers_depend_on_seed_step_and_row_and_not_on_the_batch():
    rows = torch.arange(6)
    whole = masking_uniforms(3, "train", 7, rows_B=rows, length=11)
    assert whole.shape == (3, 6, 11) and 0 <= whole.min() and whole.max() < 1
    pieces = [masking_uniforms(3, "train", 7, rows_B=rows[part], length=11) for part in (slice(4, 6), slice(0, 4))]
    assert torch.equal(torch.cat([pieces[1], pieces[0]], dim=1), whole)
    shorter = masking_uniforms(3, "train", 7, rows_B=rows, length=5)
    assert torch.equal(shorter, whole[..., :5])
    for seed, *names in ((4, "train", 7), (3, "train", 8), (3, "validation", 7)):
        assert not torch.isclose(masking_uniforms(seed, *names, rows_B=rows, length=11), whole).any()
    assert len(whole.flatten().unique()) == whole.numel()  # rows, positions and draws are all apart


def test_the_loss_is_the_log_likelihood_of_chosen_tokens():
    """By hand: − log softmax at each chosen position; the gradient is softmax − one-hot there and nothing elsewhere."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, VOCABULARY, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[IGNORED, 5, IGNORED], [7, IGNORED, 9]])
    loss = cross_entropy_sum(logits, targets)
    log_prob = logits.detach().log_softmax(-1)
    assert_close(loss.detach(), -(log_prob[0, 1, 5] + log_prob[1, 0, 7] + log_prob[1, 2, 9]))
    assert count_targets(targets) == 3
    loss.backward()
    expected = torch.zeros_like(log_prob)
    for b, t, token in ((0, 1, 5), (1, 0, 7), (1, 2, 9)):
        expected[b, t] = log_prob[b, t].exp()
        expected[b, t, token] -= 1
    assert_close(logits.grad, expected)
