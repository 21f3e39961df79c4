"""Reranking on hand-made lists with hand-made scores, with a real scorer, and what is refused or said."""

import json

import numpy as np
import pytest

from energylm import Reranker, Scorer
from energylm.bundles.reranker import (
    Reranked,
    gathered_scores,
    hypothesis_statistics,
    list_blocks,
    rerank_scored,
    score_block,
)
from energylm.bundles.scorer_text import Reading
from energylm.config.cloze import WeightGrid
from energylm.data.nbest import Hypothesis, NBest, read_lists, with_context
from energylm.errors import ConfigError, DataError
from energylm.estimators.additive_metrics import WordErrorRate
from energylm.estimators.weight_tuning import search_weights, smooth_weights


class WordTable:
    """A `TokenScorer` whose tokens are words, with scores from a table (−1 for others)."""

    name, method, reads, max_tokens, convention = "table", "log-likelihood", "left-to-right", None, "a table"

    def __init__(self, **scores):
        self.scores = scores

    def read(self, text):
        words = tuple(text.split())
        places = tuple(range(len(words)))
        return Reading(places, words, places, places)

    def token_scores(self, readings):
        return [[self.scores.get(piece, -1.0) for piece in reading.pieces] for reading in readings]

    def list_scores(self, lists):
        return [self.token_scores(readings) for readings in lists]


def nbest(reference, *hypotheses, name="u"):
    return NBest(name, reference, tuple(Hypothesis(*one) for one in hypotheses))


DEV = [  # "cap" is what the recogniser hears, "cat" what the table knows better; "dog" is right against the table
    nbest("a cat sat", ("a cap sat", -1.0), ("a cat sat", -2.0), name="u1"),
    nbest("the cat", ("the cap", -1.0), ("the cat", -1.5), name="u2"),
    nbest("a dog", ("a dog", -1.0), ("a cat", -2.5), name="u3"),
]
CAP = Scorer(WordTable(cap=-6.0, dog=-4.0))


def test_a_list_by_hand():
    """Scores: "a cap sat" −8, "a cat sat" −3. At λ = 0.1: −1.8 and −2.3; at λ = 0.5: −5 and −3.5."""
    low, high = (Reranker(CAP, weight=weight).rerank(DEV[0]) for weight in (0.1, 0.5))
    assert low.best == "a cap sat" and low.order == (0, 1) and low.totals == pytest.approx((-1.8, -2.3))
    assert high.best == "a cat sat" and high.order == (1, 0) and high.totals == pytest.approx((-3.5, -5.0))
    assert not high.tied and json.dumps(high.to_json())


def test_pairs_of_text_and_score_are_a_list():
    assert Reranker(CAP, weight=0.5).rerank([("a cap", -1.0), ("a cat", -2.0)]).best == "a cat"


def test_tuning_by_hand():
    """u1 turns right above λ = 0.2 (gap 1 against 5λ), u2 above 0.1 (0.5 against 5λ), u3 turns wrong above 0.5 (1.5
    against 3λ). Two of 7 words are wrong below 0.1, none between 0.2 and 0.5, one above."""
    reranker = Reranker(CAP)
    tuning = reranker.tune(DEV, grid=WeightGrid(step=0.05, highest=1.0))
    assert reranker.weights == tuning.weights == (0.25,) and tuning.value == 0
    curve = dict(zip((weight for (weight,) in tuning.tried), tuning.values, strict=True))
    assert curve[0.05] == pytest.approx(200 / 7) and curve[0.15] == pytest.approx(100 / 7)
    assert curve[0.45] == 0 and curve[0.55] == pytest.approx(100 / 7)
    assert [one.best for one in reranker.rerank_lists(DEV)] == ["a cat sat", "the cat", "a dog"]


def test_the_sign_of_the_score_matters():
    """Teeth: with the score taken for an energy, tuning finds nothing better than the 1-best."""
    wrong = Scorer(WordTable(cap=6.0, dog=4.0))
    assert Reranker(wrong).tune(DEV).value == pytest.approx(200 / 7)


def test_few_lists_and_the_edge_of_the_grid_are_said(capsys):
    Reranker(CAP).tune(DEV, grid=WeightGrid(step=0.05, highest=0.25))
    said = capsys.readouterr().err
    assert "tuned on 3 lists only" in said and "the highest of the grid, 0.25" in said


def test_one_list_cannot_be_tuned_on():
    with pytest.raises(DataError, match="cannot be tuned on 1 list"):
        Reranker(CAP).tune(DEV[:1])


def test_the_length_is_one_more_score_with_a_weight_of_its_own():
    """f + 0.5·score + w·words: "a cap" 0 − 3.5 + 2w, "a cat sat" −4 − 1.5 + 3w."""
    pair = [("a cap", 0.0), ("a cat sat", -4.0)]
    assert Reranker(CAP, weight=(0.5, 0.0), terms=["words"]).rerank(pair).totals == pytest.approx((-3.5, -5.5))
    longer = Reranker(CAP, weight=(0.5, 3.0), terms=["words"]).rerank(pair)
    assert longer.best == "a cat sat" and longer.totals == pytest.approx((3.5, 2.5))
    assert Reranker(CAP, weight=0.5, terms=["words"]).weights == (0.5, 0.0)  # one λ is the scorers'
    with pytest.raises(ConfigError, match="3 weights came for 1 scorers and 1 terms"):
        Reranker(CAP, weight=(1, 2, 3), terms=["words"])
    with pytest.raises(ConfigError, match="a term 'word' came, expected one of words, characters"):
        Reranker(CAP, terms=["word"])


@pytest.mark.parametrize(("search", "find"), [("exact", search_weights), ("smooth", smooth_weights)])
def test_weights_are_searched_as_asked(search, find):
    reranker = Reranker(CAP, terms=["words"])
    expected = find(reranker.score_lists(DEV), hypothesis_statistics(DEV, WordErrorRate()), WordErrorRate())
    assert reranker.tune(DEV, search=search).weights == reranker.weights == expected.weights
    fitted = Reranker.fit(DEV, CAP, terms=["words"], search=search)
    assert fitted.weights == expected.weights and fitted.terms == ("words",)
    assert reranker.tune(DEV).weights != expected.weights  # teeth: the grid's are others
    for tune in (reranker.tune, lambda lists, **how: Reranker.fit(lists, CAP, **how)):
        with pytest.raises(ConfigError, match="search 'best' came, expected one of grid, exact, smooth"):
            tune(DEV, search="best")


def test_two_scorers_each_with_its_weight():
    """The other gives "a cat sat" −10.5 and "a cap sat" −2.5: totals −3.5 − 1.05 and −5 − 0.25."""
    other = Scorer(WordTable(sat=-0.5, cat=-9.0))
    assert Reranker([CAP, other], weight=(0.5, 0.1)).rerank(DEV[0]).totals == pytest.approx((-4.55, -5.25))
    tuning = Reranker([CAP, other]).tune(DEV, grid=WeightGrid(step=0.25, highest=0.5))
    assert tuning.value == 0 and tuning.weights == (0.25, 0.0)  # the second is of no use
    assert (0.0, 0.25) in tuning.tried and (0.0, 0.0) not in tuning.tried


def test_length_normalisation_divides_the_whole_score():
    """Totals −3 over 3 words and −1.5 over 1: by words the longer one wins."""
    lists = [("a b c", -1.5), ("a", -1.0)]
    assert Reranker(CAP, weight=0.5).rerank(lists).best == "a"
    reranked = Reranker(CAP, weight=0.5, length_normalisation="word").rerank(lists)
    assert reranked.best == "a b c" and reranked.totals == pytest.approx((-1.0, -1.5))
    by_character = Reranker(CAP, weight=0.5, length_normalisation="character").rerank(lists)
    assert by_character.totals == pytest.approx((-0.6, -1.5))


def test_ties_keep_the_recognisers_order():
    tied = Reranker(CAP, weight=0.5).rerank([("a b", -1.0), ("b a", -1.0), ("a", -9.0)])
    assert tied.order == (0, 1, 2) and tied.tied


def test_an_empty_hypothesis_is_never_chosen_for_having_nothing_to_score():
    reranked = Reranker(CAP, weight=1.0).rerank([("", -0.1), ("a cap sat", -5.0)])
    assert reranked.best == "a cap sat" and reranked.order == (1, 0)
    assert reranked.totals[1] == -np.inf and Reranked.from_json(reranked.to_json()) == reranked
    assert Reranker(CAP).rerank([("", -0.1), (" ", -0.2)]).best == ""


def test_lists_of_unequal_length():
    lists = [nbest("a", ("a", -1.0)), nbest("b", ("b b", -1.0), ("b", -1.1), ("c", -9.0))]
    reranked = Reranker(CAP, weight=0.5).rerank_lists(lists)
    assert [one.best for one in reranked] == ["a", "b"] and [len(one.order) for one in reranked] == [1, 3]
    assert Reranker(CAP).rerank_lists([]) == []


def test_statistics_by_hand_and_missing_references():
    statistics = hypothesis_statistics(DEV, WordErrorRate())
    assert statistics[..., 0].tolist() == [[1, 0], [1, 0], [0, 1]] and statistics[:, 0, 1].tolist() == [3, 2, 2]
    for reference, what in ((None, "no reference"), (" ", "an empty reference")):
        with pytest.raises(DataError, match=f"utterance 'u' has {what}"):
            Reranker(CAP).tune([*DEV, nbest(reference, ("a", 0.0))])


def test_weights_must_fit_the_scorers():
    assert Reranker([CAP, CAP], weight=0.3).weights == (0.3, 0.3)
    with pytest.raises(ConfigError, match="3 weights came for 2 scorers"):
        Reranker([CAP, CAP], weight=(1, 2, 3))


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), (0.5, float("nan")), None, "0.5", ("x", 1), True + 0j])
def test_weights_are_finite_numbers(weight):
    with pytest.raises(ConfigError, match=r"λ came as .*, expected a finite number"):
        Reranker([CAP, CAP], weight=weight)
    assert Reranker(CAP, weight=np.float32(0.5)).weights == Reranker(CAP, weight=np.array([0.5])).weights == (0.5,)


@pytest.mark.parametrize("scorer", [None, "smollm2-135m", [CAP, None], len, WordTable()])
def test_what_is_no_scorer_is_refused_at_once(scorer):
    with pytest.raises(ConfigError, match=r"came as a scorer, expected a Scorer; load a model with"):
        Reranker(scorer)


@pytest.mark.parametrize(
    ("hypotheses", "says"),
    [
        ([], "the list has no hypothesis"),
        (iter(()), "the list has no hypothesis"),
        ([("a", float("nan")), ("b", 0.0)], "hypothesis 1 has no score of the recogniser .came nan"),
        ([("a", 0.0), ("b", None)], "hypothesis 2 has no score of the recogniser .came None"),
        ([("a", float("-inf"))], "hypothesis 1 has no score"),
        ([("a", "x")], "hypothesis 1 has no score of the recogniser .came 'x'"),
        ([Hypothesis("a", float("nan"))], "hypothesis 1 has no score"),
        ([(None, 0.0)], "hypothesis 1 has no text"),
        (["a", "b"], r"hypothesis 1 came as 'a' .str.; give pairs .text, score., e.g. zip"),
        ([("a", 0.0, 1.0)], "hypothesis 1 came as .* .tuple.; give pairs"),
        ("a b", "the list came as 'a b' .str., expected hypotheses; give pairs"),
        ({"a": 0.0}, r"the list came as .*dict., expected hypotheses; give pairs"),
        (None, "the list came as None"),
        (NBest("u", None, ()), "utterance 'u' has no hypothesis"),
        (NBest("u", None, (Hypothesis("a", 0.0), Hypothesis("b", None))), "utterance 'u', hypothesis 2 has no score"),
    ],
)
def test_lists_without_hypotheses_or_scores_are_refused(hypotheses, says):
    with pytest.raises(DataError, match=says) as problem:
        Reranker(CAP).rerank(hypotheses)
    assert "\n" not in str(problem.value) and problem.value.exit_code == 2


def test_a_nan_score_would_win():
    """Teeth: numpy's argmax takes NaN for the largest number, so a hypothesis without a score would be chosen."""
    assert np.array([0.0, np.nan, 1.0]).argmax() == 1
    with pytest.raises(DataError, match="'u2', hypothesis 2 has no score"):
        Reranker(CAP).rerank_lists([DEV[0], nbest(None, ("a", 0.0), ("b", float("nan")), name="u2")])


def test_pandas_columns_are_lists():
    """A Series of texts beside one of scores, one of pairs, and the rows of a frame; a frame itself has no pairs."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a cap", "a cat"], "score": [-1.0, -2.0]}, index=[7, 3])
    reranker = Reranker(CAP, weight=pandas.Series([0.5]))
    pairs = pandas.Series(list(zip(frame.text, frame.score, strict=True)), index=[5, 1])
    for hypotheses in (
        zip(frame.text, frame.score, strict=True),
        pairs,
        frame.itertuples(index=False),
        frame.to_numpy(),
    ):
        assert reranker.rerank(hypotheses).best == "a cat"
    assert [one.best for one in reranker.rerank_lists(pandas.Series(DEV, index=[9, 4, 4]))] == [
        "a cat sat",
        "the cat",
        "a dog",
    ]
    for wrong in (frame, frame.text, frame.score):
        with pytest.raises(DataError, match=r"hypothesis 1 came as .*; give pairs \(text, score\), e.g. zip"):
            reranker.rerank(wrong)
    frame.loc[3, "score"] = np.nan
    with pytest.raises(DataError, match="hypothesis 2 has no score"):
        reranker.rerank(zip(frame.text, frame.score, strict=True))


def test_scores_from_elsewhere_must_be_there_and_be_numbers():
    """One score for two hypotheses would be spread over both, NaN would win; −inf is a score: impossible."""

    def gathered(scores):
        return gathered_scores(DEV[1:2], [scores], names=["elsewhere"])

    for scores, says in (
        ([[-1.0]], "elsewhere gave 1 scores for the 2 hypotheses of 'u2'"),
        ([[-1.0, float("nan")]], "elsewhere gave a score of nan for 'u2'"),
        ([[-1.0, float("inf")]], "elsewhere gave a score of inf for 'u2'"),
    ):
        with pytest.raises(DataError, match=says):
            gathered(scores)
    found = gathered([[float("-inf"), -1.0]])
    (impossible,) = rerank_scored(DEV[1:2], found, (0.5,))
    assert impossible.best == "the cat" and impossible.totals == (-2.0, -np.inf)
    (ignored,) = rerank_scored(DEV[1:2], found, (0.0,))
    assert ignored.best == "the cap" and ignored.totals == (-1.0, -1.5)


def test_an_impossible_text_still_goes_before_an_empty_one():
    impossible = Scorer(WordTable(cap=float("-inf")))
    assert Reranker(impossible, weight=1.0).rerank([("", -0.1), ("a cap", -5.0)]).order == (1, 0)


def test_unknown_names_are_told_with_the_known_ones():
    with pytest.raises(ConfigError, match="length_normalisation 'words' came, expected one of none, word, character"):
        Reranker(CAP, length_normalisation="words")
    with pytest.raises(ConfigError, match="metric 'cer' came, expected one of wer, bleu"):
        Reranker(CAP).tune(DEV, metric="cer")
    with pytest.raises(ConfigError, match="normalise 'sentence' came, expected one of none, token, word"):
        CAP.score(["a cap"], normalise="sentence")
    with pytest.raises(DataError, match="cannot be tuned on 0 lists"):
        Reranker(CAP).tune([])


@pytest.mark.parametrize("folder", ["model_folder", "masked_folder", "electric_folder"])
def test_real_scorers_choose_what_their_numbers_say(folder, request):
    scorer = Scorer.from_pretrained(request.getfixturevalue(folder))
    texts = ["the clerk counts the boats", "the clerk counts a boat", "the clerk counted boats", "a sailor"]
    base = [-1.0, -1.2, -0.5, -3.0]
    totals = [f + 0.3 * score for f, score in zip(base, scorer.score(texts), strict=True)]
    reranked = Reranker(scorer, weight=0.3).rerank(list(zip(texts, base, strict=True)))
    assert reranked.order == tuple(np.argsort(totals)[::-1].tolist())
    assert reranked.totals == pytest.approx(sorted(totals, reverse=True), abs=1e-4)


def test_a_hypothesis_after_its_context(model_folder):
    """log P(h | c) = log P(c h) − log P(c), where c is the last words of the context; with the context counted in, the
    deliberate mistake, it is another number, though the order of a list stays."""
    scorer = Scorer.from_pretrained(model_folder)
    texts = ["the clerk counts the boats", "the clerk counts a boat"]
    of_list = NBest("u", None, tuple(Hypothesis(text, 0.0) for text in texts), context="then a sailor came")
    (block,) = list_blocks([of_list], context=2)
    assert block.contexts == ["sailor came"]
    (scores,) = score_block(scorer, block).scores
    (before,) = scorer.score(["sailor came"])
    together = scorer.score([f"sailor came {text}" for text in texts])
    assert scores == pytest.approx([both - before for both in together], abs=1e-4)
    assert scores != pytest.approx(together, abs=1e-4) and scores != pytest.approx(scorer.score(texts), abs=1e-4)
    (plain,) = list_blocks([of_list])
    assert score_block(scorer, plain).scores == [pytest.approx(scorer.score(texts), abs=1e-4)]


def test_a_reranker_reads_what_was_heard_before(model_folder, tmp_path, capsys):
    """Totals are f + λ · log P(h | the last two words heard), for one list and for many, after saving as well. Teeth:
    without the context they are others; lists that do not say what was heard are told; no context is ignored in
    silence."""
    scorer = Scorer.from_pretrained(model_folder)
    texts, heard = ["the clerk counts the boats", "the clerk counts a boat"], "then a sailor came"
    pairs = list(zip(texts, (-1.0, -1.2), strict=True))
    (before,) = scorer.score(["sailor came"])
    together = scorer.score([f"sailor came {text}" for text in texts])
    after = [f + 0.5 * (both - before) for f, both in zip((-1.0, -1.2), together, strict=True)]
    Reranker(scorer, weight=0.5, context=2).save_pretrained(tmp_path / "saved")
    for reranker in (Reranker(scorer, weight=0.5, context=2), Reranker.from_pretrained(tmp_path / "saved")):
        assert reranker.rerank(pairs, context=heard).totals == pytest.approx(sorted(after, reverse=True), abs=1e-4)
        (of_many,) = reranker.rerank_lists([NBest("u", None, tuple(Hypothesis(*pair) for pair in pairs), heard)])
        assert of_many.totals == pytest.approx(sorted(after, reverse=True), abs=1e-4)
    plain = Reranker(scorer, weight=0.5)
    assert plain.rerank(pairs).totals != pytest.approx(sorted(after, reverse=True), abs=1e-2)
    with pytest.raises(ConfigError, match="reads none; make it with"):
        plain.rerank(pairs, context=heard)
    with pytest.raises(ConfigError, match="expected a number of words"):
        Reranker(scorer, context=-1)
    assert "heard before" not in capsys.readouterr().err
    Reranker(scorer, context=2).rerank_lists(DEV)
    assert "no list says what was heard before" in capsys.readouterr().err


def test_fit_reads_a_file_with_what_was_heard_before(model_folder, tmp_path, capsys):
    """As lists to which `with_context` has added it. The 1-best is the likeliest, wherever it stands."""
    lists = {
        f"r-{number}": {
            "ref": f"a {word}",
            "hyp_1": {"score": -2, "text": "a boat"},
            "hyp_2": {"score": -1, "text": f"a {word}"},
        }
        for number, word in enumerate(("clerk", "sailor", "bridge", "letter"))
    }
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    scorer = Scorer.from_pretrained(model_folder)
    fitted = Reranker.fit(tmp_path / "lists.json", scorer, context=3)
    assert fitted.context == 3 and fitted.report.first_best == 0.0
    given = with_context(read_lists(tmp_path / "lists.json"), 3)
    assert given[2].context == "clerk a sailor" and Reranker.fit(given, scorer, context=3).weights == fitted.weights
    assert "heard before" not in capsys.readouterr().err
