"""Readers give the documents that are there, and one clear line where they are not readable."""

import subprocess

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energylm.config.texts import SourceSettings
from energylm.data import text_files
from energylm.data.dataset_sources import StateOfTheUnion
from energylm.data.document import LEADING_CHARACTERS
from energylm.data.sources import open_sources
from energylm.errors import DataError


def read(*sources, **settings):
    opened = open_sources([str(source) for source in sources], SourceSettings(**settings))
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


class NoRoute(Exception):
    """As HTTP libraries raise: neither an OSError nor a ValueError."""


def test_a_hub_that_cannot_be_reached_is_asked_once_and_briefly(monkeypatch, tmp_path):
    """`datasets` is not started at all, in documents and in the fingerprint, unless something was fetched before."""
    asked, opened = [], []

    def dataset_info(hub, name, *, revision, timeout):
        asked.append((name, timeout))
        raise NoRoute("no\nroute")

    def load_dataset(*names, **options):
        opened.append(names[0])
        raise NoRoute("nothing\nhere")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    (source,) = open_sources(["hf:some/set"], SourceSettings())
    for use in (source.fingerprint, lambda: list(source.documents())):
        asked.clear()
        with pytest.raises(
            DataError, match=r"^[^\n]*'some/set' cannot be opened \(it is not here, and the hub"
        ) as caught:
            use()
        assert len(str(caught.value)) < 200 and asked == [("some/set", 5.0)] and not opened
    (tmp_path / "datasets--some--set").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"'some/set' cannot be opened \(nothing here\)"):
        list(source.documents())
    assert opened == ["some/set"]


def test_a_network_that_fails_while_rows_are_read_is_one_line(monkeypatch, tmp_path):
    class Rows:
        column_names = ("text",)

        def select_columns(self, names):
            return self

        def iter(self, *, batch_size):
            yield {"text": ["first"]}
            raise NoRoute("the line\nis dead")

    monkeypatch.setattr("energylm.data.dataset_sources.HuggingFaceDataset._load", lambda source: Rows())
    (source,) = open_sources(["hf:some/set"], SourceSettings())
    documents = source.documents()
    assert next(documents).pieces == ("first",)
    with pytest.raises(DataError, match=r"'some/set' cannot be opened \(the line is dead\)"):
        next(documents)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_damaged_parquet_file_is_one_line(tmp_path, share):
    """Truncated it has no footer; with zeros in the middle its pages cannot be unpacked."""
    whole = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {n * n}" for n in range(3000)]}), whole, compression="zstd")
    content = whole.read_bytes()
    whole.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file \([^\n]+\); make it again"):
        read(whole)
    hole = int(share * len(content)) // 2
    whole.write_bytes(content[:hole] + bytes(64) + content[hole + 64 :])
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file \([^\n]+\); make it again"):
        read(whole)


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
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 7)
    text = "aé漢🙂" * 40
    blocks = list(text_files.decoded_blocks(put(tmp_path / "a.txt", "\ufeff" + text)))
    assert "".join(blocks) == text
    assert len(blocks) > 10


def test_the_first_block_of_a_long_file_is_long_enough_to_split_by(tmp_path):
    file = put(tmp_path / "a.txt", "🙂" * 300_000)  # four bytes each: the fewest characters a block can have
    assert len(next(text_files.decoded_blocks(file))) >= LEADING_CHARACTERS


@pytest.mark.parametrize("form", ["text", "lines", "blocks", "wiki", "jsonl"])
def test_a_byte_that_is_not_utf8_is_named_by_its_offset(tmp_path, monkeypatch, form):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 5)
    prefix = '{"text": "é"}\n{"text": "'.encode()
    file = put(tmp_path / "a.txt", prefix + b'\xe9t\xe9"}\n')
    with pytest.raises(DataError, match=rf"a\.txt.*byte {len(prefix)} is not UTF-8.*iconv"):
        read(file, format=form)


CONVERTED = {
    "utf-8": None,
    "utf-8-sig": None,
    "latin-1": "WINDOWS-1252",  # which holds Latin-1
    "cp1252": "WINDOWS-1252",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16LE",
    "utf-16-be": "UTF-16BE",
    "utf-32": "UTF-32",
}


@pytest.mark.parametrize("form", ["text", "lines"])
@pytest.mark.parametrize("encoding", CONVERTED)
def test_the_cure_for_another_encoding_works(tmp_path, form, encoding):
    """The command that the message gives is run, in another folder and with blanks in the path: the text comes back."""
    text = (
        "A café, naïve; “quoted” – so.\nAnd a line.\n" if encoding == "cp1252" else "A café, naïve, so.\nAnd a line.\n"
    )
    file = put(tmp_path / "my texts" / "it's one.txt", text.encode(encoding))
    if CONVERTED[encoding] is None:
        assert [line for _, line in read(file, format="lines")] == text.splitlines()
        return
    with pytest.raises(DataError) as caught:
        read(file, format=form)
    command = str(caught.value).partition("iconv")[2]
    assert command.startswith(f" -f {CONVERTED[encoding]} -t UTF-8 ") and "\n" not in str(caught.value)
    subprocess.run(f"iconv{command}", shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "fixed.txt").read_text(encoding="utf-8").removeprefix("\ufeff") == text


def test_bytes_that_are_no_text_have_no_encoding_named(tmp_path):
    with pytest.raises(DataError, match=r"byte 4 is not UTF-8, and there are NUL bytes: .* or no text; leave it out"):
        read(put(tmp_path / "a.txt", b"PK\x03\x04\xff\xfe\0\0\0"))


def test_wide_text_is_not_taken_for_utf8(tmp_path):
    """Teeth: UTF-16 of ASCII letters decodes as UTF-8 without an error, to letters with NUL between them."""
    content = "plain letters\n".encode("utf-16-le")
    assert "\0" in content.decode("utf-8")
    with pytest.raises(DataError, match="is in UTF-16LE, not UTF-8"):
        read(put(tmp_path / "a.txt", content))
    assert read(put(tmp_path / "b.txt", "a\0b, NUL in a text")) == [("b.txt", "a\0b, NUL in a text")]


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
    settings = SourceSettings(dataset_config="common")
    first, second = open_sources(["hf:some/set#raw", "hf:other/set"], settings)
    assert (first.location, first.config) == ("some/set", "raw")
    assert (second.location, second.config) == ("other/set", "common")
