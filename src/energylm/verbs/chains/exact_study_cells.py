r"""The cells of an exact study: their data, their training, what each measured; and the numbers of all by name.

    −LL   E(y) + log Z        of E_raw, whatever it was trained by
    −PLL  − Σ_t log p(y_t | y_\t)                −MLM  − Σ_t log p_mlm(y_t | y_\t)          Goyal 2021, table 6.1

    small languages   training sequences are drawn; held out is the whole language, every sequence with its probability:
                      −LL is an expectation without sampling error, and −LL minus the entropy is a KL divergence
    phonemes          nine tenths of the words for training, one tenth held out
    teacher           a masked model of `teacher_size` other sequences, trained for each language and seed where there
                      are projections, which also start from its weights

All in nats of a sequence. Z is the sum over all sequences of the same length. Objectives that look at one token at a
time never compare sequences of different lengths, so lengths have probabilities of their own, those of the training
data, whose −log is part of −LL where lengths differ.

Relations  `training.exact_study_task` has the objectives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.models import MASKED, PHONEMES, PROJECTIONS, TEACHER, StudyLanguage, StudyModel, StudyObjective
from energylm.data.small_languages import SMALL_LANGUAGES, PhonemeWords, Sequences, phoneme_words
from energylm.errors import ConfigError
from energylm.files import read_json, write_json
from energylm.models import bilstm_context
from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig
from energylm.models.context_energies import log_partition, reading
from energylm.objectives.sequence_likelihood import pseudo_nll, sequence_nll
from energylm.progress import say
from energylm.randomness import generator, seeded
from energylm.records import Record
from energylm.tables import Table
from energylm.training.engine import train
from energylm.training.exact_study_task import ExactStudyTask
from energylm.training.state import MODEL_FOLDER
from energylm.verbs.chains.exact_study import ExactStudy

CELL_FILE, STUDY_FILE = "cell.json", "study.json"
AT_ONCE = 256
COLUMNS = {"−LL": "nll", "±": "nll_error", "−LL − true": "gap", "−PLL": "pseudo_nll", "−MLM": "masked_nll"}
CONVENTION = (
    "nats of a sequence; −LL exactly under E_raw, −PLL under its true conditionals, −MLM under the softmax of the "
    "hidden token; of small languages in expectation over the whole language, of phonemes on the held-out tenth with "
    "−log of the length's share in training; ± is the standard error over seeds"
)


@dataclass(frozen=True)
class Measured(Record):
    """Means over held-out sequences."""

    nll: float
    pseudo_nll: float
    masked_nll: float
    length_nll: float  # the part of `nll` that is due to lengths
    log_partitions: dict[int, float]  # by length


@dataclass(frozen=True)
class ExactStudyResult(Record):
    """What reports and claims refer to.

    rows                                        of a table
    languages.LANGUAGE.SIZE.OBJECTIVE.nll       mean over seeds, `nll_error` its standard error; so for other measures
    languages.LANGUAGE.OBJECTIVE.nll            the same as a list over sizes, which are languages.LANGUAGE.sequences
    """

    rows: list[dict[str, Any]]
    languages: dict[str, dict[str, Any]]

    computed = ("convention",)

    @property
    def convention(self) -> str:
        return CONVENTION

    @property
    def table(self) -> Table:
        columns = ["language", "sequences", "objective", *COLUMNS]
        return Table(columns, [[row[column] for column in columns] for row in self.rows], self.convention)


@dataclass(frozen=True)
class StudyCell:
    language: StudyLanguage
    size: int | None
    objective: StudyObjective
    seed: int
    is_teacher: bool = False

    @property
    def trained(self) -> StudyModel:
        """What `training_of` calls it."""
        return TEACHER if self.is_teacher else self.objective

    @property
    def folder_name(self) -> str:
        return "-".join([self.language, size_name(self.size), self.trained, str(self.seed)])


def run_study(verb: ExactStudy, output: Path) -> ExactStudyResult:
    """Make or finish the study in the folder `output`."""
    _refuse_another_study(verb, output)
    cells = list(study_cells(verb))
    numbers = {}
    for number, cell in enumerate(cells, start=1):
        if not (output / cell.folder_name / CELL_FILE).exists():
            say(f"cell {number} of {len(cells)}: {cell.folder_name}")
            _make_cell(cell, verb, output)
        numbers[cell] = read_json(output / cell.folder_name / CELL_FILE)
    return _result(verb, numbers)


def size_name(size: int | None) -> str:
    return "all" if size is None else f"n{size}"


def study_cells(verb: ExactStudy) -> Iterator[StudyCell]:
    for language in verb.languages:
        for seed in range(verb.seeds):
            if verb.has_teacher:
                yield _teacher(verb, language, seed)
            for size in verb.sizes:
                for objective in verb.objectives:
                    yield StudyCell(language, size, objective, seed)


def _teacher(verb: ExactStudy, language: StudyLanguage, seed: int) -> StudyCell:
    return StudyCell(language, verb.teacher_size, MASKED, seed, is_teacher=True)


def _make_cell(cell: StudyCell, verb: ExactStudy, output: Path) -> None:
    folder, data, teacher = output / cell.folder_name, study_data(cell, verb), None
    if cell.objective in PROJECTIONS:
        teacher = _trained(output / _teacher(verb, cell.language, cell.seed).folder_name)
    run = train(cell_task(cell, verb, data, teacher), verb.training_for(cell.trained, seed=cell.seed), folder=folder)
    measured = measure(_trained(folder), data.held_out, data.weights_N, log_length_probs=data.log_length_probs)
    write_json(
        folder / CELL_FILE,
        {
            **measured.to_json(),
            "true_nll": data.entropy,
            "train_sequences": len(data.train) + len(data.valid),
            "steps": run.steps,
            "best_step": run.best_step,
        },
    )


def cell_task(
    cell: StudyCell, verb: ExactStudy, data: "StudyData", teacher: BiLSTMContext | None = None
) -> ExactStudyTask:
    """A new network, or one with the teacher's weights, before its training."""
    with seeded(cell.seed, "initialisation"):
        network = BiLSTMContext(
            BiLSTMContextConfig(vocab_size=data.vocabulary_size, hidden_size=verb.hidden_size, head_size=verb.head_size)
        )
    if teacher is not None:
        network.load_state_dict(teacher.state_dict())
    return ExactStudyTask(
        network,
        data.train,
        data.valid,
        objective=cell.objective,
        seed=cell.seed,
        global_batch=verb.training_for(cell.trained).global_batch,
        save_model=_save,
        teacher=teacher,
        fingerprint={"cell": cell.folder_name},
    )


def _save(network: nn.Module, folder: Path) -> None:
    assert isinstance(network, BiLSTMContext)
    with new_model_folder(folder) as new, quiet_transformers():
        network.save_pretrained(new)
        write_manifest(new, kind=BiLSTMContextConfig.model_type, facts={}, provenance={"run": folder.parent.name})


def _trained(folder: Path) -> BiLSTMContext:
    bilstm_context.register()
    with quiet_transformers():
        network: BiLSTMContext = AutoModel.from_pretrained(folder / MODEL_FOLDER).eval()
    return network.requires_grad_(False)


@dataclass(frozen=True)
class StudyData:
    vocabulary_size: int
    train: Sequences
    valid: Sequences
    held_out: Sequences
    weights_N: Tensor  # of held-out sequences, sum 1
    entropy: float | None  # the lowest possible NLL, where it is known
    log_length_probs: dict[int, float]


def study_data(cell: StudyCell, verb: ExactStudy) -> StudyData:
    if cell.language == PHONEMES:
        words = _words(verb.max_length, cell.seed)
        sequences, vocabulary_size, entropy = _part_of_words(words, cell, verb), len(words.symbols), None
        held_out, weights_N = words.test, torch.full((len(words.test),), 1 / len(words.test), dtype=torch.float64)
        counts = sequences.lengths_N.bincount(minlength=verb.max_length + 1)[1:] + 1  # none is impossible
        log_length_probs = dict(enumerate((counts / counts.sum()).log().tolist(), start=1))
    else:
        language = SMALL_LANGUAGES[cell.language]()
        stream = generator(cell.seed, "exact study", cell.language, TEACHER if cell.is_teacher else "training")
        sequences = Sequences.of_one_length(language.sample(cell.size or 0, generator=stream))
        held_out, weights_N = Sequences.of_one_length(language.sequences()), language.log_prob_S.exp()
        vocabulary_size, entropy, log_length_probs = language.vocabulary_size, language.entropy, {language.length: 0.0}
    validated = min(max(1, round(verb.validation_share * len(sequences))), verb.max_validation)
    kept = len(sequences) - validated
    return StudyData(
        vocabulary_size, sequences[:kept], sequences[kept:], held_out, weights_N, entropy, log_length_probs
    )


def _part_of_words(words: PhonemeWords, cell: StudyCell, verb: ExactStudy) -> Sequences:
    """The teacher has the first words, all others the next ones: it must not know what they learn from."""
    first = verb.teacher_size if verb.has_teacher and not cell.is_teacher else 0
    stop = len(words.train) if cell.size is None else first + cell.size
    if stop > len(words.train) or stop - first < 2:
        raise ConfigError(
            f"{stop:,} training words are wanted (teacher {first:,}), but there are {len(words.train):,} of at most "
            f"{verb.max_length} phonemes; lower teacher_size or sizes"
        )
    return words.train[first:stop]


@lru_cache(maxsize=1)
def _words(max_length: int, seed: int) -> PhonemeWords:
    return phoneme_words(max_length=max_length, seed=seed)


def _refuse_another_study(verb: ExactStudy, output: Path) -> None:
    """A folder holds the cells of one configuration; more languages, sizes, objectives or seeds may be added."""
    settings = verb.model_dump(mode="json", exclude={"languages", "sizes", "objectives", "seeds"})
    settings["has_teacher"] = verb.has_teacher  # then others leave its words alone
    if (output / STUDY_FILE).exists() and (before := read_json(output / STUDY_FILE)) != settings:
        key = next(key for key in sorted(before.keys() | settings.keys()) if before.get(key) != settings.get(key))
        raise ConfigError(
            f"{output} holds a study with other settings ({key} differs); repeat them, or choose another output folder"
        )
    write_json(output / STUDY_FILE, settings)


def _result(verb: ExactStudy, numbers: Mapping[StudyCell, dict[str, Any]]) -> ExactStudyResult:
    """Cells by language, size and what was trained; the teacher stands beside every size."""
    names = [*verb.objectives, *([TEACHER] if verb.has_teacher else [])]
    table: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for cell, measured in numbers.items():
        sizes = [size_name(size) for size in verb.sizes] if cell.is_teacher else [size_name(cell.size)]
        for size in sizes:
            by_name = table.setdefault(cell.language, {}).setdefault(size, {name: [] for name in names})
            by_name[cell.trained].append(measured)
    return study_result(table)


@torch.no_grad()
def measure(
    network: BiLSTMContext, held_out: Sequences, weights_N: Tensor, *, log_length_probs: Mapping[int, float]
) -> Measured:
    """Means under the weights, which sum to one: those of a sample, or the probabilities of all sequences."""
    log_partitions = {length: log_partition(network, length) for length in sorted(set(held_out.lengths_N.tolist()))}
    readings, totals_4 = {length: reading(network, length) for length in log_partitions}, torch.zeros(4).double()
    for rows_G, tokens_GT in held_out.by_length(at_once=AT_ONCE):
        length = tokens_GT.shape[1]
        logits_GTV = readings[length].cloze_logits(tokens_GT)
        energy_G = -logits_GTV.gather(2, tokens_GT[..., None]).double().sum((1, 2))
        length_G = torch.full_like(energy_G, -log_length_probs[length])
        log_z = torch.tensor(log_partitions[length], dtype=torch.float64)
        losses_4G = [
            sequence_nll(energy_G, log_z) + length_G,
            pseudo_nll(readings[length].replaced_energies(tokens_GT), tokens_GT),
            pseudo_nll(-logits_GTV, tokens_GT),
            length_G,
        ]
        totals_4 += torch.stack([loss_G.double() for loss_G in losses_4G]) @ weights_N[rows_G].double()
    nll, pseudo, masked, lengths = totals_4.tolist()
    return Measured(nll, pseudo, masked, lengths, log_partitions)


def study_result(table: Mapping[str, Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]]) -> ExactStudyResult:
    """From the numbers of every seed by language, size and objective."""
    rows: list[dict[str, Any]] = []
    languages: dict[str, dict[str, Any]] = {}
    for language, by_size in table.items():
        of_language: dict[str, Any] = {
            size: {name: _over_seeds(seeds) for name, seeds in by_name.items()} for size, by_name in by_size.items()
        }
        rows += [
            {"language": language, "sequences": size, "objective": name}
            | {column: numbers.get(key) for column, key in COLUMNS.items()}
            for size, by_name in of_language.items()
            for name, numbers in by_name.items()
        ]
        sizes = list(of_language.values())
        lists = {name: {key: [size[name][key] for size in sizes] for key in sizes[0][name]} for name in sizes[0]}
        sequences = next(iter(lists.values()))["train_sequences"]
        languages[language] = of_language | lists | {"sequences": sequences}
    return ExactStudyResult(rows, languages)


def _over_seeds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    numbers: dict[str, Any] = {"seeds": len(seeds), "train_sequences": seeds[0]["train_sequences"]}
    for key in ("nll", "pseudo_nll", "masked_nll"):
        values = [seed[key] for seed in seeds]
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        numbers |= {key: fmean(values), f"{key}_error": error}
    if seeds[0]["true_nll"] is not None:
        numbers |= {"true_nll": seeds[0]["true_nll"], "gap": numbers["nll"] - seeds[0]["true_nll"]}
    return numbers
