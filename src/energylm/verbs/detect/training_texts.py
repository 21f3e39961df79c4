"""What a detector is trained from: texts for training, validation and calibration, and the energy it starts as."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from energylm.bundles.detector import Detector
from energylm.bundles.energy_model import KIND, EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import MANIFEST, read_manifest
from energylm.config.energy import TEXT
from energylm.data.detection import HUMAN, MACHINE, DetectionData, Label, normalised, read_detection, spread
from energylm.data.text_blocks import EncodedText
from energylm.energies.encoder_bodies import keep_first_layers
from energylm.errors import ConfigError, DataError
from energylm.files import sha256_of_json
from energylm.progress import say
from energylm.verbs.detect.calibrating import encoded
from energylm.verbs.detect.train import TrainDetector

FEWEST_TEXTS = 10  # of each class for training


@dataclass(frozen=True)
class TrainingTexts:
    """Texts and their tokens by purpose: train, valid, calibration."""

    data: dict[str, DetectionData]
    tokens: dict[str, dict[Label, list[EncodedText]]]

    @property
    def sizes(self) -> dict[str, int]:
        return {f"{part} {label}": len(texts) for part, of in self.tokens.items() for label, texts in of.items()}

    def identity(self) -> str:
        """A hash of all texts with their labels and parts, whatever their files are called."""
        return sha256_of_json(
            {
                name: sorted([text.label, normalised(text.text)] for text in part.texts)
                for name, part in self.data.items()
            }
        )


def open_training(verb: TrainDetector) -> tuple[Detector, TrainingTexts]:
    """The detector before training and the texts, all checked."""
    data = read_detection(verb.data)
    data.require_both("training")
    say(data.describe())
    split = data.split(valid_fraction=verb.validation_fraction, test_fraction=verb.calibration_fraction, purpose=1)
    named = {"train": split["train"], "valid": split["valid"], "calibration": split["test"]}
    for part, texts in named.items():
        fewest = FEWEST_TEXTS if part == "train" else 2
        for label in (HUMAN, MACHINE):
            if len(texts.of(label)) < fewest:
                raise DataError(
                    f"too few texts: {len(texts.of(label))} {label} texts fell into the part for {part}, at least "
                    f"{fewest} are needed; give more than {len(data.of(label)):,} {label} texts"
                )
    detector = Detector(_start(verb), blocks=verb.text_blocks)
    _set_dropout(detector.energy.network, verb.dropout)
    return detector, TrainingTexts(named, {part: _tokens(verb, detector, part, texts) for part, texts in named.items()})


def _tokens(verb: TrainDetector, detector: Detector, part: str, texts: DetectionData) -> dict[Label, list[EncodedText]]:
    most = {"train": None, "valid": verb.validation_texts, "calibration": verb.calibration_texts}[part]
    tokens = {label: encoded(detector, spread(texts.of(label), most)) for label in (HUMAN, MACHINE)}
    if part != "valid":
        return tokens
    two_blocks = verb.text_blocks.tokens + verb.text_blocks.stride
    return {label: [text.cut(0, two_blocks) for text in of_label] for label, of_label in tokens.items()}


def _start(verb: TrainDetector) -> EnergyModel:
    """An energy goes on from its own weights; any other model lends its body."""
    if is_energy(verb.init):
        energy = EnergyModel.from_pretrained(verb.init, device="cpu", calibrated=False)
        if energy.network.pooling != verb.pooling:
            raise ConfigError(
                f"{verb.init} pools by {energy.network.pooling!r}, not {verb.pooling!r}; set pooling accordingly"
            )
        return energy
    energy = EnergyModel.from_encoder(
        verb.init, pooling=verb.pooling, reads=TEXT, seed=verb.training.seed, device="cpu"
    )
    keep_first_layers(energy.network.encoder, share=verb.depth)
    return energy


def _set_dropout(network: nn.Module, probability: float) -> None:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def is_energy(init: str) -> bool:
    """Whether `init` names an energy with a trained projection."""
    location = locate(init)
    return isinstance(location, Path) and (location / MANIFEST).is_file() and read_manifest(location)["kind"] == KIND
