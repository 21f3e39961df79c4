"""`energylm study invite` and `energylm study serve`, but for the serving itself (test_server)."""

import re
import sys

import pytest

from energylm.apps.security import hash_token, token_matches
from energylm.apps.study.design import Pair, StudyDesign, write_study
from energylm.apps.study.store import StudyStore
from energylm.apps.study.verbs import StudyInvite, StudyServe
from energylm.errors import DataError, MissingExtra


@pytest.fixture
def folder(tmp_path):
    design = StudyDesign.checked({"qualification": {"items": 0}, "checks": {"every": 4}})
    pairs = [Pair("a" * 16, "The boat", " left.", " came.", "A", "B")]
    chosen = {"models": ("A", "B"), "comparisons": [("A", "B")], "qualification": (), "checks": (), "origin": {}}
    write_study(tmp_path / "study", design=design, pairs=pairs, **chosen)
    return tmp_path / "study"


def labels(folder):
    with StudyStore.open(folder) as store:
        return [standing.rater.label for standing in store.progress().raters]


def test_links_are_printed_once_and_kept_as_hashes(energylm, folder):
    wanted = ("--raters", 2, "--label", "ada", "--url", "https://study.example.org/")
    code, out, _ = energylm("study", "invite", folder, *wanted)
    assert code == 0
    lines = [line.split("\t") for line in out.splitlines()]
    assert [name for name, _ in lines] == ["ada", "rater-001", "rater-002"]
    tokens = [re.fullmatch(r"https://study\.example\.org/r/([\w-]{32})", link).group(1) for _, link in lines]
    assert len(set(tokens)) == 3
    with StudyStore.open(folder) as store:
        assert [store.rater_by_token_hash(hash_token(token)).label for token in tokens] == labels(folder)
    everything = b"".join(file.read_bytes() for file in folder.iterdir())
    assert not [token for token in tokens if token.encode() in everything]


def test_numbers_go_on(energylm, folder):
    energylm("study", "invite", folder, "--raters", 2)
    energylm("study", "invite", folder, "--raters", 1, "--label", "rater-007")
    assert labels(folder) == ["rater-001", "rater-002", "rater-007", "rater-008"]


def test_a_new_owners_token_ends_the_old_one(energylm, folder):
    first, second = (energylm("study", "invite", folder, "--owner")[1].split("\t") for _ in range(2))
    assert first[0] == second[0] == "owner"
    with StudyStore.open(folder) as store:
        digest = store.owner_hash()
    assert not token_matches(first[1].strip(), digest) and token_matches(second[1].strip(), digest)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nobody to invite"),
        (["--label", "ada", "--label", "ada"], "invited already"),
        (["--label", " "], "is no name"),
        (["--label", "a\tb"], "is no name"),
        (["--label", "x" * 81], "is no name"),
        (["--raters", "1", "--url", "study.example.org"], "no address of a study"),
        (["--raters", "1", "--url", "https://study.example.org/a?b"], "no address of a study"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["invite", "dry"])
def test_mistakes_invite_nobody(energylm, folder, options, says, dry):
    code, out, err = energylm("study", "invite", folder, *options, *dry)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1
    assert labels(folder) == []


def test_a_dry_run_writes_nothing(energylm, folder):
    before = sorted(folder.iterdir())
    _, out, _ = energylm("study", "invite", folder, "--raters", 5, "--owner", "--dry-run")
    assert out.startswith("would invite 5 raters (rater-001, rater-002, rater-003 …) to 1 pairs at http://")
    assert energylm("study", "serve", folder, "--dry-run")[1] == (
        "would serve 1 pairs for 3 votes on 127.0.0.1 port 8321\n"
    )
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("verb", [StudyInvite, StudyServe])
def test_what_is_no_study_is_said(tmp_path, verb):
    with pytest.raises(DataError, match=r"holds no study\.json"):
        verb.checked({"study": str(tmp_path)} | ({"raters": 1} if verb is StudyInvite else {})).run()


@pytest.mark.parametrize("verb", [StudyInvite, StudyServe])
def test_an_absent_extra_is_one_line(folder, monkeypatch, verb):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"needs sqlalchemy, .* pip install 'energylm\[web\]'"):
        verb(study=str(folder)).run()
