"""Scores of all kinds of models: exact values, the same in any batch, words that add up, windows, and mistakes."""

import math

import numpy as np
import pytest
import torch

from energylm import LanguageModel, Scorer
from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.scorer import TokenScorer
from energylm.bundles.scorer_text import Reading, recased, windows
from energylm.config.cloze import ScorerConfig
from energylm.errors import ConfigError, DataError, ModelError
from energylm.numerics.kernels import multiplies_bfloat16

TEXTS = [
    "The clerk counts the boats.",
    "A sailor mends  a bridge, she said; our neighbour forgets seven lamps and the winter coats.",
    "boats",
    "Der Müller zählt – naïve 7 Lampen!",
    "the clerk counts the harvest. the clerk counts an old map.",
]
KINDS = ("model_folder", "masked_folder", "electric_folder")


@pytest.fixture(params=KINDS)
def folder(request):
    return request.getfixturevalue(request.param)


def scorer_of(folder, **settings) -> Scorer:
    return Scorer.from_pretrained(folder, config=ScorerConfig(**settings))


def test_log_likelihood_is_the_language_models_own(model_folder):
    lm = LanguageModel.from_pretrained(model_folder)
    expected = lm.score(TEXTS)
    assert Scorer.from_pretrained(model_folder).score(TEXTS) == pytest.approx(
        [one.log_prob for one in expected], abs=1e-4
    )
    with_end = scorer_of(model_folder, eos=True).token_scores(TEXTS)
    assert [one.score for one in with_end] == pytest.approx(
        [one.log_prob for one in lm.score(TEXTS, eos=True)], abs=1e-4
    )
    assert with_end[0].tokens == expected[0].tokens + 1 and with_end[0].word_of_token[-1] == -1
    assert math.fsum(with_end[0].word_scores) > with_end[0].score  # the end belongs to no word


def test_pseudo_log_likelihood_is_one_masked_pass_a_token(masked_folder):
    model = MaskedLanguageModel.from_pretrained(masked_folder)
    for text, found in zip(TEXTS, Scorer.from_pretrained(masked_folder).token_scores(TEXTS), strict=True):
        ids = model.encode(text)
        for place, token in enumerate(ids):
            masked = [*ids[:place], model.mask_token_id, *ids[place + 1 :]]
            log_prob_TV = model.logits(torch.tensor([masked]), torch.tensor([len(ids)]))[0].log_softmax(-1)
            assert found.token_scores[place] == pytest.approx(float(log_prob_TV[place, token]), abs=1e-4)


def test_within_word_hides_the_later_pieces_of_a_word(masked_folder):
    model = MaskedLanguageModel.from_pretrained(masked_folder)
    scorer = scorer_of(masked_folder, masking="within-word")
    reading = scorer.reader.read(TEXTS[3])
    assert len(set(reading.units)) < len(reading)  # some units have several tokens
    (found,) = scorer.token_scores([TEXTS[3]])
    for place, token in enumerate(reading.ids):
        masked = [
            model.mask_token_id if later >= place and reading.units[later] == reading.units[place] else one
            for later, one in enumerate(reading.ids)
        ]
        log_prob_TV = model.logits(torch.tensor([masked]), torch.tensor([len(reading)]))[0].log_softmax(-1)
        assert found.token_scores[place] == pytest.approx(float(log_prob_TV[place, token]), abs=1e-4)
    assert found.score != pytest.approx(Scorer.from_pretrained(masked_folder).score([TEXTS[3]])[0], abs=1e-3)


@pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")
def test_electric_reads_in_bfloat16_and_adds_up_in_float32(electric_folder):
    texts = ["The clerk counts the boats.", "A sailor mends a bridge."]
    exact, rounded = (scorer_of(electric_folder, dtype=dtype) for dtype in (None, "bfloat16"))
    main = rounded.reader.model.main
    assert (main.encoder.dtype, main.head.weight.dtype) == (torch.bfloat16, torch.float32)
    apart = np.abs(np.array(exact.score(texts)) - rounded.score(texts))
    assert 0 < apart.max() < 0.02 * np.abs(exact.score(texts)).max()


def test_electric_is_minus_its_energies(electric_folder):
    model = ClozeModel.from_pretrained(electric_folder)
    scorer = Scorer.from_pretrained(electric_folder)
    for text, found in zip(TEXTS, scorer.token_scores(TEXTS), strict=True):
        ids = scorer.reader.read(text).ids
        expected_T = model.token_scores(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
        assert found.token_scores == pytest.approx(expected_T.tolist(), abs=1e-4)


def test_the_same_numbers_whatever_the_batch(folder):
    scorer = Scorer.from_pretrained(folder)
    together = scorer.score(TEXTS)
    assert together == pytest.approx([scorer.score([text])[0] for text in TEXTS], abs=1e-4)
    assert scorer.score(TEXTS[::-1]) == pytest.approx(together[::-1], abs=1e-4)
    assert scorer.score(TEXTS * 7) == pytest.approx(together * 7, abs=1e-4)
    lists = scorer.list_scores([TEXTS[:2], TEXTS[2:], [TEXTS[0], TEXTS[0]]])
    assert [one.score for of_list in lists for one in of_list] == pytest.approx(
        [*together, together[0], together[0]], abs=1e-4
    )
    assert scorer.score([]) == [] and scorer.list_scores([]) == []


def test_padding_in_the_sum_is_noticed(masked_folder, monkeypatch):
    """Deliberate mistake: scores of padding kept, so that a text's number depends on the longest in its batch."""
    scorer = Scorer.from_pretrained(masked_folder)

    def unmasked(readings):
        from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods

        longest = max(map(len, readings))
        padded = torch.tensor([[*reading.ids, *[0] * (longest - len(reading))] for reading in readings])
        return token_pseudo_log_likelihoods(scorer.reader.model, padded, torch.full((len(readings),), longest)).tolist()

    right = scorer.score(TEXTS[:1])[0]
    monkeypatch.setattr(scorer.reader, "token_scores", unmasked)
    assert math.fsum(scorer.reader.token_scores([scorer.reader.read(text) for text in TEXTS[:2]])[0]) != pytest.approx(
        right, abs=1
    )


def test_tokens_add_up_to_words_and_words_to_the_text(folder):
    for text, found in zip(TEXTS, Scorer.from_pretrained(folder).token_scores(TEXTS), strict=True):
        assert found.words == tuple(text.split()) and len(found.token_scores) == len(found.pieces)
        assert (
            math.fsum(found.word_scores) == pytest.approx(found.score) == pytest.approx(math.fsum(found.token_scores))
        )
        assert all(score < 0 for score in found.word_scores) or "electric" in str(folder)
        by_word = [""] * len(found.words)
        for piece, word in zip(found.pieces, found.word_of_token, strict=True):
            by_word[word] += piece.strip() if piece.isascii() else ""
        for word, written in zip(found.words, by_word, strict=True):
            assert written == word or not word.isascii()


def test_normalised_by_tokens_and_words(folder):
    scorer = Scorer.from_pretrained(folder)
    (found,) = scorer.token_scores(TEXTS[1:2])
    assert scorer.score(TEXTS[1:2], normalise="token") == pytest.approx([found.score / found.tokens])
    assert scorer.score(TEXTS[1:2], normalise="word") == pytest.approx([found.score / 16])
    row = found.shown(per="token", normalise="word").to_json()
    assert row["score"] == pytest.approx(found.score / 16) and len(row["token_scores"]) == found.tokens
    assert row["word_scores"][1][0] == "sailor" and found.shown(per="sentence").word_scores is None


def test_casing_changes_what_is_read_not_what_is_shown(folder):
    upper = "I MEND A BRIDGE AND I'M GLAD"
    (found,) = scorer_of(folder, casing="sentence").token_scores([upper])
    assert found.text == upper and found.words == tuple(upper.split())
    assert found.score == pytest.approx(
        Scorer.from_pretrained(folder).score(["I mend a bridge and I'm glad"])[0], abs=1e-4
    )
    assert "sentence case" in scorer_of(folder, casing="sentence").convention


def test_casing_by_hand():
    assert recased("WHAT I SAID IS IN INK", "sentence") == "What I said is in ink"
    assert recased("I'LL GO", "sentence") == "I'll go" and recased("", "sentence") == ""
    assert [recased("Ab C", casing) for casing in ("keep", "lower", "upper")] == ["Ab C", "ab c", "AB C"]


@pytest.mark.parametrize("reads", ["left-to-right", "right-to-left", "both"])
@pytest.mark.parametrize("length", [1, 8, 9, 11, 12, 13, 40, 41])
def test_windows_score_every_token_once(length, reads):
    spans = windows(length, 8, reads=reads)
    scored = [place for span in spans for place in range(span.first, span.last)]
    assert scored == list(range(length))
    for span in spans:
        assert span.stop - span.start == min(8, length) and span.start <= span.first <= span.last <= span.stop
        for place in range(span.first, span.last):
            before, after = place - span.start, span.stop - 1 - place
            if reads == "left-to-right":
                assert before >= min(place, 4)
            elif reads == "right-to-left":
                assert after >= min(length - 1 - place, 4)
            else:
                assert before >= min(place, 2) and after >= min(length - 1 - place, 1)
    assert windows(100, None, reads=reads) == windows(100, 100, reads=reads)


def test_texts_longer_than_the_model_are_named_and_read_in_windows(folder, capsys):
    scorer = Scorer.from_pretrained(folder)
    limit = scorer.reader.max_tokens
    long = " ".join(["the clerk counts a bridge"] * 40)
    whole = scorer.reader.read(long)
    assert len(whole) > limit
    short, found = scorer.token_scores(["boats", long])
    said = capsys.readouterr().err
    assert f"text 2 ({len(whole)} tokens): longer than the {limit} tokens" in said and "text 1" not in said
    assert found.tokens == len(whole) and found.windows > 1 and short.windows == 1
    assert found.shown().windows == found.windows
    # The first window alone, by hand: its scored part has the very same numbers.
    first = windows(len(whole), limit, reads=scorer.reader.reads)[0]
    (part,) = scorer.reader.token_scores([whole.cut(first.start, first.stop)])
    assert found.token_scores[: first.last] == pytest.approx(part[: first.last], abs=1e-4)
    with pytest.raises(DataError, match=rf"text 2 \({len(whole)} tokens\): longer .*shorten them"):
        scorer_of(folder, long_texts="refuse").score(["boats", long])


def test_a_list_scores_as_its_members_do_over_the_tree(model_folder):
    scorer = Scorer.from_pretrained(model_folder)
    lists = [
        [f"{text} {end}" for end in ("the boats.", "the boat.", "a letter", "a letter and more")] for text in TEXTS
    ]
    for texts, found in zip(lists, scorer.list_scores(lists), strict=True):
        assert [one.score for one in found] == pytest.approx(scorer.score(texts), abs=1e-4)


def test_networks_that_read_no_trees_score_the_same_and_say_so(model_folder, monkeypatch, capsys):
    scorer = Scorer.from_pretrained(model_folder)
    monkeypatch.setattr("energylm.bundles.scorer.why_not_prefix_tree", lambda model: "it is old-fashioned")
    (found,) = scorer.list_scores([TEXTS])
    assert [one.score for one in found] == pytest.approx(scorer.score(TEXTS), abs=1e-4)
    assert "every hypothesis by itself, shared prefixes too (slower): it is old-fashioned" in capsys.readouterr().err


def test_your_own_token_scorer_serves():
    class Lengths:
        name, method, reads, max_tokens, convention = "lengths", "log-likelihood", "both", 3, "minus letters"

        def read(self, text):
            words = text.split()
            places = tuple(range(len(words)))
            return Reading(tuple(map(len, words)), tuple(words), places, places)

        def token_scores(self, readings):
            return [[-float(token) for token in reading.ids] for reading in readings]

        def list_scores(self, lists):
            return [self.token_scores(readings) for readings in lists]

    reader: TokenScorer = Lengths()
    assert Scorer(reader).score(["a bc def", "abcd ef g hi jkl"]) == [-6, -12]


def test_what_a_model_does_not_have_is_refused(model_folder, masked_folder, electric_folder, translator_folder):
    with pytest.raises(
        ModelError, match="is a causal language model: it has a log-likelihood, no pseudo-log-likelihood"
    ):
        scorer_of(model_folder, method="pseudo-log-likelihood")
    with pytest.raises(ModelError, match="it has a pseudo-log-likelihood, no log-likelihood"):
        scorer_of(masked_folder, method="log-likelihood")
    with pytest.raises(ModelError, match="no log-likelihood"):
        scorer_of(electric_folder, method="log-likelihood")
    with pytest.raises(ConfigError, match="within-word' is for masked language models"):
        scorer_of(electric_folder, masking="within-word")
    with pytest.raises(ConfigError, match="eos is for causal language models"):
        scorer_of(masked_folder, eos=True)
    with pytest.raises(ModelError, match=r"kind 'conditional-masked-lm'.* no score for a text"):
        Scorer.from_pretrained(translator_folder)
    with pytest.raises(ModelError, match="does not exist"):
        Scorer.from_pretrained("./nowhere")


def test_encoders_without_an_output_layer_are_refused(masked_folder, tmp_path):
    from transformers import BertForMaskedLM, PreTrainedTokenizerFast

    BertForMaskedLM.from_pretrained(masked_folder).bert.save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(masked_folder).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="BertModel: neither a causal nor a masked language model"):
        Scorer.from_pretrained(tmp_path)


def test_empty_texts_and_bare_strings_are_refused(folder):
    scorer = Scorer.from_pretrained(folder)
    for empty in ("", " \t\n"):
        with pytest.raises(DataError, match="text 2 is empty, so it has no score"):
            scorer.score(["boats", empty])
    if scorer.reader.method == "log-likelihood":
        with pytest.raises(DataError, match="text 1 is empty"):
            scorer_of(folder, eos=True).score([""])
    with pytest.raises(DataError, match="one string came"):
        scorer.score("boats")
