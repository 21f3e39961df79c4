"""Labelled texts from all formats; what is empty, double or contradictory is said; bad input is one line."""

import json

import pytest

from energylm.config.texts import DetectionSources
from energylm.data.detection import read_detection, read_unlabelled
from energylm.errors import DataError


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def jsonl(*texts):
    return "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))


def contents(texts):
    return [text.text for text in texts]


def test_all_formats_and_which_writer(put):
    human, machine = put("h.jsonl", jsonl("one", "two")), put("m.jsonl", jsonl("three"))
    pairs = put("p.json", json.dumps({"original": ["four"], "sampled": ["five"]}))
    put("folder/a.txt", "six\n")
    put("folder/b/c.md", "seven")
    put("folder/d.jsonl", jsonl("eight"))
    put("folder/picture.png", b"\x89")
    folder = put("folder/a.txt", "six\n").removesuffix("/a.txt")
    data = read_detection(DetectionSources(human=(human, folder), machine=(machine,), pairs=(pairs,)))
    assert contents(data.human) == ["one", "two", "six\n", "seven", "eight", "four"]
    assert contents(data.machine) == ["three", "five"]
    assert [text.source for text in data.human][2:4] == ["folder/a.txt", "folder/b/c.md"]
    assert data.human[1].name == "h.jsonl:2"
    assert "6 human and 2 machine" in data.describe()


def test_a_file_of_pairs_can_give_either_half(put):
    pairs = put("p.json", json.dumps({"original": ["a a"], "sampled": ["b b"]}))
    data = read_detection(DetectionSources(human=(pairs,), machine=(put("m.jsonl", jsonl("c c")),)))
    assert contents(data.texts) == ["a a", "c c"]
    data = read_detection(DetectionSources(machine=(pairs,), human=(put("h.jsonl", jsonl("c c")),)))
    assert contents(data.machine) == ["b b"]
    assert [name for name, _ in read_unlabelled([pairs]).texts] == ["p.json:1 original", "p.json:1 sampled"]


def test_lines_and_fields(put):
    lines = put("l.txt", "one\n\n  \ntwo\r\n")
    data = read_detection(DetectionSources(human=(lines,), format="lines"))
    assert contents(data.texts) == ["one", "two"] and data.left_out == {"empty": 2}
    body = put("b.jsonl", '{"body": "x"}\n\n')
    assert contents(read_detection(DetectionSources(human=(body,), field="body")).texts) == ["x"]


def test_empty_double_and_contradictory_texts_are_left_out_and_said(put):
    human = put("h.jsonl", jsonl("Same  text", "same text", "", "both", "h1", "h2"))
    machine = put("m.jsonl", jsonl("Both", "m1", " \n", "m1"))
    data = read_detection(DetectionSources(human=(human,), machine=(machine,)))
    assert contents(data.human) == ["Same  text", "h1", "h2"] and contents(data.machine) == ["m1"]
    assert data.left_out == {"duplicates": 2, "empty": 2, "labelled human and machine": 2}
    assert "left out: 2 duplicates, 2 empty" in data.describe()


def test_the_same_file_for_both_is_a_mistake(put):
    path = put("h.jsonl", jsonl(*(f"text {number}" for number in range(30))))
    with pytest.raises(DataError, match=r"30 texts are labelled human and machine at once, the first is h\.jsonl:1"):
        read_detection(DetectionSources(human=(path,), machine=(path,)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.txt", "café".encode("latin-1"), "byte 3 is not UTF-8; convert the file"),
        ("latin.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2: byte 27 is not UTF-8"),
        ("latin.json", b'{"original": ["caf\xe9"], "sampled": ["b"]}', "is not UTF-8"),
        ("utf16.txt", "text".encode("utf-16"), "is in UTF-16, not UTF-8; convert it: iconv -f UTF-16"),
        ("bad.jsonl", '{"text": "a"\n', "line 1 is not JSON"),
        ("bad.json", '{"text": "a"}\n{"text": "b"}\n', "belongs into a .jsonl file"),
        ("odd.json", '{"original": ["a"], "sampled": []}', "1 originals but 0 samples"),
        ("field.jsonl", '{"txet": "a"}\n', "did you mean --field txet"),
        ("half.jsonl", '{"text": "\\ud800 a"}\n', "U+D800 is half a character"),
        ("what.bin", "a", "its ending does not say what it is"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(put, name, content, said):
    with pytest.raises(DataError) as refused:
        read_detection(DetectionSources(human=(put(name, content),)))
    assert said in str(refused.value) and "\n" not in str(refused.value) and name in str(refused.value)


def test_files_of_a_folder_that_cannot_be_read_are_left_out_counted_and_said(put, capsys):
    """Nothing of such a file is taken, not even lines before the damage. The file itself, named, is an error."""
    put("mixed/good.txt", "fine")
    put("mixed/half.jsonl", '{"text": "first line"}\n{"text": ')
    bad = put("mixed/old.txt", "na\xefve".encode("latin-1"))
    folder = bad.removesuffix("/old.txt")
    data = read_detection(DetectionSources(human=(folder,), machine=(put("m.jsonl", jsonl("m")),)))
    assert contents(data.human) == ["fine"] and data.left_out == {"files that cannot be read": 2}
    assert "left out: 2 files that cannot be read" in data.describe()
    said = capsys.readouterr().err
    assert "2 files of the folders cannot be read and are left out; the first: " in said and "half.jsonl line 2" in said
    found = read_unlabelled([folder])
    assert [text for _, text in found.texts] == ["fine"] and [*found.unreadable][1] == bad
    with pytest.raises(DataError, match=r"old\.txt: byte 2 is not UTF-8"):
        read_unlabelled([bad])
    (tmp := put("worse/old.txt", b"\xff\x80"))
    with pytest.raises(DataError, match=r"no file of folder .*worse can be read; the first: .*byte 0 is not UTF-8"):
        read_unlabelled([tmp.removesuffix("/old.txt")])


def test_places_that_are_not_there(put, tmp_path):
    (tmp_path / "empty").mkdir()
    for sources, said in [
        (DetectionSources(), "no texts were named"),
        (DetectionSources(human=(str(tmp_path / "nothing.jsonl"),)), "does not exist"),
        (DetectionSources(human=(str(tmp_path / "empty"),)), "holds no file ending in"),
        (DetectionSources(pairs=(put("t.txt", "a"),)), "is no file of pairs"),
    ]:
        with pytest.raises(DataError, match=said):
            read_detection(sources)


def test_one_class_only(put):
    data = read_detection(DetectionSources(human=(put("h.jsonl", jsonl("a")),)))
    with pytest.raises(DataError, match=r"one class only: training needs .* no machine text; add --machine PATH"):
        data.require_both("training")


def test_texts_that_begin_alike_stay_together(put):
    """Originals and the samples that continue them, cut at different places, fall into the same part."""
    beginnings = [" ".join(f"w{number}x{place}" for place in range(20)) for number in range(200)]
    table = {"original": [f"{b} and so on" for b in beginnings], "sampled": [f"{b} but not" for b in beginnings]}
    path = put("p.json", json.dumps(table))
    parts = {
        part: read_detection(DetectionSources(pairs=(path,), part=part, test_fraction=0.3))
        for part in ("train", "test")
    }
    groups = {part: {text.group for text in data.texts} for part, data in parts.items()}
    assert not groups["train"] & groups["test"]
    assert len(parts["train"].texts) + len(parts["test"].texts) == 400
    assert 80 < len(parts["test"].texts) < 160
    assert len(parts["test"].human) == len(parts["test"].machine)


def test_a_limit_is_spread_over_the_file(put):
    path = put("h.jsonl", jsonl(*(f"text {number}" for number in range(100))))
    data = read_detection(DetectionSources(human=(path,), limit=3))
    assert contents(data.texts) == ["text 0", "text 50", "text 99"]
    part = read_detection(DetectionSources(human=(path,), limit=20, part="test", test_fraction=0.3))
    assert len(part.texts) == 20  # of the part, not a part of the limit


def test_the_real_sets_are_read(data_folder):
    folder = data_folder / "detection"
    if not folder.is_dir():
        pytest.skip("ENERGYLM_DATA holds no detection/")
    essays = DetectionSources(
        human=(str(folder / "ghostbuster/essay_human.jsonl"),), machine=(str(folder / "ghostbuster/essay_gpt.jsonl"),)
    )
    data = read_detection(essays)
    assert len(data.human) == 597 and len(data.machine) == 600 and data.left_out == {"empty": 3}
    pairs = sorted(str(path) for path in (folder / "generated").glob("xsum*.json"))
    train, test = (read_detection(DetectionSources(pairs=tuple(pairs), part=part)) for part in ("train", "test"))
    assert len(train.machine) + len(test.machine) == 1500
    assert not {text.group for text in train.texts} & {text.group for text in test.texts}
