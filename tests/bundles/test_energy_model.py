"""EnergyModel: shared-prefix energies against whole sequences, text against tokens, calibration, folders, refusals."""

import json
import shutil

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModel

from energylm import EnergyModel
from energylm.bundles import energy_reading
from energylm.bundles.energy_model import bind
from energylm.bundles.language_model import LanguageModel
from energylm.contracts import ContinuationEnergy
from energylm.data.tokenizer import train_tokenizer
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.models.causal import CausalLanguageModel
from energylm.models.cloze_presets import build_masked_network
from energylm.models.presets import build_network
from energylm.models.shared_prefix import SharedPrefixEncoder
from energylm.testing import TabularLanguageModel

TEXTS = ["The clerk counts the boats. ", "A sailor mends a letter — née 1900. ", "Our neighbour sells seven lamps."]
SIZES = {"layers": 2, "width": 16, "heads": 2}
POSITIONS = 64


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 20, vocabulary_size=290)


@pytest.fixture(scope="module")
def other_tokenizer():
    return train_tokenizer(["quite different words were counted here " * 5], vocabulary_size=275)


def wide(network):
    """Weights far from their start, so that mistakes show; always the same."""
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


def make(tokenizer, kind="unit", **options):
    vocabulary, pooling = len(tokenizer), options.pop("pooling", "mean")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "unit":
            network = build_network(
                "tiny", vocabulary_size=vocabulary, max_length=POSITIONS, eos_token_id=0, overrides=SIZES
            )
        else:
            network = build_masked_network(
                "bit-tiny", vocabulary_size=vocabulary, max_length=POSITIONS, pad_token_id=1, overrides=SIZES
            )
    energy = PooledEnergy(wide(network).base_model, kind=kind, pooling=pooling)
    energy.head.weight.data *= 300
    return EnergyModel(energy.eval(), tokenizer, **{"name": "test", "provenance": {"loss": "nce"}} | options)


def language_model(tokenizer, direction="left-to-right"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            "tiny", vocabulary_size=len(tokenizer), max_length=POSITIONS, eos_token_id=0, overrides=SIZES
        )
    causal = CausalLanguageModel(wide(network), start_token_id=0, eos_token_id=0, direction=direction)
    return LanguageModel(causal, tokenizer, name="lm")


def continuations(*, lengths=None):
    """Three contexts of unequal length, five continuations each, of unequal length."""
    generator = torch.Generator().manual_seed(2)
    contexts = [torch.randint(5, 290, (size,), generator=generator).tolist() for size in (11, 3, 20)]
    tokens = torch.randint(5, 290, (3, 5, 7), generator=generator)
    return contexts, tokens, torch.randint(1, 8, (3, 5), generator=generator) if lengths is None else lengths


def one_by_one(energy, contexts, tokens, lengths):
    """Every sequence by itself: no padding, no sharing, no micro-batch."""
    return torch.tensor(
        [
            [
                float(energy.energies(torch.tensor([context + row[:length]]), torch.tensor([len(context) + length]))[0])
                for row, length in zip(rows.tolist(), row_lengths.tolist(), strict=True)
            ]
            for context, rows, row_lengths in zip(contexts, tokens, lengths, strict=True)
        ]
    )


@pytest.mark.parametrize("at_once", [1, 30, 10_000])
@pytest.mark.parametrize("kind", ["unit", "bit"])
def test_continuations_equal_whole_sequences_in_any_micro_batch(tokenizer, kind, at_once, monkeypatch):
    energy = make(tokenizer, kind)
    assert isinstance(energy, ContinuationEnergy)
    given = continuations()
    expected = one_by_one(energy, *given)
    assert expected.std() > 0.1  # the comparison is not between constants
    monkeypatch.setattr(energy_reading, "_tokens_at_once", lambda network: at_once)
    assert_close(energy.continuation_energies(*given), expected, atol=1e-5, rtol=1e-5)
    contexts, tokens, lengths = given
    padded = torch.where(torch.arange(7) < lengths[..., None], tokens, -1)  # padding of any kind
    assert_close(energy.continuation_energies(contexts, padded, lengths), expected, atol=1e-5, rtol=1e-5)


def test_a_causal_energy_reads_each_context_once(tokenizer, monkeypatch):
    """Positions that go through the embedding: 34 of contexts and 15 · 7 of continuations, not 15 whole sequences."""
    energy, seen = make(tokenizer), []
    energy.network.encoder.wte.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel()))
    energy.continuation_energies(*continuations(lengths=torch.full((3, 5), 7)))
    assert sum(seen) == 3 * 20 + 15 * 7  # contexts are padded to 20
    seen.clear()
    monkeypatch.setattr(energy_reading, "can_share_prefix", lambda network: False)
    energy.continuation_energies(*continuations(lengths=torch.full((3, 5), 7)))
    assert sum(seen) > 15 * 7 + 5 * 34  # teeth


def test_context_states_left_out_of_the_mean_are_noticed(tokenizer, monkeypatch):
    """Deliberate mistake: the mean runs over the continuation only."""
    energy, given = make(tokenizer), continuations()
    right = energy.continuation_energies(*given)
    whole = SharedPrefixEncoder.prefill

    def without_context(self, contexts):
        prefix, hidden = whole(self, contexts)
        return prefix, torch.zeros_like(hidden)

    monkeypatch.setattr(SharedPrefixEncoder, "prefill", without_context)
    assert (energy.continuation_energies(*given) - right).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["unit", "bit"])
def test_a_long_context_with_a_short_continuation_fits(tokenizer, kind):
    """60 + 3 and 10 + 7 tokens fit into 64 positions, though 60 + 7 would not."""
    energy = make(tokenizer, kind)
    contexts = [list(range(5, 65)), list(range(5, 15))]
    tokens, lengths = torch.full((2, 1, 7), 9), torch.tensor([[3], [7]])
    expected = one_by_one(energy, contexts, tokens, lengths)
    assert_close(energy.continuation_energies(contexts, tokens, lengths), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ModelError, match="take 67 tokens but the energy holds 64; shorten"):
        energy.continuation_energies(contexts, tokens, torch.full((2, 1), 7))


@pytest.mark.parametrize("kind", ["unit", "bit"])
def test_empty_contexts_and_empty_batches(tokenizer, kind):
    energy = make(tokenizer, kind)
    tokens = torch.tensor([[[7, 8, 9]], [[7, 8, 9]]])
    whole = energy.energies(tokens[:, 0], torch.tensor([3, 2]))
    assert_close(energy.continuation_energies([[], []], tokens, torch.tensor([[3], [2]])).flatten(), whole)
    assert energy.continuation_energies([[1]], tokens[:1, :0], torch.zeros(1, 0)).shape == (1, 0)
    assert energy.energies(torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert energy.text_energies([]).shape == (0,)
    with pytest.raises(ModelError, match="an empty sequence came"):
        energy.energies(tokens[:, 0], torch.tensor([3, 0]))


def test_calibration_is_applied_kept_and_can_be_left_out(tokenizer, tmp_path):
    raw = make(tokenizer)
    calibrated = make(tokenizer, scale=0.5, shift=-2.0)
    given = continuations()
    expected = 0.5 * raw.continuation_energies(*given) - 2.0
    assert_close(calibrated.continuation_energies(*given), expected)
    assert_close(calibrated.text_energies(TEXTS), 0.5 * raw.text_energies(TEXTS) - 2.0)
    calibrated.save_pretrained(tmp_path / "energy")
    again = EnergyModel.from_pretrained(tmp_path / "energy")
    assert (again.scale, again.shift) == (0.5, -2.0)
    assert_close(again.continuation_energies(*given), expected)
    without = EnergyModel.from_pretrained(tmp_path / "energy", calibrated=False)
    assert_close(without.continuation_energies(*given), raw.continuation_energies(*given))


@pytest.mark.parametrize(("kind", "pooling"), [("unit", "mean"), ("bit", "mean"), ("bit", "first")])
def test_folder_round_trip(tokenizer, tmp_path, kind, pooling):
    energy = make(tokenizer, kind, pooling=pooling, reads="text", long_texts="cut-left")
    energy.save_pretrained(tmp_path / "energy")
    energy.save_pretrained(tmp_path / "energy")  # replaces what it wrote itself
    again = EnergyModel.from_pretrained(tmp_path / "energy")
    assert (again.network.kind, again.network.pooling, again.reads) == (kind, pooling, "text")
    assert (again.long_texts, again.name) == ("cut-left", "test")
    assert again.provenance["loss"] == "nce" and "made_by" in again.provenance
    assert torch.equal(again.text_energies(TEXTS), energy.text_energies(TEXTS))
    encoder = AutoModel.from_pretrained(tmp_path / "energy")
    tokens = torch.tensor([[7, 8, 9]])
    assert_close(encoder.eval()(tokens).last_hidden_state, energy.network.encoder(tokens).last_hidden_state)


@pytest.mark.parametrize("file", ["model.safetensors", "head.safetensors"])
def test_a_flipped_byte_is_found(tokenizer, tmp_path, file):
    make(tokenizer).save_pretrained(tmp_path / "energy")
    data = bytearray((tmp_path / "energy" / file).read_bytes())
    data[-5] ^= 1
    (tmp_path / "energy" / file).write_bytes(data)
    with pytest.raises(ModelError, match=rf"{file} is damaged"):
        EnergyModel.from_pretrained(tmp_path / "energy")


def test_what_is_no_energy_is_refused(tokenizer, tmp_path):
    language_model(tokenizer).save_pretrained(tmp_path / "lm")
    with pytest.raises(ModelError, match=r"holds no trained energy \(language-model\); train one with"):
        EnergyModel.from_pretrained(tmp_path / "lm")
    make(tokenizer).save_pretrained(tmp_path / "energy")
    with pytest.raises(ModelError, match="holds a model of kind 'energy', no language model"):
        LanguageModel.from_pretrained(tmp_path / "energy")
    with pytest.raises(ModelError, match="does not exist"):
        EnergyModel.from_pretrained(tmp_path / "nothing")
    (tmp_path / "file.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="is a file; give a model folder"):
        EnergyModel.from_encoder(tmp_path / "file.gguf")


def test_a_language_model_becomes_a_unit(tokenizer, tmp_path):
    """The encoder is the language model's own body: its last states give the logits that the language model gives."""
    lm = language_model(tokenizer)
    lm.save_pretrained(tmp_path / "lm")
    energy = EnergyModel.from_encoder(tmp_path / "lm", kind="unit", seed=3)
    tokens = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        logits = lm.model.network.lm_head(energy.network.encoder(tokens).last_hidden_state)
        assert_close(logits, lm.model.network(tokens).logits)
    assert energy.energies(tokens, torch.tensor([4])).abs().max() < 0.5
    manifest = json.loads((tmp_path / "lm" / "energylm.json").read_text())
    assert energy.provenance["encoder"] == {"name": "lm", "weights": manifest["weights"]}
    again, other = (EnergyModel.from_encoder(tmp_path / "lm", seed=seed) for seed in (3, 4))
    assert torch.equal(again.network.head.weight, energy.network.head.weight)
    assert not torch.equal(other.network.head.weight, energy.network.head.weight)
    assert bind(energy, lm) is energy
    with pytest.raises(ModelError, match=r"kind 'bit' needs a bidirectional encoder, but .* is causal; .* kind 'unit'"):
        EnergyModel.from_encoder(tmp_path / "lm", kind="bit")
    with pytest.raises(ConfigError, match="sees one token only"):
        EnergyModel.from_encoder(tmp_path / "lm", pooling="first")
    language_model(tokenizer, "right-to-left").save_pretrained(tmp_path / "backwards")
    with pytest.raises(ModelError, match="reads right-to-left"):
        EnergyModel.from_encoder(tmp_path / "backwards")


def test_a_masked_model_and_a_plain_encoder_become_a_bit(tokenizer, tmp_path):
    network = wide(
        build_masked_network("bit-tiny", vocabulary_size=290, max_length=POSITIONS, pad_token_id=1, overrides=SIZES)
    )
    tokens = torch.tensor([[7, 8, 9, 10]])
    for name, part in (("masked", network), ("encoder", network.base_model)):
        part.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        energy = EnergyModel.from_encoder(tmp_path / name)
        assert energy.network.kind == "bit" and energy.network.encoder.pooler is None
        with torch.no_grad():
            expected = network.base_model(tokens).last_hidden_state
            assert_close(energy.network.encoder(tokens).last_hidden_state, expected)
    shutil.rmtree(tmp_path / "encoder")
    conv = build_network("conv-tiny", vocabulary_size=290, max_length=POSITIONS, eos_token_id=0)
    conv.save_pretrained(tmp_path / "conv")
    tokenizer.save_pretrained(tmp_path / "conv")
    with pytest.raises(ModelError, match="cannot be loaded as an encoder"):
        EnergyModel.from_encoder(tmp_path / "conv")


@pytest.mark.parametrize("kind", ["unit", "bit"])
def test_reading_text_and_reading_tokens_agree_on_the_same_tokenizer(tokenizer, kind):
    """Byte-level BPE decodes and encodes back to the same ids where these came from text."""
    lm = language_model(tokenizer)
    by_tokens = bind(make(tokenizer, kind), lm)
    by_text = bind(make(tokenizer, kind, reads="text"), lm)
    ids = [lm.encode(text) for text in TEXTS]
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
    lengths = torch.tensor([len(row) for row in ids])
    assert_close(by_text.energies(tokens, lengths), by_tokens.energies(tokens, lengths))
    assert_close(make(tokenizer, kind).text_energies(TEXTS), by_tokens.energies(tokens, lengths))
    assert isinstance(by_text, ContinuationEnergy)
    cut = [len(row) // 2 for row in ids]
    rest = [torch.tensor(row[size:]) for row, size in zip(ids, cut, strict=True)]
    continued = by_text.continuation_energies(
        [row[:size] for row, size in zip(ids, cut, strict=True)],
        torch.nn.utils.rnn.pad_sequence(rest, batch_first=True)[:, None],
        torch.tensor([[len(row)] for row in rest]),
    )
    assert_close(continued[:, 0], by_tokens.energies(tokens, lengths))


def test_any_encoder_reads_any_language_model(tokenizer, other_tokenizer):
    """By hand: decode with the language model's tokenizer, special tokens left out, encode with the energy's own."""
    lm, energy = language_model(tokenizer), make(other_tokenizer, "bit", reads="text")
    contexts, tokens, lengths = continuations()
    tokens[0, 0, int(lengths[0, 0]) - 1] = lm.eos_token_id
    energies = bind(energy, lm).continuation_energies(contexts, tokens, lengths)
    texts = [
        lm.decode(context + row[:length])
        for context, rows, row_lengths in zip(contexts, tokens.tolist(), lengths.tolist(), strict=True)
        for row, length in zip(rows, row_lengths, strict=True)
    ]
    assert "<|endoftext|>" not in texts[0]
    ids = [other_tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = [energy.energies(torch.tensor([row]), torch.tensor([len(row)])) for row in ids]
    assert_close(energies.flatten(), torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert energies.std() > 0.1
    with pytest.raises(ModelError, match="reads text, but the language model has no tokenizer"):
        bind(energy, TabularLanguageModel.random(3, 2, seed=0))


def test_an_energy_and_a_language_model_that_cannot_meet(tokenizer, other_tokenizer):
    lm = language_model(tokenizer)
    with pytest.raises(VocabularyMismatch, match=r"test reads the 275 tokens .* writes 290 of another; train .* text"):
        bind(make(other_tokenizer), lm)
    same_size = train_tokenizer(["entirely other words, as many of them " * 9, *TEXTS], vocabulary_size=290)
    assert len(same_size) == 290
    with pytest.raises(VocabularyMismatch, match=r"290 tokens .* 290 of another"):  # teeth: sizes alone would not tell
        bind(make(same_size), lm)
    with pytest.raises(VocabularyMismatch, match="writes 3 of another"):
        bind(make(tokenizer), TabularLanguageModel.random(3, 2, seed=0))
    with pytest.raises(VocabularyMismatch, match="token id 290 came but the energy knows ids 0 to 289"):
        make(tokenizer).energies(torch.tensor([[290]]), torch.tensor([1]))
    with pytest.raises(VocabularyMismatch, match="token id 290 came"):
        make(tokenizer).continuation_energies([[1]], torch.tensor([[[290]]]), torch.tensor([[1]]))


def test_texts_that_are_too_long_are_refused_or_cut_on_the_left(tokenizer):
    text = " ".join(f"sailor {number}" for number in range(60))
    with pytest.raises(DataError, match=r"text 2 has .* tokens but the energy's encoder holds 64; .*'cut-left'"):
        make(tokenizer, reads="text").text_energies(["A sailor", text])
    cut = make(tokenizer, reads="text", long_texts="cut-left")
    ids = tokenizer(text)["input_ids"][-POSITIONS:]
    assert_close(cut.text_energies([text]), cut.energies(torch.tensor([ids]), torch.tensor([POSITIONS])))
    with pytest.raises(DataError, match="text 1 is empty"):
        cut.text_energies([""])


def test_energies_that_are_not_finite_are_an_error(tokenizer):
    energy = make(tokenizer)
    energy.network.head.bias.data.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"15 of 15 energies of test are not finite \(the first is nan\)"):
        energy.continuation_energies(*continuations())
    with pytest.raises(ModelError, match="not finite"):
        make(tokenizer, scale=float("inf")).text_energies(TEXTS)


def test_training_mode_is_refused(tokenizer):
    energy = make(tokenizer)
    energy.network.train()
    for read in (lambda: energy.text_energies(TEXTS), lambda: energy.continuation_energies(*continuations())):
        with pytest.raises(ModelError, match=r"training mode.*call \.eval\(\)"):
            read()
