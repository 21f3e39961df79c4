"""Studies from end to end without a browser: made from files and from models, answered by a panel, reported."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest

from energylm.apps.study.design import read_study
from energylm.apps.study.making import describe_study, new_study
from energylm.apps.study.new import StudyNew
from energylm.apps.study.panel import Panel, expected_exclusions, planted_rates, run_panel
from energylm.apps.study.report import exported_answers, report_study
from energylm.apps.study.store import StudyStore
from energylm.apps.study.verbs import StudyInvite, StudyServe, StudySimulate
from energylm.errors import BusyError, ConfigError, DataError
from energylm.files import folder_lock


def write_completions(folder, name, prefixes, text=None):
    lines = [{"prefix": f"Prefix {n} goes", "completion": text or f" {name} ends {n} so."} for n in range(prefixes)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def study_config(folder, *, prefixes=40, models=("base", "joint"), **settings):
    files = [{"name": name, "file": write_completions(folder, name, prefixes)} for name in models]
    defaults = {"pairs": 20, "design": {"qualification": {"items": 4}, "max_pairs_per_rater": 9}}
    real = write_completions(folder, "truth", prefixes)
    return StudyNew.checked(defaults | {"completions": files, "real": real} | settings)


def test_pairs_checks_and_qualification_share_no_prefix(tmp_path):
    made = new_study(study_config(tmp_path), output=tmp_path / "s").study
    used = [item.prefix for item in (*made.pairs, *made.qualification, *made.checks)]
    assert len(used) == len(set(used)) == 20 + 4 + 3
    assert {(pair.first_model, pair.second_model) for pair in made.pairs} == {("base", "joint")}
    for pair in made.pairs:
        number = pair.prefix.split()[1]
        assert (pair.first, pair.second) == (f" base ends {number} so.", f" joint ends {number} so.")
    for known in (*made.qualification, *made.checks):
        assert known.real.startswith(" truth") and known.wrong.startswith(f" {known.wrong_source}")
    assert {known.wrong_source for known in made.qualification} == {"base", "joint"}  # models take turns


def test_order_is_seeded(tmp_path):
    def order(seed, name):
        settings = {"design": {"seed": seed, "qualification": {"items": 4}, "max_pairs_per_rater": 9}}
        return [
            pair.prefix for pair in new_study(study_config(tmp_path, **settings), output=tmp_path / name).study.pairs
        ]

    assert order(1, "a") == order(1, "b") != order(2, "c")


def test_identifiers_cannot_be_computed_from_the_seed(tmp_path):
    def identifiers(name, **salt):
        return {pair.id for pair in new_study(study_config(tmp_path), output=tmp_path / name, **salt).study.pairs}

    assert not identifiers("a") & identifiers("b")
    assert identifiers("c", salt="one") == identifiers("d", salt="one") != identifiers("e", salt="another")


def test_comparisons_of_three_models(tmp_path):
    models = ("a", "b", "c")
    every = new_study(study_config(tmp_path, models=models, pairs=5), output=tmp_path / "s").study
    assert Counter((p.first_model, p.second_model) for p in every.pairs) == {
        ("a", "b"): 5,
        ("a", "c"): 5,
        ("b", "c"): 5,
    }
    assert len({pair.prefix for pair in every.pairs}) == 5  # the same prefixes in each comparison
    some = study_config(tmp_path, models=models, pairs=5, comparisons=[("c", "a")])
    assert new_study(some, output=tmp_path / "t").study.comparisons == (("c", "a"),)


def test_equal_completions_are_left_out_and_counted(tmp_path):
    config = study_config(tmp_path)
    lines = (tmp_path / "base.jsonl").read_text().splitlines()
    same = [
        json.dumps(json.loads(line) | {"completion": " joint ends 3 so."}) if " 3 " in line else line for line in lines
    ]
    (tmp_path / "base.jsonl").write_text("\n".join(same) + "\n")
    made = new_study(config.model_copy(update={"pairs": None}), output=tmp_path / "s")
    known = {item.prefix for item in (*made.study.qualification, *made.study.checks)}
    assert made.identical == ("Prefix 3 goes" not in known)
    assert all(pair.first != pair.second for pair in made.study.pairs)
    assert len(made.study.pairs) == 40 - 4 - 3 - made.identical


def test_shuffled_words_as_checks(tmp_path):
    design = {"qualification": {"items": 4}, "max_pairs_per_rater": 9, "checks": {"wrong": "shuffled"}}
    made = new_study(study_config(tmp_path, design=design), output=tmp_path / "s").study
    for check in made.checks:
        assert check.wrong_source == "shuffled" and check.wrong.split() != check.real.split()
        assert sorted(check.wrong.split()) == sorted(check.real.split())
    assert {known.wrong_source for known in made.qualification} == {"base", "joint"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pairs": 39}, "39 prefixes are wanted for pairs but 33 of 40 are left"),
        ({"real": None}, "prefixes with a real ending are needed (4 for the qualification"),
    ],
)
def test_too_little_text_is_one_line(tmp_path, settings, said):
    with pytest.raises(DataError) as refused:
        new_study(study_config(tmp_path, **settings), output=tmp_path / "s")
    assert said in str(refused.value) and "\n" not in str(refused.value) and not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "is not JSON"),
        ('{"prefix": "a"}', "'completion' is None"),
        ('{"prefix": " ", "completion": "b"}', "'prefix' is ' '"),
        ('{"prefix": "Prefix 0 goes", "completion": "b"}', "a second time"),
        ('{"prefix": "new", "completion": "b"}', "'joint' does not complete 'new'"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    config = study_config(tmp_path)
    with open(tmp_path / "base.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError) as refused:
        new_study(config, output=tmp_path / "s")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"completions": [{"name": "a", "file": "x"}]}, "two models or more"),
        ({"completions": [{"name": "a", "file": "x"}] * 2}, "a name of its own"),
        ({"completions": [{"name": n, "file": "x"} for n in ("a", "real")]}, "call the model something else"),
        ({"completions": [{"name": n, "file": "x"} for n in "ab"], "comparisons": [["a", "z"]]}, "names 'z'"),
        ({"completions": [{"name": n, "file": "x"} for n in "ab"], "comparisons": [["a", "a"]]}, "with itself"),
        ({}, "either completions"),
        ({"models": [{"name": n, "language_model": "x"} for n in "ab"]}, "of a source"),
        ({"design": {"qualification": {"pass_mark": 0.5}}}, "greater than 0.5"),
    ],
)
def test_bad_configs_are_one_line(settings, said):
    with pytest.raises(ConfigError) as refused:
        StudyNew.checked(settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_models_complete_windows_of_a_corpus(tmp_path, model_folder, energy_folder, corpus_folder):
    config = StudyNew.checked(
        {
            "models": [
                {"name": "base", "language_model": str(model_folder)},
                {"name": "joint", "language_model": str(model_folder), "energy": str(energy_folder), "candidates": 4},
            ],
            "source": str(corpus_folder),
            "split": "train",
            "length": 20,
            "prefix_tokens": 12,
            "pairs": 6,
            "design": {"qualification": {"items": 2}, "max_pairs_per_rater": 3},
        }
    )
    assert "completed by 2 models" in describe_study(config)
    made = new_study(config, output=tmp_path / "s", salt="x").study
    assert (len(made.pairs), len(made.qualification), len(made.checks)) == (6, 2, 1)
    assert all(pair.first != pair.second for pair in made.pairs)
    again = new_study(config, output=tmp_path / "t", salt="x").study
    assert again.pairs == made.pairs and again.digest == made.digest
    assert not (tmp_path / ".s.drawing").exists()
    missing = config.model_copy(update={"source": "no/such"})
    with pytest.raises(DataError, match="does not exist"):
        describe_study(missing)


def test_killed_while_models_draw_it_goes_on(tmp_path, model_folder, corpus_folder, monkeypatch):
    """Stopped in its second block; the first is not drawn again, and the study is the undisturbed one's."""
    from energylm.apps.study import making
    from energylm.bundles.language_model import LanguageModel

    config = StudyNew.checked(
        {
            "models": [{"name": name, "language_model": str(model_folder)} for name in ("base", "again")],
            "source": str(corpus_folder),
            "split": "train",
            "length": 20,
            "prefix_tokens": 12,
            "pairs": 6,
            "design": {"qualification": {"items": 2}, "max_pairs_per_rater": 3},
        }
    )
    monkeypatch.setattr(making, "_AT_ONCE", 4)
    alone = new_study(config, output=tmp_path / "alone", salt="x").study
    sample, firsts = LanguageModel.sample, []

    def stopped(self, *given, first_context, **options):
        firsts.append(first_context)
        if first_context == 4 and len(firsts) == 2:
            raise KeyboardInterrupt
        return sample(self, *given, first_context=first_context, **options)

    monkeypatch.setattr(LanguageModel, "sample", stopped)
    with pytest.raises(KeyboardInterrupt):
        new_study(config, output=tmp_path / "s", salt="x")
    assert not (tmp_path / "s").exists()
    with folder_lock(tmp_path / ".s.drawing"), pytest.raises(BusyError, match="in use by process"):
        new_study(config, output=tmp_path / "s", salt="x")
    resumed = new_study(config, output=tmp_path / "s", salt="x").study
    assert firsts[:3] == [0, 4, 4] and resumed.pairs == alone.pairs and resumed.digest == alone.digest


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    """60 raters over 333 pairs, as the issue wants it: 30 read, 15 toss a coin, 15 stop reading once qualified."""
    folder = tmp_path_factory.mktemp("panel")
    design = {"max_pairs_per_rater": 24}
    made = new_study(study_config(folder, prefixes=400, pairs=333, design=design), output=folder / "s", salt="panel")
    config = StudySimulate(study=str(folder / "s"), strengths={"joint": 0.8}, seed=3)
    beforehand = {of.kind: of for of in expected_exclusions(made.study, config)}
    planted = planted_rates(made.study, config)
    return beforehand, planted, run_panel(config, output=folder / "out"), folder


def test_the_panel_finds_what_was_planted(panel):
    _, planted, done, _ = panel
    one = done.outcome.comparisons["base_joint"]
    assert planted["base < joint"] > 0.6 and done.planted == planted
    assert one.preference.decided.p_value < 1e-4 and one.preference.decided.interval.lower > 0.5
    assert one.preference.inclusive.interval.value > one.preference.strict.interval.value
    assert done.outcome.votes.given == 999 and done.outcome.alpha > 0.05


def test_the_panel_excludes_at_the_rates_computed_beforehand(panel):
    """Exact binomial tails; a false alarm once in 1,000 for each of six counts, with a seed that is fixed."""
    beforehand, _, done, _ = panel
    assert round(beforehand["random"].not_qualified, 3) == 0.924
    assert round(beforehand["lazy"].dropped, 3) == 0.855 and beforehand["lazy"].checks == 8
    assert beforehand["good"].not_qualified < 0.001 and round(beforehand["good"].dropped, 3) == 0.038
    for kind, one in done.exclusions.items():
        assert one.expected_not_qualified == beforehand[kind].not_qualified
        assert min(one.p_not_qualified, one.p_dropped) > 0.001
    lazy = done.exclusions["lazy"]
    assert binomtest(lazy.dropped, lazy.checked, beforehand["good"].dropped).pvalue < 1e-6  # as readers they would show


def test_the_panels_p_value_is_scipys_on_the_kept_votes(panel):
    """Counted again from the exported answers, by rules written here a second time."""
    _, _, done, folder = panel
    answers = [json.loads(line) for line in exported_answers(folder / "s").lines]
    checks, votes = {}, {}
    for answer in answers:
        if answer["kind"] == "check":
            checks.setdefault(answer["rater"], {})[answer["block"]] = answer["preferred"] == "real"
    for answer in answers:
        mine = checks.get(answer["rater"], {})
        if answer["kind"] == "pair" and 3 * sum(mine.values()) >= 2 * len(mine) and mine.get(answer["block"]):
            votes.setdefault(answer["item"], []).append(1 if answer["preferred"] == "joint" else -1)
    sums = [sum(given) for given in votes.values()]
    wins, ties = sum(s > 0 for s in sums), sum(s == 0 for s in sums)
    found = done.outcome.comparisons["base_joint"].preference
    assert (found.wins, found.ties, found.n) == (wins, ties, len(sums))
    assert found.strict.p_value == binomtest(wins, len(sums), 0.5, alternative="greater").pvalue
    assert found.inclusive.p_value == binomtest(wins + ties, len(sums), 0.5, alternative="greater").pvalue
    assert found.decided.p_value == binomtest(wins, len(sums) - ties, 0.5, alternative="greater").pvalue


def test_the_panel_says_that_it_is_simulated(panel):
    _, _, done, folder = panel
    assert "simulated" in (folder / "out" / "report.html").read_text()
    report = report_study(folder / "s", output=folder / "again")
    assert "simulated" in (folder / "again" / "report.html").read_text()  # the study remembers it
    assert report.outcome == done.outcome  # the same votes, read back from the store
    assert report.report.exists() and "votes count" in report.summary()


def test_a_panel_does_not_mix_with_people(panel):
    _, _, _, folder = panel
    with pytest.raises(DataError, match="has raters already"):
        run_panel(StudySimulate(study=str(folder / "s")))
    with pytest.raises(DataError, match="answered by a simulated panel"):
        StudyInvite(study=str(folder / "s"), raters=1).run()
    with pytest.raises(DataError, match="answered by a simulated panel"):
        StudyServe(study=str(folder / "s"), port=0).run()
    with pytest.raises(ConfigError, match="strengths name 'jiont'"):
        run_panel(StudySimulate(study=str(folder / "s"), strengths={"jiont": 1.0}))


def test_a_panel_with_ties(tmp_path):
    settings = {"design": {"ties": True, "qualification": {"items": 4}, "max_pairs_per_rater": 12}}
    new_study(study_config(tmp_path, **settings), output=tmp_path / "s", salt="panel")
    panel = StudySimulate(study=str(tmp_path / "s"), good=8, random=1, lazy=0, tie_rate=0.5, strengths={"joint": 1.0})
    done = run_panel(panel)
    with StudyStore.open(tmp_path / "s") as store:
        choices = Counter(answer.choice for answer in store.answers() if answer.kind == "pair")
    assert choices["tie"] > 10 and done.outcome.comparisons["base_joint"].preference.ties > 0


def test_reading_makes_no_database(tmp_path):
    new_study(study_config(tmp_path), output=tmp_path / "s")
    with pytest.raises(DataError, match="no answers yet"):
        report_study(tmp_path / "s")
    assert not (tmp_path / "s" / "study.sqlite").exists() and read_study(tmp_path / "s")


def test_planted_rates_by_sampling(tmp_path):
    """E[p²(3 − 2p)] against 20,000 simulated majorities: 5 standard errors, a false alarm once in 1.7 million."""
    study = new_study(study_config(tmp_path), output=tmp_path / "s").study
    config = StudySimulate(study="s", strengths={"joint": 0.6}, spread=1.5)
    random = np.random.default_rng(0)
    chance = 1 / (1 + np.exp(-(0.6 + 1.5 * random.standard_normal(20_000))))
    majorities = random.binomial(3, chance) >= 2
    expected = planted_rates(study, config)["base < joint"]
    error = (expected * (1 - expected) / 20_000) ** 0.5
    assert abs(majorities.mean() - expected) < 5 * error
    alike = planted_rates(study, config.model_copy(update={"spread": 0.0}))["base < joint"]
    assert abs(majorities.mean() - alike) > 5 * error  # without the spread it would be another number


def test_a_panel_is_read_back_from_its_json(panel):
    """The record's own JSON is what recipes keep: nothing is lost, and figures are those of the report's table."""
    _, _, done, _ = panel
    saved = json.loads(json.dumps(done.to_json(), allow_nan=False))
    back = Panel.from_json(saved)
    assert back.outcome == done.outcome and back.exclusions == done.exclusions and back.planted == done.planted
    assert saved["rows"] == done.table.records() and saved["outcome"]["votes"]["given"] == 999
    assert "report" not in saved  # a path of this machine


def test_texts_of_the_command_line_mean_what_yaml_means(tmp_path):
    """NAME=FILE, NAME=LM,ENERGY, A:B and MODEL=NUMBER are read by the fields themselves; both ways give one study."""
    by_text = StudyNew.checked(
        {"models": ["base=lm", "joint=lm,bit"], "source": "corpus", "candidates": 9, "comparisons": ["joint:base"]}
    )
    as_data = StudyNew.checked(
        {
            "models": [
                {"name": "base", "language_model": "lm"},
                {"name": "joint", "language_model": "lm", "energy": "bit"},
            ],
            "source": "corpus",
            "candidates": 9,
            "comparisons": [["joint", "base"]],
        }
    )
    assert by_text.model_dump() == as_data.model_dump()
    assert [model.candidates for model in by_text.drawn_by] == [9, 9]
    files = StudyNew.checked({"completions": ["base=b.jsonl", {"name": "joint", "file": "j.jsonl"}]})
    assert [(file.name, file.file) for file in files.completions] == [("base", "b.jsonl"), ("joint", "j.jsonl")]
    assert StudySimulate(study="s", strengths=["joint=0.5"]).strengths == {"joint": 0.5}
    for wrong, said in (({"models": ["base"]}, "NAME=LM"), ({"comparisons": ["a-b"]}, "BASELINE:MODEL")):
        with pytest.raises(ConfigError, match=said):
            StudyNew.checked({"source": "corpus", "models": ["a=x", "b=y"]} | wrong)


def test_two_comparisons_of_one_name_are_refused(tmp_path):
    config = study_config(tmp_path, models=("a", "a_b", "b_c", "c"), pairs=5, comparisons=[("a_b", "c"), ("a", "b_c")])
    with pytest.raises(DataError, match="both be called 'a_b_c'"):
        new_study(config, output=tmp_path / "s")
