"""Readers give the documents that are there, and one clear line where they are not readable."""

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energylm.config.corpus import CorpusConfig
from energylm.data.document import LEADING_CHARACTERS
from energylm.data.readers import utf8
from energylm.data.readers.sotu import StateOfTheUnion
from energylm.data.sources import open_sources
from energylm.errors import DataError


def read(*sources, **settings):
    opened = open_sources(CorpusConfig(sources=[str(source) for source in sources], **settings))
    return [(document.name, "".join(document.pieces)) for source in opened for document in source.documents()]


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_text_file_is_one_document_kept_to_the_letter(tmp_path):
    text = "one\r\n\r\n two\n\nthree \n"
    assert read(put(tmp_path / "a.txt", text)) == [("a.txt", text)]


def test_blocks_and_lines(tmp_path):
    file = put(tmp_path / "a.txt", "\n one\ntwo\n\n  \nthree\n\n\n")
    assert read(file, format="blocks") == [("a.txt:2", " one\ntwo"), ("a.txt:6", "three")]
    assert read(file, format="lines") == [("a.txt:2", " one"), ("a.txt:3", "two"), ("a.txt:6", "three")]


def test_wiki_articles_begin_at_titles_not_at_sections(tmp_path):
    text = " \n = First = \n \n Text a = b = c . \n \n = = Section = = \n \n More . \n \n = Second = \n \n Last . \n"
    articles = read(put(tmp_path / "wiki.txt", text), format="wiki")
    assert [name for name, _ in articles] == ["wiki.txt:2", "wiki.txt:10"]
    assert "Section" in articles[0][1] and "Last" not in articles[0][1]
    assert articles[1][1].startswith(" = Second = ")


def test_a_folder_is_read_in_the_order_of_names_and_by_ending(tmp_path):
    put(tmp_path / "d" / "b.txt", "B")
    put(tmp_path / "d" / "a" / "z.jsonl", '{"text": "Z"}\n')
    put(tmp_path / "d" / "ignored.bin", b"\xff")
    assert read(tmp_path / "d") == [("d/a/z.jsonl:1", "Z"), ("d/b.txt", "B")]


def test_a_format_may_stand_before_each_source(tmp_path):
    lines, news = put(tmp_path / "a.txt", "one\ntwo\n"), put(tmp_path / "b.jsonl", '{"text": "Z"}\n')
    assert [text for _, text in read(f"lines:{lines}", lines, news)] == ["one", "two", "one\ntwo\n", "Z"]


def test_json_lines_take_the_named_field(tmp_path):
    file = put(tmp_path / "a.jsonl", '{"body": "x\\ny", "id": 1}\n\n{"body": ""}\n')
    assert read(file, field="body") == [("a.jsonl:1", "x\ny"), ("a.jsonl:3", "")]


def test_parquet_column(tmp_path):
    texts = [f"text {n}" for n in range(600)]
    pq.write_table(pa.table({"text": texts, "n": list(range(600))}), tmp_path / "a.parquet")
    assert [text for _, text in read(tmp_path / "a.parquet")] == texts


def test_hugging_face_folders_saved_and_streamed(tmp_path):
    texts = [f"text {n}" for n in range(300)]
    table = datasets.Dataset.from_dict({"text": texts})
    table.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"validation": table}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "files").mkdir()
    table.to_parquet(str(tmp_path / "files" / "train.parquet"))
    assert [text for _, text in read(tmp_path / "saved")] == texts  # recognised by itself
    assert [text for _, text in read(tmp_path / "splits", dataset_split="validation")] == texts
    assert [text for _, text in read(tmp_path / "files", format="hf")] == texts  # datasets.load_dataset, streaming
    with pytest.raises(DataError, match=r"no split 'train'.*dataset_split=validation"):
        read(tmp_path / "splits")
    with pytest.raises(DataError, match=r"no column 'txt'.*--field text"):
        read(tmp_path / "saved", field="txt")


def test_a_hub_name_that_cannot_be_reached_is_one_line():
    with pytest.raises(DataError, match=r"'no-such/data-set' cannot be opened .*local folder"):
        read("no-such/data-set", format="hf")


def test_the_default_corpus_by_era():
    everything, early, modern = (
        [document.name for document in StateOfTheUnion.parse(source).documents()]
        for source in ("sotu", "sotu:19th", "sotu:modern")
    )
    assert len(everything) > 240
    assert early + modern == everything
    assert {name[5:9] for name in early} <= {str(year) for year in range(1790, 1901)}
    assert [name[5:9] for name, _ in read("sotu:1950-1952")] == ["1950", "1951", "1952"]
    with pytest.raises(DataError, match="'20th' is no era"):
        read("sotu:20th")


def test_long_files_come_in_blocks_that_join_to_the_text(tmp_path, monkeypatch):
    """Blocks of 7 bytes cut characters of 2 to 4 bytes in every possible place."""
    monkeypatch.setattr(utf8, "BLOCK_BYTES", 7)
    text = "aé漢🙂" * 40
    blocks = list(utf8.decoded_blocks(put(tmp_path / "a.txt", "\ufeff" + text)))
    assert "".join(blocks) == text
    assert len(blocks) > 10


def test_the_first_block_of_a_long_file_is_long_enough_to_split_by(tmp_path):
    file = put(tmp_path / "a.txt", "🙂" * 300_000)  # four bytes each: the fewest characters a block can have
    assert len(next(utf8.decoded_blocks(file))) >= LEADING_CHARACTERS


@pytest.mark.parametrize("form", ["text", "lines", "blocks", "wiki", "jsonl"])
def test_a_byte_that_is_not_utf8_is_named_by_its_offset(tmp_path, monkeypatch, form):
    monkeypatch.setattr(utf8, "BLOCK_BYTES", 5)
    prefix = '{"text": "é"}\n{"text": "'.encode()
    file = put(tmp_path / "a.txt", prefix + b'\xe9t\xe9"}\n')
    with pytest.raises(DataError, match=rf"a\.txt.*byte {len(prefix)} is not UTF-8.*iconv"):
        read(file, format=form)


def test_a_character_cut_off_by_the_end_of_the_file_is_not_utf8(tmp_path):
    with pytest.raises(DataError, match="byte 3 is not UTF-8"):
        read(put(tmp_path / "a.txt", b"abc\xe6\xbc"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', r"a\.jsonl line 2 is not JSON .*--format lines"),
        ('{"txt": "a"}\n', r"a\.jsonl line 1 has no field 'text'; did you mean --field txt\?"),
        ('{"n": 1, "m": 2}\n', r"line 1 has no field 'text'; name one with --field; it has: n, m"),
        ('\n\n["a"]\n', r"line 3 is a JSON list, expected an object"),
        ('{"text": null}\n', r"line 1: field 'text' is None, expected text"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(put(tmp_path / "a.jsonl", content))


def test_bad_parquet_is_named(tmp_path):
    pq.write_table(pa.table({"body": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has no column 'text'; .*body"):
        read(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet row 1: column 'body' is None"):
        read(tmp_path / "a.parquet", field="body")
    with pytest.raises(DataError, match=r"b\.parquet is not a readable Parquet file"):
        read(put(tmp_path / "b.parquet", "text"))


def test_missing_and_unclear_sources_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.txt does not exist"):
        read(tmp_path / "nothing.txt")
    with pytest.raises(DataError, match=r"a\.dat: its ending does not say"):
        read(put(tmp_path / "a.dat", "x"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no file ending in \.txt"):
        read(tmp_path / "empty")


def test_a_hub_data_set_may_name_its_configuration():
    """So that several data sets of one corpus can have a configuration each."""
    config = CorpusConfig(sources=("hf:some/set#raw", "hf:other/set"), dataset_config="common")
    first, second = open_sources(config)
    assert (first.location, first.config) == ("some/set", "raw")
    assert (second.location, second.config) == ("other/set", "common")
