"""`energylm probe attack` as a function: which texts are edited where, that edits are what they claim, the numbers."""

import json
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from energylm import EnergyModel, LanguageModel
from energylm.bundles.energy_model import EnergyGradients
from energylm.data.contrast import Contrast
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.tokenizer import train_tokenizer
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ConfigError, DataError
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.verbs import AttackEnergy, MakeNegatives
from energylm.verbs.detect import attacking
from energylm.verbs.detect.attacking import AttackedText, AttackResult, TextEdit, load_texts, rank_correlation

LENGTH, CONTEXT = 20, 12


@pytest.fixture(scope="module")
def negatives_folder(corpus_folder, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("negatives") / "suffix"
    config = MakeNegatives(
        corpus=str(corpus_folder), language_model=str(model_folder), split="valid", k=2, length=LENGTH,
        prefix_tokens=(CONTEXT,), contexts=12,
    )  # fmt: skip
    config.run(Job(output=folder))
    return folder


@pytest.fixture
def attack(model_folder, energy_folder, corpus_folder, negatives_folder):
    def make(**changes):
        values = {
            "language_model": str(model_folder),
            "energy": str(energy_folder),
            "texts": 4,
            "edits": 3,
            "candidates": 16,
            "fidelity_pairs": 32,
        }
        if "source" not in changes:
            values |= {"negatives": str(negatives_folder), "corpus": str(corpus_folder)}
        return AttackEnergy.checked(values | changes)

    return make


def tokens_of(verb, model_folder, energy_folder):
    texts = load_texts(verb, EnergyModel.from_pretrained(energy_folder), LanguageModel.from_pretrained(model_folder))
    return [text.tokens for text in texts]


def test_edits_are_what_they_claim(attack, model_folder, energy_folder):
    """Energies and perplexities of every step, scored anew from the text that the edits give."""
    chosen = attack(threshold=-1e9)
    found = chosen.run()
    lm, energy = LanguageModel.from_pretrained(model_folder), EnergyModel.from_pretrained(energy_folder)
    decode, originals = energy.tokenizer.decode, tokens_of(chosen, model_folder, energy_folder)
    assert [len(text.edits) for text in found.texts] == [3] * 4
    for text, tokens in zip(found.texts, originals, strict=True):
        steps = [(text.energy, text.perplexity)]
        assert text.energy == pytest.approx(float(energy.energies(torch.tensor([tokens]), torch.tensor([20]))[0]))
        assert text.perplexity == pytest.approx(math.exp(-lm.score([tokens])[0].log_prob / 20), rel=1e-5)
        for edit in text.edits:
            assert decode([tokens[edit.position - 1]]) == edit.before
            choices = [v for v in range(energy.vocabulary_size) if decode([v]) == edit.after]
            assert len(choices) == 1
            tokens[edit.position - 1] = choices[0]
            steps.append((edit.energy, edit.perplexity))
            assert edit.energy == pytest.approx(
                float(energy.energies(torch.tensor([tokens]), torch.tensor([20]))[0]), abs=1e-4
            )
            assert edit.perplexity == pytest.approx(math.exp(-lm.score([tokens])[0].log_prob / 20), rel=1e-5)
        energies = [energy for energy, _ in steps]
        assert energies == sorted(energies, reverse=True) and len(set(energies)) == 4, "each edit lowers the energy"
        assert all(f"[{edit.before}→{edit.after}]" in text.marked for edit in text.edits)


def test_one_backward_pass_an_edit(attack, monkeypatch):
    """Of the network itself: one backward pass for each edit, one more a text for the measure of fidelity."""
    calls = []
    original = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *inputs, **options: calls.append(1) or original(*inputs, **options)
    )
    found = attack(threshold=-1e9).run()
    assert len(calls) == sum(len(text.edits) for text in found.texts) + len(found.texts)


def test_towards_fake_edits_the_real_texts_upwards(
    attack, corpus_folder, negatives_folder, model_folder, energy_folder
):
    real, generated = (tokens_of(attack(towards=towards), model_folder, energy_folder) for towards in ("fake", "real"))
    negatives = Negatives.open(negatives_folder)
    contrast = Contrast(negatives, Corpus.open(corpus_folder))
    every = contrast.sequences(torch.arange(12).numpy(), torch.zeros(12, 1, dtype=torch.int64).numpy())
    assert all(text in every[::2] for text in real) and all(text in every[1::2] for text in generated)
    assert [text[:CONTEXT] for text in real] == [text[:CONTEXT] for text in generated] and real != generated
    found = attack(towards="fake", threshold=1e9).run()
    assert all(text.edits[-1].energy > text.energy for text in found.texts)


def test_only_the_generated_part_is_edited(attack):
    free = attack(threshold=-1e9).run()
    assert any(edit.position <= CONTEXT for text in free.texts for edit in text.edits), "else nothing is shown"
    found = attack(threshold=-1e9, only_generated=True).run()
    assert all(edit.position > CONTEXT for text in found.texts for edit in text.edits)


def test_a_perplexity_budget_is_kept(attack, monkeypatch):
    """By a made-up language model, whose nats are the remainders of ids by 7."""
    monkeypatch.setattr(attacking, "_nll_per_token", lambda lm, energy: lambda tokens: (tokens % 7).double().mean(1))
    free = attack(threshold=-1e9).run()
    highest = max(text.edits[-1].perplexity / text.perplexity for text in free.texts)
    budget = 1 + (highest - 1) / 4
    assert highest > 1
    found = attack(threshold=-1e9, perplexity_budget=budget).run()
    ratios = [edit.perplexity / text.perplexity for text in found.texts for edit in text.edits]
    assert ratios and max(ratios) <= budget * (1 + 1e-6)


def test_a_corpus_and_a_file_as_source(attack, corpus_folder, tmp_path):
    found = attack(source=str(corpus_folder), length=16, split="train", threshold=-1e9, texts=2).run()
    assert len(found.texts) == 2 and all(len(text.edits) == 3 for text in found.texts)
    lines = tmp_path / "lines.txt"
    lines.write_text("The clerk counts the boats.\n\nA sailor mends a bridge, and so on.\n")
    found = attack(source=str(lines), threshold=-1e9).run()
    assert len(found.texts) == 2 and all(len(text.edits) == 3 for text in found.texts)
    with pytest.raises(DataError, match="holds no text"):
        empty = tmp_path / "empty.txt"
        empty.write_text("\n")
        attack(source=str(empty)).run()


@pytest.fixture(scope="module")
def text_energy(tmp_path_factory):
    """A bidirectional energy with a tokenizer of its own, which frames its texts with special tokens."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = train_tokenizer(["the clerk counts seven lamps and sells an old map. "] * 30, vocabulary_size=290)
    frame = [("<|cls|>", tokenizer.cls_token_id), ("<|sep|>", tokenizer.sep_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|cls|> $A <|sep|>", pair="<|cls|> $A <|sep|> $B", special_tokens=frame
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        encoder = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes), add_pooling_layer=False).eval()
    network = PooledEnergy(encoder, kind="bit")
    network.head.weight.data *= 1000
    folder = tmp_path_factory.mktemp("energies") / "text"
    EnergyModel(network.eval(), tokenizer, reads="text").save_pretrained(folder)
    return folder


def test_an_energy_that_reads_text_is_edited_in_its_own_tokens(attack, text_energy, model_folder):
    chosen = attack(energy=str(text_energy), threshold=-1e9)
    found = chosen.run()
    energy, lm = EnergyModel.from_pretrained(text_energy), LanguageModel.from_pretrained(model_folder)
    texts = load_texts(chosen, energy, lm)
    frame = {energy.tokenizer.cls_token_id, energy.tokenizer.sep_token_id}
    for text, probed in zip(found.texts, texts, strict=True):
        assert {probed.tokens[0], probed.tokens[-1]} == frame
        assert all(1 < edit.position < len(probed.tokens) for edit in text.edits) and text.edits
        plain = energy.tokenizer.decode(probed.tokens, skip_special_tokens=True)
        assert text.energy == pytest.approx(float(energy.text_energies([plain])[0]), abs=1e-4)
        score = lm.score([plain])[0]
        assert text.perplexity == pytest.approx(math.exp(-score.log_prob / score.tokens), rel=1e-5)
    with pytest.raises(ConfigError, match="reads text, in tokens that do not say"):
        attack(energy=str(text_energy), only_generated=True).run()


def test_bags_of_tokens_and_recurrent_energies_are_attacked_too(attack, corpus_folder, tmp_path):
    """First order is exact for a bag of tokens: the measured rank correlation is 1. A BiLSTM only needs to run."""
    from energylm.energies.encoder_bodies import BagOfTokens, BagOfTokensConfig, BiLSTM, BiLSTMConfig

    tokenizer = Corpus.open(corpus_folder).tokenizer
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bag = BagOfTokens(BagOfTokensConfig(vocab_size=len(tokenizer)))
        bag.token_weight.weight.data.normal_()
        lstm = BiLSTM(BiLSTMConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=8, num_hidden_layers=2))
    tokens = torch.tensor([20, 7, 7, 190, 33, 5])
    for body in (bag, lstm):
        network = PooledEnergy(body.eval(), kind="bit")
        network.head.weight.data.fill_(3.0)
        energy = EnergyModel(network.eval(), tokenizer)
        value, gradient = EnergyGradients(energy).token_gradients(tokens)
        assert value == pytest.approx(float(energy.energies(tokens[None], torch.tensor([6]))[0]), rel=1e-5)
        assert gradient.shape == (6, body.get_input_embeddings().weight.shape[1])
        if body is bag:
            exact = energy.energies(torch.tensor([[20, 7, 99, 190, 33, 5]]), torch.tensor([6]))[0] - value
            table = EnergyGradients(energy).token_table
            assert float(gradient[2] @ (table[99] - table[7])) == pytest.approx(float(exact), rel=1e-4)


def text(energies, *, stopped, perplexities=None, reread=None):
    steps = zip(energies[1:], (perplexities or energies)[1:], strict=True)
    edits = tuple(TextEdit(1, "a", "b", 0.0, value, nll) for value, nll in steps)
    return AttackedText(energies[0], (perplexities or energies)[0], edits, stopped, "", reread, 0.5, None)


def test_the_distribution_by_hand():
    """Five texts towards real: one was there, flips after 1 and 3 edits, one used all 3 edits, one got stuck."""
    texts = (
        text([-1.0], stopped="reached", perplexities=[9.0]),
        text([1.0, -1.0], stopped="reached", perplexities=[10.0, 20.0], reread=-0.5),
        text([3.0, 2.0, 1.0, -1.0], stopped="reached", perplexities=[30.0, 1.0, 1.0, 25.0], reread=0.5),
        text([3.0, 2.0, 1.5, 1.0], stopped="edits"),
        text([3.0, 2.5], stopped="stuck"),
    )
    found = AttackResult("real", 0.0, 3, texts, "")
    assert found.edits == [0, 1, 2, 3] and found.flipped_by == [0.0, 0.25, 0.25, 0.5]
    outcome = found.outcome
    assert (outcome["there_before"], outcome["attacked"], outcome["flipped"]) == (1, 4, 2)
    assert outcome["median_edits"] == 2.0 and outcome["flips_that_survive_as_text"] == 0.5
    assert (outcome["perplexity_before"], outcome["perplexity_after"]) == (20.0, 22.5)
    assert outcome["perplexity_raised"] == 0.5 and outcome["fidelity_random"] == 0.5
    assert outcome["fidelity_candidates"] is None
    assert AttackResult.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert [row[1] for row in found.table.rows] == [1, 0, 1, 2]
    assert AttackResult("real", 0.0, 3, texts[:1], "").flipped_within(3) is None


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_a_report_and_json(attack, tmp_path):
    run = attack(threshold=-1e9).run(Job(output=tmp_path / "report"))
    names = {path.name for path in run.report.parent.glob("*.png")}
    assert names == {"texts-flipped.png", "energy-by-edits.png", "perplexity-by-edits.png"}
    assert "→" in run.report.read_text() and "Edited texts" in run.report.read_text()
    kept = json.loads(json.dumps(run.to_json()))
    assert kept["edits"] == [0, 1, 2, 3] and kept["flipped_by"] == [0.0] * 4 and len(kept["examples"]) == 4
    assert -1 <= kept["outcome"]["fidelity_random"] <= 1
    nothing = attack(threshold=1e9).run(Job(output=tmp_path / "nothing"))  # all are there before any edit
    assert nothing.outcome["flipped_fraction"] is None and nothing.report.exists()


def test_a_plan_loads_no_model(attack, monkeypatch):
    monkeypatch.setattr(LanguageModel, "from_pretrained", None)
    assert "at most 3 tokens in each of 4 generated texts" in attack().check()


def test_mistakes_are_named(attack, corpus_folder):
    for wrong, words in (
        ({"negatives": None, "corpus": None}, "either a source"),
        ({"corpus": None}, "come together"),
        ({"source": str(corpus_folder), "only_generated": True}, "only_generated needs negatives"),
        ({"perplexity_budget": 0.9}, "greater than 1"),
        ({"towards": "machine"}, "'real' or 'fake'"),
    ):
        with pytest.raises(ConfigError, match=words):
            attack(**wrong)
    with pytest.raises(DataError, match="holds no negatives"):
        attack(negatives=str(corpus_folder.parent)).check()


@pytest.mark.parametrize("budget", [None, 50.0])
def test_counted_work(budget, attack, monkeypatch):
    """Against what torch counts: of texts that stay what they are, all edits are made. A goal that is never reached."""
    verb = attack(threshold=-1e9, perplexity_budget=budget, edits=2)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        found = verb.run(Job())
    assert all(len(text.edits) == 2 for text in found.texts)
    counted = verb.cost(Surroundings({}, {"networks": {}}))
    assert counted.flops == pytest.approx(counter.get_total_flops(), rel=0.15)
    more = attack(edits=4).cost(Surroundings({}, {"networks": {}}))  # teeth
    assert more.flops > 1.4 * attack(edits=2).cost(Surroundings({}, {"networks": {}})).flops
    assert attack(source="a file.txt").cost(Surroundings({}, {"networks": {}})) is None
