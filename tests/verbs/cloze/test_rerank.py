"""Reranking files: exact rates on hand-made lists with a hand-made scorer, tuning per set, report, and bad input."""

import json

import pytest

from energylm.bundles import reranker
from energylm.bundles.model_folder import model_identity, weights_sha256
from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_text import Reading
from energylm.config.cloze import NamedScorer, WeightGrid
from energylm.data.nbest import Hypothesis, NBest, read_lists
from energylm.errors import BusyError, ConfigError, DataError
from energylm.files import folder_lock
from energylm.jobs.job import Job
from energylm.verbs.cloze import reranking
from energylm.verbs.cloze.rerank import Rerank
from energylm.verbs.cloze.rerank_report import RerankResult


class WordTable:
    """A `TokenScorer` over words: wrong ones cost."""

    name, method, reads, max_tokens, convention = "table", "log-likelihood", "left-to-right", None, "a table"

    def read(self, text):
        words = tuple(text.split())
        places = tuple(range(len(words)))
        return Reading(places, words, places, places)

    def token_scores(self, readings):
        costs = {"CAP": -6.0, "DOG": -4.0}
        return [[costs.get(piece, -1.0) for piece in reading.pieces] for reading in readings]

    def list_scores(self, lists):
        return [self.token_scores(readings) for readings in lists]


def entry(reference, *hypotheses):
    ranked = {f"hyp_{rank}": {"text": text, "score": score} for rank, (text, score) in enumerate(hypotheses, start=1)}
    return ranked if reference is None else {"ref": reference} | ranked


DEV = {
    "d1": entry("A CAT SAT", ("A CAP SAT", -1.0), ("A CAT SAT", -2.0)),  # right above λ = 0.2
    "d2": entry("THE CAT", ("THE CAP", -1.0), ("THE CAT", -1.5)),  # right above λ = 0.1
    "d3": entry("A DOG", ("A DOG", -1.0), ("A CAT", -2.5)),  # wrong above λ = 0.5
}
TEST = {
    "t1": entry("ONE CAT", ("ONE CAP", -1.0), ("ONE CAT", -2.0), ("ONE", -3.0)),
    "t2": entry("SO BE IT", ("SO BE", -1.0), ("", -0.9), ("SO BE IT", -9.0)),
    "t3": entry("A DOG OR CAP", ("A DOG OR CAP", -1.0), ("A DOG OR CAT", -1.1)),
}
OTHER_DEV = {name: DEV["d3"] for name in ("o1", "o2")}  # whose best λ is the smallest


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of lists, and a scorer in the place of a model."""
    monkeypatch.setattr(Scorer, "from_pretrained", lambda *_, **__: Scorer(WordTable()))
    monkeypatch.setattr(reranking, "scorer_place", str)
    monkeypatch.setattr(reranking, "scorer_identity", lambda model: model)
    for name, lists in (("dev", DEV), ("test", TEST), ("other", OTHER_DEV)):
        (tmp_path / f"{name}.json").write_text(json.dumps(lists))
    return tmp_path


def config(*sets, **settings) -> Rerank:
    return Rerank.checked({"scorers": "table", "sets": sets, **settings})


def test_rates_by_hand(files, tmp_path, capsys):
    """λ = 0.25 from dev. t1: "ONE CAT" −2 − 2λ against "ONE CAP" −1 − 7λ, now right. t2: the empty hypothesis, which
    the recogniser likes best, is left out; "SO BE" stays. t3: −1.1 − 7λ against −1 − 12λ, now wrong.

    1-best: 1 + 3 + 0 errors in 9 words. Reranked: 0 + 1 + 1. Oracle: none."""
    run = config({"lists": str(files / "test.json"), "dev": str(files / "dev.json")}).run(Job(output=tmp_path / "out"))
    (outcome,) = run.outcomes
    assert outcome.weights == (0.25,) and outcome.tuning.value == 0 and outcome.tuning.lists == 3
    assert [one.best for one in run.chosen[0]] == ["ONE CAT", "SO BE", "A DOG OR CAT"]
    assert outcome.one_best.value == pytest.approx(100 * 4 / 9)
    assert outcome.reranked.value == pytest.approx(100 * 2 / 9)
    assert outcome.oracle == 0 and outcome.empty == 1
    changes = {change.utterance: (change.before, change.after, change.gain) for change in outcome.changes}
    assert changes == {
        "t1": ("ONE CAP", "ONE CAT", 1),
        "t2": ("", "SO BE", 2),
        "t3": ("A DOG OR CAP", "A DOG OR CAT", -1),
    }
    said = capsys.readouterr().err
    assert "1 empty hypotheses have no score" in said and "all in upper case" in said
    assert run.hypotheses == 14 and run.hypotheses_per_second > 0
    page, markdown = (tmp_path / "out" / name for name in ("report.html", "results.md"))
    assert run.report == page and "Changed hypotheses: 1. test" in markdown.read_text()
    assert (tmp_path / "out" / "metric-over-1-test.png").is_file()
    assert (tmp_path / "out" / "best-1.tsv").read_text() == "t1\tONE CAT\nt2\tSO BE\nt3\tA DOG OR CAT\n"
    saved = json.loads(json.dumps(run.to_json()))
    assert RerankResult.from_json(saved).chosen == run.chosen and saved["sets"]["test"]["weights_text"] == "0.25"
    assert "paired bootstrap over lists" in run.table.convention


def test_every_set_is_tuned_by_itself_and_scored_once(files, monkeypatch):
    calls = []
    usual = WordTable.list_scores
    monkeypatch.setattr(WordTable, "list_scores", lambda self, lists: calls.append(len(lists)) or usual(self, lists))
    test, dev, other = (str(files / f"{name}.json") for name in ("test", "dev", "other"))
    run = config({"lists": test, "dev": dev}, {"lists": test, "dev": other}, {"lists": dev, "dev": dev}).run()
    assert [outcome.weights for outcome in run.outcomes] == [(0.25,), (0.0,), (0.25,)]
    assert sorted(calls) == [2, 3, 3]
    assert [outcome.tuned_on_itself for outcome in run.outcomes] == [False, False, True]
    assert "dev (tuned on itself)" in str(run.table.rows[2][0])
    assert list(run.sets) == ["test", "test-2", "dev"]


@pytest.fixture
def read_lists_of(monkeypatch):
    """Every list is scored by itself; the numbers of words of those that are, as they come."""
    seen = []
    usual = WordTable.list_scores

    def watched(self, lists):
        if len(seen) == seen_before_the_kill.get("lists"):
            raise KeyboardInterrupt
        seen.extend([len(one) for one in readings] for readings in lists)
        return usual(self, lists)

    seen_before_the_kill = {}
    monkeypatch.setattr(reranker, "LISTS_AT_ONCE", 1)
    monkeypatch.setattr(WordTable, "list_scores", watched)
    return seen, seen_before_the_kill


def test_a_killed_run_goes_on_where_it_stopped(files, tmp_path, read_lists_of):
    seen, killed_after = read_lists_of
    chosen = config({"lists": str(files / "test.json"), "dev": str(files / "dev.json")})
    whole = chosen.run()  # without an output nothing is kept
    every_list = seen.copy()
    assert len(every_list) == 6
    seen.clear()
    killed_after["lists"] = 4
    with pytest.raises(KeyboardInterrupt):
        chosen.run(Job(output=tmp_path / "out"))
    killed_after.clear()
    second = chosen.run(Job(output=tmp_path / "out"))
    assert seen == every_list and second.chosen == whole.chosen  # no list twice
    assert second.seconds > 0 and len(list((tmp_path / "out" / "blocks").iterdir())) == 2
    # Other λ find the scores; another casing, another model, other lists do not.
    seen.clear()
    third = config({"lists": str(files / "test.json")}, weight=[0.25]).run(Job(output=tmp_path / "out"))
    assert not seen and third.chosen == whole.chosen and 0 < third.seconds < second.seconds
    for changed in ({"model": "table", "casing": "lower"}, {"model": "other"}):
        config({"lists": str(files / "test.json")}, weight=[0.5], scorers=[changed]).run(Job(output=tmp_path / "out"))
        assert len(seen) == 3
        seen.clear()
    config({"lists": str(files / "test.json")}, weight=[0.5], limit=2).run(Job(output=tmp_path / "out"))
    assert len(seen) == 2


def test_scores_of_another_run_are_used(files, tmp_path, read_lists_of):
    seen, _ = read_lists_of
    chosen = {"lists": str(files / "test.json"), "dev": str(files / "dev.json")}
    first = config(chosen).run(Job(output=tmp_path / "first"))
    seen.clear()
    second = config(chosen, scores=str(tmp_path / "first")).run(Job(output=tmp_path / "second"))
    assert not seen and second.chosen == first.chosen
    third = config(chosen, scores=str(tmp_path / "first"), context=3).run()  # reads other texts
    assert len(seen) == 6 and third.chosen == first.chosen


def test_context_comes_from_the_whole_file(files, read_lists_of):
    """t2's best is empty, so that t3 reads t1's; a limit takes lists away, not what was heard before them."""
    seen, _ = read_lists_of
    alone = {"lists": str(files / "test.json")}
    run = config(alone, weight=[0.25], context=5).run()
    assert seen == [[2, 2, 1], [4, 5], [6, 6]] and "after 5 words at most of what was heard before" in run.convention
    seen.clear()
    config(alone, weight=[0.25], context=5, limit=1).run()
    assert seen in ([[2, 2, 1]], [[4, 5]], [[6, 6]])
    seen.clear()
    config(alone, weight=[0.25]).run()
    assert seen == [[2, 2, 1], [2, 3], [4, 4]]


def test_scores_are_kept_whatever_the_device_but_not_whatever_the_dtype(files):
    lists = read_lists(files / "test.json")
    plain, moved, wide = (
        reranking.kept_identity(NamedScorer(model="table", **changed), lists)
        for changed in ({}, {"device": "cuda:1"}, {"dtype": "float64"})
    )
    assert plain == moved != wide
    assert plain != reranking.kept_identity(NamedScorer(model="table"), lists[1:])
    assert NamedScorer(model="table", device="cpu").model_dump()["device"] == "cpu"


def test_a_model_is_known_by_its_manifest_or_its_weights(model_folder, masked_folder):
    own = model_identity(str(model_folder))
    assert own == model_identity(str(model_folder)) != model_identity(str(masked_folder))
    assert model_identity(str(masked_folder)) == weights_sha256(masked_folder)


def test_damaged_scores_are_noticed_and_made_again(files, tmp_path, capsys):
    chosen = config({"lists": str(files / "test.json")}, weight=[0.25])
    whole = chosen.run(Job(output=tmp_path / "out"))
    (path,) = (tmp_path / "out" / "blocks").glob("*/block-*.json")
    kept = json.loads(path.read_text())
    kept["found"]["scores"][0][0] += 8  # a flipped bit in a digit is a number, too
    for damaged in (json.dumps(kept), path.read_text()[:20]):
        path.write_text(damaged)
        assert chosen.run(Job(output=tmp_path / "out")).chosen == whole.chosen
        assert "is damaged: its block is done again" in capsys.readouterr().err
    with folder_lock(tmp_path / "out"), pytest.raises(BusyError, match="in use by process"):
        chosen.run(Job(output=tmp_path / "out"))


def test_a_fixed_weight_needs_no_references(files):
    (files / "bare.json").write_text(json.dumps({"u": entry(None, ("A CAP", -1.0), ("A CAT", -2.0))}))
    run = config({"lists": str(files / "bare.json")}, weight=[0.5]).run()
    assert run.outcomes == [] and run.chosen[0][0].best == "A CAT"
    fixed = config({"lists": str(files / "test.json")}, weight=[0.25]).run().outcomes[0]
    assert fixed.tuning is None and fixed.reranked.value == pytest.approx(100 * 2 / 9)


def test_a_finer_grid_and_length_normalisation_on_request(files):
    one = {"lists": str(files / "test.json"), "dev": str(files / "dev.json")}
    fine = config(one, grid={"step": 0.01, "highest": 0.3}).run()
    assert fine.outcomes[0].weights == (0.21,)
    words = config(one, length_normalisation="word").run()
    assert "divided by words" in words.convention
    assert words.chosen[0][0].totals != fine.chosen[0][0].totals


@pytest.mark.parametrize("way", [{}, {"search": "smooth", "term": "words"}, {"choose": "mbr", "utility": "chrf"}])
def test_an_output_chooses_of_other_lists_as_it_was_tuned(files, way):
    """Teeth: other dev lists find other λ, by the same search; and without its λ a list is chosen otherwise."""
    dev, test, out = (files / name for name in ("dev.json", "test.json", "out"))
    tuned = config({"lists": str(test), "dev": str(dev)}, **way).run(Job(output=out))
    (files / "new.json").write_text(json.dumps({name: {**each, "ref": "?"} for name, each in TEST.items()}))
    again = Rerank.checked({"model": str(out), "files": str(files / "new.json")}).run()
    assert again.chosen == tuned.chosen and again.outcomes[0].weights == tuned.outcomes[0].weights
    assert again.outcomes[0].sharpness == tuned.outcomes[0].sharpness
    other = Rerank.checked({"model": str(out), "files": str(test), "dev": str(files / "other.json")})
    assert other.search == way.get("search", "grid") and other.choose == way.get("choose", "best")
    assert other.run().outcomes[0].weights != tuned.outcomes[0].weights
    untuned = config({"lists": str(test)}, weight=[0.0] * len(tuned.outcomes[0].weights), **way).run()
    assert untuned.chosen != tuned.chosen


def test_an_output_with_several_weights_or_a_model_of_its_own_is_left_alone(files):
    dev, test, other, out = (files / name for name in ("dev.json", "test.json", "other.json", "out"))
    config({"lists": str(test), "dev": str(dev)}, {"lists": str(test), "dev": str(other)}).run(Job(output=out))
    (files / "run" / "model").mkdir(parents=True)
    (files / "run" / "reranker.json").write_text("its own")
    config({"lists": str(test), "dev": str(dev)}).run(Job(output=files / "run"))
    assert not (out / "reranker.json").exists() and (files / "run" / "reranker.json").read_text() == "its own"


def test_bleu(files):
    one = {"lists": str(files / "test.json"), "dev": str(files / "dev.json")}
    (outcome,) = config(one, metric="bleu", resamples=50).run().outcomes
    assert outcome.metric == "BLEU" and not outcome.lower_is_better
    assert outcome.oracle == pytest.approx(100) and outcome.reranked.value < 100


def test_a_limit_takes_the_same_lists_every_time(files):
    one = {"lists": str(files / "test.json")}
    first, again = (config(one, weight=[0.3], limit=2).run() for _ in range(2))
    assert [r.utterance for r in first.chosen[0]] == [r.utterance for r in again.chosen[0]]
    assert len(first.chosen[0]) == 2 and "2 lists of each file at random" in first.convention


def test_a_set_has_limits_of_its_own(files):
    test, dev = str(files / "test.json"), str(files / "dev.json")
    run = config({"lists": test, "dev": dev, "limit": 1, "dev_limit": 2}, {"lists": dev, "dev": dev}, limit=3).run()
    assert [(outcome.lists, outcome.tuning.lists) for outcome in run.outcomes] == [(1, 2), (3, 3)]
    assert run.lists == 6 and run.seconds_a_list == pytest.approx(run.seconds / 6)


def test_ties_are_said(files, capsys):
    lists = {"u": entry("A B", ("A B", -1.0), ("B A", -1.0)), "v": entry("A", ("A", -1.0))}
    (files / "ties.json").write_text(json.dumps(lists))
    run = config({"lists": str(files / "ties.json")}, weight=[0.5]).run()
    assert run.chosen[0][0].best == "A B" and run.outcomes[0].tied == 1
    assert "1 lists had several best hypotheses; the recogniser's order decided" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"u": entry("A", ("A", -1.0))}, "cannot be tuned on 1 list"),
        ({"u": entry(None, ("A", -1.0)), "v": entry("B", ("B", -1.0))}, "utterance 'u' has no reference"),
        ({"u": entry(None, ("A", -1.0)), "v": entry(None, ("B", -1.0))}, "utterance 'u' has no reference"),
        ({"u": entry(" ", ("A", -1.0)), "v": entry("B", ("B", -1.0))}, "an empty reference"),
        ({"u": entry("A", ("A", None))}, "hyp_1 has no score of the recogniser"),
    ],
)
def test_bad_dev_lists(files, lists, says):
    (files / "bad.json").write_text(json.dumps(lists))
    with pytest.raises(DataError, match=says):
        config({"lists": str(files / "test.json"), "dev": str(files / "bad.json")}).run()


def test_contradictions_in_the_config():
    with pytest.raises(ConfigError, match="neither dev nor weights"):
        config({"lists": "a.json"})
    with pytest.raises(ConfigError, match="both dev and weights"):
        config({"lists": "a.json", "dev": "b.json"}, weight=[0.5])
    with pytest.raises(ConfigError, match="2 weights came for 1 scorers"):
        config({"lists": "a.json"}, weight=[0.5, 0.5])
    with pytest.raises(ConfigError, match="no λ is left to try"):
        config({"lists": "a.json", "dev": "b.json"}, grid={"step": 0.5, "highest": 0.1})
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="finite number"):
            config({"lists": "a.json"}, weight=[wrong])
        with pytest.raises(ConfigError, match="finite number"):
            config({"lists": "a.json", "dev": "b.json"}, grid={"highest": wrong})
    with pytest.raises(ConfigError, match="standard input, which can be read once only"):
        config({"lists": "-", "dev": "a.json"}, {"lists": "b.json", "dev": "-", "dev_references": "r.txt"})
    assert config({"lists": "-", "dev": "-"}).sets[0].dev == "-"  # read once, tuned on itself
    below = (0.0, 0.005, 0.01, 0.025)
    assert WeightGrid().weights == (*below, *(round(0.05 * number, 10) for number in range(1, 21)))
    assert len(WeightGrid(step=0.1, highest=0.3).weights) == len(below) + 3
    with pytest.raises(ConfigError, match="add --search smooth"):
        config({"lists": "a.json", "dev": "b.json"}, term="words")
    with pytest.raises(ConfigError, match="are for --choose mbr"):
        config({"lists": "a.json", "dev": "b.json"}, utility="wer")
    with pytest.raises(ConfigError, match="1 weights came for 1 scorers and 1 terms"):
        config({"lists": "a.json"}, weight=[0.5], term="words")


def test_a_dry_run_finds_every_mistake_it_can(files, model_folder):
    good = Rerank.checked(
        {"scorers": [{"model": str(model_folder)}], "sets": [{"lists": str(files / "test.json")}], "weight": [0.5]}
    )
    assert good.check().startswith("would score 3 lists of")
    with pytest.raises(DataError, match="does not exist"):
        good.model_copy(update={"sets": (good.sets[0].model_copy(update={"lists": "none.json"}),)}).check()


def test_settings_for_all_hold_where_a_scorer_has_none_of_its_own():
    verb = Rerank.checked(
        {
            "model": "a",
            "scorer": ["b"],
            "scorers": [{"model": "c", "casing": "keep"}, "d"],
            "casing": "lower",
            "files": ["t1.json", "t2.json"],
            "dev": "dev.json",
            "references": ["r1", "r2"],
        }
    )
    assert [(each.model, each.casing) for each in verb.all_scorers] == [
        ("a", "lower"),
        ("b", "lower"),
        ("c", "keep"),  # teeth: its own, although that is the default
        ("d", "lower"),
    ]
    assert [(each.lists, each.dev, each.references) for each in verb.all_sets] == [
        ("t1.json", "dev.json", "r1"),
        ("t2.json", "dev.json", "r2"),
    ]


def test_terms_and_exact_search(files):
    """Of the lists d1 … d3 and one whose shorter hypothesis is wrong, λ_words > 0 alone sets all right."""
    longer = {**DEV, "d4": entry("SO BE IT", ("SO BE", -1.0), ("SO BE IT", -2.9))}
    (files / "longer.json").write_text(json.dumps(longer))
    of_set = {"lists": str(files / "longer.json"), "dev": str(files / "longer.json")}
    plain = config(of_set, search="exact").run().outcomes[0]
    with_words = config(of_set, search="exact", term="words").run().outcomes[0]
    assert plain.reranked.value > 0 and with_words.reranked.value == 0.0 and with_words.weights[1] > 0
    assert plain.closed.value < with_words.closed.value == 100.0


def test_minimum_risk_is_chosen_from_the_command_line_s_options(files):
    """Equal totals but for the first: the middle one of three has the least expected errors (see `search`)."""
    lists = {f"u{number}": entry("A B Y", ("A B X", -0.9), ("A B Y", -1.2), ("A C Y", -1.2)) for number in range(2)}
    (files / "risk.json").write_text(json.dumps(lists))
    of_set = {"lists": str(files / "risk.json")}
    likeliest = config(of_set, weight=[0.0]).run()
    risk = config(of_set, weight=[0.0], choose="mbr", sharpness=1.0).run()
    assert likeliest.outcomes[0].reranked.value == pytest.approx(100 / 3) and risk.outcomes[0].reranked.value == 0.0
    assert risk.outcomes[0].sharpness == 1.0 and "least expected cost (wer)" in risk.convention
    sharp = config(of_set, weight=[0.0], choose="mbr", sharpness=50.0).run()
    assert sharp.outcomes[0].reranked.value == likeliest.outcomes[0].reranked.value
    alone = Rerank.checked({"sets": [of_set], "choose": "mbr", "sharpness": 1.0}).run()  # the recogniser's scores alone
    assert alone.chosen == risk.chosen and alone.hypotheses == 6 and alone.scorers == ()
    dev = of_set | {"dev": str(files / "risk.json")}
    by_words = Rerank.checked({"sets": [dev], "choose": "mbr", "term": "words", "search": "exact"})
    without = Rerank.checked({"sets": [dev], "choose": "mbr"})
    for number, chosen in enumerate((by_words, without)):
        assert chosen.run(Job(output=files / f"out{number}")).outcomes[0].reranked.value == 0.0
    with pytest.raises(ConfigError, match="which lists"):
        Rerank.checked({"sets": [dev]})
    tuned = config(of_set | {"dev": str(files / "risk.json")}, choose="mbr", utility="chrf").run()
    assert tuned.outcomes[0].reranked.value == 0.0 and tuned.outcomes[0].sharpness in reranker.SHARPNESSES


def test_kept_scores_are_known_by_what_was_heard_before(monkeypatch):
    """A file may say other words for the same hypotheses. Teeth: a scorer that reads none of them finds its own."""
    monkeypatch.setattr(reranking, "scorer_identity", lambda model: model)
    heard = [NBest("u", None, (Hypothesis("a boat", 0.0),), context=words) for words in ("the clerk", "a sailor")]
    for context, is_same in ((0, True), (1, False), (2, False)):
        scorer = NamedScorer(model="frequency:none.txt", context=context)
        texts = [reranking.kept_identity(scorer, [each])["texts"] for each in heard]
        assert (texts[0] == texts[1]) == is_same
