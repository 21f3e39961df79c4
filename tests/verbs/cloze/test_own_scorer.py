"""A scorer and a detector of somebody else's, registered under one name in one module, on the command line and in
Python: by their own name, and by the kind of a folder."""

import json
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from energylm import Detector, Scorer, registry
from energylm.bundles.detector import Detection
from energylm.cli.main import main
from energylm.config.cloze import ScorerConfig
from energylm.errors import ConfigError, ModelError
from energylm.registry import DETECTORS, SCORERS

MODULE = '''
import json
from pathlib import Path

from energylm.bundles.detector import Detection
from energylm.bundles.scorer_text import Reading


class ShortWords:
    """A token costs its characters: short words are likely."""

    method, reads, max_tokens = "log-likelihood", "both", None
    convention = "minus the characters of each word"

    def __init__(self, cost):
        self.name, self.cost = f"short words at {cost:g}", cost

    @classmethod
    def from_pretrained(cls, source, *, config, device):
        folder = Path(source)
        return cls(json.loads((folder / "energylm.json").read_text())["cost"] if folder.is_dir() and source else 1.0)

    def read(self, text):
        words = tuple(text.split())
        indices = tuple(range(len(words)))
        return Reading(indices, words, indices, indices)

    def token_scores(self, readings):
        return [[-self.cost * len(piece) for piece in reading.pieces] for reading in readings]

    def list_scores(self, lists):
        return [self.token_scores(readings) for readings in lists]


class Shouting:
    """Who writes in capitals is a machine."""

    def __init__(self, name):
        self.name = name

    @classmethod
    def from_pretrained(cls, source, *, device=None):
        return cls(f"shouting {source}")

    def predict(self, texts, *, max_tokens=None):
        verdicts = ["machine" if text.isupper() else "human" for text in texts]
        return [Detection(verdict, self.name, None, None, None, None, 1, 1, ()) for verdict in verdicts]
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module on the path, its parts added to copies of the registries' tables as a script would."""
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for parts in (SCORERS, DETECTORS):
        monkeypatch.setattr(parts, "_parts", dict(parts._parts))
    import own_parts

    SCORERS.add("short-words", own_parts.ShortWords)
    DETECTORS.add("shouting", own_parts.Shouting)
    (tmp_path / "texts.txt").write_text("a bc def\nABC DE\n")
    yield tmp_path
    del sys.modules["own_parts"]


def energylm(capsys, *arguments):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as leaving:
        patch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        main()
    return leaving.value.code, *capsys.readouterr()


def test_a_scorer_by_its_name_scores_keeps_and_reranks(own, capsys):
    code, out, err = energylm(capsys, "score", "short-words", "texts.txt", "--per", "word", "--output", "kept")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["score"] for line in lines] == [-6.0, -5.0] and "minus the characters" in err
    assert lines[0]["word_scores"] == [["a", -1.0], ["bc", -2.0], ["def", -3.0]] and any(Path("kept").rglob("block-*"))
    lists = {"u": {"hyp_1": {"text": "long words", "score": -1.0}, "hyp_2": {"text": "a b", "score": -1.5}}}
    (own / "lists.json").write_text(json.dumps(lists))
    code, out, _ = energylm(capsys, "rerank", "short-words:any", "lists.json", "--weight", "0.5")
    assert code == 0 and out == "u\ta b\n"
    assert "(short-words)" in energylm(capsys, "score", "short-words", "texts.txt", "--dry-run")[1]


def test_a_folder_of_its_kind_is_read_by_it(own):
    (own / "model").mkdir()
    (own / "model" / "energylm.json").write_text(json.dumps({"kind": "short-words", "cost": 2.0}))
    scorer = Scorer.from_pretrained(own / "model")
    assert scorer.name == "short words at 2" and scorer.score(["a bc"]) == [-6.0]


def test_options_that_it_has_not_are_refused(own, capsys):
    with pytest.raises(ModelError, match="it has a log-likelihood, no pseudo-log-likelihood"):
        Scorer.from_pretrained("short-words", config=ScorerConfig(method="pseudo-log-likelihood"))
    code, _, err = energylm(
        capsys, "score", "short-wrods", "texts.txt"
    )  # teeth: only a name that is registered will do
    assert code == 2 and "short-wrods" in err
    with pytest.raises(ConfigError, match="already"):
        SCORERS.add("short-words", object)


def test_a_package_adds_one_by_an_entry_point(own, monkeypatch, capsys):
    entries = EntryPoints([EntryPoint("brief-words", "own_parts:ShortWords", "energylm.scorers")])
    monkeypatch.setattr(registry, "entry_points", lambda group: entries.select(group=group))
    for parts in (SCORERS, DETECTORS):
        monkeypatch.delitem(vars(parts), "_installed", raising=False)
    code, out, _ = energylm(capsys, "score", "brief-words", "texts.txt")
    monkeypatch.undo()
    vars(SCORERS).pop("_installed", None)
    assert code == 0 and json.loads(out.splitlines()[0])["score"] == -6.0


def test_a_detector_by_its_name_judges_but_is_not_calibrated(own, capsys):
    code, out, _ = energylm(capsys, "detect", "run", "shouting:loudly", "texts.txt", "--format", "lines")
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["verdict"] for line in verdicts] == ["human", "machine"]
    assert verdicts[0]["reason"] == "shouting loudly"
    assert isinstance(Detector.from_pretrained("shouting").predict(["A"])[0], Detection)
    texts = [" ".join(["word"] * number) for number in range(1, 31)]
    (own / "human.txt").write_text("\n".join(texts))
    (own / "machine.txt").write_text("\n".join(texts).replace("word", "thing"))
    data = ("--human", "human.txt", "--machine", "machine.txt", "--format", "lines")
    for more in (("eval", "shouting"), ("calibrate", "shouting", "--fpr", "0.1")):
        code, _, err = energylm(capsys, "detect", *more, *data)
        assert code == 2 and "only predicts" in err
