"""N-best lists in all formats say the same, and every kind of damage is named with its place."""

import json

import numpy as np
import pytest

from energylm.data.nbest import Hypothesis, NBest, format_of, read_lists, sample_lists, with_context
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
        ("n.jsonl", '{"lists": []}', 'no list "hypotheses"'),
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


def test_folders_of_espnet_and_kaldi(tmp_path):
    """The same two utterances, written as each recogniser writes them; costs are scores with the other sign."""
    espnet, kaldi = tmp_path / "output.1", tmp_path / "nbest"
    for rank, rows in (
        (1, {"u1": ("a cat", "tensor(-1.0)"), "u2": ("so is it", "-0.5")}),
        (2, {"u1": ("a cap", "-2.5")}),
    ):
        folder = espnet / f"{rank}best_recog"
        folder.mkdir(parents=True)
        (folder / "text").write_text("".join(f"{name} {text}\n" for name, (text, _) in rows.items()))
        (folder / "score").write_text("".join(f"{name} {score}\n" for name, (_, score) in rows.items()))
    kaldi.mkdir()
    (kaldi / "text").write_text("u1-1 a cat\nu1-2 a cap\nu2-1 so is it\n")
    (kaldi / "lm_cost").write_text("u1-1 0.75\nu1-2 2.0\nu2-1 0.25\n")
    (kaldi / "ac_cost").write_text("u1-1 0.25\nu1-2 0.5\nu2-1 0.25\n")
    expected = [
        NBest("u1", None, (Hypothesis("a cat", -1.0), Hypothesis("a cap", -2.5))),
        NBest("u2", None, (Hypothesis("so is it", -0.5),)),
    ]
    assert read_lists(espnet) == read_lists(kaldi) == expected
    references = tmp_path / "references.txt"
    references.write_text("a cat\nso it is\n")
    assert [each.reference for each in read_lists(kaldi, references=references)] == ["a cat", "so it is"]
    (kaldi / "lm_cost").write_text("u1-1 0.75\n")  # a cost is missing
    with pytest.raises(DataError, match="hypothesis 'u1-2' has no score"):
        read_lists(kaldi)
    (kaldi / "text").write_text("u1 a cat\n")
    with pytest.raises(DataError, match="'u1' is no hypothesis"):
        read_lists(kaldi)
    with pytest.raises(DataError, match="format 'tsv' is that of a file"):
        read_lists(espnet, form="tsv")
    with pytest.raises(DataError, match="is that of a folder"):
        read_lists(references, form="kaldi-folder")


def test_beams_of_nemo(tmp_path):
    beams, manifest = tmp_path / "preds.tsv", tmp_path / "manifest.json"
    beams.write_text("a cat\t-1.0\na cap\t-2.5\nso is it\t-0.5\nso it is\t-0.75\n")
    manifest.write_text(
        '{"audio_filepath": "1.wav", "text": "a cat"}\n{"audio_filepath": "2.wav", "text": "so it is"}\n'
    )
    lists = read_lists(beams, form="nemo", references=manifest)
    assert [(each.reference, [h.score for h in each.hypotheses]) for each in lists] == [
        ("a cat", [-1.0, -2.5]),
        ("so it is", [-0.5, -0.75]),
    ]
    with pytest.raises(DataError, match="give its manifest"):
        read_lists(beams, form="nemo")
    manifest.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(DataError, match="4 hypotheses for 3 references"):
        read_lists(beams, form="nemo", references=manifest)


def test_fields_of_decoders(tmp_path):
    """Whisper's mean over two tokens and the end: −0.5 · 3. pyctcdecode's lm_score has a language model in it."""
    path = tmp_path / "beams.jsonl"
    path.write_text(
        '{"id": "w", "beams": [{"text": "a cat", "avg_logprob": -0.5, "tokens": [7, 8]}]}\n'
        '{"id": "t", "nbest": [{"words": ["a", "cat"], "score": -2.0, "tokens": [7, 8], "avg_logprob": -9.0}]}\n'
        '{"id": "p", "hypotheses": [{"text": "a cat", "logit_score": -3.0, "lm_score": -8.0}]}\n'
    )
    lists = read_lists(path)
    assert [(each.utterance, each.hypotheses[0].text, each.hypotheses[0].score) for each in lists] == [
        ("w", "a cat", -1.5),
        ("t", "a cat", -2.0),
        ("p", "a cat", -3.0),
    ]
    path.write_text('{"beams": [{"text": "a cat", "lm_score": -1.0}]}\n')
    with pytest.raises(DataError, match="hypothesis 1 has no score"):
        read_lists(path)


def test_context_is_what_the_recogniser_heard_before_in_the_same_recording():
    """Of the first list of 7-1 the second hypothesis is its best; 7-2 is another recording, and so is what has no
    number."""
    named = {"7-1-0000": ("a b", "c d e"), "7-1-0001": ("f",), "7-1-0002": ("g",), "7-2-0000": ("h",), "x": ("i",)}
    lists = [
        NBest(name, None, tuple(Hypothesis(text, float(rank)) for rank, text in enumerate(texts)))
        for name, texts in named.items()
    ]
    assert [each.context for each in with_context(lists, 9)] == ["", "c d e", "c d e f", "", ""]
    assert [each.context for each in with_context(lists, 2)] == ["", "d e", "e f", "", ""]
    assert with_context(lists, 0) == lists


def test_a_context_of_the_file_goes_before_what_was_heard(tmp_path):
    path = tmp_path / "lists.jsonl"
    path.write_text(
        '{"id": "7-1", "hypotheses": [{"text": "a b", "score": 0}]}\n'
        '{"id": "7-2", "context": "c d e", "hypotheses": [{"text": "f", "score": 0}]}\n'
        '{"id": "7-3", "hypotheses": [{"text": "g", "score": 0}]}\n'
    )
    lists = read_lists(path)
    assert [each.context for each in lists] == ["", "c d e", ""]
    assert [each.context for each in with_context(lists, 2)] == ["", "d e", "b f"]
    assert [each.context for each in with_context(lists, 0)] == ["", "", ""]
    path.write_text('{"context": ["c"], "hypotheses": [{"text": "f", "score": 0}]}\n')
    with pytest.raises(DataError, match=r"the context is .'c'., expected the words"):
        read_lists(path)
