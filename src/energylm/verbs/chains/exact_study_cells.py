"""The cells of an exact study: their data, their training, and what each measured.

    small languages   training sequences are drawn; held out is the whole language, every sequence with its probability:
                      −LL is an expectation without sampling error, and −LL minus the entropy is a KL divergence
    phonemes          nine tenths of the words for training, one tenth held out
    teacher           a masked model of `teacher_size` other sequences, trained for each language and seed where there
                      are projections, which also start from its weights

Relations  `training.exact_study_task` has the objectives, `exact_measures` the numbers (table 6.1, figure 6.1).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from energylm.bundles.model_folder import new_model_folder, quiet_transformers, write_manifest
from energylm.config.models import MASKED, PHONEMES, PROJECTIONS, TEACHER, StudyLanguage, StudyObjective
from energylm.data.small_languages import SMALL_LANGUAGES, PhonemeWords, Sequences, phoneme_words
from energylm.errors import ConfigError
from energylm.files import read_json, write_json
from energylm.models import bilstm_context
from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig
from energylm.progress import say
from energylm.randomness import generator, seeded
from energylm.training.engine import train
from energylm.training.exact_study_task import ExactStudyTask
from energylm.training.state import MODEL_FOLDER
from energylm.verbs.chains.exact_measures import ExactStudyResult, measure, study_result
from energylm.verbs.chains.exact_study import ExactStudy

CELL_FILE, STUDY_FILE = "cell.json", "study.json"


@dataclass(frozen=True)
class StudyCell:
    language: StudyLanguage
    size: int | None
    objective: StudyObjective
    seed: int
    is_teacher: bool = False

    @property
    def folder_name(self) -> str:
        return "-".join(
            [self.language, size_name(self.size), TEACHER if self.is_teacher else self.objective, str(self.seed)]
        )


def run_study(verb: ExactStudy, output: Path) -> ExactStudyResult:
    """Make or finish the study in the folder `output`."""
    _refuse_another_study(verb, output)
    cells = list(_cells(verb))
    numbers = {}
    for number, cell in enumerate(cells, start=1):
        if not (output / cell.folder_name / CELL_FILE).exists():
            say(f"cell {number} of {len(cells)}: {cell.folder_name}")
            _make_cell(cell, verb, output)
        numbers[cell] = read_json(output / cell.folder_name / CELL_FILE)
    return _result(verb, numbers)


def size_name(size: int | None) -> str:
    return "all" if size is None else f"n{size}"


def _cells(verb: ExactStudy) -> Iterator[StudyCell]:
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
    folder, data = output / cell.folder_name, _data(cell, verb)
    with seeded(cell.seed, "initialisation"):
        network = BiLSTMContext(
            BiLSTMContextConfig(vocab_size=data.vocabulary_size, hidden_size=verb.hidden_size, head_size=verb.head_size)
        )
    teacher = None
    if cell.objective in PROJECTIONS:
        teacher = _trained(output / _teacher(verb, cell.language, cell.seed).folder_name)
        network.load_state_dict(teacher.state_dict())
    training = verb.training_for(TEACHER if cell.is_teacher else cell.objective, seed=cell.seed)
    task = ExactStudyTask(
        network,
        data.train,
        data.valid,
        objective=cell.objective,
        seed=cell.seed,
        global_batch=training.global_batch,
        save_model=_save,
        teacher=teacher,
        fingerprint={"cell": cell.folder_name},
    )
    run = train(task, training, folder=folder)
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
class _Data:
    vocabulary_size: int
    train: Sequences
    valid: Sequences
    held_out: Sequences
    weights_N: Tensor  # of held-out sequences, sum 1
    entropy: float | None  # the lowest possible NLL, where it is known
    log_length_probs: dict[int, float]


def _data(cell: StudyCell, verb: ExactStudy) -> _Data:
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
    return _Data(vocabulary_size, sequences[:kept], sequences[kept:], held_out, weights_N, entropy, log_length_probs)


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
            by_name[TEACHER if cell.is_teacher else cell.objective].append(measured)
    return study_result(table)
