"""Loaders of published formats: small made-up files by hand, clear errors, and the known counts of the real ones."""

import json

import pytest

from energylm.config.texts import SourceSettings
from energylm.data.detection import read_detection_pairs
from energylm.data.nbest import read_lists
from energylm.data.sentence_tasks import read_blimp, read_examples
from energylm.data.sequence_pairs import read_parallel
from energylm.data.sources import open_sources
from energylm.data.tagging import Tagged, iob1_to_iob2, read_composite_tags, read_entities
from energylm.data.text_files import read_texts
from energylm.errors import DataError


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


def test_nbest_keeps_the_recognisers_order_beyond_nine(put):
    entry = {"ref": "A B"} | {f"hyp_{n}": {"score": -n / 2, "text": f"T{n}"} for n in (10, 2, 1)}
    (utterance,) = read_lists(put("n.json", json.dumps({"u1": entry})))
    assert (utterance.utterance, utterance.reference) == ("u1", "A B")
    assert [(h.text, h.score) for h in utterance.hypotheses] == [("T1", -0.5), ("T2", -1.0), ("T10", -5.0)]


@pytest.mark.parametrize(
    "content", ['{"u": {"ref": "a"}}', '{"u": {"ref": "a", "hyp_1": {"text": "b"}}}', '{"u": 3}', "[]", "{"]
)
def test_bad_nbest_is_named(put, content):
    with pytest.raises(DataError, match=r"n\.json"):
        read_lists(put("n.json", content))


def test_conll2003(put):
    text = "-DOCSTART- -X- O O\n\nAda NNP I-NP I-PER\nran VBD I-VP O\n\nRome NNP I-NP I-LOC\n"
    assert read_entities(put("c", text)) == [Tagged(("Ada", "ran"), ("B-PER", "O")), Tagged(("Rome",), ("B-LOC",))]
    with pytest.raises(DataError, match="line 1 has 2 columns"):
        read_entities(put("c", "Ada NNP\n"))


def test_iob1_to_iob2_by_hand():
    tags = ("I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG", "I-ORG")
    assert iob1_to_iob2(tags) == ("B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG")


def conllu_row(number, word, tags):
    return "\t".join([number, word, "_", *tags, "0", "root", "_", "_"])


def test_conllu_leaves_out_spans_and_empty_nodes(put):
    rows = [
        "# text = cannot",
        conllu_row("1-2", "cannot", ("_", "_", "_")),
        conllu_row("1", "can", ("AUX", "MD", "VerbForm=Fin")),
        conllu_row("1.1", "x", ("_", "_", "_")),
        conllu_row("2", "not", ("PART", "RB", "_")),
    ]
    (sentence,) = read_composite_tags(put("u.conllu", "\n".join(rows)))
    assert sentence == Tagged(("can", "not"), ("AUX/MD/VerbForm=Fin", "PART/RB/_"))
    with pytest.raises(DataError, match="line 1 has 2 tab-separated columns, expected 10"):
        read_composite_tags(put("u.conllu", "1\tx\n"))


def test_parallel_text_of_unequal_length_is_refused(put):
    pairs = list(read_parallel(put("a.de", "eins\nzwei\n"), put("a.en", "one\ntwo\n")))
    assert [(p.source, p.target) for p in pairs] == [("eins", "one"), ("zwei", "two")]
    with pytest.raises(DataError, match=r"b\.en ends after 1 lines but .*a\.de goes on"):
        list(read_parallel(put("a.de", "eins\nzwei\n"), put("b.en", "one\n")))


def test_detection(put):
    assert read_detection_pairs(put("d.json", '{"original": ["a"], "sampled": ["b"]}')) == (["a"], ["b"])
    with pytest.raises(DataError, match="2 originals but 1 samples"):
        read_detection_pairs(put("d.json", '{"original": ["a", "c"], "sampled": ["b"]}'))
    with pytest.raises(DataError, match="no list of texts 'sampled'"):
        read_detection_pairs(put("d.json", '{"original": ["a"], "sampled": [1]}'))


def test_blimp(put):
    line = '{"sentence_good": "g", "sentence_bad": "b", "UID": "u", "linguistics_term": "t"}\n'
    (pair,) = read_blimp(put("p.jsonl", line))
    assert (pair.good, pair.bad, pair.paradigm, pair.phenomenon) == ("g", "b", "u", "t")
    with pytest.raises(DataError, match="line 1 has no field 'sentence_bad'"):
        list(read_blimp(put("p.jsonl", '{"sentence_good": "g"}\n')))


def test_glue_tables(put):
    def read(task, path):
        return [(example.first, example.second, example.label) for example in read_examples(task, [path])]

    cola = put("c", 'x\t0\t*\tA "b c.\nx\t1\t\tD.\n')
    assert read("cola", cola) == [('A "b c.', None, 0), ("D.", None, 1)]
    assert read("sst2", put("s", "good film\t1\n")) == [("good film", None, 1)]
    mrpc = put("m", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n")
    assert read("mrpc", mrpc) == [("a", "b", 1)]
    with pytest.raises(DataError, match="line 2 has 1 tab-separated columns, expected 2"):
        read("sst2", put("s", "a\t1\nb\n"))
    with pytest.raises(DataError, match="line 1: unknown label '2'; sst2 has 0 or negative"):
        read("sst2", put("s", "a\t2\n"))
    with pytest.raises(DataError, match="m has no column #1 String or"):  # its first row is not taken for a header
        read("mrpc", put("m", "1\t7\t8\ta\tb\n0\t7\t9\ta\tc\n"))


def test_rte_of_all_editions(put):
    """Class 0 is entailment."""
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE entailment-corpus SYSTEM "rte.dtd">\n<entailment-corpus>'
    pair = '<pair id="1" {}><t> a &amp; b </t><h>c</h></pair></entailment-corpus>'
    for judged, label in (('value="TRUE"', 0), ('value="FALSE"', 1), ('entailment="YES"', 0), ('entailment="NO"', 1)):
        (example,) = read_examples("rte", [put("r.xml", head + pair.format(judged))])
        assert (example.first, example.second, example.label) == ("a & b", "c", label)
    with pytest.raises(DataError, match=r"pair 1: .*came 'MAYBE'"):
        read_examples("rte", [put("r.xml", head + pair.format('entailment="MAYBE"'))])
    with pytest.raises(DataError, match="is not XML"):
        read_examples("rte", [put("r.xml", head)])
    with pytest.raises(DataError, match="is no file of cola"):
        read_examples("cola", [put("r.xml", head)])


def count(items):
    return sum(1 for _ in items)


def documents(path, **settings):
    return count(d for source in open_sources([str(path)], SourceSettings(**settings)) for d in source.documents())


def test_counts_of_the_published_files(data_folder):
    """The sizes that the data sets' own documentation states."""
    sentences = {
        part: read_composite_tags(data_folder / "ud_ewt" / f"{part}.conllu") for part in ("train", "dev", "test")
    }
    assert {part: len(read) for part, read in sentences.items()} == {"train": 12_544, "dev": 2_001, "test": 2_077}
    assert len({tag for sentence in sentences["train"] for tag in sentence.tags}) == 395
    multi30k = data_folder / "multi30k"
    sizes = [
        count(read_parallel(multi30k / f"{p}.de", multi30k / f"{p}.en")) for p in ("train", "val", "test_2016_flickr")
    ]
    assert sizes == [29_000, 1_014, 1_000]
    conll = [len(read_entities(data_folder / "conll2003" / f"eng.{part}")) for part in ("train", "testa", "testb")]
    assert conll == [14_041, 3_250, 3_453]
    lists = read_lists(data_folder / "librispeech_nbest" / "dev_clean.json")
    assert len(lists) == 2_703 and {len(entry.hypotheses) for entry in lists} == {10}
    blimp = sorted((data_folder / "blimp").glob("*.jsonl"))
    assert len(blimp) == 30 and {count(read_blimp(path)) for path in blimp} == {1_000}
    assert {len(read_detection_pairs(p)[0]) for p in (data_folder / "detection" / "generated").iterdir()} == {500}
    assert {count(read_texts(p, field="text")) for p in (data_folder / "detection" / "ghostbuster").iterdir()} == {600}
    glue = data_folder / "glue"
    sizes = {
        "cola": ("cola_in_domain_train.tsv", 8_551),
        "sst2": ("sst2_train.tsv", 6_920),
        "mrpc": ("mrpc_train.txt", 4_076),
    }
    for task, (file, size) in sizes.items():
        assert len(read_examples(task, [glue / file])) == size
    assert [len(read_examples("rte", [glue / f"rte{n}_dev.xml"])) for n in (1, 2, 3)] == [567, 400, 800]


def test_counts_of_running_text(data_folder):
    assert documents(data_folder / "news" / "train.jsonl") == 8_000
    assert documents(data_folder / "news" / "valid.jsonl") == 500
    assert documents(data_folder / "books") == len(list((data_folder / "books").glob("*.txt")))
    assert documents(data_folder / "wiki" / "valid.txt", format="wiki") == 60  # Merity et al. 2016, table 1
    assert documents(data_folder / "wiki" / "train.txt", format="wiki") == 600
