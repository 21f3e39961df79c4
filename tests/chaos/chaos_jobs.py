"""Every long job with settings so small that it takes about a second; light to import, heavy to run.

A job is a function (folder, made): it fills `folder`, or finishes what a killed process left there. `made` holds what
the jobs before it left undisturbed (`made/corpus`, `made/lm` …), which it is made from.
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHO = ("the clerk", "a sailor", "our neighbour", "the old miller", "her sister", "a stranger", "the council")
DOES = ("counts", "mends", "remembers", "sells", "carries", "forgets", "paints")
WHAT = ("the boats", "a letter", "seven lamps", "the harvest", "a bridge", "the winter coats", "an old map")
NETWORK = {"width": 16, "layers": 1, "heads": 2}
SPLITS = {"vocabulary_size": 300, "valid_fraction": 0.2, "test_fraction": 0.2}


def training(steps: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "global_batch": 4,
        "threads": 1,
        "validation": {"every_steps": 8},
        "checkpoint": {"every_steps": 4, "keep": 2},
    }


def write_texts(made: Path) -> Path:
    """120 documents of a made-up language; always the same."""
    chooser, file = random.Random(0), made / "texts.jsonl"
    if not file.exists():
        documents = [
            " ".join(f"{chooser.choice(WHO)} {chooser.choice(DOES)} {chooser.choice(WHAT)}." for _ in range(12))
            for _ in range(120)
        ]
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return file


def corpus(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import BuildCorpus

    BuildCorpus(sources=(str(write_texts(made)),), part_bytes=2500, **SPLITS).run(Job(output=folder))


def lm(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import TrainLM

    settings = {"corpus": str(made / "corpus"), "network": NETWORK, "window": 16, "training": training(32)}
    TrainLM(**settings).run(Job(output=folder))


def mlm(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import PretrainMLM

    settings = {"corpus": str(made / "corpus"), "preset": "bit-tiny", "network": NETWORK, "window": 16}
    PretrainMLM.checked(settings | {"training": training(8)}).run(Job(output=folder))


def negatives(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import MakeNegatives

    paths = {"language_model": str(made / "lm" / "model"), "corpus": str(made / "corpus")}
    sizes = {"k": 2, "length": 16, "prefix_tokens": (8,), "contexts": 96, "block_contexts": 8}
    MakeNegatives(**paths, **sizes).run(Job(output=folder))


def energy(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import TrainEnergy

    settings = {"corpus": str(made / "corpus"), "negatives": str(made / "negatives"), "init": "tiny"}
    sizes = {"network": NETWORK, "validation_fraction": 0.2, "training": training(24)}
    TrainEnergy(**settings, **sizes).run(Job(output=folder))


def perplexity(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs import Perplexity

    models = {"language_model": str(made / "lm" / "model"), "energy": str(made / "energy" / "model")}
    sizes = {"length": 16, "prefix_tokens": 8, "contexts": 24, "n": 60, "by_samples": True, "block_contexts": 2}
    Perplexity(**models, source=str(made / "corpus"), **sizes).run(Job(output=folder))


def detect(folder: Path, made: Path) -> None:
    from energylm import Detector, LanguageModel
    from energylm.bundles.zero_shot_energy import ZeroShotEnergy
    from energylm.config.texts import BlockConfig
    from energylm.files import write_json
    from energylm.jobs.job import Job
    from energylm.verbs import RunDetector
    from energylm.verbs.detect import judging

    detector = made / "log-rank"
    if not detector.exists():
        log_rank = ZeroShotEnergy(LanguageModel.from_pretrained(made / "lm" / "model"), "log-rank")
        Detector(log_rank, blocks=BlockConfig(tokens=16, stride=16)).save_pretrained(detector)
    judging.PORTION_TEXTS = 4  # of this process, which does nothing else
    judged = RunDetector(detector=str(detector), files=(str(write_texts(made)),)).run(Job(output=folder))
    write_json(folder / "scores.json", [[text.name, text.score] for text in judged.texts])


def mcmc(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs.chains.mcmc import MCMC

    texts = ("mask", "her sister sells [MASK][MASK][MASK].")
    verb = MCMC(model=str(made / "mlm" / "model"), init=texts, length=(8,), epochs=8, burn_in=2, chains=2)
    verb.run(Job(output=folder))


def grid(folder: Path, made: Path) -> None:
    from energylm.jobs.job import Job
    from energylm.verbs.recipes.grid import Grid

    settings = {
        "corpora": {"one": {"sources": [str(write_texts(made))]}},
        "corpus": SPLITS,
        "generators": {"small": {"train": {"network": NETWORK, "window": 17, "training": training(8)}}},
        "energies": {"unit": {"init": "tiny", "settings": {"network": NETWORK, "training": training(8)}}},
        "negatives": {"length": 16, "prefix_tokens": [8], "k": 2},
        "contexts": {"train": 40, "valid": 20, "test": 24},
        "training": [{"generators": ["small"], "corpora": ["one"]}],
        "resamples": 20,
    }
    os.environ["ENERGYLM_HOME"] = str(folder / "home")  # of this process, which does nothing else
    Grid.checked(settings).run(Job(output=folder / "report"))


def reproduce(folder: Path, made: Path) -> None:
    from energylm.jobs.artefacts import ArtefactStore
    from energylm.verbs.recipes.reproducing import reproduce as run_recipe

    file = write_recipe(made)
    run_recipe(str(file), scale="mini", output=folder / "report", store=ArtefactStore(folder / "store"))


def write_recipe(made: Path) -> Path:
    """From texts to a perplexity interval, and a claim."""
    learn, file = {"network": NETWORK, "window": 16, "training": training(8)}, made / "recipe.yaml"
    steps = {
        "corpus": ("corpus build", SPLITS),
        "base": ("lm train", {"corpus": "@corpus", **learn}),
        "negatives": (
            "negatives",
            {"corpus": "@corpus", "language_model": "@base", "k": 2, "length": 16, "prefix_tokens": [8]}
            | {"contexts": 60},
        ),
        "unit": (
            "energy train",
            {"corpus": "@corpus", "negatives": "@negatives", "init": "@base", "training": training(8)},
        ),
        "measured": (
            "perplexity",
            {"language_model": "@base", "energy": "@unit", "source": "@corpus", "length": 16, "prefix_tokens": 8}
            | {"contexts": 12, "n": 40},
        ),
    }
    recipe = {
        "title": "From texts to an interval",
        "where": "nowhere",
        "about": "Everything once.",
        "steps": {name: {"make": kind, "config": config} for name, (kind, config) in steps.items()},
        "scales": {
            "mini": {
                "corpora": {"texts": {"sources": [str(write_texts(made))]}},
                "steps": {name: {} for name in steps},
            }
        },
        "report": [
            {
                "title": "Perplexity",
                "columns": ["base", "joint"],
                "rows": [["=measured.base.value", "=measured.joint.upper"]],
            }
        ],
        "claims": [{"says": "there is a number", "holds_if": "measured.base.value > 0"}],
    }
    if not file.exists():
        file.write_text(json.dumps(recipe), encoding="utf-8")  # which is YAML, too
    return file


def careless(folder: Path, made: Path) -> None:
    """What must not be: no unit is recorded as finished, so a killed run does some of them twice."""
    import time

    folder.mkdir(exist_ok=True)
    with open(folder / "units.txt", "a", encoding="utf-8") as file:
        for unit in range(20):
            file.write(f"unit {unit}\n")
            file.flush()
            time.sleep(0.01)


@dataclass(frozen=True)
class Job:
    run: Callable[[Path, Path], None]
    needs: tuple[str, ...] = ()


JOBS = {
    "corpus": Job(corpus),
    "lm": Job(lm, ("corpus",)),
    "mlm": Job(mlm, ("corpus",)),
    "negatives": Job(negatives, ("corpus", "lm")),
    "energy": Job(energy, ("corpus", "negatives")),
    "perplexity": Job(perplexity, ("corpus", "lm", "energy")),
    "detect": Job(detect, ("corpus", "lm")),
    "mcmc": Job(mcmc, ("mlm",)),
    "grid": Job(grid),
    "reproduce": Job(reproduce),
    "careless": Job(careless),
}
LONG_JOBS = ("corpus", "lm", "negatives", "energy", "perplexity", "detect", "mcmc", "grid", "reproduce")
