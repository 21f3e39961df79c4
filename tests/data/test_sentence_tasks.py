"""Files of GLUE's tasks: the authors' and the benchmark's layouts, named columns, JSON Lines; mistakes are one line."""

import json

import numpy as np
import pytest

from energylm.config.cloze import TASKS
from energylm.data.examples import ExampleBatches, held_out, random_part
from energylm.data.sentence_tasks import COLUMNS, FOLDERS, LAYOUTS, read_examples, task_files
from energylm.errors import DataError


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_every_sentence_task_has_columns_layouts_and_a_folder():
    sentence_tasks = {name for name, task in TASKS.items() if task.kind != "spans"}
    assert sentence_tasks == COLUMNS.keys() == LAYOUTS.keys() == FOLDERS.keys()


def test_published_files(tmp_path):
    write(tmp_path, "cola_in_domain_train.tsv", "x\t1\t\tA boat.\nx\t0\t*\tBoat a.\n")
    write(tmp_path, "cola_in_domain_dev.tsv", "x\t1\t\tOne.\n")
    write(tmp_path, "cola_out_of_domain_dev.tsv", "y\t0\t\tTwo.\n")
    train, evaluation = task_files("cola", tmp_path)
    assert [one.label for one in read_examples("cola", train)] == [1, 0]
    assert [one.first for one in read_examples("cola", evaluation)] == ["One.", "Two."]
    xml = '<entailment-corpus><pair id="1" entailment="{}"><t>A mill.</t><h>A house.</h></pair></entailment-corpus>'
    for edition in (1, 2, 3):
        for part in ("dev", "test"):
            write(tmp_path, f"rte{edition}_{part}.xml", xml.format("YES" if edition < 3 else "NO"))
    train, evaluation = task_files("rte", tmp_path)
    assert (len(train), [path.name for path in evaluation]) == (5, ["rte3_test.xml"])
    assert [one.label for one in read_examples("rte", train)] == [0, 0, 0, 0, 1]  # 0 = entailment, as GLUE orders them


def test_the_layout_of_glue_and_named_columns(tmp_path):
    write(tmp_path / "SST-2", "train.tsv", "sentence\tlabel\nfine\t1\n")
    write(tmp_path / "SST-2", "dev.tsv", "sentence\tlabel\ndull\t0\n")
    train, evaluation = task_files("sst2", tmp_path)
    assert [(one.first, one.label) for one in read_examples("sst2", [*train, *evaluation])] == [
        ("fine", 1),
        ("dull", 0),
    ]
    mnli = write(
        tmp_path,
        "m.tsv",
        "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tc\t-\n2\ta\td\tentailment\n",
    )
    assert [one.label for one in read_examples("mnli", [mnli])] == [1, 0]  # "-" is left out
    sts = write(tmp_path, "s.jsonl", json.dumps({"sentence1": "a", "sentence2": "b", "score": 4.2}) + "\n")
    assert read_examples("sts", [sts])[0].label == pytest.approx(4.2)
    published = write(tmp_path, "sts-train.csv", "news\tf\t2012\t1\t2.50\ta boat\ta ship\tsource\n")
    assert read_examples("sts", [published])[0].second == "a ship"
    qqp = write(tmp_path, "q.tsv", "id\tquestion1\tquestion2\tis_duplicate\n" + "1\ta\tb\t1\n" * 300 + "broken\n")
    assert len(read_examples("qqp", [qqp])) == 300  # a broken line in 300 is left out


@pytest.mark.parametrize(
    ("task", "text", "said"),
    [
        ("sst2", "sentence\tlable\nfine\t1\n", "no column label or gold_label; it has: sentence, lable"),
        ("sst2", "sentence\tlabel\nfine\tgreat\n", "line 2: unknown label 'great'; sst2 has 0 or negative, 1 or pos"),
        ("cola", "x\t2\t\tA boat.\n", "line 1: unknown label '2'; cola has 0 or unacceptable"),
        ("sts", "sentence1\tsentence2\tscore\na\tb\t7\n", "score '7' is no number from 0 to 5"),
        ("mrpc", "Quality\t#1 String\t#2 String\n1\ta\n0\tb\n1\tc\n", "3 of 3 lines (the first is 2) do not have"),
        ("sst2", "", "holds no example of sst2"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, task, text, said):
    with pytest.raises(DataError) as refused:
        read_examples(task, [write(tmp_path, "file.tsv", text)])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        DataError, match=r"holds no files of qnli; looked there and in QNLI for train\.tsv and dev\.tsv"
    ):
        task_files("qnli", tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        task_files("qnli", tmp_path / "nowhere")
    with pytest.raises(DataError, match="does not exist"):
        read_examples("qnli", [tmp_path / "nowhere.tsv"])


def test_real_files(data_folder):
    sizes = {
        task: tuple(len(read_examples(task, files)) for files in task_files(task, data_folder / "glue"))
        for task in ("cola", "sst2", "mrpc", "rte")
    }
    assert sizes == {"cola": (8551, 1043), "sst2": (6920, 872), "mrpc": (4076, 1725), "rte": (3367, 800)}


def test_random_parts_never_change():
    items = list(range(100))
    part = random_part(items, 10, purpose="a")
    assert part == random_part(items, 10, purpose="a") == sorted(part) and part != random_part(items, 10, purpose="b")
    assert random_part(items, None, purpose="a") == items == random_part(items, 100, purpose="a")
    rest, out = held_out(items, 0.1, purpose="a")
    assert len(out) == 10 and sorted([*rest, *out]) == items


def test_batches_go_through_every_epoch_and_are_sorted_by_length():
    lengths = np.random.default_rng(0).integers(3, 30, 25)
    batches = ExampleBatches(lengths, batch=10, seed=3)
    rows = np.concatenate([batches.rows(step) for step in range(1, 6)])  # two epochs of 25
    assert np.bincount(rows).tolist() == [2] * 25
    assert all((np.diff(lengths[batches.rows(step)]) >= 0).all() for step in range(1, 6))
    assert not np.array_equal(batches.rows(1), ExampleBatches(lengths, batch=10, seed=4).rows(1))
