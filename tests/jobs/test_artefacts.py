"""The artefact store: made once, found by what it was made from, resumed where it was interrupted."""

import pytest

from energylm.errors import BusyError
from energylm.files import folder_lock, read_json
from energylm.jobs.artefacts import ArtefactStore, artefact_key

IDENTITY = {"steps": 3, "corpus": "corpus/abc"}


class Work:
    """Counts its calls and leaves a file; the first call fails if told to."""

    def __init__(self, *, fails_once=False):
        self.calls, self.fails_once = 0, fails_once

    def __call__(self, folder):
        self.calls += 1
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log", "a") as file:
            file.write("x")
        if self.fails_once and self.calls == 1:
            raise KeyboardInterrupt
        return {"number": 7}


def test_a_thing_is_made_once(tmp_path):
    store, work = ArtefactStore(tmp_path), Work()
    key = artefact_key("lm", IDENTITY)
    assert store.find("lm", key) is None
    first = store.make("lm", key, work, identity=IDENTITY)
    second = ArtefactStore(tmp_path).make("lm", key, work, identity=IDENTITY)
    assert work.calls == 1 and (first.reused, second.reused) == (False, True)
    assert first.result == second.result == {"number": 7} and first.seconds == second.seconds
    assert second.folder == tmp_path / "lm" / key / "lm" and (second.folder / "log").read_text() == "x"
    assert read_json(tmp_path / "lm" / key / "artefact.json")["identity"] == IDENTITY


def test_an_interrupted_thing_goes_on_in_its_folder(tmp_path):
    store, work = ArtefactStore(tmp_path), Work(fails_once=True)
    with pytest.raises(KeyboardInterrupt):
        store.make("lm", "k", work, identity={})
    assert store.find("lm", "k") is None
    assert not store.make("lm", "k", work, identity={}).reused
    assert (store.product("lm", "k") / "log").read_text() == "xx"


def test_every_part_of_the_identity_counts_and_its_order_does_not():
    key = artefact_key("lm", IDENTITY)
    assert key == artefact_key("lm", dict(reversed(IDENTITY.items())))
    others = [("mlm", IDENTITY), ("lm", IDENTITY | {"steps": 4}), ("lm", IDENTITY | {"corpus": "corpus/abd"})]
    assert len({key, *(artefact_key(*other) for other in others)}) == 4


def test_two_processes_do_not_make_the_same_thing(tmp_path):
    store = ArtefactStore(tmp_path)
    with folder_lock(tmp_path / "lm" / "k"), pytest.raises(BusyError, match="in use by process"):
        store.make("lm", "k", Work(), identity={})


def test_the_store_lies_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path))
    assert ArtefactStore().product("lm", "k") == tmp_path / "artefacts" / "lm" / "k" / "lm"


def test_a_kind_of_two_words_makes_a_path_of_none(tmp_path):
    """Such paths are typed and pasted; two kinds that share a word stay apart."""
    store = ArtefactStore(tmp_path)
    for kind in ("lm train", "lm"):
        made = store.make(kind, artefact_key(kind, IDENTITY), Work(), identity=IDENTITY)
        assert made.folder.relative_to(tmp_path).parts == (made.folder.name, made.key, kind.replace(" ", "-"))
        assert store.find(kind, made.key) == store.make(kind, made.key, Work(), identity=IDENTITY)
    assert artefact_key("lm train", IDENTITY) != artefact_key("lm", IDENTITY)
    assert " " not in "".join(path.name for path in tmp_path.rglob("*"))
