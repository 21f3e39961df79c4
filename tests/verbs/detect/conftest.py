"""A detector that needs no network: the score of a text is the share of its words "paints", in tenths, less one."""

import random

import pytest
import torch

from energylm.bundles.detector import Detector
from energylm.bundles.detector_calibration import DetectorCalibration
from energylm.config.texts import BlockConfig
from energylm.data.tokenizer import train_tokenizer
from energylm.registry import DETECTORS
from energylm.verbs.detect.calibrating import ScoredTexts, fit_detector

PEOPLE, THINGS = ("the clerk", "a sailor", "her sister", "the miller"), ("boats", "lamps", "letters", "maps", "coats")
VERBS = {"human": ("counts", "mends", "sells", "paints"), "machine": ("paints", "paints", "paints", "mends")}


def writer(chooser, verbs, *, sentences=12):
    facts = (
        f"{chooser.choice(PEOPLE)} {chooser.choice(verbs)} {chooser.randrange(1000)} of the {chooser.choice(THINGS)}"
        for _ in range(sentences)
    )
    return ". ".join(facts).capitalize() + "."


def texts_of(kind, count, *, seed=0, **options):
    chooser = random.Random(f"{kind} {seed}")
    return [writer(chooser, VERBS[kind], **options) for _ in range(count)]


class RuleEnergy:
    name, reads, max_tokens, provenance = "rule", "tokens", None, {}

    def __init__(self):
        self.tokenizer = train_tokenizer([*texts_of("human", 40), *texts_of("machine", 40)], vocabulary_size=400)
        self.painting = self.tokenizer.encode(" paints", add_special_tokens=False)
        assert len(self.painting) == 1

    def energies(self, tokens_BT, lengths_B):
        painting_B = (tokens_BT == self.painting[0]).sum(-1)
        return (10 * painting_B / lengths_B.clamp(min=1) - 1).to(torch.float64)

    def to(self, *arguments):
        return self

    def save_pretrained(self, folder):
        raise NotImplementedError


class RuledDetector(Detector):
    made = None

    @classmethod
    def from_pretrained(cls, source="", device=None, **options):
        """Calibrated for 5 % on 200 texts of each writer; the same one for all tests."""
        if RuledDetector.made is None:
            RuledDetector.made = RuledDetector(RuleEnergy(), blocks=BlockConfig(tokens=32))
            RuledDetector.made.calibration = RuledDetector.made.calibrated()
        return RuledDetector.made

    def scored(self, texts, groups=()):
        encoded = self.reader.encode(texts)
        return ScoredTexts(encoded, self.scores(encoded), groups)

    def calibrated(self, human=None, machine=None, *, rate=0.05, **options) -> DetectorCalibration:
        human = self.scored(texts_of("human", 200)) if human is None else human
        machine = self.scored(texts_of("machine", 200)) if machine is None else machine
        return fit_detector(human, machine, block_tokens=32, rate=rate, sources=["made up"], **options)


@pytest.fixture
def ruled(monkeypatch):
    """The detector, known by the name `ruled`."""
    monkeypatch.setattr(DETECTORS, "_parts", {**DETECTORS._parts, "ruled": RuledDetector})
    return RuledDetector.from_pretrained()


@pytest.fixture(scope="session")
def ruled_texts():
    """`ruled_texts("human", 60, seed=1)`: made-up texts of one of the two writers."""
    return texts_of
