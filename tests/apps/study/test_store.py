"""The store of a study: who is handed what, and that no answer is lost, doubled or altered."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections import Counter

import pytest

from energylm.apps.study.design import read_study
from energylm.apps.study.store import StudyStore
from energylm.errors import DataError


class FakeClock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(autouse=True, scope="module")
def _toy(study_toy):
    global answer_all, right_side, toy_study
    answer_all, right_side, toy_study = study_toy.answer_all, study_toy.right_side, study_toy.toy_study


def opened(folder, clock=None, **design):
    toy_study(folder, **design)
    return StudyStore.open(folder, durable=False, **({"clock": clock} if clock else {}))


def wrong_side(item):
    return {"left": "right", "right": "left"}[right_side(item)]


def test_a_study_comes_back_as_it_was_written(tmp_path):
    written = toy_study(tmp_path / "s", models=("a", "b", "c"))
    read = read_study(tmp_path / "s")
    assert read == written and len(read.pairs) == 18 and read.votes_wanted == 54
    assert read.comparisons == (("a", "b"), ("a", "c"), ("b", "c"))
    assert len(read.items) == 18 + 4 + 4  # no two items share an identifier


def test_a_changed_study_is_refused(tmp_path):
    folder = toy_study(tmp_path / "s").folder
    with pytest.raises(DataError, match="never written over"):
        toy_study(folder)
    lines = (folder / "pairs.jsonl").read_text()
    (folder / "pairs.jsonl").write_text(lines.replace("joint 0", "joint O"))
    with pytest.raises(DataError, match=r"pairs\.jsonl is missing or was changed"):
        read_study(folder)
    (folder / "pairs.jsonl").write_text(lines)
    facts = json.loads((folder / "study.json").read_text())
    facts["design"]["raters_per_pair"] = 1
    (folder / "study.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="was changed after it was made"):
        read_study(folder)
    with pytest.raises(DataError, match="energylm study new"):
        read_study(tmp_path)


def test_qualification_comes_first_and_whoever_fails_gets_no_pair(tmp_path):
    with opened(tmp_path / "s") as store:
        good, bad = store.add_rater("good", "h1"), store.add_rater("bad", "h2")
        first = store.next_item(bad)
        assert (first.stage, first.number, first.total, first.ties) == ("qualification", 1, 4, False)
        shown = answer_all(store, bad, wrong_side)
        assert [item.stage for item in shown] == ["qualification"] * 4
        assert store.standing(bad).stage == "failed" and store.next_item(bad) is None
        shown = answer_all(store, good)
        assert len({item.id for item in shown}) == len(shown) == 4 + 6 + 2
        assert store.standing(good).stage == "finished"
        standing = store.standing(good)
        assert (standing.qualification_right, standing.checks_right, standing.pairs_answered) == (4, 2, 6)


def test_the_pass_mark_is_reached_at_two_thirds(tmp_path):
    """3 of 4 pass, 2 of 4 do not: 2/3 of 4 is 2.67."""
    with opened(tmp_path / "s") as store:
        for name, wrong, stage in (("one wrong", 1, "study"), ("two wrong", 2, "failed")):
            rater = store.add_rater(name, name)
            for number in range(4):
                item = store.next_item(rater)
                store.answer(rater, item.id, (wrong_side if number < wrong else right_side)(item), 1.0)
            assert store.standing(rater).stage == stage


def test_real_text_stands_left_in_half_of_the_qualification_so_one_side_never_passes(tmp_path):
    with opened(tmp_path / "s", qualification=24) as store:
        orders = []
        for number in range(5):
            rater = store.add_rater(f"r{number}", f"h{number}")
            shown = answer_all(store, rater, lambda item: "left")
            assert sum(item.left == "true end" for item in shown) == 12
            assert store.standing(rater).stage == "failed"
            orders.append([item.prefix for item in shown])
        assert len({tuple(order) for order in orders}) == 5  # an order of everyone's own


def test_one_in_four_is_a_check_and_a_begun_block_ends_with_one(tmp_path):
    """7 pairs: two whole blocks and one pair more, whose check follows it."""
    with opened(tmp_path / "s", pairs=7, qualification=0, raters_per_pair=1) as store:
        rater = store.add_rater("r", "h")
        shown = answer_all(store, rater)
        blocks = {}
        for answer in store.answers():
            blocks.setdefault(answer.block, []).append(answer.kind)
        assert [Counter(kinds) for kinds in blocks.values()] == [{"pair": 3, "check": 1}] * 2 + [
            {"pair": 1, "check": 1}
        ]
        assert [item.stage for item in shown] == ["study"] * 10  # nothing tells a check from a pair
        assert {item.ties for item in shown} == {False}


def test_the_check_stands_at_every_place_of_a_block(tmp_path):
    with opened(tmp_path / "s", pairs=40, checks=14, qualification=0) as store:
        for number in range(3):
            answer_all(store, store.add_rater(f"r{number}", f"h{number}"))
        places = Counter(answer.position % 4 for answer in store.answers() if answer.kind == "check")
        assert sum(places.values()) == 42 and min(places[place] for place in range(4)) >= 3


def test_sides_are_seeded_and_balanced(tmp_path):
    with opened(tmp_path / "s", pairs=60, checks=20, qualification=0) as store:
        answer_all(store, store.add_rater("r", "h"))
        left = Counter(answer.left for answer in store.answers() if answer.kind == "pair")
        assert 14 <= left["base"] <= 46  # beyond 4 standard deviations once in 16,000
        first = [(a.item, a.left, a.position) for a in store.answers()]
    with opened(tmp_path / "again", pairs=60, checks=20, qualification=0) as store:
        answer_all(store, store.add_rater("r", "h"))
        assert [(a.item, a.left, a.position) for a in store.answers()] == first
    with opened(tmp_path / "other", pairs=60, checks=20, qualification=0, seed=1) as store:
        answer_all(store, store.add_rater("r", "h"))
        assert [a.left for a in store.answers()] != [left for _, left, _ in first]


def test_the_rater_never_learns_who_wrote_what(tmp_path):
    """The writers' names stand in the stored answer, and in nothing that the page receives."""
    with opened(tmp_path / "s", qualification=0) as store:
        rater = store.add_rater("r", "h")
        for item in answer_all(store, rater):
            told = json.dumps(
                {name: value for name, value in vars(item).items() if name not in ("left", "right", "prefix")}
            )
            assert all(word not in told for word in ("base", "joint", "real", "check", "pair", "swapped"))
        for answer in store.answers():
            pair = store.study.items[answer.item]
            if answer.kind == "pair":
                assert {answer.left, answer.right} == {"base", "joint"}
                assert answer.preferred == answer.left and answer.choice == "left"
            assert (pair.id, answer.to_json()["preferred"]) == (answer.item, answer.preferred)


def test_three_raters_a_pair_and_no_fourth(tmp_path):
    with opened(tmp_path / "s", qualification=0) as store:
        for number in range(5):
            answer_all(store, store.add_rater(f"r{number}", f"h{number}"))
        votes = Counter(answer.item for answer in store.answers() if answer.kind == "pair")
        assert set(votes.values()) == {3} and len(votes) == 6
        progress = store.progress()
        assert (progress.pairs, progress.pairs_complete, progress.votes, progress.votes_wanted) == (6, 6, 18, 18)
        assert [standing.stage for standing in progress.raters] == ["finished"] * 5 and progress.open == 0


def test_open_pairs_count_too(tmp_path):
    """Four raters ask at once for the only pair: three get it, the fourth is asked to come back."""
    with opened(tmp_path / "s", pairs=1, checks=1, qualification=0) as store:
        raters = [store.add_rater(f"r{number}", f"h{number}") for number in range(4)]
        for rater in raters[:3]:
            assert take_pair(store, rater)
        assert store.progress().open == 3
        assert store.next_item(raters[3]) is None and store.standing(raters[3]).stage == "study"


def test_closing_the_browser_and_coming_back_shows_the_same_item(tmp_path, clock):
    with opened(tmp_path / "s", clock) as store:
        rater = store.add_rater("r", "h")
        item = store.next_item(rater)
        clock.now += 60
        assert store.next_item(rater) == item
    with StudyStore.open(tmp_path / "s", clock=clock) as store:  # and after the server was started again
        assert store.next_item(store.rater_by_token_hash("h").id) == item
        assert store.rater_by_token_hash("other") is None


def lone_pair(folder, clock):
    """One pair, one vote wanted, blocks of two, in the hands of a first rater; a second one waits."""
    store = opened(folder, clock, pairs=1, qualification=0, raters_per_pair=1, abandon_after_seconds=100)
    first, second = store.add_rater("first", "h1"), store.add_rater("second", "h2")
    item = take_pair(store, first)
    assert store.next_item(second) is None
    return store, first, second, item


def take_pair(store, rater):
    """Answer checks until a pair comes, which is left open."""
    while (item := store.next_item(rater)) and not item.prefix.startswith("prefix"):
        store.answer(rater, item.id, right_side(item), 1.0)
    return item


def test_an_abandoned_pair_is_handed_to_another_rater(tmp_path, clock):
    store, first, second, item = lone_pair(tmp_path / "s", clock)
    clock.now += 99
    assert store.next_item(second) is None  # not yet
    clock.now += 2
    assert take_pair(store, second).id == item.id
    assert store.answer(first, item.id, "left", 1.0) == "handed over"
    assert store.answer(second, item.id, "left", 1.0) == "stored"
    assert store.answer(first, item.id, "left", 1.0) == "handed over"
    assert [answer.rater for answer in store.answers() if answer.kind == "pair"] == ["second"]
    assert take_pair(store, first) is None  # never the same pair twice, answered or not
    store.close()


def test_an_abandoned_pair_that_nobody_took_stays_with_its_rater(tmp_path, clock):
    store, first, second, item = lone_pair(tmp_path / "s", clock)
    clock.now += 1000
    assert store.next_item(first).id == item.id  # the rater is back: the clock starts again
    clock.now += 50
    assert store.next_item(second) is None
    assert store.answer(first, item.id, "right", 1.0) == "stored"
    clock.now += 1000
    assert take_pair(store, second) is None
    store.close()


def test_the_same_answer_twice_is_one_and_another_is_refused(tmp_path):
    with opened(tmp_path / "s") as store:
        rater = store.add_rater("r", "h")
        item = store.next_item(rater)
        assert store.answer(rater, item.id, "left", 2.5) == "stored"
        assert store.answer(rater, item.id, "left", 9.0) == "repeated"
        assert store.answer(rater, item.id, "right", 2.5) == "refused"
        (answer,) = store.answers()
        assert (answer.choice, answer.seconds) == ("left", 2.5)


def test_answers_cannot_be_altered_even_by_hand(tmp_path):
    with opened(tmp_path / "s") as store:
        rater = store.add_rater("r", "h")
        store.answer(rater, store.next_item(rater).id, "left", 1.0)
    database = sqlite3.connect(tmp_path / "s" / "study.sqlite")
    for order in ("UPDATE answers SET choice = 'right'", "DELETE FROM answers"):
        with pytest.raises(sqlite3.IntegrityError, match="never altered"):
            database.execute(order)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


@pytest.mark.parametrize(
    ("choice", "seconds", "said"),
    [
        ("middle", 1.0, "one of left, right, tie"),
        ("tie", 1.0, '"tie" is not among the answers'),
        ("left", -1.0, "seconds must be a number from 0"),
        ("left", float("nan"), "seconds must be a number from 0"),
    ],
)
def test_answers_that_make_no_sense_are_one_line(tmp_path, choice, seconds, said):
    with opened(tmp_path / "s") as store:
        rater = store.add_rater("r", "h")
        item = store.next_item(rater)
        with pytest.raises(DataError, match=said):
            store.answer(rater, item.id, choice, seconds)
        assert list(store.answers()) == []


def test_items_of_others_strangers_and_doubles_are_refused(tmp_path):
    with opened(tmp_path / "s") as store:
        rater, other = store.add_rater("r", "h"), store.add_rater("o", "h2")
        item = store.next_item(rater)
        for who, what in ((other, item.id), (rater, "f" * 16), (99, item.id)):
            with pytest.raises(DataError, match="not handed to this rater"):
                store.answer(who, what, "left", 1.0)
        with pytest.raises(DataError, match="is there already"):
            store.add_rater("r", "h3")
        with pytest.raises(DataError, match="no rater 99"):
            store.standing(99)
        assert store.owner_hash() is None
        store.set_owner_hash("one")
        store.set_owner_hash("two")
        assert store.owner_hash() == "two"


def test_ties_only_where_the_study_allows_them(tmp_path):
    with opened(tmp_path / "s", ties=True) as store:
        rater = store.add_rater("r", "h")
        shown = answer_all(store, rater, lambda item: "tie" if item.ties else right_side(item))
        assert [item.ties for item in shown] == [False] * 4 + [True] * 8
        assert store.standing(rater).checks_right == 0  # a tie is no right answer to a check
        assert {a.preferred for a in store.answers() if a.kind == "pair"} == {None}


def test_a_rater_stops_at_the_limit_of_pairs(tmp_path):
    with opened(tmp_path / "s", pairs=9, qualification=0, max_pairs_per_rater=4) as store:
        rater = store.add_rater("r", "h")
        answer_all(store, rater)
        standing = store.standing(rater)
        assert (standing.pairs_answered, standing.checks_answered, standing.stage) == (4, 2, "finished")


def test_no_pair_is_shown_that_no_check_could_vouch_for(tmp_path):
    with opened(tmp_path / "s", pairs=9, checks=1, qualification=0) as store:
        rater = store.add_rater("r", "h")
        answer_all(store, rater)
        assert store.standing(rater).pairs_answered == 3 and store.standing(rater).stage == "finished"


def test_answers_to_another_study_are_not_mixed_in(tmp_path):
    opened(tmp_path / "a").close()
    toy_study(tmp_path / "b", seed=7)
    os.replace(tmp_path / "a" / "study.sqlite", tmp_path / "b" / "study.sqlite")
    with pytest.raises(DataError, match="another study"):
        StudyStore.open(tmp_path / "b")


def test_a_damaged_database_is_one_line(tmp_path):
    toy_study(tmp_path / "s")
    (tmp_path / "s" / "study.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 100)
    with pytest.raises(DataError, match="is damaged"):
        StudyStore.open(tmp_path / "s")


def test_threads_lose_no_vote_and_share_no_pair_too_often(tmp_path):
    """12 raters at once, each in a thread of its own, on one store: every acknowledged answer is there, once."""
    acknowledged, mistakes = [], []
    with opened(tmp_path / "s", pairs=12, checks=4, qualification=2) as store:
        raters = [store.add_rater(f"r{number}", f"h{number}") for number in range(12)]

        def work(rater):
            try:
                acknowledged.extend((rater, item.id) for item in answer_all(store, rater))
            except Exception as error:
                mistakes.append(error)

        threads = [threading.Thread(target=work, args=(rater,)) for rater in raters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not mistakes
        stored = [(int(answer.rater[1:]) + 1, answer.item) for answer in store.answers()]
        assert sorted(stored) == sorted(acknowledged) and len(set(stored)) == len(stored)
        votes = Counter(answer.item for answer in store.answers() if answer.kind == "pair")
        assert set(votes.values()) == {3} and len(votes) == 12


WRITER = """
    import sys
    from energylm.apps.study.store import StudyStore

    store = StudyStore.open(sys.argv[1])
    rater = store.add_rater(sys.argv[2], sys.argv[2])
    while (item := store.next_item(rater)) is not None:
        store.answer(rater, item.id, "left", 1.0)
        print(item.id, flush=True)  # acknowledged
"""


def test_kill_9_of_a_writer_loses_no_acknowledged_answer(tmp_path):
    """A process is killed in the middle of writing while another has the same folder open."""
    toy_study(tmp_path / "s", pairs=400, checks=150, qualification=0, raters_per_pair=2)
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    command = [sys.executable, str(script), str(tmp_path / "s"), "a"]
    with StudyStore.open(tmp_path / "s") as store, subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        told = [process.stdout.readline() for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        told = [line.decode().strip() for line in (*told, *process.stdout) if line.endswith(b"\n")]
        process.wait()
        assert process.returncode == -signal.SIGKILL and len(told) >= 20
        stored = [answer.item for answer in store.answers()]
        assert stored[: len(told)] == told and len(stored) <= len(told) + 1  # one may be stored and not yet told
        rater = store.rater_by_token_hash("a").id
        item = store.next_item(rater)  # and its rater goes on
        assert item.id not in told and store.answer(rater, item.id, "left", 1.0) == "stored"
    database = sqlite3.connect(tmp_path / "s" / "study.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
