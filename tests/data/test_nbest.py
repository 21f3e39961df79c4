"""N-best lists in four formats say the same, and every kind of damage is named with its place."""

import json

import numpy as np
import pytest

from energylm.data.nbest import Hypothesis, NBest, format_of, read_lists, sample_lists
from energylm.data.sources import JsonLines
from energylm.errors import DataError

LISTS = [
    NBest("u1", "a cat sat", (Hypothesis("a cat sat", -2.5), Hypothesis("a cat", -1.0), Hypothesis("", -3.0))),
    NBest("u2", "so it is", (Hypothesis("so is it", -0.5),)),
]
ESPNET = {
    one.utterance: {"ref": one.reference}
    | {f"hyp_{rank}": {"score": h.score, "text": h.text} for rank, h in enumerate(one.hypotheses, start=1)}
    for one in LISTS
}
JSONL = "".join(
    json.dumps(
        {
            "utterance": one.utterance,
            "reference": one.reference,
            "hypotheses": [{"text": h.text, "score": h.score} for h in one.hypotheses],
        }
    )
    + "\n"
    for one in LISTS
)
TSV = "utterance\tscore\ttext\treference\n" + "".join(
    f"{one.utterance}\t{h.score}\t{h.text}\t{one.reference}\n" for one in LISTS for h in one.hypotheses
)
MOSES = "".join(
    f"{number} ||| {h.text} ||| LM= -1 TM= -2 ||| {h.score}\n"
    for number, one in enumerate(LISTS)
    for h in one.hypotheses
)


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("name", "content"), [("n.json", json.dumps(ESPNET)), ("n.jsonl", JSONL), ("n.tsv", TSV), ("n.txt", TSV)]
)
def test_formats_say_the_same(put, name, content):
    assert read_lists(put(name, content)) == LISTS


def test_moses_with_references(put):
    references = put("refs.txt", "a cat sat\nso it is\n")
    lists = read_lists(put("n.nbest", MOSES), references=references)
    assert [(one.reference, one.hypotheses) for one in lists] == [(one.reference, one.hypotheses) for one in LISTS]
    assert [one.utterance for one in lists] == ["0", "1"]
    (second,) = read_lists(put("n.nbest", MOSES.splitlines()[-1]), references=references)
    assert second.reference == "so it is"  # by id, not by order


def test_tsv_without_a_first_line_of_names(put):
    lists = read_lists(put("n.tsv", "u1\t-1\ta b\nu1\t-2\ta\nu2\t-3\tc\n"))
    assert [(one.utterance, one.reference, len(one.hypotheses)) for one in lists] == [("u1", None, 2), ("u2", None, 1)]
    (one,) = read_lists(put("n.tsv", "text\tscore\tutterance\tspeaker\na b\t-1\tu1\tx\n"))
    assert one == NBest("u1", None, (Hypothesis("a b", -1.0),))


def test_references_may_be_absent_but_not_strange(put):
    (one,) = read_lists(put("n.json", '{"u": {"hyp_1": {"score": 1, "text": "x"}}}'))
    assert one.reference is None
    (one,) = read_lists(put("n.jsonl", '{"id": 7, "hypotheses": [{"text": "x", "score": 1}]}'))
    assert (one.utterance, one.reference) == ("7", None)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("n.json", '{"u": {"ref": "a", "hyp_1": {"text": "x"}}}', r"'u', hyp_1 has no score .*came None"),
        ("n.json", '{"u": {"ref": "a", "hyp_1": {"text": "x", "score": NaN}}}', "has no score"),
        ("n.json", '{"u": {"ref": "a", "hyp_1": {"score": -1}}}', "has no text"),
        ("n.json", '{"u": {"ref": "a"}}', "has no hypothesis"),
        ("n.json", '{"u": {"ref": 3, "hyp_1": {"text": "x", "score": 1}}}', "the reference is 3"),
        ("n.json", '{"u": {"ref": "a", "hyp_x": {"text": "x", "score": 1}}}', "'hyp_x' is no hypothesis"),
        ("n.json", "[]", "is a JSON list"),
        ("n.json", "{}", "holds no n-best list"),
        ("n.jsonl", '{"hypotheses": [{"text": "x"}]}', "line 1, hypothesis 1 has no score"),
        ("n.jsonl", '{"nbest": []}', 'no list "hypotheses"'),
        # what comes twice: Python's JSON keeps the last and says nothing
        ("n.json", '{"u": {"hyp_1": {"text": "x", "score": 1}}, "u": {}}', "key 'u' comes twice in one object; rename"),
        ("n.json", '{"u": {"hyp_1": {"text": "x", "score": 1}, "hyp_1": {}}}', "key 'hyp_1' comes twice"),
        (
            "n.json",
            '{"u": {"hyp_1": {"text": "x", "score": 1}, "hyp_01": {"text": "y", "score": 1}}}',
            "'hyp_01' is hypothesis 1 a second time",
        ),
        ("n.jsonl", '{"hypotheses": [{"text": "x", "text": "y", "score": 1}]}', "line 1: key 'text' comes twice"),
        (
            "n.jsonl",
            '{"id": 7, "hypotheses": [{"text": "x", "score": 1}]}\n\n'
            '{"id": "7", "hypotheses": [{"text": "y", "score": 1}]}',
            "line 3: utterance '7' was already there in line 1; give each",
        ),
        (
            "n.jsonl",
            '{"id": 2, "hypotheses": [{"text": "x", "score": 1}]}\n{"hypotheses": [{"text": "y", "score": 1}]}',
            "line 2: utterance '2' was already there in line 1",
        ),
        # damaged JSON: no cure that `rerank` does not have
        (
            "n.json",
            '{"u": {"hyp_1"',
            r"is not JSON \(Expecting ':' delimiter at column 15\); mend .* --format \(espnet, jsonl",
        ),
        ("n.json", '{\n"u": nix}', "at line 2, column 6"),
        ("n.jsonl", '{"hypotheses": [', r"line 1 is not JSON \(Expecting value at column 17\)"),
        ("n.jsonl", "[1]", "line 1 is a JSON list"),
        ("n.tsv", "utterance\tscore\ttext\nu\tx\ta\n", r"line 2 has no score of the recogniser \(came 'x'\)"),
        ("n.tsv", "u\t-1\ta\nv\t-1\ta\nu\t-2\tb\n", "line 3: utterance 'u' was already there in line 1; sort"),
        ("n.tsv", "u\t-1\ta\tr\nu\t-2\tb\ts\n", "2 different references"),
        ("n.tsv", "u\t-1\ta\nu\t-2\n", "line 2 has 2 tab-separated columns"),
        ("n.nbest", "0 ||| a ||| f\n", r"line 1 is not `id"),
        ("n.nbest", "1 ||| a ||| f ||| -1\n0 ||| a ||| f ||| -1\n", "id 0 comes after 1"),
        ("n.lists", "plain text\n", "tell no format"),
    ],
)
def test_damage_is_named(put, name, content, says):
    with pytest.raises(DataError, match=says) as problem:
        read_lists(put(name, content))
    assert name in str(problem.value) and "\n" not in str(problem.value)


def test_wrong_number_of_references(put, tmp_path):
    with pytest.raises(DataError, match="has 1 references but 2 are needed"):
        read_lists(put("n.tsv", TSV), references=put("r.txt", "a\n"))
    with pytest.raises(DataError, match="has 1 references but 2 are needed"):
        read_lists(put("n.nbest", MOSES), references=put("r.txt", "a\n"))
    with pytest.raises(DataError, match="does not exist; give a file of n-best lists"):
        read_lists(tmp_path / "none.json")
    with pytest.raises(DataError, match="is a folder; give a file of n-best lists"):
        read_lists(tmp_path)
    with pytest.raises(DataError, match=r"none\.txt does not exist; give a file of references"):
        read_lists(put("n.tsv", TSV), references=tmp_path / "none.txt")


def test_broken_json_has_no_cure_that_reranking_lacks(put):
    """Teeth: the reader of corpora, which has a format `lines`, names it; that of n-best lists must not."""
    broken = put("n.jsonl", '{"hypotheses": [')
    with pytest.raises(DataError) as problem:
        read_lists(broken)
    assert "--format lines" not in str(problem.value) and problem.value.exit_code == 2
    with pytest.raises(DataError, match="--format lines"):
        list(JsonLines(broken, broken.name).documents())


def test_python_alone_would_lose_what_comes_twice(put):
    """Teeth: `json.loads` keeps the second of two utterances with one name."""
    twice = '{"u": {"hyp_1": {"text": "x", "score": 1}}, "u": {"hyp_1": {"text": "y", "score": 2}}}'
    assert len(json.loads(twice)) == 1
    with pytest.raises(DataError, match="comes twice"):
        read_lists(put("n.json", twice))


def test_format_by_ending_or_content(put):
    assert format_of([], "a.ndjson") == "jsonl"
    assert format_of([(1, " "), (2, "0 ||| x ||| y ||| 1")], "a") == "moses"
    assert read_lists(put("a", JSONL)) == LISTS and read_lists(put("b", json.dumps(ESPNET))) == LISTS
    assert read_lists(put("c", json.dumps(ESPNET, indent=1))) == LISTS and read_lists(put("d", TSV)) == LISTS
    assert read_lists(put("a.txt", JSONL), form="jsonl") == LISTS


def test_a_sample_keeps_the_order_and_depends_on_the_seed_only():
    lists = [NBest(str(number), None, (Hypothesis("x", 0.0),)) for number in range(100)]
    some = sample_lists(lists, 10, seed=0)
    places = [int(one.utterance) for one in some]
    assert len(set(places)) == 10 and places == sorted(places)
    assert some == sample_lists(lists, 10, seed=0) != sample_lists(lists, 10, seed=1)
    assert sample_lists(lists, 100, seed=0) == sample_lists(lists, None, seed=0) == lists


def test_librispeech_rates_are_the_published_ones(data_folder):
    """1-best 6.12 / 16.76 / 6.42, oracle 4.04 / 13.02 / 4.17 (2,195 errors in 52,576 words)."""
    from energylm.estimators.additive_metrics import WordErrorRate

    metric = WordErrorRate()
    lists = read_lists(data_folder / "librispeech_nbest" / "test_clean.json")
    pairs = [(one.reference, hypothesis.text) for one in lists for hypothesis in one.hypotheses]
    statistics = metric.statistics(*zip(*pairs, strict=True)).reshape(len(lists), 10, 2)
    assert round(float(metric.value(statistics[:, 0].sum(0))), 2) == 6.42
    best = statistics[np.arange(len(lists)), statistics[..., 0].argmin(1)].sum(0)
    assert best.tolist() == [2195, 52576]
