"""What a detector is trained from: texts for training, validation and calibration, and the energy it starts as."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from energylm.bundles.detector import Detector
from energylm.bundles.energy_model import KIND, EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import MANIFEST, read_manifest
from energylm.config.detect import DetectTrainConfig
from energylm.config.energy import TEXT
from energylm.data.detection import HUMAN, MACHINE, DetectionData, Label, normalised, read_detection, spread
from energylm.data.text_blocks import EncodedText
from energylm.energies.encoder_depth import keep_first_layers
from energylm.errors import ConfigError, DataError
from energylm.files import sha256_of_json
from energylm.pipelines.detect_calibrate import encoded
from energylm.progress import say

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


def open_training(config: DetectTrainConfig) -> tuple[Detector, TrainingTexts]:
    """The detector before training and the texts, all checked."""
    data = read_detection(config.data)
    data.require_both("training")
    say(data.describe())
    found = data.split(valid_fraction=config.validation_fraction, test_fraction=config.calibration_fraction, purpose=1)
    named = {"train": found["train"], "valid": found["valid"], "calibration": found["test"]}
    for part, texts in named.items():
        fewest = FEWEST_TEXTS if part == "train" else 2
        for label in (HUMAN, MACHINE):
            if len(texts.of(label)) < fewest:
                raise DataError(
                    f"too few texts: {len(texts.of(label))} {label} texts fell into the part for {part}, at least "
                    f"{fewest} are needed; give more than {len(data.of(label)):,} {label} texts"
                )
    detector = Detector(_start(config), blocks=config.blocks)
    _set_dropout(detector.energy.network, config.dropout)
    return detector, TrainingTexts(
        named, {part: _tokens(config, detector, part, texts) for part, texts in named.items()}
    )


def _tokens(
    config: DetectTrainConfig, detector: Detector, part: str, texts: DetectionData
) -> dict[Label, list[EncodedText]]:
    most = {"train": None, "valid": config.validation_texts, "calibration": config.calibration_texts}[part]
    tokens = {label: encoded(detector, spread(texts.of(label), most)) for label in (HUMAN, MACHINE)}
    if part != "valid":
        return tokens
    two_blocks = config.blocks.tokens + config.blocks.stride
    return {label: [text.cut(0, two_blocks) for text in of_label] for label, of_label in tokens.items()}


def _start(config: DetectTrainConfig) -> EnergyModel:
    """An energy goes on from its own weights; any other model lends its body."""
    if is_energy(config.init):
        energy = EnergyModel.from_pretrained(config.init, device="cpu", calibrated=False)
        if energy.network.pooling != config.pooling:
            raise ConfigError(
                f"{config.init} pools by {energy.network.pooling!r}, not {config.pooling!r}; set pooling accordingly"
            )
        return energy
    energy = EnergyModel.from_encoder(
        config.init, pooling=config.pooling, reads=TEXT, seed=config.training.seed, device="cpu"
    )
    keep_first_layers(energy.network.encoder, share=config.depth)
    return energy


def _set_dropout(network: nn.Module, probability: float) -> None:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def is_energy(init: str) -> bool:
    """Whether `init` names an energy with a trained projection."""
    location = locate(init)
    return isinstance(location, Path) and (location / MANIFEST).is_file() and read_manifest(location)["kind"] == KIND
