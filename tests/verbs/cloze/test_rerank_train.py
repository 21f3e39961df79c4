"""`rerank train`: cross-validation that leaks nothing (and a planted leak that shows), what is saved reranks."""

import json
import shutil

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from energylm import LanguageModel, Scorer
from energylm.bundles import cloze_model
from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.encoder_start import EncoderStart
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.reranker import ListBlockScores, hypothesis_statistics
from energylm.bundles.scorer import ClozeScorer
from energylm.cli.main import run as command_line
from energylm.config.cloze import NamedScorer
from energylm.data.nbest import read_lists
from energylm.data.tokenizer import load_tokenizer
from energylm.energies.electric import TokenEnergy
from energylm.energies.encoder_bodies import BagOfTokens, BagOfTokensConfig
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError
from energylm.estimators.additive_metrics import metric_called, text_costs
from energylm.estimators.weight_tuning import search_weights, smooth_weights
from energylm.files import read_json
from energylm.jobs.job import Job
from energylm.training import list_task
from energylm.training.list_task import costed_lists
from energylm.verbs.cloze import rerank_training
from energylm.verbs.cloze.rerank import Rerank, TrainReranker
from energylm.verbs.cloze.reranking import UnseenScores, with_weights

COUNT = 24
WORDS = ["<end>", "so", "it", "is", "was", *(f"{kind}{number}" for number in range(COUNT) for kind in ("good", "bad"))]


ONE_STEP = {"steps": 1, "global_batch": 4, "threads": 1, "optimizer": {"learning_rate": 0.1}}


def saved_tokenizer(folder):
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<end>")
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """An energy a word, all 0: what it knows it has learnt by heart."""
    folder = tmp_path_factory.mktemp("bag")
    BagOfTokens(BagOfTokensConfig(vocab_size=len(WORDS))).save_pretrained(folder)
    saved_tokenizer(folder)
    return folder


def written(path, right, wrong):
    """Lists whose likelier hypothesis is wrong; `right(n)` and `wrong(n)` are the words that differ."""
    lists = {
        f"u{number:02}": {
            "ref": f"so it {right(number)}",
            "hyp_1": {"score": -1.0, "text": f"so it {wrong(number)}"},
            "hyp_2": {"score": -1.3, "text": f"so it {right(number)}"},
        }
        for number in range(COUNT)
    }
    path.write_text(json.dumps(lists))
    return path


def verb(lists, init, **values):
    training = {"steps": 60, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 0.1}}
    names = [str(each) for each in (lists if isinstance(lists, list) else [lists])]
    shape = {"lists": names, "init": str(init), "validation_share": 0.0, "term": [], "training": training}
    return TrainReranker.checked(shape | values)


def test_a_leak_would_show_and_there_is_none(tmp_path, bag, monkeypatch):
    """Every list has words of its own: from other lists nothing can be learnt of them, so an honest number is that of
    the 1-best. A fold that is judged by what learnt from it, the planted leak, seems to set everything right."""
    lists = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    honest = verb(lists, bag).run(Job(output=tmp_path / "honest"))
    assert honest.reranked.value == honest.energy_alone == honest.one_best.value == pytest.approx(100 / 3)
    monkeypatch.setattr(rerank_training.TrainingLists, "without", lambda self, fold: self.costed)
    leaking = verb(lists, bag).run(Job(output=tmp_path / "leaking"))
    assert leaking.reranked.value == 0.0 and leaking.closed.value == 100.0


def test_dev_lists_are_never_learnt_from(tmp_path, bag, monkeypatch, capsys):
    """Lists that stand in both files teach nothing of themselves; learnt from after all, the planted leak, they seem to
    be set right. What the training lists share with them is learnt."""
    own = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    other = written(tmp_path / "other.json", lambda number: "is", lambda number: "was")
    both, dev = [own, other], str(own)
    honest = verb(both, bag, dev=dev).run(Job(output=tmp_path / "honest"))
    assert "24 training lists have the reference of a dev list" in capsys.readouterr().err
    assert honest.reranked.value == honest.one_best.value == pytest.approx(100 / 3) and honest.lists == COUNT
    assert not (tmp_path / "honest" / "folds").exists() and "judged by λ" in honest.summary()
    monkeypatch.setattr(list_task, "same_reference", lambda reference: object())
    leaking = verb(both, bag, dev=dev).run(Job(output=tmp_path / "leaking"))
    assert leaking.reranked.value == 0.0
    monkeypatch.undo()
    learnt = written(tmp_path / "learnt.json", lambda number: f"is bad{number}", lambda number: f"was bad{number}")
    run = verb(other, bag, dev=str(learnt), dev_limit=8).run(Job(output=tmp_path / "run"))
    assert run.reranked.value == 0.0 and run.one_best.value == 25.0 and run.lists == 8
    assert json.loads((tmp_path / "run" / "reranker.json").read_text())["weight"] == list(run.weights)


def test_lists_that_are_also_learnt_from_are_so_in_every_fold(tmp_path, bag, monkeypatch, capsys):
    """The words of the judged lists stand in another file with other references: every fold learns them there. Lists
    that stand in both files teach nothing of themselves; learnt from after all, the planted leak, they seem to be set
    right."""
    own = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    honest = verb(own, bag, also=str(own)).run(Job(output=tmp_path / "honest"))
    assert "24 training lists have the reference of a judged list" in capsys.readouterr().err
    assert honest.reranked.value == honest.one_best.value == pytest.approx(100 / 3)
    monkeypatch.setattr(list_task, "same_reference", lambda reference: object())
    leaking = verb(own, bag, also=str(own)).run(Job(output=tmp_path / "leaking"))
    assert leaking.reranked.value == 0.0
    monkeypatch.undo()
    other = written(tmp_path / "other.json", "is good{}".format, "is bad{}".format)
    asked = verb(own, bag, also=str(other))
    assert "on 48 lists" in asked.check(Job(output=tmp_path / "run"))
    run = asked.run(Job(output=tmp_path / "run"))
    assert run.reranked.value == 0.0 and run.lists == COUNT
    with pytest.raises(ConfigError, match="--also is for folds"):
        verb(own, bag, also=str(other), dev=str(own))


def test_the_energy_has_a_weight_of_its_own(tmp_path, bag, capsys):
    """--trained-weights: OUTPUT/model by itself takes the λ of the energy alone, beside what it was trained beside
    those of all, beside other things none. Teeth: these λ differ."""
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    (tmp_path / "words.txt").write_text("so it is")
    scorer = f"frequency:{tmp_path / 'words.txt'}"
    training = ONE_STEP | {"steps": 3}
    asked = verb(lists, bag, scorer=scorer, term="words", search="smooth", casing="lower", training=training)
    run = asked.run(Job(output=tmp_path / "run"))
    saved = json.loads((tmp_path / "run" / "reranker.json").read_text())
    assert saved["alone"] == run.weight_alone and saved["weight"] == list(run.weights) and len(run.weights) == 3
    assert saved["search"] == "smooth" and run.weight_alone != pytest.approx(run.weights[0], rel=1e-3)
    own = {"files": str(lists), "model": str(run.model), "trained_weights": True}
    alone = with_weights(Rerank.checked(own))
    assert alone.all_scorers[0].casing == "lower"  # as it was read there
    assert alone.weight == (run.weight_alone,) and alone.run().sets["shared"].weights == (run.weight_alone,)
    beside = with_weights(Rerank.checked(own | {"scorer": scorer, "term": "words"}))
    whole = Rerank.checked({"files": str(lists), "model": str(tmp_path / "run")})
    assert beside.weight == whole.weight == run.weights and beside.all_scorers == whole.all_scorers
    assert beside.run().outcomes == whole.run().outcomes
    for wrong, words in (({"term": "words"}, "not beside words"), ({"model": str(bag)}, "no λ of")):
        with pytest.raises(ModelError, match=words):
            Rerank.checked(own | wrong).check()
    for wrong in ({"weight": (0.5,)}, {"model": None, "scorers": [str(run.model)]}):
        with pytest.raises(ConfigError, match="--trained-weights are those of MODEL"):
            Rerank.checked(own | wrong)
    with pytest.raises(ConfigError, match="both dev and weights"):
        Rerank.checked(own | {"dev": str(lists)})
    assert "trust it too much" not in capsys.readouterr().err


def test_lists_that_were_learnt_from_have_the_scores_of_their_folds(tmp_path, bag, capsys):
    """Every list has words of its own, which the energy of all lists knows by heart: λ of these lists by their folds'
    energies trust it as little as the training did, under any name of the file and beside any scorers. Teeth: with the
    energy's own scores, the leak, they seem to be set right, and that is said."""
    lists = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    run = verb(lists, bag, casing="lower").run(Job(output=tmp_path / "run"))
    assert run.energy_alone == run.one_best.value
    (tmp_path / "words.txt").write_text("so it is")
    (tmp_path / "known.json").write_text(lists.read_text())
    (tmp_path / "new.json").write_text(lists.read_text().replace("u0", "v0"))  # ten of the lists
    for model in (run.model, tmp_path / "run"):
        for scorer in ((), (f"frequency:{tmp_path / 'words.txt'}",)):
            tuned = {"model": str(model), "scorer": scorer, "casing": "lower", "search": "smooth"}
            for dev in ("own", "known"):
                asked = Rerank.checked({**tuned, "files": str(lists), "dev": str(tmp_path / f"{dev}.json")})
                assert asked.run().sets["own"].reranked.value == run.one_best.value
                said = capsys.readouterr().err
                assert f"learnt from {COUNT} lists of {dev}.json; for these" in said
                assert "trust it too much" not in said
    honest = Rerank.checked({"model": str(run.model), "files": str(lists), "dev": str(lists), "casing": "lower"}).run()
    again = Rerank.checked({**tuned, "files": str(tmp_path / "new.json"), "weight": (1.0,), "scorer": ()}).run()
    assert f"learnt from {COUNT - 10} lists of new.json" in capsys.readouterr().err
    assert honest.seconds > 0 and again.sets["new"].reranked.value == pytest.approx(100 * (COUNT - 10) / 3 / COUNT)
    copy = shutil.copytree(run.model, tmp_path / "run" / "another")  # of which the run says nothing
    assert UnseenScores.of(NamedScorer(model=str(copy), casing="lower")) is None
    assert UnseenScores.of(NamedScorer(model=str(run.model), casing="upper")) is None
    (tmp_path / "run" / "unseen.json").unlink()
    leaking = Rerank.checked({"model": str(run.model), "files": str(lists), "dev": str(lists), "casing": "lower"}).run()
    assert leaking.sets["own"].reranked.value == 0.0
    assert "learnt from own.json, so λ of these lists trust it too much" in capsys.readouterr().err


def test_scorers_read_what_was_heard_before(tmp_path, bag):
    """Every "good" was heard in the list before: recall sets right what the energy cannot learn. Teeth: without what
    was heard it knows nothing."""
    lists = {
        f"1-2-{number:04}": {
            "ref": f"good{number} so good{number + 1}",
            "hyp_1": {"score": -1.0, "text": f"bad{number} so good{number + 1}"},
            "hyp_2": {"score": -1.3, "text": f"good{number} so good{number + 1}"},
        }
        for number in range(COUNT)
    }
    path, scorer = tmp_path / "lists.json", f"recall:{tmp_path / 'words.txt'}"
    path.write_text(json.dumps(lists))
    (tmp_path / "words.txt").write_text("so it is")
    for words, right in ((5, True), (0, False)):
        asked = verb(path, bag, scorers=[{"model": scorer, "context": words}], training=ONE_STEP)
        run = asked.run(Job(output=tmp_path / str(words)))
        assert (run.reranked.value < run.one_best.value) == right
        saved = json.loads((tmp_path / str(words) / "reranker.json").read_text())
        assert saved["scorers"][1].get("context", 0) == words and "context" not in saved["scorers"][0]


def test_smooth_weights_are_those_of_the_least_expected_cost(tmp_path, bag, monkeypatch):
    """Of the very scores that the folds gave. Teeth: exact searches find others."""
    lists = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    seen = []
    gather = rerank_training.gathered_scores
    monkeypatch.setattr(
        rerank_training, "gathered_scores", lambda *given, **how: seen.append(gather(*given, **how)) or seen[-1]
    )
    asked = verb(lists, bag, search="smooth", term="characters", training=ONE_STEP)
    run = asked.run(Job(output=tmp_path / "run"))
    statistics = hypothesis_statistics(read_lists(lists), metric_called("wer"))
    smooth, exact = (
        find(seen[0], statistics, metric_called("wer")).weights for find in (smooth_weights, search_weights)
    )
    assert run.weights == pytest.approx(smooth) and smooth != pytest.approx(exact, rel=0.1)


def test_dev_lists_of_recordings_that_are_learnt_from_are_told(tmp_path, bag, capsys):
    """Names and subjects come again within a recording; lists that are merely numbered say nothing of recordings."""

    def named(name, recordings):
        lists = read_json(written(tmp_path / "plain.json", f"{name} good{{}}".format, f"{name} bad{{}}".format))
        renamed = {f"{recordings[n % 2]}-{n:04}": each for n, each in enumerate(lists.values())}
        (tmp_path / f"{name}.json").write_text(json.dumps(renamed))
        return str(tmp_path / f"{name}.json")

    for recordings, is_told in ((["12-7", "12-9"], True), (["15-7", "15-9"], False), (["12-7", "12-7"], False)):
        dev = named("is", recordings)
        verb(named("was", ["12-7", "13-1"]), bag, dev=dev).check(Job(output=tmp_path / "run"))
        assert ("12 of 24 dev lists come from recordings" in capsys.readouterr().err) == is_told, recordings


@pytest.mark.parametrize("objective", ["expected-error", "nce", "most-offending"])
def test_what_all_lists_share_is_learnt(tmp_path, bag, objective):
    """ "is" for "was" in every list: each fold learns it from the others; saved, it reranks lists that nobody saw."""
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    run = verb(lists, bag, objective=objective, term="words").run(Job(output=tmp_path / "run"))
    assert run.reranked.value == 0.0 and run.one_best.value == pytest.approx(100 / 4) and run.p_value < 0.01
    assert run.weighed == ("model", "words") and "% of the way" in run.summary()
    fresh = tmp_path / "fresh.json"
    fresh.write_text(
        json.dumps({"v": {"hyp_1": {"score": -1.0, "text": "it was"}, "hyp_2": {"score": -1.3, "text": "it is"}}})
    )
    reranked = Rerank.checked({"model": str(tmp_path / "run"), "files": str(fresh)}).run()
    assert reranked.chosen[0][0].best == "it is"
    assert EnergyModel.from_pretrained(run.model).provenance["loss"] == f"list {objective}"
    again = verb(lists, bag, objective=objective, term="words").run(Job(output=tmp_path / "run"))
    assert again.was_finished and again.reranked == run.reranked
    tuned = Rerank.checked({"model": str(tmp_path / "run"), "files": str(lists), "dev": str(lists)})
    assert tuned.search == "exact" and not tuned.weight and len(tuned.all_scorers) == 1


def test_electric_hands_over_its_token_energies(tmp_path, electric_folder):
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    energy = rerank_training.start_energy(verb(lists, electric_folder))
    head = energy.network.head
    from safetensors.torch import load_file

    saved = load_file(electric_folder / "head.safetensors")
    assert (
        torch.equal(head.weight, saved["weight"])
        and float(head.bias.detach()) == 0.0
        and energy.network.pooling == "sum"
    )
    mean = rerank_training.start_energy(verb(lists, electric_folder, pooling="mean"))
    assert not torch.equal(mean.network.head.weight, saved["weight"])


def test_the_command_stands_below_a_command(tmp_path, bag, capsys):
    """`rerank train` is a verb, and `rerank` is one still."""
    lists = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    command_line(["rerank", "train", str(lists), "--init", str(bag), "-o", str(tmp_path / "run"), "--dry-run"])
    assert "an energy from" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="which lists"):
        command_line(["rerank", "trainer"])


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    saved_tokenizer(folder)
    return folder


def test_an_encoder_of_transformers(tmp_path, bert):
    """A few steps of a bidirectional body, with validation that chooses when to stop."""
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    training = {"steps": 40, "optimizer": {"learning_rate": 0.01}, "validation": {"every_steps": 20}}
    run = verb(lists, bert, training=training, folds=2, validation_share=0.2).run(Job(output=tmp_path / "run"))
    assert run.reranked.value < run.one_best.value and run.best_step in (20, 40)


def test_lists_without_references_are_refused(tmp_path, bag):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({f"u{n}": {"hyp_1": {"score": -1.0, "text": "so"}} for n in range(4)}))
    assert len(read_lists(path)) == 4
    with pytest.raises(DataError, match="no reference"):
        verb(path, bag).check(Job(output=tmp_path / "run"))


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """A language model of the words, all equally likely at first."""
    folder = tmp_path_factory.mktemp("causal")
    saved_tokenizer(folder)
    sizes = {"vocab_size": len(WORDS), "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("options", [{}, {"lora_rank": 4}])
def test_a_language_model_learns_by_its_own_likelihood(tmp_path, causal, options):
    """ "is" for "was", of a word that stands in the list before: what comes of it is a language model that reranks."""
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    asked = verb(lists, causal, likelihood=0.5, context=3, **options)
    run = asked.run(Job(output=tmp_path / "run"))
    assert run.reranked.value < 5 and run.one_best.value == pytest.approx(100 / 4)
    before, after = (LanguageModel.from_pretrained(folder) for folder in (causal, run.model))
    gains = [
        model.score(["so it is"])[0].log_prob - model.score(["so it was"])[0].log_prob for model in (before, after)
    ]
    assert gains[1] > gains[0] + 0.1 and after.provenance["trained_on"] == ["shared.json"]
    saved = json.loads((tmp_path / "run" / "reranker.json").read_text())
    assert saved["scorers"] == [{"model": "model", "context": 3}]
    again = asked.run(Job(output=tmp_path / "run"))
    assert again.was_finished and again.reranked == run.reranked
    fresh = tmp_path / "fresh.json"
    fresh.write_text(
        json.dumps({"v": {"hyp_1": {"score": -1.0, "text": "it was"}, "hyp_2": {"score": -1.3, "text": "it is"}}})
    )
    assert Rerank.checked({"model": str(tmp_path / "run"), "files": str(fresh)}).run().chosen[0][0].best == "it is"


def test_likelihoods_are_of_causal_models_and_have_options_of_their_own(tmp_path, causal, bag):
    lists = written(tmp_path / "lists.json", "good{}".format, "bad{}".format)
    for name, needed in (("lora_rank", "--likelihood"), ("context", "--likelihood or --teacher")):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is for {needed} alone"):
            verb(lists, causal, **{name: 4})
    with pytest.raises(ModelError):
        verb(lists, bag, likelihood=0.5).run(Job(output=tmp_path / "run"))


def test_an_electric_learns_the_words_of_a_teacher(tmp_path, causal, bert):
    """Lists without references teach it; what comes of it scores in one pass, much as the teacher does, and reranks."""
    known = written(tmp_path / "dev.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    heard = {
        name: {key: value for key, value in each.items() if key != "ref"} for name, each in read_json(known).items()
    }
    (tmp_path / "heard.json").write_text(json.dumps(heard))
    training = {"steps": 150, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 0.01}}
    asked = verb(tmp_path / "heard.json", bert, dev=str(known), teacher=str(causal), training=training)
    run = asked.run(Job(output=tmp_path / "run"))
    texts = [each.text for of_list in read_lists(known) for each in of_list.hypotheses]
    taught, teacher, untaught = (
        np.array(scorer.score(texts))
        for scorer in (Scorer.from_pretrained(run.model), Scorer.from_pretrained(causal), _new_electric(bert))
    )
    assert np.corrcoef(taught, teacher)[0, 1] > 0.97 and np.abs(taught - teacher).mean() < 0.3
    assert np.corrcoef(untaught, teacher)[0, 1] < 0.8  # teeth: it is not the lengths or the start
    assert "one pass (electric)" in Scorer.from_pretrained(run.model).convention and run.unseen
    saved = json.loads((tmp_path / "run" / "reranker.json").read_text())
    assert saved["scorers"] == [{"model": "model"}] and list((tmp_path / "run" / "blocks").iterdir())
    again = asked.run(Job(output=tmp_path / "run"))
    assert again.was_finished and again.reranked == run.reranked
    assert Rerank.checked({"model": str(tmp_path / "run"), "files": str(known)}).run().outcomes


def test_an_electric_learns_from_errors(tmp_path, bert):
    """ "is" for "was" by energies of tokens: what comes of it scores in one pass, reads the embeddings that it started
    from, and learns on as an Electric."""
    lists = written(tmp_path / "shared.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    training = {"steps": 60, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 0.01}}
    asked = verb(lists, bert, electric=True, objective="nce", training=training)
    run = asked.run(Job(output=tmp_path / "run"))
    assert run.reranked.value == 0.0 and run.one_best.value == pytest.approx(100 / 4)
    model = ClozeModel.from_pretrained(run.model)
    assert model.kind == "electric" and model.provenance["loss"] == "list nce"
    assert "one pass (electric)" in Scorer.from_pretrained(run.model).convention
    started = BertModel.from_pretrained(bert)
    words = [each.embeddings.word_embeddings.weight for each in (started, model.main.encoder)]
    layers = [each.encoder.layer[0].output.dense.weight for each in (started, model.main.encoder)]
    assert torch.equal(*words) and not torch.allclose(*layers)
    again = asked.run(Job(output=tmp_path / "run"))
    assert again.was_finished and again.reranked == run.reranked
    few = {"steps": 1, "global_batch": 4, "threads": 1, "optimizer": {"learning_rate": 1e-9}}
    further = verb(lists, run.model, electric=True, training=few).run(Job(output=tmp_path / "further"))
    assert further.energy_alone == 0.0  # teeth: a new head would be no better than the 1-best


def test_an_electric_reads_how_common_words_are(tmp_path, bert, capsys, monkeypatch):
    """Every list has words of its own, of which a lexicon has the right ones: what is learnt of some holds of the
    others, and what comes of it reads them so. Teeth: without a lexicon nothing does."""
    monkeypatch.setattr(cloze_model, "english_words", lambda: {"also"})
    lists = written(tmp_path / "own.json", "good{}".format, "bad{}".format)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.txt").write_text(" ".join(f"{name}{number} so it" for number in range(COUNT)))
    training = {"steps": 40, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 0.01}}
    asked, runs = {"electric": True, "objective": "nce", "training": training}, {}
    for name, options in (("with", {"lexicon": str(tmp_path / "good.txt")}), ("without", {})):
        runs[name] = verb(lists, bert, **asked, **options).run(Job(output=tmp_path / name))
    assert runs["with"].reranked.value == 0.0 < 10 < runs["without"].reranked.value
    again = verb(lists, bert, **asked, lexicon=str(tmp_path / "good.txt")).run(Job(output=tmp_path / "with"))
    assert again.was_finished and again.reranked == runs["with"].reranked
    with pytest.raises(CheckpointError, match="lexicon"):
        verb(lists, bert, **asked, lexicon=str(tmp_path / "bad.txt")).run(Job(output=tmp_path / "with"))
    right, wrong = Scorer.from_pretrained(runs["with"].model).score(["so it good3", "so it bad3"])
    assert right > wrong + 1
    few = {"steps": 1, "global_batch": 4, "threads": 1, "optimizer": {"learning_rate": 1e-9}}
    further = verb(lists, runs["with"].model, electric=True, training=few).run(Job(output=tmp_path / "further"))
    assert further.energy_alone == 0.0
    with pytest.raises(ModelError, match="how common words are already"):
        twice = verb(lists, runs["with"].model, electric=True, lexicon=str(tmp_path / "bad.txt"), training=few)
        twice.run(Job(output=tmp_path / "twice"))
    capsys.readouterr()
    verb(lists, runs["with"].model, training=few).run(Job(output=tmp_path / "whole"))
    assert "that is left out here" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        verb(lists, bert, **asked, lexicon=str(tmp_path / "nowhere.txt")).check(Job(output=tmp_path / "nowhere"))


def test_the_recogniser_is_taken_less_at_its_word(tmp_path, bert):
    """Half of its scores in the file, or by `base_scale`: the same weights. Teeth: whole scores give others."""
    lists = written(tmp_path / "lists.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    halved = {
        name: {key: value if key == "ref" else value | {"score": value["score"] / 2} for key, value in entry.items()}
        for name, entry in json.loads(lists.read_text()).items()
    }
    (tmp_path / "halved.json").write_text(json.dumps(halved))
    few = {"steps": 3, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 0.01}}
    learnt = {}
    for name, file, options in (
        ("scaled", lists, {"base_scale": 0.5}),
        ("halved", tmp_path / "halved.json", {}),
        ("whole", lists, {}),
    ):
        asked = verb(file, bert, electric=True, objective="nce", training=few, folds=2, **options)
        run = asked.run(Job(output=tmp_path / name))
        learnt[name] = ClozeModel.from_pretrained(run.model).main.head.weight
    assert torch.equal(learnt["scaled"], learnt["halved"]) and not torch.equal(learnt["scaled"], learnt["whole"])
    with pytest.raises(ConfigError, match="--base-scale is about errors"):
        verb(lists, bert, teacher=str(bert), base_scale=0.5)


def test_the_reference_is_learnt_where_no_hypothesis_is_right(tmp_path, bag):
    """Both hypotheses are wrong by a word, so that they teach nothing of themselves; the reference has the word that
    sets other lists right. Teeth: without it there is nothing to learn."""
    lists = json.loads(written(tmp_path / "own.json", lambda number: "was", lambda number: "was").read_text())
    for number, each in enumerate(lists.values()):
        each["ref"] = f"so is good{number}"
        each["hyp_1"]["text"], each["hyp_2"]["text"] = f"so was good{number}", f"so it good{number}"
    (tmp_path / "wrong.json").write_text(json.dumps(lists))
    judged = written(tmp_path / "judged.json", "is bad{}".format, "was bad{}".format)
    asked = {"dev": str(judged), "folds": 2}
    run = verb(tmp_path / "wrong.json", bag, with_reference=True, **asked).run(Job(output=tmp_path / "run"))
    assert run.reranked.value == 0.0 and run.one_best.value == 25.0
    with pytest.raises(DataError, match="have a hypothesis that is better"):
        verb(tmp_path / "wrong.json", bag, **asked).run(Job(output=tmp_path / "without"))
    chrf, known = metric_called("chrf"), read_lists(judged)
    costs = text_costs(hypothesis_statistics(known, chrf), chrf)
    assert all(len(each.texts) == 2 for each in costed_lists(known, costs, with_reference=True))  # one of two is right


def test_some_hypotheses_of_a_list_are_enough(tmp_path, bag):
    """Two at a time of three, the same whenever it runs; another number is another run."""
    lists = json.loads(written(tmp_path / "own.json", "is good{}".format, "was good{}".format).read_text())
    for number, each in enumerate(lists.values()):
        each["hyp_3"] = {"score": -1.5, "text": f"so was was good{number}"}
    (tmp_path / "three.json").write_text(json.dumps(lists))
    weights = {}
    for name, hypotheses in (("two", 2), ("again", 2), ("all", None)):
        run = verb(tmp_path / "three.json", bag, hypotheses=hypotheses, training=ONE_STEP).run(
            Job(output=tmp_path / name)
        )
        weights[name] = EnergyModel.from_pretrained(run.model).network.state_dict()
    same, other = (
        all(torch.equal(weights["two"][key], weights[name][key]) for key in weights["two"]) for name in ("again", "all")
    )
    assert same and not other
    with pytest.raises(ConfigError, match="--hypotheses is about errors"):
        verb(tmp_path / "three.json", bag, teacher="lm", hypotheses=2)


def test_ways_to_learn_exclude_each_other(tmp_path, causal, bert):
    lists = written(tmp_path / "lists.json", "good{}".format, "bad{}".format)
    for wrong, words in (
        ({"teacher": str(causal)}, "--electric and --teacher are two ways to learn"),
        ({"likelihood": 0.5}, "--likelihood and --electric are two ways to learn"),
        ({"pooling": "mean"}, "--pooling makes one energy of a text, and --electric has its own"),
        ({"context": 3}, "--context is for --likelihood or --teacher alone"),
        ({"electric": False, "lexicon": "words.txt"}, "--lexicon is for --electric or --teacher alone"),
    ):
        with pytest.raises(ConfigError, match=words):
            verb(lists, bert, **{"electric": True} | wrong)


def _new_electric(folder):
    model = ClozeModel("electric", TokenEnergy(EncoderStart(str(folder)).encoder()), load_tokenizer(folder))
    return Scorer(ClozeScorer(model))


def test_teachers_are_cross_fitted_too_and_go_with_few_options(tmp_path, causal, bert, monkeypatch):
    lists = written(tmp_path / "lists.json", lambda number: f"is good{number}", lambda number: f"was good{number}")
    judged = []
    monkeypatch.setattr(
        rerank_training,
        "_judge",
        lambda folder, some, own: judged.append(folder.name) or ListBlockScores(_zeros(some), 0.0),
    )
    few = {"steps": 2, "global_batch": 4, "threads": 1}
    verb(lists, bert, teacher=str(causal), context=2, training=few).run(Job(output=tmp_path / "run"))
    assert judged == ["1", "2", "3"]
    for wrong, words in (
        ({"likelihood": 0.5}, "two ways to learn"),
        ({"objective": "nce"}, "--objective is about errors"),
        ({"lora_rank": 4}, "--lora-rank is for --likelihood alone"),
    ):
        with pytest.raises(ConfigError, match=words):
            verb(lists, bert, teacher=str(causal), **wrong)
    with pytest.raises(ModelError, match=r"words\.txt scores texts as a whole"):
        (tmp_path / "words.txt").write_text("so it is good")
        whole = verb(lists, bert, teacher=f"frequency:{tmp_path / 'words.txt'}", training=few)
        whole.run(Job(output=tmp_path / "whole"))
    with pytest.raises(ConfigError, match="--teacher-dtype is for --teacher alone"):
        verb(lists, bert, teacher_dtype="bfloat16")


def _zeros(lists):
    return [[0.0] * len(each.hypotheses) for each in lists]
