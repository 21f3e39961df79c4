"""From files to medians: sentence and span tasks on tiny encoders; finished, resumed, refused; what was cut is said."""

import json
import random

import pytest
from transformers import AutoModelForSequenceClassification

from energylm.bundles.task_models import SentenceModel, SpanModel
from energylm.config.cloze import TASKS
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError
from energylm.jobs.job import Job
from energylm.models import headed_encoder
from energylm.verbs.cloze.finetune import Finetune, FinetuneResult

TRAINING = {"threads": 1, "global_batch": 8, "optimizer": {"learning_rate": 5e-3}}
WHO, DOES = ("the clerk", "a sailor", "our neighbour", "the old miller"), ("counts", "mends", "remembers", "paints")
THINGS = (("seven lamps", "a bridge"), ("the boats", "an old map"))
CONTEXT = "The old miller sells seven lamps. Her sister paints a bridge."


def sentences(path, count, *, seed):
    chooser = random.Random(seed)
    rows = ["sentence\tlabel"]
    for _ in range(count):
        label = chooser.randrange(2)
        rows.append(f"{chooser.choice(WHO)} {chooser.choice(DOES)} {chooser.choice(THINGS[label])}.\t{label}")
    path.write_text("\n".join(rows) + "\n")


def squad(path, *, misplaced=False):
    asked = [
        {"id": "a", "question": "Who paints?", "answers": [{"text": "Her sister", "answer_start": 34}]},
        {"id": "b", "question": "What is sold?", "answers": [{"text": "seven lamps", "answer_start": 21}]},
        {"id": "c", "question": "Who mends?", "answers": [], "is_impossible": True},
    ]
    if misplaced:
        asked[1]["answers"][0]["answer_start"] = 22
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]}))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    sentences(folder / "train.tsv", 64, seed=0)
    sentences(folder / "dev.tsv", 24, seed=1)
    return folder


def config(data, bert_folder, **values):
    return Finetune.checked(
        {"task": "sst2", "data": str(data), "init": str(bert_folder), "seeds": 2, "training": TRAINING} | values
    )


def test_the_settings_of_the_paper_are_the_defaults(tmp_path):
    chosen = Finetune(task="mrpc", data=str(tmp_path))
    training = chosen.training_on(3668, seed=4)
    assert (training.optimizer.learning_rate, training.optimizer.layer_decay) == (1e-4, 0.8)
    assert (training.global_batch, training.schedule.kind, training.seed) == (32, "linear", 4)
    assert (training.steps, training.warmup_steps) == (344, 34)  # 3 epochs, the first tenth of the steps
    assert training.optimizer.weight_decay == 0 and training.validation.every_steps is None
    assert Finetune(task="mnli", data=".").training_on(392_702, seed=0).warmup_steps == 3681  # no ceiling
    epochs = {name: task.epochs for name, task in TASKS.items()}
    assert [name for name, count in epochs.items() if count == 10] == ["sts", "rte"]
    assert {epochs["squad1"], epochs["squad2"]} == {2} and epochs["cola"] == epochs["mnli"] == 3
    first = {name: task.metrics[0] for name, task in TASKS.items()}
    assert first.pop("cola") == "mcc" and first.pop("sts") == "spearman"
    assert {first.pop("squad1"), first.pop("squad2")} == {"exact_match"} and set(first.values()) == {"accuracy"}
    other = Finetune(task="rte", data=".", training={"optimizer": {"layer_decay": 1.0}, "steps": 7})
    assert other.training_on(100, seed=0).steps == 7 and other.training.optimizer.learning_rate == 1e-4


def test_medians_models_and_predictions(data, bert_folder, tmp_path):
    chosen = config(data, bert_folder, epochs=8)
    run = chosen.run(Job(output=tmp_path / "run"))
    assert run.metric == "accuracy" and run.medians["accuracy"].value == 100 and len(run.seeds) == 2
    assert run.sizes == {"training": 64, "validation": 0, "evaluation": 24} and run.baseline["accuracy"] < 80
    assert json.loads((tmp_path / "run" / "results.json").read_text()) and run.report.is_file()
    saved = json.loads((tmp_path / "run" / "finetune.json").read_text())
    assert saved == run.to_json() and FinetuneResult.from_json(saved).table == run.table
    assert saved["steps"] == 64 and saved["seconds"] == sum(seed.seconds for seed in run.seeds)
    for seed in (0, 1):
        folder = tmp_path / "run" / f"seed-{seed}"
        lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
        assert len(lines) == 24 and lines[0]["label"] == lines[0]["gold"]
        assert sum(lines[0]["probabilities"].values()) == pytest.approx(1)
        assert (folder / "predictions.tsv").read_text().splitlines()[1] == f"0\t{lines[0]['label']}"
        assert not (folder / "checkpoints").exists()
    model = SentenceModel.from_pretrained(run.model)
    assert [one.label for one in model.predict(["The clerk counts the boats."])] == ["positive"]
    headed_encoder.register()
    network = AutoModelForSequenceClassification.from_pretrained(run.model)
    assert network.config.id2label == {0: "negative", 1: "positive"}
    weights = (tmp_path / "run" / "seed-0" / "model" / "model.safetensors").read_bytes()
    again = chosen.run(Job(output=tmp_path / "run"))
    assert again.medians == run.medians
    assert (tmp_path / "run" / "seed-0" / "model" / "model.safetensors").read_bytes() == weights
    with pytest.raises(CheckpointError, match="other settings"):
        config(data, bert_folder, epochs=9).run(Job(output=tmp_path / "run"))


def test_validation_takes_training_examples_and_leaves_the_evaluation_alone(data, bert_folder, tmp_path):
    training = TRAINING | {"validation": {"every_steps": 4}}
    run = config(data, bert_folder, epochs=1, seeds=1, training=training).run(Job(output=tmp_path / "run"))
    assert run.sizes == {"training": 58, "validation": 6, "evaluation": 24}
    assert "validation_loss" in (tmp_path / "run" / "seed-0" / "journal.jsonl").read_text()


@pytest.mark.parametrize("kind", ["electric", "masked"])
def test_encoders_that_were_pretrained_here(kind, data, electric_folder, masked_folder, tmp_path):
    folder = {"electric": electric_folder, "masked": masked_folder}[kind]
    run = config(data, folder, epochs=1, seeds=1, style="spoken").run(Job(output=tmp_path / "run"))
    model = SentenceModel.from_pretrained(run.model)
    assert model.network.config.pooling == "mean"  # its tokenizer has no [CLS] of its own
    assert model.predict(["A sailor mends 7 boats!"]) == model.predict(["a SAILOR mends boats"])  # words alone are read


def test_spans(bert_folder, tmp_path):
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        squad(tmp_path / name, misplaced=name.startswith("train"))
    chosen = config(tmp_path, bert_folder, task="squad2", seeds=1, spans={"hidden_width": 16})
    chosen = chosen.model_copy(update={"training": chosen.training.model_copy(update={"steps": 4})})
    run = chosen.run(Job(output=tmp_path / "run"))
    assert run.notes == [
        "1 of 3 training questions left out, whose answers do not stand at their offsets: b",
    ]
    assert set(run.medians) == {"exact_match", "f1", "best_exact_match", "best_f1"}
    assert run.baseline["exact_match"] == pytest.approx(100 / 3)
    official = json.loads((tmp_path / "run" / "seed-0" / "predictions.json").read_text())
    assert set(official) == {"a", "b", "c"}
    [answer] = SpanModel.from_pretrained(run.model).answer(["Who paints?"], [CONTEXT])
    assert answer.span in CONTEXT and answer.span
    assert "without answer" in (tmp_path / "run" / "results.md").read_text()


def test_the_plan_says_what_is_cut_and_writes_nothing(data, bert_folder, tmp_path):
    said = config(data, bert_folder, max_tokens=9).check(Job(output=tmp_path / "run"))
    assert "24 steps of 8 a seed; examples: 64 training, 24 evaluation" in said
    assert "of 64 training texts were cut to 9 tokens, the longest has" in said
    assert "seed 1 would train" in said and not (tmp_path / "run").exists()


def test_refusals(data, bert_folder, model_folder, tmp_path):
    with pytest.raises(ModelError, match="is a causal language model"):
        config(data, model_folder).run(Job(output=tmp_path / "run"))
    (data / "train.tsv").write_text("sentence\tlabel\nfine\t1\ngood\t1\n")
    with pytest.raises(DataError, match="all 2 training examples of sst2 are 'positive'"):
        config(data, bert_folder).run(Job(output=tmp_path / "run"))
    with pytest.raises(ConfigError, match="no data came"):
        Finetune.checked({"task": "cola"})
    with pytest.raises(ConfigError, match="style must be written"):
        Finetune.checked({"task": "squad1", "data": ".", "style": "spoken"})
    squad(tmp_path / "train-v1.1.json")
    squad(tmp_path / "dev-v1.1.json")
    with pytest.raises(DataError, match="some questions have no answer, which squad1 does not know"):
        config(tmp_path, bert_folder, task="squad1").run(Job(output=tmp_path / "run"))
    with pytest.raises(DataError, match=r"train-v2\.0\.json does not exist"):
        config(tmp_path, bert_folder, task="squad2").run(Job(output=tmp_path / "run"))
