"""Coloured blocks: stretches cover the text once, scores meet where blocks intersect, text stays text."""

from energylm.bundles.detector import BlockScore, Detection
from energylm.verbs.detect.judging import detections_page, stretches


def detection(*blocks, verdict="machine", probability=0.9):
    return Detection(verdict, "above", 1.0, 2.0, probability, 0.5, 30, 40, tuple(blocks))


def test_stretches_by_hand():
    """Blocks 2–10 and 6–14 of 16 characters: alone, both (mean), alone, and the rest without a score."""
    found = stretches(16, [BlockScore(2, 10, 1.0), BlockScore(6, 14, 3.0)])
    assert found == [(0, 2, None), (2, 6, 1.0), (6, 10, 2.0), (10, 14, 3.0), (14, 16, None)]
    assert stretches(5, []) == [(0, 5, None)]


def test_the_page_is_whole_and_text_is_escaped():
    text = "<script>alert(1)</script> & more text"
    page = detections_page(
        [("a <b>.txt", text, detection(BlockScore(0, 20, 2.5), BlockScore(12, len(text), -1.5)))], by="detector"
    )
    assert "<script>" not in page and "a &lt;b&gt;.txt: machine" in page
    assert "+2.5" in page and "-1.5" in page and "+0.5" in page  # the intersection has the mean
    assert "213, 94, 0" in page and "0, 114, 178" in page
    assert "30 of 40 tokens in 2 blocks" in page and "P(machine) 90.0%" in page
    assert "1 machine, 0 human, 0 abstentions" in page


def test_without_calibration():
    page = detections_page([("x", "text", detection(verdict="abstains", probability=None))], by="detector")
    assert "not calibrated" in page and "1 abstentions" in page
