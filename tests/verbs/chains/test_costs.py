"""The work that a plan counts for chains, translators by masks and exact studies is what torch counts in a run."""

import random
from pathlib import Path

import pytest
import torch

from energylm.jobs.costs import Surroundings
from energylm.jobs.counting import work_of
from energylm.jobs.job import Job
from energylm.verbs import MCMC, ExactStudy, PretrainCMLM
from energylm.verbs.chains.cmlm_training import _task
from energylm.verbs.chains.mcmc_run import run

NOWHERE = Surroundings({}, {"networks": {}})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"block": 3},
        {"block": 3, "annealing": {"block": True}},
        {"sampler": "gibbs"},
        {"sampler": "mask-predict", "iterations": 3, "length": [5, 6, 7]},
    ],
    ids=lambda values: "-".join(map(str, values.values())) or "mh",
)
def test_chains_are_counted_as_they_run(masked_folder: Path, values: dict[str, object]) -> None:
    """Nearly every proposal of a random network changes something: within a tenth. Teeth: an epoch more is seen."""
    settings = {"model": str(masked_folder), "length": [6], "epochs": 4, "burn_in": 1, "chains": 2, "start": "greedy"}
    verb = MCMC.checked(settings | values)
    with torch.no_grad():
        really = work_of(lambda: run(verb, Job())).flops
    counted = verb.cost(NOWHERE)
    assert counted is not None and counted.flops == pytest.approx(really, rel=0.1)
    if verb.sampler != "mask-predict":
        assert verb.model_copy(update={"epochs": 5}).cost(NOWHERE).flops > 1.15 * counted.flops  # teeth


def test_texts_and_sources_are_counted_in_their_files(masked_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("The clerk counts the boats.\n\nA sailor mends a bridge.\n")
    verb = MCMC(model=str(masked_folder), input=str(tmp_path / "lines"), epochs=3, burn_in=1)
    several = verb.cost(NOWHERE)
    single = verb.model_copy(update={"input": None, "init": ("A sailor mends a bridge.",)}).cost(NOWHERE)
    assert several is not None and single is not None and several.flops > 1.5 * single.flops
    assert verb.model_copy(update={"input": "-"}).cost(NOWHERE) is None  # standard input has no size


def test_a_conditional_masked_model_and_chains_of_it(tmp_path: Path) -> None:
    """Ten updates of eight pairs by the task that trains; how much is hidden differs by chance, and a line's tokens are
    estimated from its bytes (of random letters, which no BPE learns by heart)."""
    letters = random.Random(0)
    for language in ("de", "en"):
        lines = ("".join(letters.choices("abcdefghij", k=24)) for _ in range(200))
        (tmp_path / language).write_text("\n".join(lines) + "\n")
    files = [str(tmp_path / "de"), str(tmp_path / "en")]
    verb = PretrainCMLM.checked(
        {
            "train": files,
            "valid": files,
            "vocabulary_size": 300,
            "network": {"width": 16, "heads": 2},
            "training": {"steps": 10, "global_batch": 8, "validation": {"every_steps": None}},
        }
    )
    task = _task(verb)
    updates = [
        work_of(lambda step=step: task.loss(task.model, task.batch(step, range(8))).losses["masked"].backward()).flops
        for step in range(1, 6)
    ]
    counted = verb.cost(NOWHERE)
    assert counted.flops == pytest.approx(10 * sum(updates) / 5, rel=0.3)
    around = Surroundings({"cmlm": counted.product}, {"networks": {}})
    chains = MCMC.checked({"model": "cmlm", "source_file": files[0], "epochs": 4, "burn_in": 1, "limit": 10})
    twice = chains.model_copy(update={"limit": 20})
    assert twice.cost(around).flops == pytest.approx(2 * chains.cost(around).flops)


def test_an_exact_study_is_its_cells(tmp_path: Path) -> None:
    values = {
        "languages": ["palindromes"],
        "sizes": [40],
        "objectives": ["likelihood", "masked"],
        "seeds": 2,
        "hidden_size": 4,
        "head_size": 4,
        "training": {"steps": 3, "global_batch": 20, "validation": {"every_steps": None}},
    }
    verb = ExactStudy.checked(values)
    counted = verb.cost(NOWHERE)
    really = work_of(lambda: verb.run(Job(output=tmp_path / "study")))
    assert counted.flops == pytest.approx(really.flops, rel=0.02)
    fewer = ExactStudy.checked(values | {"objectives": ["masked"]}).cost(NOWHERE)  # teeth
    assert fewer.flops < 0.75 * counted.flops
