"""From answers to the report: rules by hand, table 2's layout, and that nothing but the rules drops a vote."""

import json
from dataclasses import replace

import pytest

from energylm.apps.study.report import odds_table, preference_table, rules, study_sections
from energylm.apps.study.turns import StudyAnswer
from energylm.apps.study.votes import sift, study_outcome
from energylm.report.report import write_report


class Hand:
    """Writes answers of one rater as a test needs them."""

    def __init__(self, study, name):
        self.study, self.name, self.given, self.position = study, name, [], 0

    def _add(self, item, kind, block, left, right, choice):
        self.given.append(
            StudyAnswer(
                self.name, item, kind, self.position, block, left, right, choice, 1.0, float(self.position), 0.0
            )
        )
        self.position += 1
        return self

    def check(self, block, *, right):
        item = self.study.checks[block].id
        return self._add(item, "check", block, "real", "base", "left" if right else "right")

    def qualification(self, *, right):
        for number, item in enumerate(self.study.qualification):
            self._add(item.id, "qualification", None, "real", "base", "left" if number < right else "right")
        return self

    def vote(self, number, block, model):
        """For a model of the pair, or a tie; sides alternate."""
        pair = self.study.pairs[number]
        left, right = (pair.first_model, pair.second_model)[:: 1 if number % 2 else -1]
        choice = "tie" if model is None else "left" if model == left else "right"
        return self._add(pair.id, "pair", block, left, right, choice)


@pytest.fixture
def study(study_toy, tmp_path):
    return study_toy.toy_study(tmp_path / "study", pairs=6, checks=4, qualification=0)


def test_a_failed_check_drops_its_block_and_no_other(study):
    """Blocks of three pairs; the second check is failed, 1 of 2 is half: below 2/3, so with the mark at 1/2."""
    lenient = _with(study, check_mark=0.5)
    hand = Hand(lenient, "r").check(0, right=True).check(1, right=False)
    for number in range(6):
        hand.vote(number, number // 3, "joint")
    found = sift(lenient, hand.given)
    assert {vote.pair.id for vote in found.votes} == {pair.id for pair in study.pairs[:3]}
    assert found.dropped == {
        "rater failed the checks": 0,
        "check of the block failed": 3,
        "check of the block not answered": 0,
    }
    (rater,) = found.raters
    assert (rater.votes, rater.kept_votes, rater.checks_right, rater.dropped) == (6, 3, 1, False)
    assert len(sift(_with(study, check_mark=0.5, failed_blocks=False), hand.given).votes) == 6


def test_a_rater_below_the_mark_is_dropped_with_everything(study):
    hand = Hand(study, "r").check(0, right=True).check(1, right=False)
    for number in range(6):
        hand.vote(number, number // 3, "joint")
    found = sift(study, hand.given)
    assert found.votes == () and found.dropped["rater failed the checks"] == 6 and found.raters[0].dropped
    passing = Hand(study, "s").check(0, right=True).check(1, right=True).check(2, right=False).vote(0, 0, "base")
    assert len(sift(study, passing.given).votes) == 1  # 2 of 3 is the mark itself


def test_an_unanswered_check_vouches_for_nothing_unless_the_design_says_so(study):
    hand = Hand(study, "r").check(0, right=True).vote(0, 0, "joint").vote(1, 1, "joint")
    assert [vote.pair.id for vote in sift(study, hand.given).votes] == [study.pairs[0].id]
    assert sift(study, hand.given).dropped["check of the block not answered"] == 1
    assert len(sift(_with(study, unchecked="keep"), hand.given).votes) == 2


def test_sides_do_not_change_who_was_preferred(study):
    """Pairs stand on alternating sides; every vote is for joint, whatever the side."""
    hand = Hand(study, "r").check(0, right=True)
    for number in range(4):
        hand.vote(number, 0, "joint")
    assert {answer.choice for answer in hand.given if answer.kind == "pair"} == {"left", "right"}
    found = sift(study, hand.given)
    assert [vote.verdict for vote in found.votes] == ["second"] * 4
    by_side = ["second" if answer.choice == "right" else "first" for answer in hand.given if answer.kind == "pair"]
    assert by_side != ["second"] * 4  # the mistake of taking sides for models would be seen


def votes_on(study, *by_pair):
    """Answers of as many raters as it takes; a letter a vote: j for joint, b for base, t for a tie."""
    hands = [Hand(study, f"r{number}").check(0, right=True) for number in range(max(map(len, by_pair)))]
    for number, letters in enumerate(by_pair):
        for hand, letter in zip(hands, letters, strict=False):
            hand.vote(number, 0, {"j": "joint", "b": "base", "t": None}[letter])
    return [answer for hand in hands for answer in hand.given]


def test_outcome_by_hand(study):
    """jjj, jjb, bb, jb, t and a pair without votes: 2 wins, 1 loss, 2 ties of 5."""
    outcome = study_outcome(study, votes_on(study, "jjj", "jjb", "bb", "jb", "t"))
    (compared,) = outcome.comparisons.values()
    found = compared.preference
    assert (found.wins, found.ties, found.losses, found.n, compared.pairs) == (2, 2, 1, 5, 6)
    assert (found.strict.interval.value, found.inclusive.interval.value) == (0.4, 0.8)
    assert outcome.votes.kept == outcome.votes.given == 11 and outcome.judged_pairs == 4
    assert outcome.strengths is None  # two models: the rate says it


def test_table_2_layout_with_and_without_ties(study):
    tied = preference_table(study_outcome(study, votes_on(study, "jjj", "jb", "bb")))
    assert [row[1] for row in tied.rows] == ["<", "≤", "< decided"]
    assert [row[-1] for row in tied.rows] == [3, 3, 2]  # n of each row
    assert [round(row[3], 2) for row in tied.rows] == [33.33, 66.67, 50.0]
    clear = preference_table(study_outcome(study, votes_on(study, "jjj", "bb")))
    assert [row[:4] for row in clear.rows] == [["base", "<", "joint", 50.0]]
    empty = preference_table(study_outcome(study, []))
    assert empty.rows[0][4] == "no votes" and empty.rows[0][-1] == 0


def test_three_models_get_strengths(study_toy, tmp_path):
    study = study_toy.toy_study(tmp_path / "three", models=("a", "b", "c"), pairs=6, checks=4, qualification=0)
    hand = Hand(study, "r").check(0, right=True)
    for number, pair in enumerate(study.pairs):
        hand.vote(number, 0, max(pair.first_model, pair.second_model) if number % 4 else pair.first_model)
    outcome = study_outcome(study, hand.given)
    assert [(compared.first, compared.second) for compared in outcome.comparisons.values()] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    low, middle, high = (outcome.strengths[model].value for model in "abc")
    assert low < middle < high
    assert outcome.to_json()["strengths"]["c"]["lower"] < high
    titles = [section.title for section in study_sections(study, outcome, simulated=False)]
    assert "Strengths" in titles


def test_the_report_is_written_and_says_its_rules(study, tmp_path):
    outcome = study_outcome(study, votes_on(study, "jjj", "jjb", "bb", "jb", "t"))
    page = write_report(tmp_path / "out", title="T", sections=study_sections(study, outcome, simulated=True))
    markdown = (tmp_path / "out" / "results.md").read_text()
    assert rules(study.design) in markdown and "nobody has read these texts" in markdown and page.exists()
    assert (tmp_path / "out" / "preference-rates.png").exists() and (tmp_path / "out" / "checks-passed.png").exists()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["sections"]["preferences"]["rows"][0]["n"] == 5
    assert json.dumps(outcome.to_json(), allow_nan=False)


def test_an_empty_study_has_a_report_too(study, tmp_path):
    sections = study_sections(study, study_outcome(study, []), simulated=False)
    assert write_report(tmp_path / "out", title="T", sections=sections).exists()


def test_odds_are_shown_exactly(study_toy, tmp_path):
    design = study_toy.toy_study(tmp_path / "s", qualification=24).design
    table = odds_table(design)
    assert table.rows[0][:3] == ["qualification", 24, 16] and round(table.rows[0][3], 5) == 0.07579
    with_ties = odds_table(design.model_copy(update={"ties": True}))
    assert with_ties.rows[2][3] < table.rows[2][3] == with_ties.rows[2][4]  # a third is less than a half


def test_rules_in_words(study):
    assert "67% of their checks" in rules(study.design) and "are dropped" in rules(study.design)
    other = rules(_with(study, unchecked="keep", failed_blocks=False).design)
    assert "share a block" not in other and "not answered are kept" in other


def _with(study, **exclusion):
    """The same study under other rules."""
    changed = study.design.exclusion.model_copy(update=exclusion)
    return replace(study, design=study.design.model_copy(update={"exclusion": changed}))
