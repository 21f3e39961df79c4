"""ResidualModel around networks and text: strings and ids, what the energy reads, shared prefixes, who is refused."""

import math

import pytest
import torch

import energylm
from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.bundles import energy_binding
from energylm.bundles.text_codec import TextReader
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.models.causal import CausalLanguageModel
from energylm.testing import exact_joint


class LetterEnergy:
    """An energy of one's own: a third of the number of even ids, and what it was given."""

    def __init__(self):
        self.read = []

    def energies(self, tokens_BT, lengths_B):
        real_BT = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
        self.read += [row[:length].tolist() for row, length in zip(tokens_BT, lengths_B.tolist(), strict=True)]
        return ((tokens_BT % 2 == 0) & real_BT).sum(1) / 3


class SharingEnergy(LetterEnergy):
    """The same, reading each context once."""

    def continuation_energies(self, contexts, tokens_BNT, lengths_BN):
        given_B = self.energies(*padded(contexts))
        real_BNT = torch.arange(tokens_BNT.shape[2]) < lengths_BN[..., None]
        return given_B[:, None] + ((tokens_BNT % 2 == 0) & real_BNT).sum(2) / 3


def padded(rows):
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return tokens, torch.tensor([len(row) for row in rows])


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


TEXTS = ["The clerk counts the boats. A sailor mends a bridge.", "Our neighbour paints an old map. Her sister sells."]


def test_a_string_is_a_document_for_the_language_model_and_text_for_the_energy(lm):
    """The start token stands before what the language model reads; the energy is not shown it."""
    energy = LetterEnergy()
    sample = ResidualModel(lm, energy).sample("The clerk", n=3, max_new_tokens=4, stop_at_eos=False)
    ids = lm.encode("The clerk")
    candidates = [[*ids, *sample.pools[0].candidate(number)] for number in range(3)]
    assert energy.read == candidates
    drawn = lm.sample("The clerk", n=3, max_new_tokens=4, stop_at_eos=False)
    assert sample.candidates == drawn.texts[0]  # the candidates are the language model's own draws of this seed
    torch.testing.assert_close(sample.pools[0].log_prob, drawn.continuations.log_prob[0])
    assert sample.text == sample.candidates[sample.pools[0].kept[0]]


def test_perplexity_of_strings_and_of_ids(lm):
    """The base is what the language model itself says, bytes and convention included."""
    joint = ResidualModel(lm, LetterEnergy())
    for texts in (TEXTS, [lm.encode(text)[:12] for text in TEXTS]):
        result, alone = joint.perplexity(texts, prefix_tokens=5, n=40), lm.perplexity(texts, prefix_tokens=5)
        assert result.base.value == pytest.approx(alone.value, rel=1e-5)
        assert (result.base.bytes, result.base.convention) == (alone.bytes, alone.convention)
        ratio = alone.tokens / (math.log(2) * alone.bytes)
        assert result.bits_per_byte == pytest.approx((math.log(result.lower) * ratio, math.log(result.upper) * ratio))
        assert "40 untruncated samples a context" in result.convention
        assert result.to_json()["log_partition"]["n"] == 40
    assert joint.perplexity(iter(TEXTS), prefix_tokens=5, n=10).convention.count("after '<|endoftext|>'") == 1
    eos = joint.perplexity(TEXTS, prefix_tokens=5, n=10, max_new_tokens=400 // 10)
    assert "end-of-sequence token counted" in eos.convention and "cut at 40 tokens" in eos.convention


def test_sharing_the_prefix_and_reading_it_whole_agree(lm, monkeypatch):
    """Two routes to the same energies, also where micro-batches are small and a context is empty."""
    contexts = ["The clerk", "A sailor mends the", ""]
    results = []
    for energy, tokens_at_once in ((LetterEnergy(), 1 << 14), (LetterEnergy(), 40), (SharingEnergy(), 1 << 14)):
        monkeypatch.setattr(energy_binding, "TOKENS_AT_ONCE", tokens_at_once)
        results.append(ResidualModel(lm, energy).log_partition(contexts, n=20, max_new_tokens=5))
    for other in results[1:]:
        torch.testing.assert_close(other.lower, results[0].lower, atol=1e-6, rtol=0)
    # Teeth: energies of the continuations alone would be others, by the contexts' even ids.
    energy = LetterEnergy()
    without = ResidualModel(lm, energy).log_partition([""], n=20, max_new_tokens=5, first_context=2)
    assert float(without.lower) == pytest.approx(float(results[0].lower[2]), abs=1e-6)
    assert float(results[0].lower[0]) < float(without.lower) - 0.2


def test_who_cannot_take_part_is_told_why(lm, tmp_path):
    energy = LetterEnergy()
    joint = ResidualModel(lm, energy)
    with pytest.raises(ModelError, match=r"context and continuation take .* tokens but the model holds 128"):
        joint.sample("boats " * 100)
    with pytest.raises(DataError, match="all texts in one form"):
        joint.perplexity(["text", [1, 2]], prefix_tokens=1)
    without_start = CausalLanguageModel(lm.model.network, start_token_id=None, eos_token_id=None)
    for model in (without_start, LanguageModel(without_start, lm.tokenizer)):
        with pytest.raises(ModelError, match="a context is empty; give at least one token"):
            ResidualModel(model, energy).sample([])
    with pytest.raises(ModelError, match="a context is empty"):
        ResidualModel(LanguageModel(without_start, lm.tokenizer), energy).sample("")
    backwards = CausalLanguageModel(lm.model.network, start_token_id=0, eos_token_id=0, direction="right-to-left")
    for model in (backwards, LanguageModel(backwards, lm.tokenizer)):
        with pytest.raises(ModelError, match="left-to-right language model"):
            ResidualModel(model, energy)
    with pytest.raises(ModelError, match="LanguageModel with a LetterEnergy cannot be saved"):
        joint.save_pretrained("anywhere")
    with pytest.raises(ModelError, match="'nowhere' does not exist"):
        ResidualModel.from_pretrained("nowhere")
    lm.save_pretrained(tmp_path / "alone")
    with pytest.raises(ModelError, match="holds no residual model"):
        ResidualModel.from_pretrained(tmp_path / "alone")


@pytest.fixture(scope="module")
def energy(energy_folder):
    return EnergyModel.from_pretrained(energy_folder)


def test_an_energy_that_reads_the_same_tokens_goes_straight_through(lm, energy):
    """Candidates' energies against the energy of each whole sequence, read by itself."""
    sample = ResidualModel(lm, energy).sample("The clerk", n=5, max_new_tokens=4, stop_at_eos=False)
    whole = [[*lm.encode("The clerk"), *sample.pools[0].candidate(number)] for number in range(5)]
    torch.testing.assert_close(sample.energies.float(), energy.energies(*padded(whole)), atol=1e-4, rtol=1e-4)
    assert float(sample.energies.std()) > 0.01


def test_tokenizers_that_differ_are_named_with_the_cure(lm, energy):
    other = train_tokenizer(["Another text altogether, quite another. "] * 9, vocabulary_size=290)
    with pytest.raises(VocabularyMismatch, match=r"reads the 300 tokens .* writes .*2\d\d.*; train an energy that"):
        ResidualModel(LanguageModel(lm.model, other), energy)


def test_an_energy_of_another_loss_is_doubted_once(lm, energy_folder, capsys):
    doubtful = EnergyModel.from_pretrained(energy_folder)
    doubtful.provenance["loss"] = "ranking"
    joint = ResidualModel(lm, doubtful)
    first, second = (joint.perplexity(TEXTS, prefix_tokens=5, n=60) for _ in range(2))
    assert "trained with the ranking loss" in first.warning and first.warning == second.warning
    assert capsys.readouterr().err.count("ranking loss") == 1
    (sha256,) = lm.weights_hashes
    source = {"generator": {"name": "a", "sha256": sha256}, "negatives": {"truncation": {"top_k": 10}}}
    doubtful.provenance |= {"loss": "nce", "sources": [source]}
    assert (
        ResidualModel(lm, doubtful).sample("The", n=9).warning.startswith("the energy was trained on negatives of a tr")
    )
    told = ResidualModel(lm, EnergyModel.from_pretrained(energy_folder), caution="beware").sample("The", n=9)
    assert told.warning.startswith("beware; 9 candidates are few to choose from")
    assert "trained with" not in (
        ResidualModel(lm, EnergyModel.from_pretrained(energy_folder)).perplexity(TEXTS, prefix_tokens=5, n=60).warning
        or ""
    )


def test_an_empty_prompt_may_end_at_once(lm, model_folder, monkeypatch):
    """An energy that reads text by a tokenizer without special tokens, the empty prompt, one token to come: all 300
    continuations, of which the special tokens write nothing. What writes nothing has the energy of the end of a text.
    Deliberate mistake: refused as a person's empty text would be, it has no energy, and nothing can be drawn."""
    energy = EnergyModel.from_encoder(model_folder, kind="unit", reads="text")
    energy.scale = 50.0
    joint = ResidualModel(lm, energy)
    texts = [lm.decode([token]) for token in range(300)]
    (nothing,) = energy.energies(torch.tensor([[energy.tokenizer.eos_token_id]]), torch.tensor([1])).tolist()
    energies = [energy.text_energies([text]).item() if text else nothing for text in texts]
    assert texts[lm.eos_token_id] == "" and len(set(energies)) > 50
    _, logits = lm.decoder().prefill([[lm.model.start_token_id]])
    exact = (logits[0].double().log_softmax(0) - torch.tensor(energies, dtype=torch.float64)).softmax(0).tolist()
    table = joint.next_token_table("", max_new_tokens=1, candidates=300, keep=300)
    assert {entry.token: entry.probability for entry in table.joint} == pytest.approx(
        dict(enumerate(exact)), rel=1e-3, abs=1e-7
    )
    pool = joint.sample("", n=2_000, max_new_tokens=3).pools[0]
    ends_at_once = pool.tokens[:, 0] == lm.eos_token_id
    assert ends_at_once.any() and pool.energy[ends_at_once].tolist() == pytest.approx(
        [nothing] * int(ends_at_once.sum())
    )
    assert math.isfinite(joint.perplexity(TEXTS, prefix_tokens=0, n=300, max_new_tokens=2).upper)
    read = TextReader.read
    monkeypatch.setattr(TextReader, "read", lambda self, texts, may_be_empty: read(self, texts))
    with pytest.raises(DataError, match="is empty, so it has no energy"):
        joint.sample("", n=2_000, max_new_tokens=3)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (None, "no NoneType"),
        (lambda tokens, lengths: torch.zeros(len(lengths)), "no function"),
        ("runs/energy/model", "no str"),
        (EnergyModel, r"no class \(EnergyModel\)"),
    ],
)
def test_what_is_no_energy_and_no_language_model_is_told_at_construction(lm, energy, part, words):
    with pytest.raises(ModelError, match=rf"the energy of a joint model is {words}; give Energy\.load"):
        ResidualModel(lm, part)
    with pytest.raises(ModelError, match=rf"the language model of a joint model is {words}; give LanguageModel\.from_"):
        ResidualModel(part, energy)


def test_one_step_of_a_network_is_enumerated_exactly(lm, energy):
    """With one token to come there are 300 continuations: log Z, the last step and the table against their sum."""
    joint, windows = ResidualModel(lm, energy), [lm.encode(text)[:9] for text in TEXTS]
    exact = [exact_joint(lm, energy, window[:8], max_new_tokens=1) for window in windows]
    estimate = joint.log_partition([window[:8] for window in windows], n=3_000, max_new_tokens=1)
    for row, one in enumerate(exact):
        error = float(estimate.standard_error[row])
        assert float(estimate.lower[row]) == pytest.approx(one.log_partition, abs=4 * error)
    log_probs = [float(one.log_prob[window[8]]) for one, window in zip(exact, windows, strict=True)]
    steps = joint.stepwise(windows, prefix_tokens=8, n=2)
    assert math.log(steps.last_exact.value) == pytest.approx(-sum(log_probs) / 2, abs=1e-4)
    table = joint.next_token_table(windows[0][:8], max_new_tokens=1, candidates=300, keep=300)
    found = {entry.token: entry.probability for entry in table.joint}
    assert found == pytest.approx(dict(enumerate(exact[0].probabilities.tolist())), rel=1e-3, abs=1e-7)
    base = {entry.token: entry.probability for entry in table.base}
    assert max(abs(found[token] / base[token] - 1) for token in base) > 0.02  # teeth: the base is another distribution


def test_the_package_names_it():
    assert energylm.ResidualModel is ResidualModel and "ResidualModel" in energylm.__all__
