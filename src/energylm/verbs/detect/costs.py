"""The work of detectors (training, calibrating, judging, running) and of probing energies, counted for `energylm plan`.

Lengths of texts come from their bytes; a text is read in its blocks. Where the texts are not here, None: not counted
(of training, which takes blocks and not texts, only what is held out is then taken at its most).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from energylm.bundles.known_models import model_of_run
from energylm.config.models import DEFAULT_DETECTOR
from energylm.config.texts import BlockConfig, DetectionSources
from energylm.data.detection import HUMAN, MACHINE, read_detection, read_unlabelled
from energylm.files import read_json
from energylm.jobs.costs import (
    TOKENS_AT_ONCE,
    Counted,
    Surroundings,
    count_texts,
    count_training,
    passes_over,
    text_tokens,
)
from energylm.models.compute import Network, Work, reading, resident_bytes
from energylm.registry import DETECTORS

if TYPE_CHECKING:
    from energylm.verbs.detect.detect import (
        CalibrateDetector,
        CombineFeatures,
        EvaluateDetector,
        RunDetector,
        TrainDetector,
    )
    from energylm.verbs.detect.probe import AttackEnergy, CompareEnergies, PerturbTexts

SPECIAL = 2  # tokens around a block


def count_detector_training(verb: "TrainDetector", around: Surroundings) -> Counted:
    network = around.network(verb.init)
    if verb.init not in around.products:  # an encoder that is cut; an energy stays as it is
        network = replace(network, layers=max(1, ceil(verb.depth * network.layers)))
    length, pair = verb.text_blocks.tokens + SPECIAL, 2
    texts = _lengths(verb.data, network)
    parts = {
        "valid": (verb.validation_fraction, verb.validation_texts),
        "calibration": (verb.calibration_fraction, verb.calibration_texts),
    }
    held_out: dict[str, list[float]] = {}
    for part, (share, most) in parts.items():
        held_out[part] = []
        for lengths in texts or [[float(verb.text_blocks.tokens)] * ceil((most or 0) / share)] * pair:
            count = min(round(share * len(lengths)), most or len(lengths))
            held_out[part] += _evenly(lengths, count)
    two_blocks = verb.text_blocks.tokens + verb.text_blocks.stride
    validated = _blocks([min(tokens, two_blocks) for tokens in held_out["valid"]], verb.text_blocks)
    counted = count_training(
        network, verb.training, around, rows=pair, length=length, predicted=0.0, validated=len(validated)
    )
    if texts is None:
        counted.notes.append("its texts are not here; what is held out is counted at its most")
    rows = pair * verb.probe_pairs
    counted.add("reading", reading(network, rows=rows, length=length, passes=passes_over(rows * length)))
    count_texts(counted, network, _blocks(held_out["calibration"], verb.text_blocks), around)
    counted.product = network
    return counted


def count_calibration(verb: "CalibrateDetector", around: Surroundings) -> Counted | None:
    network, blocks = _detector(verb.detector, around)
    texts = _lengths(verb.data, network)
    if texts is None:
        return None
    counted = _read(network, (min(tokens, verb.max_tokens or tokens) for tokens in chain(*texts)), blocks, around)
    counted.product = network
    return counted


def count_combination(verb: "CombineFeatures", around: Surroundings) -> Counted | None:
    network = around.network(verb.language_model)
    texts = _lengths(verb.data, network)
    if texts is None:
        return None
    counted, lengths = Counted(), [min(tokens, verb.max_tokens) for tokens in chain(*texts)]
    rows, length = len(lengths) / around.world, max(lengths, default=1)
    tokens = sum(lengths) / around.world
    one_pass = reading(network, rows=rows, length=length, predicted=tokens, passes=passes_over(tokens))
    counted.add("reading", one_pass)
    counted.memory_bytes += resident_bytes(
        network, tokens=TOKENS_AT_ONCE, length=verb.max_tokens, predicted=TOKENS_AT_ONCE, learns=False
    )
    counted.product = network
    return counted


def count_evaluation(verb: "EvaluateDetector", around: Surroundings) -> Counted | None:
    network, blocks = _detector(verb.detector, around)
    texts = _lengths(verb.data, network)
    if texts is None:
        return None
    lengths = list(chain(*texts))
    for of_class in texts:  # the curve by length
        few = _evenly(of_class, verb.lengths_texts)
        lengths += [float(length) for length in verb.lengths for tokens in few if tokens >= length]
    return _read(network, lengths, blocks, around)


def count_detections(verb: "RunDetector", around: Surroundings) -> Counted | None:
    files = [Path(path).expanduser() for path in verb.files]
    if verb.detector == DEFAULT_DETECTOR or DETECTORS.named(verb.detector) or not all(path.exists() for path in files):
        return None
    network, blocks = _detector(verb.detector, around)
    read = read_unlabelled(files, form=verb.text_format, field=verb.field).texts if files else []
    lengths = [text_tokens(text, network) for text in (*verb.text, *(text for _, text in read))]
    return _read(network, (min(tokens, verb.max_tokens or tokens) for tokens in lengths), blocks, around)


def count_perturbations(verb: "PerturbTexts", around: Surroundings) -> Counted:
    """Copies of every text, a changed position each: two replacements, and one swap fewer; beside them the text itself,
    a random one and a shuffled one. The energy and the language model read all."""
    rows = verb.texts * (3 * verb.length - 1 + 3)
    counted = Counted()
    counted.add("reading", _whole(around.network(verb.energy), rows, verb.length))
    counted.add("reading", _whole(around.network(verb.language_model), rows, verb.length, predicts=True))
    return counted


def count_attack(verb: "AttackEnergy", around: Surroundings) -> Counted | None:
    """Every text with all its edits: some are turned by fewer. Each edit takes a gradient (a forward and a backward
    pass that leaves the weights alone), its product with the table of embeddings, and candidates that are read."""
    if verb.negatives is not None:
        generated = around.texts(verb.negatives)
        texts, length = min(verb.texts, generated.contexts), float(generated.length)
    elif verb.source in around.products or Path(verb.source or "").is_dir():
        texts, length = verb.texts, float(verb.length)
    else:
        return None
    energy, lm = around.network(verb.energy), around.network(verb.language_model)
    gradients = 1 + verb.edits  # the first tells how far the first order is to be trusted
    read = 2 + verb.fidelity_pairs + gradients * verb.candidates
    scored = 2 + verb.edits * (1 + (0 if verb.perplexity_budget is None else verb.candidates))
    counted = Counted()
    counted.add("reading", _whole(energy, texts * read, length))
    counted.add("reading", _whole(lm, texts * scored, length, predicts=True))
    one = reading(energy, rows=1, length=length) * 2  # a text at a time
    embedded = energy.inner_width if energy.kind in ("convolution", "bilstm") else energy.width
    one += Work(flops=2 * length * embedded * energy.vocabulary_size)
    counted.add("reading", one * (texts * gradients))
    counted.notes.append("texts may be turned by fewer edits; counted with all")
    return counted


def count_differences(verb: "CompareEnergies", around: Surroundings) -> Counted:
    energy, counted = around.network(verb.energy), Counted()
    for name in verb.negatives:
        texts = around.texts(name)
        rows = min(verb.contexts, texts.contexts) * (1 + verb.per_context)
        counted.add("reading", _whole(energy, rows, texts.length))
    return counted


def _whole(network: Network, rows: float, length: float, *, predicts: bool = False) -> Work:
    """Texts of one length, read by a network that `predicts` every token or scores the whole."""
    tokens = rows * length
    predicted = tokens if predicts else 0
    return reading(network, rows=rows, length=length, predicted=predicted, passes=passes_over(tokens))


def _detector(name: str, around: Surroundings) -> tuple[Network, BlockConfig]:
    """Its network, and how it reads texts: as its folder says, or as detectors usually do."""
    if name in around.products:
        return around.network(name), BlockConfig()
    folder = model_of_run(name)
    manifest = read_json(folder / "energylm.json") if (folder / "energylm.json").is_file() else {}
    return around.network(str(folder)), BlockConfig.checked(manifest.get("detector", {}).get("blocks", {}))


def _lengths(sources: DetectionSources, network: Network) -> list[list[float]] | None:
    """Tokens of the human texts and of the machine texts; None where their files are not here."""
    if not all(Path(path).expanduser().exists() for path in (*sources.human, *sources.machine, *sources.pairs)):
        return None
    data = read_detection(sources)
    return [[text_tokens(text.text, network) for text in data.of(label)] for label in (HUMAN, MACHINE)]


def _evenly(lengths: Sequence[float], count: int) -> list[float]:
    return [lengths[index * len(lengths) // count] for index in range(min(count, len(lengths)))]


def _blocks(lengths: Iterable[float], blocks: BlockConfig) -> list[float]:
    """The lengths of all blocks of texts of such lengths."""
    pieces: list[float] = []
    for tokens in lengths:
        count = 1 + ceil(max(tokens - blocks.tokens, 0) / blocks.stride)
        pieces += [min(tokens, blocks.tokens) + SPECIAL] * count
    return pieces


def _read(network: Network, lengths: Iterable[float], blocks: BlockConfig, around: Surroundings) -> Counted:
    counted = Counted()
    count_texts(counted, network, _blocks(lengths, blocks), around)
    length = blocks.tokens + SPECIAL
    counted.memory_bytes += resident_bytes(network, tokens=TOKENS_AT_ONCE, length=length, predicted=0, learns=False)
    return counted
