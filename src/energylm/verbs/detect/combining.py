"""Weigh features of a language model's surprise into a detector: the work of `energylm detect combine`.

OUTPUT/model/          the detector (`bundles.combined_energy`), calibrated on texts held out
OUTPUT/combined.json   AUROC of every set when its generator, and when its domain, was left out of training
OUTPUT/report.html     the same for people
OUTPUT/blocks/         features of finished portions, so that a killed run goes on and another choice costs seconds

A *set* is what one generator wrote in one domain, with the human texts beside it. How far a detector carries is known
only from sets that it has not seen, so every generator and every domain is left out in turn
(`training.feature_weights`). What becomes the detector is fitted on all sets but for the texts held out, which say how
strange a text may be, and calibrate it.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energylm.bundles.combined_energy import CombinedEnergy, FeatureWeights, Floats, text_features
from energylm.bundles.detector import Detector
from energylm.bundles.known_models import absolute_place
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.config.texts import BlockConfig
from energylm.data.detection import MACHINE, DetectionData, LabelledText, read_detection
from energylm.data.document import split_of
from energylm.data.overlap import SeenTexts
from energylm.errors import ConfigError, DataError
from energylm.estimators.discrimination import Discrimination
from energylm.estimators.surprise_features import FEATURES, GROUPS, ZERO_SHOT
from energylm.estimators.zero_shot import SIGNS
from energylm.files import folder_lock, write_json
from energylm.jobs.engine import open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.records import LOCAL, Record
from energylm.report.report import Numbers, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.training.feature_weights import (
    FeatureTable,
    LinearFit,
    Mask,
    auroc,
    choose_strength,
    feature_weights,
    left_out,
)
from energylm.verbs.detect.calibrating import ScoredTexts, calibration_table, encoded, fit_detector
from energylm.verbs.detect.detect import CombineFeatures

OUTCOME_FILE = "combined.json"
PORTION_TEXTS = 64
SCORE_NAMES = tuple(score.replace("-", "_") for score in ZERO_SHOT)  # as recipes name them
FEWEST_TEXTS = 10  # of each class of a set
FEWEST_TOKENS = 2  # of a text: with one, some features have no value


@dataclass(frozen=True)
class CombinedRun(Record):
    model: Path = field(metadata=LOCAL)
    features: tuple[str, ...]
    strength: float
    texts: dict[str, int]
    generator_left_out: dict[str, Discrimination]  # by set; none where there is one generator alone
    domain_left_out: dict[str, Discrimination]
    zero_shot: dict[str, dict[str, float]]  # by set and score (log_rank): AUROC, its published direction, untrained
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("means", "lowest")

    @property
    def means(self) -> dict[str, float]:
        """Over sets, of AUROC."""
        return {name: float(np.mean(values)) for name, values in self._columns().items() if values}

    @property
    def lowest(self) -> dict[str, float]:
        return {name: min(values) for name, values in self._columns().items() if values}

    def _columns(self) -> dict[str, list[float]]:
        measured = {"generator_left_out": self.generator_left_out, "domain_left_out": self.domain_left_out}
        columns = {name: [each.auroc.value for each in of.values()] for name, of in measured.items()}
        return columns | {score: [of[score] for of in self.zero_shot.values()] for score in SCORE_NAMES}

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = []
        for name, scores in self.zero_shot.items():
            judged = [of.get(name) for of in (self.generator_left_out, self.domain_left_out)]
            rows.append([name, *(None if each is None else str(each.auroc) for each in judged), *scores.values()])
        for title, values in (("mean", self.means), ("lowest", self.lowest)):
            named = [values.get(name) for name in ("generator_left_out", "domain_left_out")]
            shown = [None if value is None else f"{value:.3f}" for value in named]
            rows.append([title, *shown, *(values[score] for score in SCORE_NAMES)])
        return Table(
            ["domain_generator", "generator left out", "domain left out", *ZERO_SHOT],
            rows,
            convention="AUROC by text, 95 % bootstrap intervals; weights and their regularisation come from sets of "
            "other generators, of other domains; single scores in their published direction, with nothing trained",
        )

    def summary(self) -> str:
        left = [name for name in self.means if name.endswith("left_out")]
        means = ", ".join(f"{self.means[name]:.3f} with the {name.replace('_', ' ')}" for name in left)
        known = f"mean AUROC {means}" if means else "one set alone, so how far it carries is not known"
        return f"{known}; {len(self.features)} features, strength {self.strength:g}"


def describe_combination(verb: CombineFeatures) -> str:
    """Check all inputs and say what would be done."""
    absolute_place(verb.language_model)
    data = _checked_data(verb)
    sets = sorted({f"{domain}_{generator}" for domain, generator in _sets(verb, data.texts)})
    return (
        f"would weigh {len(_columns(verb))} features of {verb.language_model} over {data.describe()} in "
        f"{len(sets)} sets: {', '.join(sets)}"
    )


def combine(verb: CombineFeatures, job: Job) -> CombinedRun:
    output, data, columns = job.folder, _checked_data(verb), _columns(verb)
    sets = _sets(verb, data.texts)
    with folder_lock(output):
        features_NJ = _features(verb, job, [text.text for text in data.texts])
        usable_N: Mask = np.asarray(np.isfinite(features_NJ[:, columns]).all(axis=1))
        if unread := int((~usable_N).sum()):
            say(f"{unread:,} texts have no token or features that are not finite; they are left out")
        table = FeatureTable(
            features_NJ,
            np.array([text.label == MACHINE for text in data.texts]),
            np.array([domain for domain, _ in sets]),
            np.array([generator for _, generator in sets]),
            np.array([text.group for text in data.texts]),
        )
        return _combined(verb, data, table, usable_N, output)


def _combined(
    verb: CombineFeatures, data: DetectionData, table: FeatureTable, usable_N: Mask, output: Path
) -> CombinedRun:
    columns = _columns(verb)
    is_held_out_N = np.array(
        [
            split_of(text.group, valid_fraction=0.0, test_fraction=verb.calibration_fraction, seed=1) == "test"
            for text in data.texts
        ]
    )
    learnt, held_out = table.rows(usable_N & ~is_held_out_N), table.rows(usable_N & is_held_out_N)
    whole = table.rows(usable_N)
    measured = {
        name: left_out(whole, columns, names_N, resamples=verb.resamples, seed=verb.seed)
        if len(np.unique(names_N)) > 1
        else {}
        for name, names_N in (("generator_left_out", whole.generator_N), ("domain_left_out", whole.domain_N))
    }
    strength = choose_strength(learnt, columns)
    weights = feature_weights(LinearFit.of(learnt, columns, strength), columns, learnt, held_out)
    texts = [text for text, chosen in zip(data.texts, usable_N & is_held_out_N, strict=True) if chosen]
    detector = _detector(verb, data, weights, texts, weights.energies(held_out.features_NJ))
    detector.save_pretrained(output / verb.product)
    result = CombinedRun(
        model=output / verb.product,
        features=weights.features,
        strength=strength,
        texts={"training": len(learnt.is_machine_N), "held out": len(held_out.is_machine_N)},
        zero_shot={
            name: {
                score.replace("-", "_"): auroc(
                    SIGNS[score] * whole.features_NJ[whole.sets == name, FEATURES.index(score)],
                    whole.is_machine_N[whole.sets == name],
                )
                for score in ZERO_SHOT
            }
            for name in np.unique(whole.sets).tolist()
        },
        report=output / "report.html",
        **measured,
    )
    write_json(output / OUTCOME_FILE, result.to_json())
    write_report(output, title="A detector of many features", sections=_sections(result, detector, data))
    return result


def _detector(
    verb: CombineFeatures, data: DetectionData, weights: FeatureWeights, texts: Sequence[LabelledText], scores_N: Floats
) -> Detector:
    """Calibrated on the texts held out, whose scores are known."""
    sources = sorted({text.source for text in data.texts})
    provenance = {
        "sources": sources,
        "texts": len(data.texts),
        "domains": sorted({domain for domain, _ in _sets(verb, data.texts)}),
        "generators": sorted({generator for _, generator in _sets(verb, data.texts)}),
    }
    encoder = None if verb.encoder is None else Detector.from_pretrained(verb.encoder)
    lm = LanguageModel.from_pretrained(verb.language_model)
    energy = CombinedEnergy(lm, weights, encoder=encoder, provenance=provenance)
    blocks = BlockConfig(tokens=verb.max_tokens)
    detector = Detector(energy, blocks=blocks, seen=SeenTexts.of(text.text for text in data.texts))
    classes = []
    for is_machine in (False, True):
        chosen = [number for number, text in enumerate(texts) if (text.label == MACHINE) == is_machine]
        read = encoded(detector, [texts[number] for number in chosen], max_tokens=verb.max_tokens)
        classes.append(ScoredTexts(read, scores_N[chosen]))
    try:
        detector.calibration = fit_detector(
            *classes,
            block_tokens=verb.max_tokens // 2,  # spans of lengths begin at an eighth of what is read
            rate=verb.fpr,
            sources=sources,
            max_tokens=verb.max_tokens,
        )
    except DataError as error:  # the weights are worth keeping: it abstains until it is calibrated
        say(f"not calibrated: {error}")
    return detector


def _features(verb: CombineFeatures, job: Job, texts: Sequence[str]) -> Floats:
    """(N, J) all features of the beginnings of texts; NaN for a text without tokens. Portions are kept."""
    models = [absolute_place(verb.language_model), *([] if verb.encoder is None else [absolute_place(verb.encoder)])]
    identity = {"task": "features", "max_tokens": verb.max_tokens, "models": [model_identity(path) for path in models]}
    load = partial(FeatureWorker.loaded, models, max_tokens=verb.max_tokens)
    kept = KeptBlocks(job.output, identity | {"features": FEATURES}, FORM)
    portions = [list(texts[start : start + PORTION_TEXTS]) for start in range(0, len(texts), PORTION_TEXTS)]
    with open_engine(job.engine) as engine, engine.pool(load, models=models) as pool:
        with progress("reading", total=len(texts), unit="text") as bar:
            return np.concatenate([portion for portion in kept.run(pool, portions, progress=bar)])


class FeatureWorker:
    """Texts → (N, J) features of their first tokens."""

    def __init__(self, lm: LanguageModel, encoder: Detector | None, *, max_tokens: int) -> None:
        self._lm, self._encoder, self._max_tokens = lm, encoder, max_tokens

    @classmethod
    def loaded(cls, models: Sequence[str], *, max_tokens: int) -> "FeatureWorker":
        encoder = Detector.from_pretrained(models[1]) if len(models) > 1 else None
        return cls(LanguageModel.from_pretrained(models[0]), encoder, max_tokens=max_tokens)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._lm.name}

    def __call__(self, block: list[str], *, progress: Progress) -> Floats:
        rows = [torch.tensor(self._lm.encode(text)[: self._max_tokens], dtype=torch.int64) for text in block]
        features_NJ = np.full((len(block), len(FEATURES) + 1), np.nan)
        read = [number for number, row in enumerate(rows) if len(row) >= FEWEST_TOKENS]
        if read:
            tokens_BT = torch.nn.utils.rnn.pad_sequence([rows[number] for number in read], batch_first=True)
            lengths_B = torch.tensor([len(rows[number]) for number in read])
            features_NJ[read] = text_features(self._lm, tokens_BT, lengths_B, encoder=self._encoder)
        progress.advance(len(block))
        return features_NJ


FORM = BlockForm(
    block=lambda texts: texts,
    to_json=lambda features_NJ: [[None if np.isnan(x) else x for x in row] for row in features_NJ.tolist()],
    from_json=lambda rows: np.array(rows, dtype=np.float64),
    size=len,
)


def surprise_columns(language_model: str, texts: Sequence[str], names: Sequence[str], *, max_tokens: int) -> Floats:
    """(N, J) features by name, for another model than ours to learn from; 0 for a text that has none."""
    columns = feature_columns(names)
    worker = FeatureWorker.loaded([absolute_place(language_model)], max_tokens=max_tokens)
    portions = [list(texts[start : start + PORTION_TEXTS]) for start in range(0, len(texts), PORTION_TEXTS)]
    with progress("reading", total=len(texts), unit="text") as bar:
        features_NJ: Floats = np.concatenate([worker(portion, progress=bar)[:, columns] for portion in portions])
    return np.nan_to_num(features_NJ)


def feature_columns(names: Sequence[str]) -> list[int]:
    """Of the features that are asked for, by groups or by name."""
    chosen = {name for asked in names for name in GROUPS.get(asked, (asked,))}
    if unknown := sorted(chosen - set(FEATURES)):
        raise ConfigError(f"features {', '.join(unknown)} are unknown; known are {', '.join((*GROUPS, *FEATURES))}")
    return [column for column, name in enumerate(FEATURES) if name in chosen]


def _columns(verb: CombineFeatures) -> list[int]:
    return feature_columns(verb.features) + ([] if verb.encoder is None else [len(FEATURES)])


def _checked_data(verb: CombineFeatures) -> DetectionData:
    """Texts of both classes in every set; none that the encoder was trained on, whose scores are too good."""
    data = read_detection(verb.data)
    data.require_both("a detector")
    if verb.encoder is not None and (seen := Detector.from_pretrained(verb.encoder).seen) is not None:
        unseen = tuple(text for text in data.texts if not seen.has(text.text))
        if left := len(data.texts) - len(unseen):
            say(f"{left:,} of {len(data.texts):,} texts are left out: {verb.encoder} was trained on them")
        data = DetectionData(unseen, data.left_out)
    say(data.describe())
    counts: dict[tuple[str, str], list[int]] = {}
    for text, pair in zip(data.texts, _sets(verb, data.texts), strict=True):
        counts.setdefault(pair, [0, 0])[text.label == MACHINE] += 1
    for (domain, generator), (human, machine) in counts.items():
        if min(human, machine) < FEWEST_TEXTS:
            raise DataError(
                f"the set {domain}_{generator} has {human} human and {machine} machine texts, {FEWEST_TEXTS} of each "
                "are needed; say which files belong together: --domain NAME=PATTERN, --generator NAME=PATTERN"
            )
    return data


def _sets(verb: CombineFeatures, texts: Sequence[LabelledText]) -> list[tuple[str, str]]:
    """(domain, generator) of each text, by the name of its file. Without patterns a file of pairs is a set of its own,
    and files of one class make one set together."""
    if not verb.domain and not verb.generator:
        both = {s for s in {text.source for text in texts} if len({t.label for t in texts if t.source == s}) == 2}
        return [(text.source, text.source) if text.source in both else ("all", "all") for text in texts]
    return [(_named(text.source, verb.domain), _named(text.source, verb.generator)) for text in texts]


def _named(source: str, patterns: Sequence[str]) -> str:
    """The name of the first pattern that the file's name matches; all files are one where nothing is said."""
    if not patterns:
        return "all"
    for name, _, pattern in (each.partition("=") for each in patterns):
        if fnmatch.fnmatch(source, pattern):
            return name
    raise ConfigError(f"{source} matches none of {', '.join(patterns)}; give a pattern for it, e.g. other=*")


def _sections(result: CombinedRun, detector: Detector, data: DetectionData) -> list[Section]:
    energy = detector.energy
    assert isinstance(energy, CombinedEnergy)  # `_detector` made it
    weights = energy.weights
    about = (
        f"{len(result.features)} features of {energy.lm.name}'s surprise at the first tokens of a text, weighed "
        f"by a logistic regression over {data.describe()}. {result.summary()}."
    )
    sections: list[Section] = [Text("What this is", about), Numbers("How far it carries", result.table)]
    order = np.argsort(-np.abs(weights.weights))
    rows: list[list[Cell]] = [[weights.features[j], weights.weights[j]] for j in order.tolist()]
    convention = "log-odds of machine for one spread more of a feature"
    sections.append(Numbers("Weights", Table(["feature", "weight"], rows, convention)))
    if detector.calibration is not None:
        sections.append(Numbers("Calibration by length", calibration_table(detector.calibration)))
    return sections
