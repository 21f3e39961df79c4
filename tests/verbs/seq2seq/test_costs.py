"""The work that a plan counts for taggers and translators is what torch counts while they really run."""

from pathlib import Path

import pytest
import torch

from energylm.errors import ConfigError
from energylm.jobs.costs import Surroundings
from energylm.jobs.counting import work_of
from energylm.verbs import DecodeSeq2Seq, EvaluateSeq2Seq, LineSeq2Seq, ScoreSeq2Seq, TrainSeq2Seq
from energylm.verbs.seq2seq.evaluating import evaluate
from energylm.verbs.seq2seq.training import _task

ROW = "{} NNP I-NP I-PER\n{} VBD O O\n{} NNP I-NP I-LOC\n\n"
STEPS, BATCH, VALIDATIONS = 6, 4, 2
LOSSES = [
    {"kind": "cross-entropy"},
    {"kind": "scheduled-sampling", "mixing": "always"},
    {"kind": "direct-loss", "beam": 2},
    {"kind": "hinge", "beam": 2},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sixteen sentences of three words: all like their mean."""
    file = tmp_path_factory.mktemp("tagger") / "data"
    words = [("Ada", "saw", "Rome"), ("Bo", "left", "Lima"), ("Cy", "knows", "Oslo"), ("Di", "saw", "Lima")]
    file.write_text("".join(ROW.format(*each) for each in words * 4))
    return str(file)


def tagger(data: str, **values: object) -> TrainSeq2Seq:
    training = {"steps": STEPS, "global_batch": BATCH, "validation": {"every_steps": STEPS // VALIDATIONS}}
    settings = {
        "task": "entities",
        "train": [data],
        "valid": [data],
        "least_count": 1,
        "decoding": {"method": "greedy"},
    }
    return TrainSeq2Seq.checked({**settings, "training": training, "network": {"hidden": 6}, **values})


@pytest.mark.parametrize("objective", LOSSES, ids=lambda objective: objective["kind"])
def test_training_is_what_an_update_does(data, objective):
    verb = tagger(data, objective=objective)
    task = _task(verb)
    loss = task.loss(task.model, task.batch(1, range(BATCH))).losses["loss"]
    assert loss > 0

    def update() -> None:
        task.loss(task.model, task.batch(1, range(BATCH))).losses["loss"].backward()

    counted = verb.cost(Surroundings({}, {}))
    assert counted.quantities["stepping.flops"] == pytest.approx(STEPS * work_of(update).flops)
    shorter = tagger(data, objective=objective, training={"steps": STEPS - 1, "global_batch": BATCH})  # teeth
    assert shorter.cost(Surroundings({}, {})).quantities["stepping.flops"] < counted.quantities["stepping.flops"]
    assert counted.product.values["vocab_size"] == 3 and counted.product.task == "entities"


def test_restarts_and_several_processes(data):
    alone = tagger(data).cost(Surroundings({}, {}))
    assert tagger(data, restarts=3).cost(Surroundings({}, {})).flops == pytest.approx(3 * alone.flops)
    assert tagger(data).cost(Surroundings({}, {}, world=2)).flops == pytest.approx(alone.flops / 2)


@pytest.mark.parametrize(
    "decoding", [{"method": "greedy"}, {"method": "beam", "beam": 2}, {"method": "soft-beam", "beam": 2}]
)
def test_judging_is_decoding_and_a_pass_over_the_gold_sequences(data, tmp_path, decoding):
    from energylm.jobs.job import Job

    run = tagger(data).run(Job(output=tmp_path / "run"))
    verb = EvaluateSeq2Seq(model=str(run.model), data=(data,), decoding=decoding)
    with torch.no_grad():
        really = work_of(lambda: evaluate(verb)).flops
    around = Surroundings({}, {})
    assert verb.cost(around).flops == pytest.approx(really, rel=1e-6)
    planned = Surroundings({"@tagger": tagger(data).cost(around).product}, {})  # before the model is there
    scores = ScoreSeq2Seq(model="@tagger", sets={"a": (data,), "b": (data,)}, decodings={"greedy": decoding})
    assert scores.cost(planned).flops == pytest.approx(2 * really, rel=1e-6)
    line = LineSeq2Seq(model=str(run.model), data=(data,), points=3, alphas=(1.0,))
    if decoding["method"] == "greedy":
        with torch.no_grad():
            drawn = work_of(line.run).flops
        assert line.cost(around).flops == pytest.approx(drawn, rel=0.1)  # a relaxed symbol is a mixture of all
    (tmp_path / "lines").write_text("Ada saw Rome\n\nBo left Lima\n")
    lines = DecodeSeq2Seq(model=str(run.model), source=str(tmp_path / "lines"), decoding=decoding)
    assert 0 < lines.cost(around).flops < really / 8


def test_what_is_not_known_is_said(data):
    with pytest.raises(ConfigError, match="sizes of model 'nowhere' are not known"):
        EvaluateSeq2Seq(model="nowhere", data=(data,)).cost(Surroundings({}, {}))
    assert DecodeSeq2Seq(model="nowhere").cost(Surroundings({}, {})) is None  # standard input has no size


def test_a_translator_is_counted_to_the_length_of_its_references(tmp_path: Path):
    for language in ("de", "en"):
        (tmp_path / language).write_text("the clerk counts all the boats\n" * 8)
    files = [str(tmp_path / "de"), str(tmp_path / "en")]
    verb = tagger(files[0], task="translation", train=files, valid=files, vocabulary_size=400)
    counted = verb.cost(Surroundings({}, {}))
    assert counted.product.values["attention"] == "learned" and counted.flops > 0
    around = Surroundings({"mt": counted.product}, {})
    short, long = (
        EvaluateSeq2Seq(model="mt", data=tuple(files), decoding={"beam": beam}).cost(around).flops for beam in (1, 4)
    )
    assert long > short
