"""Linear and BiLSTM energies, and the first position of a BiTransf: folders, text, continuations, joint models."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from energylm import EnergyModel, ResidualModel
from energylm.bundles.language_model import LanguageModel
from energylm.data.tokenizer import load_tokenizer, train_tokenizer
from energylm.energies.encoder_bodies import build_energy_body
from energylm.energies.pooled import PooledEnergy, kind_of
from energylm.errors import ModelError

TEXTS = ["The clerk counts the boats.", "A sailor mends a letter and a bridge.", "Our neighbour sells seven lamps."]
PRESETS = {"linear": {}, "bilstm-tiny": {"embedding_width": 8, "width": 6}}


def wide(network):
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


@pytest.fixture(params=PRESETS)
def energy(request, model_folder):
    tokenizer = load_tokenizer(model_folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = wide(build_energy_body(request.param, vocabulary_size=len(tokenizer), overrides=PRESETS[request.param]))
    network = PooledEnergy(body, kind=kind_of(body)).eval()
    if network.kind != "linear":
        network.head.weight.data *= 300
    return EnergyModel(network, tokenizer, scale=3.0, shift=0.5, name="test", provenance={"loss": "nce"})


def test_a_folder_gives_the_same_energies(energy, tmp_path):
    energy.save_pretrained(tmp_path / "e")
    again = EnergyModel.from_pretrained(tmp_path / "e")
    assert (again.network.kind, again.network.pooling) == (energy.network.kind, energy.network.pooling)
    assert torch.equal(again.text_energies(TEXTS), energy.text_energies(TEXTS))
    assert energy.text_energies(TEXTS).std() > 1e-3
    frozen = {name for name, parameter in again.network.named_parameters() if not parameter.requires_grad}
    assert frozen == ({"head.weight", "head.bias"} if energy.network.kind == "linear" else set())


def test_a_trained_body_is_a_start_like_any_other(energy, tmp_path):
    energy.save_pretrained(tmp_path / "e")
    start = EnergyModel.from_encoder(tmp_path / "e", kind=energy.network.kind)
    for mine, theirs in zip(start.network.encoder.parameters(), energy.network.encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(ModelError, match=r"kind 'unit' needs a causal encoder.*; give another encoder, or kind"):
        EnergyModel.from_encoder(tmp_path / "e", kind="unit")


def test_no_folder_of_an_energy_is_taken_for_a_language_model(energy, tmp_path):
    energy.save_pretrained(tmp_path / "e")
    with pytest.raises(ModelError, match="holds a model of kind 'energy'"):
        LanguageModel.from_pretrained(tmp_path / "e")


def test_continuations_equal_whole_sequences(energy):
    generator = torch.Generator().manual_seed(2)
    contexts = [torch.randint(5, 290, (size,), generator=generator).tolist() for size in (9, 2)]
    tokens, lengths = torch.randint(5, 290, (2, 3, 5), generator=generator), torch.tensor([[5, 1, 3], [2, 5, 4]])
    expected = [
        float(energy.energies(torch.tensor([context + row[:n].tolist()]), torch.tensor([len(context) + int(n)]))[0])
        for context, rows, counts in zip(contexts, tokens, lengths, strict=True)
        for row, n in zip(rows, counts, strict=True)
    ]
    found = energy.continuation_energies(contexts, tokens, lengths)
    assert_close(found, torch.tensor(expected).view(2, 3), atol=1e-4, rtol=1e-4)


def test_a_joint_model_samples_and_measures_with_it(energy, model_folder):
    joint = ResidualModel(LanguageModel.from_pretrained(model_folder), energy)
    sample = joint.sample("The clerk", n=6, max_new_tokens=4, stop_at_eos=False)
    assert len(sample.energies) == 6 and sample.energies.isfinite().all()
    assert joint.perplexity(TEXTS, prefix_tokens=3, n=20).base.value > 1


def bidirectional(tokenizer, folder):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, type_vocab_size=1, **sizes)
        wide(BertModel(config, add_pooling_layer=False)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("has_cls", [True, False])
def test_the_first_position_with_and_without_a_class_token(tmp_path, has_cls):
    """With [CLS] … [SEP] in the tokenizer the first position is [CLS]; without, the first token of the text. Either
    way it sees everything: the last word changes the energy."""
    tokenizer = train_tokenizer(TEXTS * 20, vocabulary_size=290)
    if has_cls:
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
        frame = [("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    energy = EnergyModel.from_encoder(bidirectional(tokenizer, tmp_path / "b"), pooling="first", reads="text")
    energy.network.head.weight.data *= 300
    assert (energy.network.kind, energy.network.pooling) == ("bit", "first")
    tokens, lengths = energy.encode_texts(TEXTS)
    plain = [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    first = [tokenizer.cls_token_id] * 3 if has_cls else [ids[0] for ids in plain]
    assert tokens[:, 0].tolist() == first and lengths.tolist() == [len(ids) + 2 * has_cls for ids in plain]
    with torch.no_grad():
        for text, ids in zip(TEXTS, [row[:n] for row, n in zip(tokens, lengths, strict=True)], strict=True):
            state_D = energy.network.encoder(input_ids=ids[None]).last_hidden_state[0, 0]
            assert_close(
                energy.text_energies([text])[0], energy.network.project(state_D[None])[0], atol=1e-4, rtol=1e-4
            )
    changed = energy.text_energies(["The clerk counts the boat"]) - energy.text_energies(["The clerk counts the lamps"])
    assert abs(float(changed)) > 1e-3
    mean = EnergyModel.from_encoder(tmp_path / "b", reads="text")
    mean.network.head.weight.data *= 300
    assert not torch.allclose(mean.text_energies(TEXTS), energy.text_energies(TEXTS))  # teeth
    energy.save_pretrained(tmp_path / "e")
    assert torch.equal(EnergyModel.from_pretrained(tmp_path / "e").text_energies(TEXTS), energy.text_energies(TEXTS))
