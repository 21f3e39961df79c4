"""The commands of the pages as the test of the pages runs them: what takes minutes is made short, never left out.

A command stays as the page has it, names and paths included, with a few settings behind it, which win: so each step
makes the files that the next one names, and a wrong name fails. Commands that never end, or that need the network, are
run with --dry-run, and what they would have brought is put exactly where they would have put it.

    demo                 made short once, then copied to the --output of the command
    models get NAME      a tiny model of random weights, as ENERGYLM_HOME/models/NAME
    study serve FOLDER   one rater's answers, in FOLDER
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

ONE_STEP = ("training.steps=1", "training.global_batch=2")
SHORT_PRETRAINING = (*ONE_STEP, "validation_windows=2")
SETTINGS = {
    "corpus build": ("vocabulary_size=1000",),
    "demo": (
        "tiny=true",
        *(
            f"from_scratch.{setting}"
            for setting in (
                *("source=sotu:1953-1990", "vocabulary_size=1000", "steps=1", "batch=2", "validation_windows=2"),
                *("energy.init=bit-tiny", "energy.contexts=40", "energy.k=1", "energy.steps=1", "energy.batch=2"),
                *("energy.measured_contexts=2", "energy.samples=4", "energy.candidates=4", "energy.max_new_tokens=4"),
            )
        ),
    ),
    "detect train": (*ONE_STEP, "probe_pairs=20"),
    "energy train": ONE_STEP,
    "finetune": (*ONE_STEP, "seeds=1"),
    "lm train": SHORT_PRETRAINING,
    "negatives": ("contexts=40", "k=1"),
    "pretrain cmlm": (*ONE_STEP, "vocabulary_size=300"),
    "pretrain electra": SHORT_PRETRAINING,
    "pretrain electra-tt": SHORT_PRETRAINING,
    "pretrain electric": SHORT_PRETRAINING,
    "pretrain mlm": SHORT_PRETRAINING,
    "pretrain two-tower": SHORT_PRETRAINING,
    "seq2seq train": ONE_STEP,
}
DRY = ("grid", "models get", "serve", "study serve")


def verb_of(argv: list[str]) -> str:
    """`lm train` or `demo`: as many words as name a verb above."""
    two = " ".join(argv[:2])
    return two if two in SETTINGS or two in DRY else argv[0] if argv else ""


def shortened(argv: list[str]) -> list[str]:
    verb = verb_of(argv)
    if verb in DRY and "--add-key" not in argv and "--help" not in argv:
        return argv if "--dry-run" in argv else [*argv, "--dry-run"]
    settings = SETTINGS.get(verb, ())
    if "--compute" in argv:  # of which the steps follow
        settings = ("compute=1e9", *(setting for setting in settings if setting != "training.steps=1"))
    return [*argv, *(word for setting in settings for word in ("--set", setting))]


def run(argv: list[str], main: Callable[[list[str]], int], *, workshop: Path) -> int:
    """Run one command of a page by `main`, which gives its exit code. `workshop` holds tiny models by known names, and
    keeps the demo."""
    demo = workshop / "demo"
    if verb_of(argv) == "demo" and demo.is_dir():
        shutil.copytree(demo, value_of(argv, "--output", "-o"), dirs_exist_ok=True)
        return 0
    code = main(shortened(argv))
    if code != 0 or ("--dry-run" in argv and verb_of(argv) != "study serve"):
        return code
    if verb_of(argv) == "demo":
        shutil.copytree(value_of(argv, "--output", "-o"), demo)
    if verb_of(argv) == "models get":
        shutil.copytree(workshop / argv[2], Path(os.environ["ENERGYLM_HOME"]) / "models" / argv[2])
    if verb_of(argv) == "study serve":
        answer_a_study(argv[2])
    return code


def value_of(argv: list[str], *options: str) -> str:
    return next(value for option, value in pairwise(argv) if option in options)


def answer_a_study(folder: str) -> None:
    from energylm.apps.study.store import StudyStore

    file = Path(__file__).with_name("apps") / "study" / "study_toy.py"
    spec = importlib.util.spec_from_file_location("study_toy", file)
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    with StudyStore.open(folder) as store:
        toy.answer_all(
            store, store.add_rater("rater", "hash"), lambda item: "right" if "real" in item.right else "left"
        )
