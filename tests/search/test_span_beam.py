"""Joint spans: a beam as wide as the text is the maximum over all spans; narrow beams are what they say."""

import torch
from torch.testing import assert_close

from energylm.search.beam import span_beam

ROWS, TOKENS = 6, 9


def random_text(seed=0):
    generator = torch.Generator().manual_seed(seed)
    allowed_BT = torch.zeros(ROWS, TOKENS, dtype=torch.bool)
    for row in range(ROWS):
        allowed_BT[row, 2 + row % 3 : TOKENS - row % 2] = True
    start_BT = torch.randn(ROWS, TOKENS, generator=generator).masked_fill(~allowed_BT, -torch.inf).log_softmax(-1)
    end_BTT = torch.randn(ROWS, TOKENS, TOKENS, generator=generator)  # of a start, of an end
    end_BTT = end_BTT.masked_fill(~allowed_BT[:, None], -torch.inf).log_softmax(-1)
    return start_BT, end_BTT, allowed_BT


def ends_of(end_BTT):
    return lambda starts_BK: end_BTT[torch.arange(ROWS)[:, None], starts_BK]


def brute_force(start_BT, end_BTT, allowed_BT, *, longest):
    """Every span of every row, the likeliest first."""
    found = []
    for row in range(ROWS):
        spans = [
            (float(start_BT[row, s] + end_BTT[row, s, e]), s, e)
            for s in range(TOKENS)
            for e in range(s, min(TOKENS, s + longest))
            if allowed_BT[row, s] and allowed_BT[row, e]
        ]
        found.append(sorted(spans, reverse=True))
    return found


def test_a_wide_beam_is_the_maximum_over_all_spans():
    start_BT, end_BTT, allowed_BT = random_text()
    for longest in (1, 3, TOKENS):
        spans = span_beam(start_BT, ends_of(end_BTT), allowed_BT=allowed_BT, beam=99, longest=longest, n=4)
        for row, all_spans in enumerate(brute_force(start_BT, end_BTT, allowed_BT, longest=longest)):
            best = all_spans[:4]
            found = list(zip(spans.start_BN[row].tolist(), spans.end_BN[row].tolist(), strict=True))
            assert found[: len(best)] == [(s, e) for _, s, e in best]
            assert_close(spans.log_prob_BN[row, : len(best)], torch.tensor([score for score, _, _ in best]))


def test_independent_ends_are_another_answer():
    """Teeth: the best start with the best end on average over starts is not the best joint span in every row."""
    start_BT, end_BTT, allowed_BT = random_text()
    independent_BT = (start_BT.exp()[..., None] * end_BTT.exp()).sum(1).log()
    joint = span_beam(start_BT, ends_of(end_BTT), allowed_BT=allowed_BT, beam=99, longest=TOKENS)
    ends = lambda starts: independent_BT[:, None].expand(-1, starts.shape[1], -1)  # noqa: E731
    apart = span_beam(start_BT, ends, allowed_BT=allowed_BT, beam=99, longest=TOKENS)
    assert not (torch.equal(joint.start_BN, apart.start_BN) and torch.equal(joint.end_BN, apart.end_BN))


def test_a_narrow_beam_follows_the_likeliest_starts_only():
    start_BT, end_BTT, allowed_BT = random_text()
    spans = span_beam(start_BT, ends_of(end_BTT), allowed_BT=allowed_BT, beam=1, longest=TOKENS)
    assert torch.equal(spans.start_BN[:, 0], start_BT.argmax(-1))
    wide = span_beam(start_BT, ends_of(end_BTT), allowed_BT=allowed_BT, beam=99, longest=TOKENS)
    assert (wide.log_prob_BN >= spans.log_prob_BN).all() and (wide.log_prob_BN > spans.log_prob_BN).any()
