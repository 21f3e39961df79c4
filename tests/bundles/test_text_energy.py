"""Any score as an energy, against enumeration: laws, sums, constraints, β, what is judged, folders, names.

The language has 3 tokens and no tokenizer, so its texts are ids ("0 2"); after a context of 1 there are 9 continuations
of 2 tokens. Frequencies are compared by chi-square with a false alarm of 1e-4, over 1,500 pools.
"""

import math
import shutil

import pytest
import torch

from energylm import Energy, EnergyModel, LanguageModel, Reranker, ResidualModel, Scorer
from energylm.bundles.compatibility import caution_about
from energylm.bundles.energy_binding import Passage
from energylm.bundles.model_folder import model_identity
from energylm.bundles.reranker import ListBlock, score_block
from energylm.bundles.score_energies import EnergyScorer
from energylm.config.cloze import WeightGrid
from energylm.config.sampling import JointSampling
from energylm.data.corpus import Corpus
from energylm.data.manifest import MANIFEST_FILE
from energylm.data.nbest import Hypothesis, NBest
from energylm.errors import ConfigError, DataError, ModelError
from energylm.registry import ENERGIES
from energylm.testing import TabularLanguageModel, assert_same_distribution, exact_language_model

CONTEXT, NEW, POOLS = [1], 2, 1_500
LM = TabularLanguageModel.random(3, 5, seed=3, concentration=2.0)
BASE = exact_language_model(LM, CONTEXT, max_new_tokens=NEW)
TEXTS = [" ".join(map(str, row)) for row in BASE.tokens.tolist()]  # of all 9 continuations


def digits(texts):
    """The sum of the ids, a third each."""
    return [sum(map(int, text.split())) / 3 for text in texts]


def rewarded(beta=1.0, **options):
    return Energy.from_function(digits, better="higher", beta=beta, name="digits", **options)


def doubled():
    return Energy.from_function(
        lambda texts: [float(len(set(text)) < 3) for text in texts], better="lower", name="twice"
    )


ENERGIES_BY_HAND = {
    "function": (rewarded(2.0), lambda text: -2 * digits([text])[0]),
    "lower is better": (doubled(), lambda text: float(text[0] == text[2])),
    "sum": (1.5 * rewarded() + 2.0 * doubled(), lambda text: -1.5 * digits([text])[0] + 2.0 * (text[0] == text[2])),
    "pattern": (Energy.from_pattern("[12]$"), lambda text: 0.0 if text[-1] in "12" else math.inf),
    "avoided": (Energy.from_pattern("0", must="avoid"), lambda text: 0.0 if "0" not in text else math.inf),
    "constrained": (rewarded(2.0) + Energy.from_pattern("0"), lambda t: -2 * digits([t])[0] if "0" in t else math.inf),
}


def exact_law(by_hand):
    """(9,) P ∝ P_LM · exp(−E) over all continuations."""
    return (BASE.log_prob - torch.tensor([by_hand(text) for text in TEXTS], dtype=torch.float64)).softmax(0)


def kept_counts(energy, n=120):
    options = JointSampling(n=n, max_new_tokens=NEW)
    samples = ResidualModel(LM, energy).sample_batch([CONTEXT] * POOLS, options, seed=4)
    return BASE.counts(torch.tensor([sample.tokens[0] for sample in samples]))


@pytest.mark.parametrize("name", ENERGIES_BY_HAND)
def test_samples_have_the_law_that_the_energy_names(name):
    energy, by_hand = ENERGIES_BY_HAND[name]
    counts, law = kept_counts(energy), exact_law(by_hand)
    assert counts[law == 0].sum() == 0  # what is forbidden is never kept
    assert_same_distribution(counts[law > 0], law[law > 0])
    with pytest.raises(AssertionError, match="chi-square"):  # teeth: the language model alone has another law
        assert_same_distribution(counts, BASE.probabilities)


@pytest.mark.parametrize("name", ENERGIES_BY_HAND)
def test_weights_and_log_z_are_those_of_enumeration(name):
    energy, by_hand = ENERGIES_BY_HAND[name]
    joint = ResidualModel(LM, energy)
    whole = [[*CONTEXT, *row] for row in BASE.tokens.tolist()]
    expected = BASE.log_prob - torch.tensor([by_hand(text) for text in TEXTS], dtype=torch.float64)
    torch.testing.assert_close(joint.log_weights(whole, prefix_tokens=1), expected)
    estimate = joint.log_partition([CONTEXT], n=4000, max_new_tokens=NEW)
    assert float(estimate.lower) == pytest.approx(float(expected.logsumexp(0)), abs=0.06)


def test_a_sum_multiplies_densities():
    """P(x) ∝ P_LM exp(−E_1) exp(−E_2); forgetting a weight is seen. Named parts add up to the whole."""
    both = 1.5 * rewarded() + 2.0 * doubled()
    passages = [Passage(text) for text in TEXTS]
    parts = both.part_energies(passages)
    assert list(parts) == ["digits", "twice"] and both.name == "1.5·digits + 2·twice"
    torch.testing.assert_close(sum(parts.values()), both.passage_energies(passages))
    torch.testing.assert_close(parts["twice"], 2.0 * doubled().text_energies(TEXTS))
    assert not torch.allclose(both.text_energies(TEXTS), (rewarded() + doubled()).text_energies(TEXTS))
    nested = 2.0 * (both + rewarded())
    torch.testing.assert_close(
        nested.text_energies(TEXTS), 2 * both.text_energies(TEXTS) + 2 * rewarded().text_energies(TEXTS)
    )


def test_beta_is_explicit():
    """E = β·U for scores and sums; constraints are the same at every β, 0 included."""
    for energy in (rewarded(), rewarded() + doubled(), Energy.from_pattern("0") + rewarded()):
        stronger, none = energy.with_beta(3.0), energy.with_beta(0.0)
        assert (energy.beta, stronger.beta, none.beta) == (1.0, 3.0, 0.0)
        allowed = energy.text_energies(TEXTS).isfinite()
        torch.testing.assert_close(stronger.text_energies(TEXTS), 3 * energy.text_energies(TEXTS))
        assert (none.text_energies(TEXTS)[allowed] == 0).all() and none.text_energies(TEXTS)[~allowed].isinf().all()
        torch.testing.assert_close(stronger.with_beta(1.0).text_energies(TEXTS), energy.text_energies(TEXTS))
    assert_same_distribution(kept_counts(rewarded().with_beta(0.0), n=4), BASE.probabilities)


def test_where_no_candidate_is_allowed_it_is_said():
    joint = ResidualModel(LM, Energy.from_pattern("7"))
    with pytest.raises(ConfigError, match=r"allows none of a context's 20 candidates.*loosen the constraint"):
        joint.sample(CONTEXT, n=20, max_new_tokens=NEW)
    with pytest.raises(ConfigError, match="forbids all of the 20 samples"):
        joint.log_partition([CONTEXT], n=20, max_new_tokens=NEW)
    few = ResidualModel(LM, Energy.from_pattern("2"))
    with pytest.raises(ConfigError, match=r"allows \d+ of a context's 40 candidates, but 39 shall be kept"):
        few.sample(CONTEXT, n=40, max_new_tokens=NEW, draws=39)


def test_lengths_are_counted():
    words, characters = Energy.from_length(2, 3), Energy.from_length(maximum=4, unit="characters")
    assert words.text_energies(["a", "a b", "a b c d"]).tolist() == [math.inf, 0, math.inf]
    assert characters.text_energies(["a b", "a b c"]).tolist() == [0, math.inf]


def test_what_is_judged_and_that_it_does_not_depend_on_how_it_was_drawn():
    """The completion alone, or prompt and completion; earlier chunks are the completion's. Equal texts are judged
    once."""
    seen = []
    remember = Energy.from_function(lambda texts: seen.append(texts) or [0.0] * len(texts), better="higher")
    sample = ResidualModel(LM, remember).sample(CONTEXT, n=30, max_new_tokens=1, chunks=2)
    first, second = seen
    assert set(first) <= {"0", "1", "2"} and len(first) == len(set(first))
    kept = str(sample.tokens[0][0])
    assert set(second) <= {f"{kept} {token}" for token in range(3)}  # teeth: without the first chunk it would be ids
    seen.clear()
    whole = Energy.from_function(lambda texts: seen.append(texts) or [0.0] * len(texts), better="higher", judges="text")
    ResidualModel(LM, whole).sample(CONTEXT, n=30, max_new_tokens=1)
    assert set(seen[0]) <= {f"1{token}" for token in range(3)}


def test_steps_judge_the_whole_completion():
    """Eq. 5's last position, over the whole vocabulary, against enumeration; the energy of the last token alone, as if
    what stands before it were the prompt, is another."""
    joint = ResidualModel(LM, rewarded(2.0) + 1.5 * doubled())
    text = [*CONTEXT, 0, 2]
    by_hand = -2 * torch.tensor(digits([f"0 {token}" for token in range(3)])) + 1.5 * torch.tensor([1.0, 0.0, 0.0])
    base = exact_language_model(LM, text[:-1], max_new_tokens=1)
    law = (base.log_prob - by_hand.double()).log_softmax(0)
    measured = joint.measure_steps([text], prefix_tokens=1, n=4)
    assert float(measured.last_log_prob) == pytest.approx(float(law[2]))
    alone = (base.log_prob + 2 * torch.tensor(digits(["0", "1", "2"])).double()).log_softmax(0)
    assert abs(float(alone[2]) - float(law[2])) > 0.03


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Energy.from_function(3, better="higher"), ConfigError, "expected a function of a list"),
        (lambda: Energy.from_function(digits, better="best"), ConfigError, "'higher' or 'lower'"),
        (lambda: rewarded(math.inf), ConfigError, "inf came as a weight or β"),
        (lambda: rewarded(judges="prompt"), ConfigError, "expected 'completion' or 'text'"),
        (lambda: rewarded() * rewarded(), ConfigError, "energies are added, which multiplies their densities"),
        (lambda: rewarded() + 1, ConfigError, "1 was added to an energy"),
        (lambda: Energy.from_pattern("("), ConfigError, "is no regular expression"),
        (lambda: Energy.from_length(5, 3), ConfigError, "no text has at least 5 and at most 3"),
        (lambda: Energy.load("pattrn:x"), ConfigError, "no kind of energy 'pattrn'; did you mean 'pattern'"),
        (lambda: Energy.load("length:some"), ConfigError, "length:some is no length"),
        (lambda: Energy.load("sum:x"), ConfigError, "give the folder of a sum"),
        (lambda: Energy.load("nowhere"), ModelError, "energy 'nowhere' does not exist"),
        (lambda: ResidualModel(LM, digits), ModelError, r"is no function; give Energy.load"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("scores", "words"), [([0.0], "expected one number each"), ([math.nan] * 2, "gave nan for 'a'")]
)
def test_scores_that_are_none_are_named(scores, words):
    with pytest.raises(DataError, match=words):
        Energy.from_function(lambda texts: scores, better="higher").text_energies(["a", "b"])


def test_names_and_files_say_what_python_says(tmp_path, energy_folder):
    texts = ["one two", "one two three four", "a boat"]
    file = tmp_path / "wanted.yaml"
    file.write_text(
        "parts:\n  - energy: pattern:o\n  - energy: length:2-3\n  - {energy: length:-17 characters, beta: 2}\n"
    )
    python = Energy.from_pattern("o") + Energy.from_length(2, 3) + Energy.from_length(maximum=17, unit="characters")
    assert Energy.load(file).text_energies(texts).tolist() == python.text_energies(texts).tolist() == [0, math.inf, 0]
    file.write_text("parts:\n  - {energi: pattern:o}\n")
    with pytest.raises(ConfigError, match="energi"):
        Energy.load(file)
    trained = EnergyModel.from_pretrained(energy_folder)
    torch.testing.assert_close(
        Energy.load(energy_folder, beta=0.5).text_energies(texts), 0.5 * trained.text_energies(texts).double()
    )


def test_frequencies_are_those_of_a_text(tmp_path):
    """Two boats and a clerk of three words: (2 + ½) / (3 + 3/2) and so on; what is not there has the rest. Teeth: the
    probabilities of all words and of one that is not there add up to 1."""
    file = tmp_path / "book.txt"
    file.write_text("Boats, boats! The-clerk's?")
    counts = {"boats": 2, "the": 1, "clerk's": 1}
    energy = Energy.from_frequencies(file, beta=1)
    expected = -math.log(2.5 / 6) - math.log(1.5 / 6) - math.log(0.5 / 6)
    assert energy.text_energies(["BOATS the zeppelin."]).tolist() == pytest.approx([expected])
    assert energy.text_energies(["…"]).tolist() == [0.0]
    assert (-Energy.from_frequencies(counts, beta=1).text_energies([*counts, "x"])).exp().sum() == pytest.approx(1)
    assert Energy.load(f"frequency:{file}", beta=1).text_energies(["boats"]).tolist() == [-math.log(2.5 / 6)]
    before = model_identity(f"frequency:{file}")
    file.write_text("Boats.")
    assert model_identity(f"frequency:{file}") != before
    with pytest.raises(ConfigError, match="frequencies are of words that occur"):
        Energy.from_frequencies({})
    with pytest.raises(DataError, match="does not exist"):
        Energy.load("frequency:none.txt")


def test_frequencies_of_a_corpus_are_those_of_its_training_split(corpus_folder, tmp_path):
    """As of a file with the same documents. Teeth: the whole corpus has other frequencies; another corpus in the same
    place is another scorer."""
    corpus = Corpus.open(corpus_folder)
    parts = {split: "\n".join(corpus.texts(split)) for split in ("train", "valid", "test")}
    words = ["the", "clerk", "zeppelin"]
    scored = Energy.load(f"frequency:{corpus_folder}", beta=1).text_energies(words).tolist()
    assert (
        scored
        == Energy.from_frequencies(_written(tmp_path / "train.txt", parts["train"]), beta=1)
        .text_energies(words)
        .tolist()
    )
    whole = Energy.from_frequencies(_written(tmp_path / "all.txt", " ".join(parts.values())), beta=1)
    assert whole.text_energies(words).tolist() != scored
    shutil.copytree(corpus_folder, tmp_path / "copy")
    before = model_identity(f"frequency:{tmp_path / 'copy'}")
    manifest = tmp_path / "copy" / MANIFEST_FILE
    manifest.write_text(manifest.read_text() + " ")
    assert model_identity(f"frequency:{tmp_path / 'copy'}") != before


def test_a_lexicon_counts_what_is_no_word(tmp_path):
    """Of a text, and of the dictionary unless the language is another; "clerk's" is known where "clerk" is. Teeth: a
    count of all words, or without the dictionary, is another number."""
    file = _written(tmp_path / "book.txt", "Zeppelino, the CLERK.")
    texts = ["the clerk's zeppelino", "Eyelashes the xqzt, eyeashes", "…"]
    energy = Energy.from_lexicon(file, beta=2)
    assert energy.text_energies(texts).tolist() == [0.0, 4.0, 0.0]
    assert Energy.from_lexicon(file, english=False, beta=1).text_energies(texts).tolist() == [0.0, 3.0, 0.0]
    assert Energy.load(f"lexicon:{file}", beta=2).text_energies(texts).tolist() == [0.0, 4.0, 0.0]
    energy.save_pretrained(tmp_path / "saved")
    assert Energy.from_pretrained(tmp_path / "saved").text_energies(texts).tolist() == [0.0, 4.0, 0.0]
    assert Energy.from_lexicon(["so"], english=False, beta=1).text_energies(["so it"]).tolist() == [1.0]
    assert Scorer.from_pretrained(f"lexicon:{file}").score(texts[1:2])[0] < 0
    with pytest.raises(ConfigError, match="a lexicon without words"):
        Energy.from_lexicon([], english=False)


def test_frequencies_of_hypotheses_are_counted_without_what_was_heard_before(tmp_path):
    """A scorer of whole texts reads no context. Teeth: with it, the score would be that of other words, or 0."""
    scorer = Scorer.from_pretrained("frequency:" + str(_written(tmp_path / "book.txt", "a boat a clerk")))
    block = ListBlock([["a boat", "a goat"]], ["u"], ["a clerk counts"])
    [scores] = score_block(scorer, block).scores
    assert scores == pytest.approx(scorer.score(["a boat", "a goat"])) and scores[0] > scores[1]


def test_recall_is_how_much_likelier_words_are_after_what_was_heard(tmp_path):
    """By hand: p is 1.5/6 of a boat and 2.5/6 of "a", and counts for two words. Then "boat a boat" scores log 2/2 + log
    2/3 + log (1/p + 2)/4. After any words the probabilities of all words and of one that is not there add up to 1.
    Teeth: they do not if what was heard is not divided by; and a score of the whole text counts the context too."""
    file = _written(tmp_path / "book.txt", "a boat a clerk")
    energy = Energy.from_recall(file, strength=2, beta=1)
    expected = math.log(2 / 3) + math.log((4 + 2) / 4)
    assert energy.text_energies(["Boat, a BOAT"]).tolist() == pytest.approx([-expected])
    assert energy.word_scores("Boat-a boat …") == pytest.approx([math.log(2 / 3), math.log(6 / 4), 0.0])
    prob = {"a": 2.5 / 6, "boat": 1.5 / 6, "clerk": 1.5 / 6, "x": 0.5 / 6}
    ratio = {word: math.exp(energy.word_scores(f"boat a boat {word}")[-1]) for word in prob}
    assert sum(prob[word] * ratio[word] for word in prob) == pytest.approx(1)
    assert sum(prob[word] * ratio[word] * (3 + 2) / 2 for word in prob) != pytest.approx(1)
    scorer = Scorer(EnergyScorer(energy))
    [scores] = score_block(scorer, ListBlock([["a boat", "a goat"]], ["u"], ["a boat clerk"])).scores
    last = math.log((1 / prob["a"] + 2) / 5)
    assert scores == pytest.approx([last + math.log((1 / prob["boat"] + 2) / 6), last + math.log(2 / 6)])
    assert scores[0] != pytest.approx(scorer.score(["a boat clerk a boat"])[0])
    assert Energy.load(f"recall:{file}", beta=-1).text_energies(["boat boat"])[0] > 0  # repeating is dear
    energy.save_pretrained(tmp_path / "saved")
    assert Energy.from_pretrained(tmp_path / "saved").word_scores("a a") == energy.word_scores("a a")
    with pytest.raises(ConfigError, match="strength 0 came"):
        Energy.from_recall(file, strength=0)


def _written(path, text):
    path.write_text(text)
    return path


def test_what_is_saved_is_read_again(tmp_path, energy_folder, model_folder, masked_folder):
    texts, trained = ["The clerk counts", "a boat", "Zeppelins"], EnergyModel.from_pretrained(energy_folder)
    scorers = [Energy.from_scorer(Scorer.from_pretrained(folder), beta=3) for folder in (model_folder, masked_folder)]
    pattern = Energy.from_pattern("c", must="avoid", judges="text")
    frequent = Energy.from_frequencies({"boat": 3, "the": 5}, beta=2)
    for number, energy in enumerate(
        (pattern, frequent, Energy.from_length(2), trained, *scorers, 2 * trained + 0.1 * pattern)
    ):
        energy.save_pretrained(tmp_path / str(number))
        again = Energy.from_pretrained(tmp_path / str(number))
        assert type(again) is type(energy) and again.beta == energy.beta
        torch.testing.assert_close(again.text_energies(texts), energy.text_energies(texts))
    lm = LanguageModel.from_pretrained(model_folder)
    ResidualModel(lm, 2 * trained + pattern).save_pretrained(tmp_path / "joint")
    assert ResidualModel.from_pretrained(tmp_path / "joint").energy.name == (2 * trained + pattern).name
    for energy in (rewarded(), 2 * rewarded() + pattern):
        with pytest.raises(ModelError, match="digits is a function, which cannot be saved; build it again"):
            energy.save_pretrained(tmp_path / "function")
    with pytest.raises(ModelError, match="holds no energy"):
        Energy.from_pretrained(model_folder)


def test_an_energy_scores_and_reranks(energy_folder, tmp_path):
    """Its score is −E: of a trained energy, of one that has a name, of a saved sum."""
    texts, trained = ["The clerk counts", "a boat", "a bridge of stone"], EnergyModel.from_pretrained(energy_folder)
    (Energy.from_length(2) + trained).save_pretrained(tmp_path / "sum")
    for source in (energy_folder, tmp_path / "sum"):
        scorer = Scorer.from_pretrained(source)
        assert scorer.score(texts) == pytest.approx((-trained.text_energies(texts)).tolist(), abs=1e-5)
    assert Scorer.from_pretrained("length:2-2").score(["a boat", "boats"]) == [0, -math.inf]
    best = Reranker(Scorer.from_pretrained(energy_folder), weight=1.0).rerank([(text, 0.0) for text in texts]).best
    assert best == texts[int(trained.text_energies(texts).argmin())]


def nbest(name, *texts, reference=None):
    return NBest(name, reference, tuple(Hypothesis(text, -float(rank)) for rank, text in enumerate(texts)))


def test_constraints_rerank_and_lists_that_they_empty_are_named(capsys):
    """What is forbidden goes below all others, by whatever λ; a list of nothing else keeps its order, and is told."""
    lists = [nbest("u1", "a boat here", "a boat", "a lake"), nbest("u2", "many words in here", "three words too")]
    two_words = Scorer.from_pretrained("length:2-2 words")
    first, second = Reranker(two_words, weight=0.001).rerank_lists(lists)
    assert first.best == "a boat" and first.order == (1, 2, 0) and first.totals == (-1.0, -2.0, -math.inf)
    assert second.order == (0, 1) and set(second.totals) == {-math.inf}
    said = capsys.readouterr().err
    assert "all hypotheses of 'u2' are excluded" in said and "u1" not in said and "loosen" in said
    Reranker(two_words, weight=0.0).rerank_lists(lists)  # teeth: a scorer that is not asked excludes nothing
    assert "excluded" not in capsys.readouterr().err


@pytest.mark.parametrize("grid", [WeightGrid(), None])
def test_weights_are_tuned_beside_a_constraint(grid):
    """A constraint has no best λ, only 0 or not: the tuned choices are those that it allows."""
    dev = [nbest(f"u{n}", "a boat here", "a boat", reference="a boat") for n in range(4)]
    reranker = Reranker([Scorer.from_pretrained("length:2-2 words"), Scorer.from_pretrained("length:1-9 words")])
    tuning = reranker.tune(dev, grid=grid)
    assert tuning.value == 0.0 and tuning.weights[0] > 0
    assert [chosen.best for chosen in reranker.rerank_lists(dev)] == ["a boat"] * 4


def test_a_trained_energy_is_part_of_a_sum(model_folder, energy_folder):
    """Its contexts are read once all the same, and what is known against it is known against the sum."""
    lm, trained = LanguageModel.from_pretrained(model_folder), EnergyModel.from_pretrained(energy_folder)
    letters = Energy.from_function(lambda texts: [text.count("e") for text in texts], better="higher", name="e")
    alone, summed = (
        ResidualModel(lm, energy).sample("The clerk", n=6, max_new_tokens=4, stop_at_eos=False)
        for energy in (trained, 0.5 * trained + letters)
    )
    counts = torch.tensor([text.count("e") for text in summed.candidates], dtype=torch.float64)
    torch.testing.assert_close(summed.energies, 0.5 * alone.energies - counts)
    trained.provenance["loss"] = "ranking"
    assert "ranking loss" in caution_about(2 * trained + letters, lm) and caution_about(letters, lm) is None


@pytest.mark.parametrize("name", ENERGIES.names())
def test_every_kind_is_there_under_its_own_name(name):
    assert ENERGIES.get(name).kind == name and issubclass(ENERGIES.get(name), Energy)
