"""A detector that knows English abstains on German, Python, Russian, Japanese and NUL, and hardly ever on English."""

import inspect
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from energylm import Detector
from energylm.bundles.detector_calibration import FEATURES, DetectorCalibration, SpanCalibration, TextRange
from energylm.bundles.energy_model import EnergyModel
from energylm.config.texts import BlockConfig, DetectionSources
from energylm.data.detection import read_detection
from energylm.data.text_blocks import BlockReader
from energylm.data.tokenizer import train_tokenizer

WORDS = {
    "noun": "river winter letter bridge window teacher market garden engine village story captain reason".split(),
    "verb": "left carried wanted found built watched followed sold mended kept forgot remembered".split(),
    "link": "and but while because after before although when".split(),
    "place": "in the town|on the hill|near the old mill|at the edge of the sea|by the road|of the year".split("|"),
    "tail": "|, which was not what they had expected|, as it has always been|, or so it is said|; nobody knew".split(
        "|"
    ),
}
GERMAN = (
    "Der alte Müller zählt jeden Morgen die Boote am Steg, während seine Schwester die Brücke ausbessert. Niemand im "
    "Dorf weiß noch, wann sie gebaut wurde, und im Winter kommen selten Gäste; darum wird jeder Brief laut vorgelesen. "
)
RUSSIAN = (
    "Старый мельник каждое утро считает лодки у причала, а его сестра чинит мост. Никто в деревне не помнит, когда он "
    "построен. Зимой здесь редко бывают гости, поэтому каждое письмо читают вслух. "
)
JAPANESE = (
    "古い粉屋は毎朝、桟橋のそばの舟を数え、その妹は橋を直す。村では誰もそれがいつ造られたのか覚えていない。"
    "冬には客がめったに来ないので、手紙はみな声に出して読まれる。"
)


def english(chooser, sentences):
    """Sentences of words that English prose is mostly made of; some have a number."""

    def sentence():
        pick = {name: chooser.choice(words) for name, words in WORDS.items()}
        other = {name: chooser.choice(words) for name, words in WORDS.items()}
        number = f" {chooser.randrange(1, 99)} of them" if chooser.random() < 0.2 else ""
        text = f"the {pick['noun']} {pick['verb']} a {other['noun']}{number} {pick['place']}"
        if chooser.random() < 0.6:
            text += f" {pick['link']} they {other['verb']} it to the {chooser.choice(WORDS['noun'])}"
        return f"{text[0].upper()}{text[1:]}{pick['tail']}."

    return " ".join(sentence() for _ in range(sentences))


def strangers():
    source = inspect.getsource(json.JSONEncoder.iterencode) + inspect.getsource(random.Random.sample)[-900:]
    text = english(random.Random(7), 8)
    return {
        "German": GERMAN * 2,
        "Python": source,
        "Russian": RUSSIAN * 2,
        "Japanese": JAPANESE * 2,
        "NUL between": "\0".join(text),
        "NUL after": text + "\0" * 400,
        "NUL": "\0" * 500,
    }


@pytest.fixture(scope="module")
def reader():
    chooser = random.Random(0)
    tokenizer = train_tokenizer([english(chooser, 20) for _ in range(50)], vocabulary_size=600)
    return BlockReader(tokenizer, BlockConfig(tokens=32, stride=16), special_tokens=False)


@pytest.fixture(scope="module")
def known(reader):
    chooser = random.Random(1)
    return TextRange.of(reader.encode([english(chooser, chooser.randrange(4, 16)) for _ in range(300)]))


@pytest.mark.parametrize("name", strangers())
def test_what_the_calibration_texts_are_not_like_is_out_of_range(reader, known, name):
    (text,) = reader.encode([strangers()[name]])
    complaint = known.complaint(text)
    assert complaint.startswith("it is unlike the human texts of the calibration, most by its ")
    assert "at most 0.02 are refused" in complaint


def test_texts_like_the_calibrations_are_refused_at_about_the_stated_rate(reader, known):
    """200 ranked texts: k = ⌈201 · 0.98⌉ = 197, rate 4/201. The rate that these 200 lead to is Beta(4, 197), of
    standard deviation 0.0099; 600 new texts add 0.0057: 4 standard errors are 0.046. False alarm about 1 in 10,000 (the
    tail of the Beta is longer than the normal one)."""
    assert known.texts == 200 and known.rate == pytest.approx(4 / 201)
    chooser = random.Random(2)
    new = reader.encode([english(chooser, chooser.randrange(4, 16)) for _ in range(600)])
    refused = np.mean([known.complaint(text) is not None for text in new])
    assert 0 < refused < known.rate + 0.046


def test_the_rate_is_exact_whichever_text_is_new(reader):
    """40 ranked texts allow 1/41: of 41 exchangeable texts exactly one, the strangest, is refused when each in turn is
    the new one and the 40 others are ranked, beside the same 20 reference texts."""
    chooser = random.Random(3)
    texts = reader.encode([english(chooser, chooser.randrange(2, 8)) for _ in range(61)])
    reference, candidates = texts[:20], texts[20:]
    refused = 0
    for new, text in enumerate(candidates):
        ranked = [other for number, other in enumerate(candidates) if number != new]
        dealt = [one for place in range(20) for one in (reference[place], *ranked[2 * place : 2 * place + 2])]
        found = TextRange.of(dealt)
        assert found.texts == 40 and found.rate == pytest.approx(1 / 41)
        refused += found.complaint(text) is not None
    assert refused == 1


def test_texts_that_made_the_measure_must_not_be_ranked_by_it(reader):
    """The mistake: a limit from the reference texts themselves. Among texts of 60 of 1,000 words a word is usual if two
    of 10 texts have it: a reference text needs one other for that, a new one two. As many ranked as reference texts (10
    each) promise 1/11; over 300 draws the mistake refuses several times as many (standard error 0.02)."""
    chooser, honest, mistaken = random.Random(4), 0, 0
    words = ["".join(chooser.choices("abdegiklmnorstu", k=5)) for _ in range(1000)]
    for _ in range(300):
        texts = reader.encode([" ".join(chooser.choices(words, k=60)) for _ in range(31)])
        found = TextRange.of(texts[:30])  # 10 reference texts and 20 ranked ones
        reference, ranked = texts[:30:3], texts[1:30:3]
        limits = [max(found.strangeness(text) for text in part) for part in (ranked, reference)]
        honest, mistaken = (
            count + (found.strangeness(texts[30]) > limit)
            for count, limit in zip((honest, mistaken), limits, strict=True)
        )
    assert honest / 300 <= 1 / 11 + 4 * np.sqrt(1 / 11 * 10 / 11 / 300)
    assert mistaken / 300 > 3 / 11


def test_strangeness_by_hand(reader):
    """All features at their medians but one, which is 4 spreads away: √(16 / 8) = √2."""
    (text,) = reader.encode(["The mill. 12"])
    words, characters = ("the",), "The mil."
    # 12 characters: 7 letters, one a capital, 2 digits, a point, 2 blanks; usual are 1 of 3 words, 10 of 12 characters
    features = [1 / 3, 10 / 12, 7 / 12, 1 / 12, 2 / 12, 1 / 12, 2 / 12, len(text) / 12]
    assert len(features) == len(FEATURES)
    away = [features[0] + 0.4, *features[1:]]
    found = TextRange(words, characters, tuple(away), (0.1,) * 8, limit=1.0, rate=0.02, texts=49)
    assert found.strangeness(text) == pytest.approx(np.sqrt(2))
    assert "share of usual words: 0.33, there about 0.73" in found.complaint(text)
    assert replace(found, limit=1.5).complaint(text) is None


def test_too_few_texts_give_no_range(reader):
    texts = reader.encode([english(random.Random(number), 4) for number in range(14)])
    assert TextRange.of(texts[:13]) is None and TextRange.of(texts).texts == 9


def test_a_detector_keeps_its_range_and_abstains_by_it(bert_folder, reader, known, tmp_path):
    """It knows the texts of the range only, whatever it thinks of the score."""
    span = SpanCalibration(8, 1.0, 0.0, -9.0, 0.05, 0.1, 100, 100)
    calibration = DetectorCalibration((span,), 0.05, "", ("made up",), text_range=known)
    energy = EnergyModel.from_encoder(bert_folder, reads="text")
    before = Detector(energy, blocks=BlockConfig(tokens=32, stride=16), calibration=calibration)
    before.reader = reader  # with a tokenizer for all of these texts; the energy sees ids below its vocabulary only
    before.energy.energies = lambda ids, lengths: lengths.double()
    for name, text in strangers().items():
        one = before.predict([text])[0]
        assert one.verdict == "abstains" and one.probability is None and one.threshold is None, name
        assert "unlike the human texts of the calibration" in one.reason and one.score is not None
    like, *_ = before.predict([english(random.Random(5), 8)])
    assert like.verdict == "machine" and "like the 100 calibration texts" in like.reason
    assert "too few" not in like.reason
    loaded = DetectorCalibration.read(json.loads(json.dumps(calibration.to_json())), origin="x")
    assert loaded == calibration


@pytest.fixture(scope="module")
def essays(data_folder):
    folder = data_folder / "detection" / "ghostbuster"
    if not folder.is_dir():
        pytest.skip("ENERGYLM_DATA holds no detection/ghostbuster")
    return [text.text for text in read_detection(DetectionSources(human=(str(folder / "essay_human.jsonl"),))).texts]


def test_with_real_essays(essays, data_folder, reader):
    """Calibrated on half of the essays: of the other half at most about 2 % are refused (Beta as above: 4 standard
    errors are 0.05), and all strangers, and German captions."""
    found = TextRange.of(reader.encode(essays[::2]))
    new = reader.encode(essays[1::2])
    assert np.mean([found.complaint(text) is not None for text in new]) < found.rate + 0.05
    captions = (data_folder / "multi30k" / "val.de").read_text(encoding="utf-8").splitlines()
    german = [" ".join(captions[first : first + 8]) for first in range(0, 320, 8)]
    for text in reader.encode([*strangers().values(), *german]):
        assert found.complaint(text) is not None, text.text[:60]
