"""LanguageModel: scores against a plain forward pass, both directions, sampling, and the folder with its guards."""

import json
import math
import shutil

import pytest
import torch

from energylm import LanguageModel
from energylm.bundles.language_model import SampledTexts
from energylm.contracts import CausalModel as Contract
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network

TEXTS = ["The clerk counts the boats. ", "A sailor mends a letter — née 1900. "]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 20, vocabulary_size=290)


def make(tokenizer, direction="left-to-right", *, preset="tiny", vocabulary=None, start=0, eos=0):
    sizes = {"layers": 1, "width": 16} | ({"heads": 2} if preset == "tiny" else {"embedding_width": 8})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            preset, vocabulary_size=vocabulary or len(tokenizer), max_length=64, eos_token_id=0, overrides=sizes
        )
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    model = CausalLanguageModel(network.eval(), start_token_id=start, eos_token_id=eos, direction=direction)
    return LanguageModel(model, tokenizer, name="test", provenance={"origin": "a test"})


def forward_log_probs(model, reading):
    """Of reading[1:], from one plain forward pass over `reading`."""
    with torch.no_grad():
        log_prob = model.model.network(input_ids=torch.tensor([reading])).logits[0].log_softmax(-1)
    return [float(log_prob[t - 1, reading[t]]) for t in range(1, len(reading))]


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("prefix_tokens", [0, 3])
@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
def test_scores_of_strings(tokenizer, direction, prefix_tokens, eos):
    """A string is read after the start token, from its own end; EOS is read last; the prefix is read and not scored."""
    model = make(tokenizer, direction)
    assert isinstance(model, Contract)
    for text, score in zip(TEXTS, model.score(TEXTS, prefix_tokens=prefix_tokens, eos=eos), strict=True):
        ids = model.encode(text)
        reading = [0, *(ids if direction == "left-to-right" else ids[::-1]), *([0] if eos else [])]
        expected = forward_log_probs(model, reading)[prefix_tokens:]
        natural = expected if direction == "left-to-right" else expected[::-1]
        assert score.token_log_probs == pytest.approx(natural, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-4)
        assert score.tokens == len(expected) == len(ids) + eos - prefix_tokens
        given = ids[:prefix_tokens] if direction == "left-to-right" else ids[len(ids) - prefix_tokens :]
        assert score.bytes == len(text.encode()) - len(model.decode(given).encode())
        assert score.perplexity == pytest.approx(math.exp(-score.log_prob / score.tokens))
        assert score.to_json()["bits_per_byte"] == pytest.approx(-score.log_prob / math.log(2) / score.bytes)


def test_ids_are_taken_as_they_are(tokenizer):
    """No start token before ids that have a given prefix; teeth: a string with the same ids scores differently."""
    model = make(tokenizer)
    ids = model.encode(TEXTS[0])
    [of_ids], [of_text] = model.score([ids], prefix_tokens=2), model.score(TEXTS[0], prefix_tokens=2)
    assert of_ids.token_log_probs == pytest.approx(forward_log_probs(model, ids)[1:], abs=1e-5)
    assert of_ids.log_prob != pytest.approx(of_text.log_prob, abs=1e-3)
    assert model.score(ids)[0].log_prob == pytest.approx(model.score(TEXTS[0])[0].log_prob)


def test_perplexity_of_texts_and_windows(tokenizer):
    model = make(tokenizer)
    result, scores = model.perplexity(TEXTS), model.score(TEXTS)
    nats = -sum(score.log_prob for score in scores)
    assert result.value == pytest.approx(math.exp(nats / sum(score.tokens for score in scores)))
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / len("".join(TEXTS).encode()))
    assert "all tokens, after '<|endoftext|>'" in result.convention and "290 tokens" in result.convention
    windows = torch.tensor([model.encode(text)[:8] for text in TEXTS])
    of_windows = model.perplexity(windows, prefix_tokens=5)
    assert of_windows.tokens == 6 and "all tokens but the first 5, which are given, no" in of_windows.convention
    assert "which are given, after '<|endoftext|>'" in model.perplexity(TEXTS, prefix_tokens=2).convention
    assert of_windows.value == pytest.approx(model.perplexity(windows.numpy(), prefix_tokens=5).value)
    assert "last 5" in make(tokenizer, "right-to-left").convention(prefix_tokens=5)


@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
def test_samples_carry_the_log_probability_that_scoring_gives(tokenizer, direction, preset):
    """Two routes: what the sampler states for context + continuation, and the score of the whole minus the context."""
    model = make(tokenizer, direction, preset=preset)
    samples = model.sample(["The clerk", "A"], n=3, max_new_tokens=5, stop_at_eos=False, seed=1)
    drawn = samples.continuations
    assert drawn.tokens.shape == (2, 3, 5) and drawn.lengths.eq(5).all()
    for row, context in enumerate(samples.contexts):
        for copy in range(3):
            new = drawn.tokens[row, copy].tolist()
            whole = context + new if direction == "left-to-right" else new + context
            [score] = model.score([whole], prefix_tokens=len(context))
            assert float(drawn.log_prob[row, copy]) == pytest.approx(score.log_prob, abs=1e-4)
            # Teeth: read in the wrong order, the same tokens have another probability.
            [wrong] = model.score([whole[::-1]], prefix_tokens=len(context))
            assert float(drawn.log_prob[row, copy]) != pytest.approx(wrong.log_prob, abs=1e-3)
            assert samples.texts[row][copy] == model.decode(new) or "\ufffd" in model.decode(whole)


def test_truncation_and_seeds(tokenizer):
    model = make(tokenizer)
    options = {"n": 4, "max_new_tokens": 6, "stop_at_eos": False}
    narrow = model.sample("The", top_k=1, **options)
    assert len(set(narrow.texts[0])) == 1
    assert (narrow.continuations.proposal_log_prob == 0).all() and (narrow.continuations.log_prob < 0).all()
    first, again, other = (model.sample("The", seed=seed, **options) for seed in (1, 1, 2))
    assert first.texts == again.texts != other.texts
    assert len(list(first.rows())) == 4
    read_back = SampledTexts.from_json(json.loads(json.dumps(first.to_json())))
    assert list(read_back.rows()) == list(first.rows()) != list(other.rows())


def test_samples_end_with_eos_and_count_it(tokenizer):
    """EOS made the likeliest token: every sequence ends at once, counts one token and is scored with `eos`."""
    model = make(tokenizer)
    head = model.model.network.lm_head
    model.model.network.lm_head = torch.nn.Linear(head.in_features, head.out_features)
    model.model.network.lm_head.bias.data[0] = 100.0
    samples = model.sample("The", n=2, max_new_tokens=6)
    assert samples.continuations.lengths.tolist() == [[1, 1]] and samples.texts == [["", ""]]
    [score], [without] = model.score("The", eos=True), model.score("The")
    assert score.log_prob == pytest.approx(without.log_prob, abs=1e-4) and score.tokens == without.tokens + 1


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
def test_folder_round_trip(tokenizer, preset, tmp_path):
    model = make(tokenizer, "right-to-left", preset=preset, start=3, eos=4)
    model.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")  # replaces what it wrote itself
    again = LanguageModel.from_pretrained(tmp_path / "model")
    assert (again.model.direction, again.model.start_token_id, again.eos_token_id) == ("right-to-left", 3, 4)
    assert again.name == "test" and again.provenance["origin"] == "a test"
    assert again.model.network.dtype == torch.float32
    assert again.score(TEXTS) == model.score(TEXTS)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_transformers_works_too(tokenizer, tmp_path):
    """No manifest: start and end tokens come from the tokenizer; bfloat16 weights become float32 on a CPU."""
    model = make(tokenizer)
    model.model.network.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = LanguageModel.from_pretrained(str(tmp_path), device="cpu")
    assert again.model.network.dtype == torch.float32
    assert (again.model.start_token_id, again.eos_token_id) == (0, 0)
    with pytest.raises(ModelError, match=r"needs torch.float32"):
        LanguageModel.from_pretrained(tmp_path, device="cpu", dtype=torch.float16)


@pytest.fixture
def saved(tokenizer, tmp_path):
    make(tokenizer).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_flipped_byte_is_found(saved):
    weights = saved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ModelError, match=r"model.safetensors is damaged.*make it again"):
        LanguageModel.from_pretrained(saved)
    (saved / "energylm.json").unlink()  # teeth: nothing else notices
    LanguageModel.from_pretrained(saved)


def test_a_tokenizer_that_does_not_match_is_found(saved, tokenizer):
    bigger = train_tokenizer(["more words than these were never merged " * 3, *TEXTS * 20], vocabulary_size=294)
    bigger.save_pretrained(saved)
    with pytest.raises(VocabularyMismatch, match="/model: the tokenizer has 294 tokens but the network knows 290; put"):
        LanguageModel.from_pretrained(saved)
    with pytest.raises(VocabularyMismatch, match="290 tokens but the network knows 400"):
        make(tokenizer, vocabulary=400)
    assert make(tokenizer, vocabulary=304).vocabulary_size == 304  # rounded up to a multiple of 16


def test_incomplete_or_wrong_folders_are_named(saved, tmp_path):
    def broken(name):
        shutil.copytree(saved, tmp_path / name)
        return tmp_path / name

    without_tokenizer = broken("without-tokenizer")
    for file in without_tokenizer.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"without-tokenizer.*tokenizer\.json"):
        LanguageModel.from_pretrained(without_tokenizer)
    without_weights = broken("without-weights")
    (without_weights / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model.safetensors is missing"):
        LanguageModel.from_pretrained(without_weights)
    (without_weights / "energylm.json").unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors weights"):
        LanguageModel.from_pretrained(without_weights)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        LanguageModel.from_pretrained(tmp_path / "empty")
    garbage = broken("garbage")
    (garbage / "energylm.json").unlink()
    (garbage / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"garbage.*cannot be loaded"):
        LanguageModel.from_pretrained(garbage)


def test_encoders_are_refused(tokenizer, tmp_path):
    from transformers import BertConfig, BertForMaskedLM, BertModel

    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    for kind, words in ((BertModel, "lacks"), (BertForMaskedLM, "masked model")):
        folder = tmp_path / kind.__name__
        kind(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with pytest.raises(ModelError, match=f"{words}.*no causal language model"):
            LanguageModel.from_pretrained(folder)


def test_other_peoples_folders_are_not_replaced(tokenizer, tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ModelError, match="not a model folder of energylm"):
        make(tokenizer).save_pretrained(tmp_path)
    assert (tmp_path / "diary.txt").read_text() == "mine"


def test_mistakes_in_texts_are_named(tokenizer):
    model = make(tokenizer)
    assert model.score([]) == []
    with pytest.raises(DataError, match="text 2 has 0 tokens"):
        model.score(["A sailor", ""])
    with pytest.raises(DataError, match=r"text 1 has .* after a prefix of 50"):
        model.score(["A sailor"], prefix_tokens=50)
    with pytest.raises(DataError, match="all texts in one form"):
        model.score(["A sailor", [1, 2]])
    with pytest.raises(ModelError, match="longer than the 64 that the model holds"):
        model.score("x" * 100)
    with pytest.raises(ModelError, match="holds 64"):
        model.sample("x" * 60, max_new_tokens=40)
    endless = make(tokenizer, start=None, eos=None)
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        endless.sample("A", max_new_tokens=3)
    with pytest.raises(ModelError, match="no end-of-sequence token to count"):
        endless.score("A", eos=True)
    assert endless.score("A sailor", prefix_tokens=1)[0].tokens >= 1
    assert "first 1" in endless.convention(prefix_tokens=1)
