"""`energylm probe perturb` as a function: every number against copies made and scored one by one; the words put in."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from energylm import EnergyModel, LanguageModel
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import commonest_name, commonest_word, special_ids, train_tokenizer, writable_tokens
from energylm.errors import ConfigError, DataError, ModelError
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.verbs import PerturbTexts
from energylm.verbs.detect import perturbing
from energylm.verbs.detect.perturbing import PerturbResult, perturbed

SIZES = {"length": 9, "texts": 5, "ends": 2, "split": "train", "entity": " a"}  # the made-up texts have no names


@pytest.fixture
def perturb(model_folder, energy_folder, corpus_folder):
    def make(**changes):
        paths = {"language_model": str(model_folder), "energy": str(energy_folder), "source": str(corpus_folder)}
        return PerturbTexts.checked(paths | SIZES | changes)

    return make


def copies_one_by_one(tokens, kind, token):
    for place in range(len(tokens) - (kind == "swap")):
        copy = list(tokens)
        if kind == "swap":
            copy[place], copy[place + 1] = copy[place + 1], copy[place]
        else:
            copy[place] = token
        yield copy


def test_every_number_equals_a_loop_over_texts_and_positions(perturb, model_folder, energy_folder, monkeypatch):
    monkeypatch.setattr(perturbing, "ROWS_AT_ONCE", 2 * 9)  # two texts at a time: groups are joined in order
    chosen = perturb()
    found = chosen.run()
    lm, energy = LanguageModel.from_pretrained(model_folder), EnergyModel.from_pretrained(energy_folder)
    texts = chosen.windows.load(lm.tokenizer, model="it")
    put_in = {
        name: lm.encode(f" {found.effects[name].words.split('“')[1].split('”')[0]}")[0] for name in ("entity", "common")
    }

    def energies(sequences):
        return [float(energy.energies(torch.tensor([row]), torch.tensor([len(row)]))[0]) for row in sequences]

    def nlls(sequences):
        return [-lm.score([row])[0].log_prob for row in sequences]

    for name, effect in found.effects.items():
        for measure, measured in ((energies, effect.energy), (nlls, effect.nll)):
            changes = torch.tensor(
                [
                    [value - measure([text])[0] for value in measure(copies_one_by_one(text, name, put_in.get(name)))]
                    for text in texts
                ]
            )
            assert measured.by_position == pytest.approx(changes.mean(0).tolist(), rel=1e-3, abs=1e-4)
            assert measured.mean == pytest.approx(float(changes.mean()), rel=1e-3, abs=1e-4)
            own = changes.mean(1)
            assert measured.standard_error == pytest.approx(float(own.std() / math.sqrt(5)), rel=1e-3, abs=1e-4)
            ends = [0, 1, -1, -2]
            assert measured.ends == pytest.approx(float(changes[:, ends].abs().mean()), rel=1e-3, abs=1e-4)
            assert measured.middle == pytest.approx(float(changes[:, 2:-2].abs().mean()), rel=1e-3, abs=1e-4)
            assert measured.mean != pytest.approx(-measured.mean, rel=1e-2), "teeth: a sign turned round would be seen"
    assert found.energy == pytest.approx(sum(energies(texts)) / 5, rel=1e-4)
    assert found.nll == pytest.approx(sum(nlls(texts)) / 5, rel=1e-4)


def test_random_texts_are_new_and_shuffled_ones_hold_the_same_tokens(perturb, model_folder):
    chosen, lm = perturb(), LanguageModel.from_pretrained(model_folder)
    tokens = torch.tensor(chosen.windows.load(lm.tokenizer, model="it"))
    texts = perturbing._random(chosen, lm, tokens)
    again = perturbing._random(chosen, lm, tokens)
    other = perturbing._random(perturb(seed=1), lm, tokens)
    for name in ("random", "shuffled"):
        assert torch.equal(texts[name][1], again[name][1]) and not torch.equal(texts[name][1], other[name][1])
    assert torch.equal(texts["shuffled"][1].sort(1)[0], tokens.sort(1)[0])
    assert not torch.equal(texts["shuffled"][1], tokens)
    assert not set(texts["random"][1].flatten().tolist()) & special_ids(lm.tokenizer)


def test_the_numbers_by_hand():
    """Two texts with energies 1 and 3, three positions; changes (1, 0, −4) and (3, 2, −8): means 2, 1, −6."""
    energy_B = torch.tensor([1.0, 3.0])
    changed_BP = energy_B[:, None] + torch.tensor([[1.0, 0.0, -4.0], [3.0, 2.0, -8.0]])
    random_B = torch.tensor([0.0, 5.0])
    found = perturbed(
        energy_B, energy_B, {"a": ("A", changed_BP, changed_BP)}, {"r": ("R", random_B, random_B)},
        length=3, end_tokens=1, convention="",
    )  # fmt: skip
    change = found.effects["a"].energy
    assert change.by_position == (2.0, 1.0, -6.0) and change.mean == -1.0 and change.raised == 0.0
    assert change.standard_error == pytest.approx(0.0) and change.error_by_position == pytest.approx((1.0, 1.0, 2.0))
    assert (change.ends, change.middle) == (4.0, 1.0)  # (2 + 6) / 2 and (0 + 2) / 2, absolute
    replaced = found.replacements["r"]
    assert (replaced.energy, replaced.energy_change, replaced.below_real) == (2.5, 0.5, 0.5)
    saved = found.to_json()
    assert saved["effects"]["a"]["energy"]["level_by_position"] == [4.0, 3.0, -4.0]
    assert PerturbResult.from_json(saved) == found


def test_the_commonest_word_and_name_are_counted():
    """“The” and “John” are capitalised; “the” is commoner than “The”, “john” is rarer than “John”."""
    texts = ["see the cat and the dog with the John Smith. The John saw the john. And John and Mary"] * 20
    tokenizer = train_tokenizer(texts, vocabulary_size=400)
    counts = np.bincount(tokenizer(texts[0])["input_ids"], minlength=len(tokenizer))
    assert tokenizer.decode([commonest_word(tokenizer, counts)]) == " the"
    assert tokenizer.decode([commonest_name(tokenizer, counts)]) == " John"
    counts[tokenizer.encode(" john")[0]] = 9  # teeth: now “john” is the commoner
    assert tokenizer.decode([commonest_name(tokenizer, counts)]) != " John"
    with pytest.raises(DataError, match="no token of these texts is a whole name"):
        commonest_name(tokenizer, 0 * counts)


def test_what_may_be_written_has_a_text_of_its_own(corpus_folder):
    tokenizer = Corpus.open(corpus_folder).tokenizer
    writable = writable_tokens(tokenizer, len(tokenizer) + 3)
    assert not writable[:5].any() and not writable[-3:].any(), "special tokens, and rows that round the table up"
    assert all("�" not in tokenizer.decode([number]) for number in writable.nonzero()[:, 0].tolist())
    fragments = [number for number in range(5, len(tokenizer)) if not writable[number]]
    assert fragments and all("�" in tokenizer.decode([number]) for number in fragments)


def test_a_report_and_json(perturb, tmp_path):
    run = perturb().run(Job(output=tmp_path / "report"))
    assert {path.name for path in run.report.parent.glob("*.png")} == {
        "energy-by-position-of-the-change.png",
        "negative-log-likelihood-by-position-of-the-change.png",
    }
    kept = json.loads(json.dumps(run.to_json()))
    positions = {name: effect["positions"] for name, effect in kept["effects"].items()}
    assert positions["entity"] == list(range(1, 10)) and positions["swap"] == list(range(1, 9))
    assert len(kept["replacement_rows"]) == 3 and kept["replacements"]["random"]["nll"] > 0
    assert kept["unchanged"]["energy"] == [run.energy] * 2


def test_words_may_be_named_and_must_be_one_token(perturb):
    assert "“the” (name)" in perturb(entity=" the", texts=2).run().effects["entity"].words
    with pytest.raises(ConfigError, match=r"entity: ' Johannisburg' is \d+ tokens"):
        perturb(entity=" Johannisburg").run()


def test_a_plan_loads_no_model(perturb, monkeypatch):
    monkeypatch.setattr(LanguageModel, "from_pretrained", None)
    assert "at every position, 3 ways (130 copies)" in perturb().check()


def test_mistakes_are_named(perturb, model_folder):
    with pytest.raises(ConfigError, match="leave no middle of 9"):
        perturb(ends=5)
    with pytest.raises(DataError, match=r"nothing\.txt does not exist"):
        perturb(source="nothing.txt").run()
    with pytest.raises(ModelError, match="holds no trained energy"):
        perturb(energy=str(model_folder)).run()


def test_counted_work(perturb):
    """Against what torch counts; teeth: without the swapped copies it would be a third less."""
    around, verb = Surroundings({}, {"networks": {}}), perturb()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        verb.run()
    assert verb.cost(around).flops == pytest.approx(counter.get_total_flops(), rel=0.1)
    assert perturb(texts=10).cost(around).flops == pytest.approx(2 * verb.cost(around).flops)
