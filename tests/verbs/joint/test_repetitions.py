"""Tables where the base repeats itself: which ones follows the written rule; the energy moves the repeated token."""

import pytest
import torch

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.errors import DataError
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network
from energylm.verbs.joint.analyses import Repetitions


@pytest.fixture(scope="module")
def folders(corpus_folder, tmp_path_factory):
    """A base that favours a few words, so that it repeats them, and an energy of zero."""
    from energylm.data.corpus import Corpus

    corpus, folder = Corpus.open(corpus_folder), tmp_path_factory.mktemp("repeating")
    words = [
        t
        for t in range(corpus.vocabulary_size)
        if len(w := corpus.tokenizer.decode([t])) > 4 and w[1:].isalpha() and w[0] == " "
    ]
    network = build_network(
        "tiny",
        vocabulary_size=corpus.vocabulary_size,
        max_length=32,
        eos_token_id=corpus.end_token_id,
        overrides={"layers": 1, "width": 16, "heads": 2},
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.transformer.ln_f.bias.fill_(1.0)
        network.lm_head.weight[words[:4]] = 0.5  # four words with logit 8, all others 0
    end = corpus.end_token_id
    model = CausalLanguageModel(network.eval(), start_token_id=end, eos_token_id=end)
    LanguageModel(model, corpus.tokenizer).save_pretrained(folder / "base")
    energy = EnergyModel.from_encoder(folder / "base")
    with torch.no_grad():
        energy.network.head.weight.zero_()
    energy.save_pretrained(folder / "energy")
    return folder, words[:4]


def config(folder, corpus_folder, **values):
    span = {
        "length": 16,
        "prefix_tokens": 6,
        "contexts": 10,
        "n": 4,
        "candidates": 8,
        "keep": 6,
        "repetitions": 3,
        "split": "train",
    }
    return Repetitions(
        language_model=str(folder / "base"), energy=str(folder / "energy"), source=str(corpus_folder), **span | values
    )


def test_the_rule_finds_repetitions_and_an_energy_of_zero_changes_nothing(folders, corpus_folder):
    """The four words have probability e⁸ / (4 e⁸ + …): a quarter each among those kept, in both models alike."""
    folder, words = folders
    result = config(folder, corpus_folder).run()
    assert len(result.repetitions) == 3
    tokenizer = LanguageModel.from_pretrained(folder / "base").tokenizer
    for repetition in result.repetitions:
        assert repetition.repeated in [tokenizer.decode([word]) for word in words]
        assert repetition.repeated in repetition.context_end
        assert repetition.base_probability == pytest.approx(0.25, abs=0.01)
        assert repetition.joint_probability == pytest.approx(repetition.base_probability, abs=1e-6)
        marked = [row for row in result.rows if row["repeats"] and row["context"] == repetition.context_end]
        assert {row["model"] for row in marked} == {"base", "joint"}
        assert {row["text"] for row in marked} == {repetition.repeated}
    written = result.to_json()
    assert written["base_mean"] == pytest.approx(0.25, abs=0.01) and len(written["repetitions"]) == 3
    assert written["warning"] is None  # an energy that tells nothing of its training
    assert {"context", "model", "rank", "text", "probability", "repeats"} <= set(written["rows"][0])


def test_no_repetition_is_said(folders, corpus_folder):
    with pytest.raises(DataError, match="repeats no word of 40 letters in 10 samples"):
        config(folders[0], corpus_folder, letters=40).run()
