"""Human or machine: an energy that reads long texts in blocks, with a calibration that knows its limits.

    score(text) = (1/M) Σ_m E(block m)                           bakhtin2019 §5.4: mean prediction over blocks
    machine        score above the threshold for the asked false-positive rate
    human          below it, and machine is not the likelier
    abstains       not calibrated; too short, out of the range of the calibration texts or of what the energy learnt
                   from, or of a length that too few of them have; likelier machine but below the threshold

The probability holds for a text that is as likely a person's as a machine's beforehand. Where machine text is rarer,
the odds must be multiplied by the prior odds.

Relations  `energy_model`, `zero_shot_energy` and `combined_energy` are energies below, `detector_calibration` is the
           calibration, `data.text_blocks` the blocks. The detector of `default` lies beside this file.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.bundles.detector_calibration import DetectorCalibration, SpanCalibration, caveats
from energylm.bundles.devices import Device, DType
from energylm.bundles.energy_model import KIND, EnergyModel
from energylm.bundles.hub import OnHub
from energylm.bundles.known_models import locate, model_of_run
from energylm.bundles.model_folder import MANIFEST, open_folder, read_manifest, weights_sha256
from energylm.bundles.text_codec import text_list
from energylm.config.environment import is_hub_name
from energylm.config.models import DEFAULT_DETECTOR, TEXT, Reads
from energylm.config.texts import BlockConfig
from energylm.data.overlap import SeenTexts
from energylm.data.text_blocks import BlockReader, EncodedText, block_starts
from energylm.errors import ModelError
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.files import atomic_file, read_json, sha256_of_file, write_json
from energylm.records import Record
from energylm.registry import DETECTORS, ENERGIES, FITS

Verdict = Literal["human", "machine", "abstains"]


@dataclass(frozen=True)
class BlockScore(Record):
    """A block is characters `start` to `end` of the text; a higher score means machine."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Detection(Record):
    """One text. `log_odds` are those of machine at equal odds beforehand; the raw score where nothing is calibrated."""

    verdict: Verdict
    reason: str  # of an abstention; else how the verdict came about
    score: float | None  # mean over blocks, higher = machine; None for a text without tokens
    log_odds: float | None
    probability: float | None  # of machine, if human and machine were equally likely beforehand; None: not calibrated
    threshold: float | None  # of the score, for the false-positive rate that the detector was calibrated for
    tokens_used: int
    tokens: int
    blocks: tuple[BlockScore, ...]


@runtime_checkable
class BlockEnergy(Protocol):
    """What a detector reads blocks with: an energy of token ids, higher = machine."""

    name: str
    reads: Reads
    provenance: dict[str, Any]

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    @property
    def max_tokens(self) -> int | None: ...

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor: ...

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Any: ...

    def save_pretrained(self, folder: str | Path) -> None: ...


@runtime_checkable
class RangedEnergy(BlockEnergy, Protocol):
    """One that knows how far a block is from all that it learnt from."""

    def energies_and_strangeness(self, tokens_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]: ...

    def complaint(self, strangeness: float) -> str | None: ...


@dataclass(frozen=True)
class BlockReadings:
    """Of the blocks of one text."""

    scores: NDArray[np.float64]
    strangeness: NDArray[np.float64] | None  # none: the energy does not know


def logistic(log_odds: float) -> float:
    """1 / (1 + e^−x) that does not overflow."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else math.exp(log_odds) / (1 + math.exp(log_odds))


DEFAULT_FOLDER = Path(__file__).with_name("default_detector")
CALIBRATION_FILE, SEEN_FILE = "calibration.json", "training_texts.sketch"
BLOCKS_AT_ONCE = 4096  # rows that lie in memory at a time, sorted by length among themselves


class Detector(OnHub):
    """`energylm.Detector`. A plain energy of text is one too, but abstains until it is calibrated."""

    report: Record | None = None  # what `fit` tells of its training

    def __init__(
        self,
        energy: BlockEnergy,
        *,
        blocks: BlockConfig | None = None,
        calibration: DetectorCalibration | None = None,
        seen: SeenTexts | None = None,
    ) -> None:
        self.energy, self.calibration, self.seen = energy, calibration, seen
        self.blocks = blocks or BlockConfig()
        self.reader = BlockReader(energy.tokenizer, self.blocks, special_tokens=energy.reads == TEXT)
        self.reader.check(name=energy.name, max_tokens=energy.max_tokens)

    @property
    def name(self) -> str:
        return self.energy.name

    @classmethod
    def fit(
        cls,
        human: Any,
        machine: Any,
        *,
        encoder: str | Path | None = None,
        output: str | Path | None = None,
        **options: Any,
    ) -> "Detector":
        """A detector trained on human and machine texts and calibrated on some held out (`.report`).

        Texts are strings, a `datasets.Dataset` (its column `field`), or a file or folder. `options` are those of
        `energylm detect train`, e.g. steps=300, fpr=0.05; `encoder` is what it starts from. With an `output` folder a
        killed fit goes on where it stopped, and a finished one is not repeated.
        """
        fitted: Detector = FITS.get("detector")(human, machine, encoder=encoder, output=output, **options)
        return fitted

    @classmethod
    def default(cls, *, device: Device = None, dtype: DType = None) -> "Detector":
        """The detector that needs no training: features of SmolLM2's surprise, weighed and calibrated on the texts that
        `calibration.sources` names. The language model is fetched on first use."""
        return Detector.from_pretrained(DEFAULT_FOLDER, device=device, dtype=dtype)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        blocks: BlockConfig | None = None,
        device: Device = None,
        dtype: DType = None,
        calibrated: bool = True,
    ) -> Self:
        """The detector in `folder`, or a plain energy as one. `blocks` can only be given for the latter. Without
        `calibrated` its calibration is not read, since it is to be replaced. Folders of other kinds, and names, lead to
        the detectors that were registered for them (`registry.DETECTORS`); `default` is the package's own."""
        if str(folder) == DEFAULT_DETECTOR and not Path(folder).exists():
            return cls.default(device=device, dtype=dtype)  # type: ignore[return-value]
        if is_hub_name(str(folder)):
            folder = locate(folder, what="detector")
        kind, source = DETECTORS.named(folder) or (_kind(folder), folder)
        if cls is Detector and kind in DETECTORS.names() and (registered := DETECTORS.get(kind)) is not Detector:
            detector: Self = registered.from_pretrained(source, device=device)
            return detector if dtype is None else detector.to(dtype=dtype)
        folder = model_of_run(folder)
        energy = _block_energy(folder, device=device)
        if dtype is not None:
            energy.to(dtype=dtype)
        facts: dict[str, Any] = read_manifest(folder).get("detector", {})
        if not facts:
            return cls(energy, blocks=blocks)
        trained_on = BlockConfig.checked(facts["blocks"], origin=f"{folder / MANIFEST}")
        if blocks not in (None, trained_on):
            raise ModelError(
                f"{folder} reads blocks of {trained_on.tokens} tokens by {trained_on.stride}, as it was trained; "
                "leave the blocks out"
            )
        calibration = _calibration(folder, facts) if calibrated else None
        return cls(energy, blocks=trained_on, calibration=calibration, seen=_seen(folder, facts))

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """The same detector, its energy moved."""
        self.energy.to(device, dtype, batch_tokens)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """The energy's folder, with calibration and sketch of the training texts beside it."""
        folder = Path(folder).expanduser()
        self.energy.save_pretrained(folder)
        files = {}
        if self.seen is not None:
            with atomic_file(folder / SEEN_FILE) as temporary:
                save_file({"hashes": torch.from_numpy(self.seen.hashes.view(np.int64).copy())}, temporary)
            files["seen_sha256"] = sha256_of_file(folder / SEEN_FILE)
        _note(folder, {"blocks": self.blocks.model_dump(), **files})
        if self.calibration is not None:
            self.save_calibration(folder, self.calibration)

    def save_calibration(self, folder: str | Path, calibration: DetectorCalibration) -> DetectorCalibration:
        """Put a calibration into the folder this detector came from, and return it tied to the folder's weights."""
        folder = model_of_run(folder)
        self.calibration = replace(calibration, weights_sha256=weights_sha256(folder))
        write_json(folder / CALIBRATION_FILE, self.calibration.to_json())
        facts = read_json(folder / MANIFEST).get("detector", {"blocks": self.blocks.model_dump()})
        _note(folder, facts | {"calibration_sha256": sha256_of_file(folder / CALIBRATION_FILE)})
        return self.calibration

    def predict(self, texts: Iterable[str], *, max_tokens: int | None = None) -> list[Detection]:
        """A detection for each text, in order. `max_tokens`: read no more than so many tokens from the beginning; none
        = as many as were read for the calibration."""
        if max_tokens is None and self.calibration is not None:
            max_tokens = self.calibration.max_tokens
        encoded = self.reader.encode(text_list(texts))
        read = [text if max_tokens is None else text.cut(0, max_tokens) for text in encoded]
        return [
            self._judged(part, readings, tokens=len(whole))
            for whole, part, readings in zip(encoded, read, self.block_readings(read), strict=True)
        ]

    def scores(self, encoded: Sequence[EncodedText]) -> NDArray[np.float64]:
        """(N,) the score of each text: the mean over its blocks; NaN for one without tokens."""
        return np.array([scores.mean() if len(scores) else np.nan for scores in self.block_scores(encoded)])

    def log_odds(self, scores_N: NDArray[np.float64], tokens_N: Sequence[int]) -> NDArray[np.float64]:
        """(N,) calibrated log-odds of scores of texts of so many tokens; the scores where nothing is calibrated."""
        if self.calibration is None:
            return scores_N
        spans = [self.calibration.at(tokens) for tokens in tokens_N]
        return np.array([span.log_odds(score) for span, score in zip(spans, scores_N, strict=True)])

    def block_scores(self, encoded: Sequence[EncodedText]) -> list[NDArray[np.float64]]:
        """The scores of the blocks of each text."""
        return [readings.scores for readings in self.block_readings(encoded)]

    def block_readings(self, encoded: Sequence[EncodedText]) -> list[BlockReadings]:
        """What the energy says of the blocks of each text. Blocks of all texts travel together, by length."""
        of_texts = [self.reader.pieces(text) for text in encoded]
        pieces = [piece for of_text in of_texts for piece in of_text]
        energies, strangeness = [np.zeros(0)], [np.zeros(0)]
        is_ranged = isinstance(self.energy, RangedEnergy)
        for first in range(0, len(pieces), BLOCKS_AT_ONCE):
            rows = self.reader.rows(pieces[first : first + BLOCKS_AT_ONCE])
            if isinstance(self.energy, RangedEnergy):
                energy_B, strangeness_B = self.energy.energies_and_strangeness(*rows)
                strangeness.append(strangeness_B.double().cpu().numpy())
            else:
                energy_B = self.energy.energies(*rows)
            energies.append(energy_B.double().cpu().numpy())
        energy_P, strangeness_P = np.concatenate(energies), np.concatenate(strangeness)
        ends = np.cumsum([0, *map(len, of_texts)])
        return [
            BlockReadings(energy_P[start:end], strangeness_P[start:end] if is_ranged else None)
            for start, end in pairwise(ends.tolist())
        ]

    def _judged(self, text: EncodedText, readings: BlockReadings, *, tokens: int) -> Detection:
        scores, starts = readings.scores, block_starts(len(text), self.blocks)
        last = np.minimum(starts + self.blocks.tokens, len(text)) - 1
        blocks = tuple(
            BlockScore(int(text.offsets[first, 0]), int(text.offsets[end, 1]), float(score))
            for first, end, score in zip(starts, last, scores, strict=True)
        )
        score = float(scores.mean()) if len(scores) else None
        log_odds = None if score is None else float(self.log_odds(np.array([score]), [len(text)])[0])
        if (
            unknown := self._unknown(text, readings, tokens=tokens)
        ) is not None:  # a probability would look like knowledge
            unknown += caveats(text, is_machine=False)
            return Detection("abstains", unknown, score, log_odds, None, None, len(text), tokens, blocks)
        assert self.calibration is not None and score is not None and log_odds is not None  # else it were unknown
        probability, span = logistic(log_odds), self.calibration.at(len(text))
        verdict, reason = _verdict(self.calibration, span, score, probability)
        reason += caveats(text, is_machine=verdict == "machine")
        return Detection(verdict, reason, score, log_odds, probability, span.threshold, len(text), tokens, blocks)

    def _unknown(self, text: EncodedText, readings: BlockReadings, *, tokens: int) -> str | None:
        """Why nothing is known about a text, of which `text` was read; none where the calibration speaks of it."""
        calibration = self.calibration
        if not len(text):
            return "the text is empty"
        if calibration is None:
            return "the energy is not calibrated; run `energylm detect calibrate`"
        if len(text) != min(tokens, calibration.max_tokens or tokens):
            read = f"the first {calibration.max_tokens}" if calibration.max_tokens else "whole texts"
            return (
                f"{len(text)} of {tokens} tokens were read, but it was calibrated on {read}; "
                f"`energylm detect calibrate --max-tokens` calibrates it for beginnings"
            )
        if len(text) < calibration.shortest:
            return f"{len(text)} tokens are fewer than the {calibration.shortest} it was calibrated for"
        if calibration.text_range is not None and (complaint := calibration.text_range.complaint(text)) is not None:
            return complaint
        if readings.strangeness is not None and isinstance(self.energy, RangedEnergy):
            if (complaint := self.energy.complaint(float(readings.strangeness.mean()))) is not None:
                return complaint
        if (span := calibration.at(len(text))).threshold is None:
            return (
                f"too few texts of {calibration.lengths(span)} calibrated it for {calibration.asked_rate:.3g} false "
                f"positives ({span.human} with all other lengths that few texts have, "
                f"{texts_needed(calibration.asked_rate)} are needed)"
            )
        return None


def _verdict(
    calibration: DetectorCalibration, span: SpanCalibration, score: float, probability: float
) -> tuple[Verdict, str]:
    """With its reason, which says what the threshold promises and on what assumption."""
    assert span.threshold is not None  # else nothing is known of texts of this length
    limit = f"the threshold that {calibration.promised(span)} exceed"
    if calibration.text_range is None:
        limit += " (too few to tell whether this text is like them)"
    if score > span.threshold:
        return "machine", f"above {limit}"
    if probability > 0.5:
        return "abstains", f"undecided: machine is the likelier, but the score is not above {limit}"
    return "human", f"not above {limit}, and human is the likelier"


def provenance_note(folder: Path) -> str:
    """What a detector's verdicts rest on, in words: texts, lengths, and whom the promise is for."""
    provenance: dict[str, Any] = read_manifest(folder)["provenance"]
    calibration = DetectorCalibration.read(read_json(folder / CALIBRATION_FILE), origin=str(folder))
    human = {span.threshold: span.human for span in calibration.spans if span.threshold is not None}
    return (
        f"the package's own detector was trained and calibrated on {provenance['texts']:,} English texts "
        f"({', '.join(provenance['domains'])}; machine text by {', '.join(provenance['generators'])}); it reads the "
        f"first {calibration.max_tokens} tokens of texts of {calibration.shortest} or more. At most "
        f"{calibration.asked_rate:.0%} of human texts are called machine, promised for texts like the "
        f"{sum(human.values()):,} human ones of its calibration only: calibrate it on your own "
        "(`energylm detect calibrate default --human FILE --output FOLDER`)"
    )


def _block_energy(folder: Path, *, device: Device) -> BlockEnergy:
    """The energy of token ids that lies in a folder, whatever its kind."""
    kind = _kind(folder)
    if kind in ("", KIND) or kind not in ENERGIES.names() or not hasattr(ENERGIES.get(kind), "energies"):
        return EnergyModel.from_pretrained(folder, device=device)  # or says why not
    energy: BlockEnergy = ENERGIES.get(kind).from_folder(*open_folder(folder, [kind], "holds no energy"), device=device)
    return energy


def _kind(folder: str | Path) -> str:
    manifest = model_of_run(folder) / MANIFEST
    return str(read_json(manifest)["kind"]) if manifest.is_file() else ""


def _note(folder: Path, facts: dict[str, Any]) -> None:
    """Write what makes an energy a detector into the folder's manifest."""
    write_json(folder / MANIFEST, read_json(folder / MANIFEST) | {"detector": facts})


def _calibration(folder: Path, facts: dict[str, Any]) -> DetectorCalibration | None:
    if "calibration_sha256" not in facts:
        return None
    file = _checked(folder / CALIBRATION_FILE, facts["calibration_sha256"])
    calibration = DetectorCalibration.read(read_json(file), origin=str(file))
    if calibration.weights_sha256 != weights_sha256(folder):
        raise ModelError(f"{file} belongs to other weights; calibrate this detector with `energylm detect calibrate`")
    return calibration


def _seen(folder: Path, facts: dict[str, Any]) -> SeenTexts | None:
    if "seen_sha256" not in facts:
        return None
    hashes = load_file(_checked(folder / SEEN_FILE, facts["seen_sha256"]))["hashes"]
    return SeenTexts(hashes.numpy().view(np.uint64))


def _checked(file: Path, expected: str) -> Path:
    if not file.is_file():
        raise ModelError(f"{file} is missing; copy the whole folder, or calibrate and train again")
    if sha256_of_file(file) != expected:
        raise ModelError(f"{file} is damaged (its SHA-256 is not the one in {MANIFEST}); make it again")
    return file
