"""One-pass cloze models: folders that transformers reads, scores by another route, and what is refused."""

import json
from string import ascii_lowercase

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoModel,
    ElectraForPreTraining,
    ModernBertForTokenClassification,
    PreTrainedTokenizerFast,
)

from energylm.bundles.cloze_model import ELECTRA_TT, ELECTRIC, TWO_TOWER, ClozeModel, word_classes
from energylm.bundles.energy_model import EnergyModel
from energylm.config.models import TransformerShape
from energylm.config.pretrain import LocalTransformerShape
from energylm.data.tokenizer import load_tokenizer, plain_encoder
from energylm.energies.electric import IN_DICTIONARY, NO_WORD, ONCE, UNKNOWN, TokenEnergy
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models import two_tower
from energylm.models.cloze_presets import build_detector, build_encoder, build_two_tower, replaced_logits
from energylm.objectives.noised_tokens import detector_log_prob

MAIN = TransformerShape(layers=1, width=32, heads=2, dropout=0.0)
LOCAL = LocalTransformerShape(layers=2, width=32, heads=2, dropout=0.0)
SMALL = TransformerShape(layers=1, width=8, heads=1, dropout=0.0)
KINDS = [ELECTRIC, TWO_TOWER, ELECTRA_TT]
SHAPED_KINDS = [(kind, MAIN) for kind in KINDS] + [(ELECTRIC, LOCAL), (ELECTRA_TT, LOCAL)]
RATE = 0.15


@pytest.fixture(scope="module")
def make(corpus_folder):
    tokenizer = load_tokenizer(corpus_folder)
    sizes = {"vocabulary_size": len(tokenizer), "max_length": 20, "pad_token_id": tokenizer.pad_token_id}

    def build(kind, shape=MAIN, **options):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            noise = build_two_tower(SMALL, embedding_width=32, **sizes)
            if kind == ELECTRIC:
                main = TokenEnergy(build_encoder(shape, **sizes))
                with torch.no_grad():
                    main.head.weight.mul_(100)  # so that energies differ
            elif kind == ELECTRA_TT:
                main = build_detector(shape, **sizes)
            else:
                main, noise = build_two_tower(shape, **sizes), None
        rate = None if kind == TWO_TOWER else RATE
        values = {"noise": noise, "noise_rate": rate, "name": kind, "provenance": {"corpus": "made up"}}
        return ClozeModel(kind, main, tokenizer, **values | options)

    return build


@pytest.fixture(scope="module")
def sentences(corpus_folder):
    """(4, T) ids and (4,) lengths; the last holds a special token in the middle."""
    tokenizer = load_tokenizer(corpus_folder)
    texts = ["The clerk counts the boats.", "A sailor mends.", "Her", "The old miller"]
    rows = [torch.tensor(tokenizer(text)["input_ids"][:18]) for text in texts]
    rows[3] = torch.cat([rows[3][:2], torch.tensor([tokenizer.eos_token_id]), rows[3][2:]])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def framed(model, tokens, lengths, row):
    end = model.tokenizer.eos_token_id
    return torch.tensor([[end, *tokens[row, : int(lengths[row])].tolist(), end]])


@torch.no_grad()
@pytest.mark.parametrize(("kind", "shape"), SHAPED_KINDS)
def test_scores_are_what_the_networks_say_of_each_text_alone(make, sentences, kind, shape):
    """Row by row, framed by end-of-text and unpadded; special tokens 0; no dependence on padding or company."""
    model, (tokens, lengths) = make(kind, shape), sentences
    scores = model.token_scores(tokens, lengths)
    assert scores.shape == tokens.shape
    for row, length in enumerate(lengths.tolist()):
        x = framed(model, tokens, lengths, row)
        if kind == ELECTRIC:
            expected = -model.main(x)[0]
        else:
            log_q = (model.noise or model.main)(x).logits[0].log_softmax(-1)
            expected = log_q[torch.arange(length + 2), x[0]]
            if kind == ELECTRA_TT:
                expected = detector_log_prob(replaced_logits(model.main, x)[0], expected, rate=RATE)
        expected = expected[1:-1].where(tokens[row, :length] != model.tokenizer.eos_token_id, 0.0)
        assert_close(scores[row, :length], expected, atol=1e-4, rtol=1e-4)
        assert not scores[row, length:].any()
    assert float(scores[3, 2]) == 0 and float(scores[3, 3]) != 0
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    assert torch.equal(model.token_scores(torch.where(real, tokens, -1), lengths), scores)
    shuffled = torch.tensor([2, 0, 3, 1])
    assert_close(model.token_scores(tokens[shuffled], lengths[shuffled]), scores[shuffled], atol=1e-5, rtol=1e-5)
    # Teeth: without the frame the numbers are others, and padding would add to a sum.
    bare = make(kind, shape, framed=False)
    assert float((bare.token_scores(tokens, lengths) - scores).abs().max()) > 1e-3
    assert bare.max_tokens == model.max_tokens + 2 == 20


@torch.no_grad()
def test_a_two_towers_scores_are_normalised_and_an_electra_tts_nearly_so(make, sentences):
    """Every token of the vocabulary in one place: the exact probabilities add up to one."""
    tokens, lengths = sentences
    model = make(TWO_TOWER)
    ids = torch.tensor(sorted(set(range(300)) - set(model.tokenizer.all_special_ids)))
    copies = tokens[:1].repeat(len(ids), 1)
    copies[:, 2] = ids
    total = model.token_scores(copies, lengths[:1].expand(len(ids)))[:, 2].exp().sum()
    assert 0.9 < float(total) < 1.0  # special tokens have the rest
    x = framed(model, tokens, lengths, 0)
    special = model.main(x).logits[0, 3].softmax(-1)[model.tokenizer.all_special_ids].sum()
    assert float(total + special) == pytest.approx(1, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "shape"), SHAPED_KINDS)
def test_what_is_saved_is_what_is_loaded(make, sentences, kind, shape, tmp_path):
    model = make(kind, shape)
    model.save_pretrained(tmp_path / "model")
    again = ClozeModel.from_pretrained(tmp_path / "model")
    assert (again.kind, again.name, again.noise_rate) == (kind, kind, model.noise_rate)
    assert again.provenance["corpus"] == "made up" and again.max_tokens == 18
    assert torch.equal(again.token_scores(*sentences), model.token_scores(*sentences))
    again.save_pretrained(tmp_path / "model")  # over itself
    assert (tmp_path / "model" / "noise").is_dir() == (kind != TWO_TOWER)


COUNTS = {"clerk": 1, "sailor": 2, "the": 900, "boats": 7, "mends": 4}


def wordpiece():
    """Letters that begin a word and letters that continue one, in lower case, and a mark that cuts words."""
    pieces = [
        "[UNK]",
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "'",
        *(mark + letter for mark in ("", "##") for letter in ascii_lowercase),
    ]
    backend = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@pytest.mark.parametrize("kind", ["byte-level", "wordpiece"])
def test_words_have_the_classes_of_their_counts(corpus_folder, kind):
    """Of whole texts, each word by the tokens that write it; "clerks" is none, though all its pieces are known."""
    tokenizer = wordpiece() if kind == "wordpiece" else load_tokenizer(corpus_folder)
    words = word_classes(tokenizer, COUNTS, embedding=nn.Embedding(len(tokenizer) + 9, 4), english=False)
    text = "The clerk mends the clerks SAILOR boats the"
    encoded = plain_encoder(tokenizer).encode(text, add_special_tokens=False)
    [classes] = words.classes(torch.tensor([encoded.ids])).tolist()
    found = [
        {each for each, index in zip(classes, encoded.word_ids, strict=True) if index == word} for word in range(8)
    ]
    assert found == [{12}, {3}, {5}, {12}, {UNKNOWN}, {4}, {5}, {12}]
    for token in (tokenizer.all_special_ids[0], len(tokenizer) + 8):  # networks have rows that no token names
        assert int(words.classes(torch.tensor([[token]]))) == NO_WORD


def test_the_dictionary_and_marks_within_words(tmp_path):
    """English words of which the text has none; parts of "don't" count for themselves, as the tokenizer cuts them."""
    (tmp_path / "text.txt").write_text("don't, don't don't: sailor")
    tokenizer = wordpiece()
    words = word_classes(tokenizer, tmp_path / "text.txt", embedding=nn.Embedding(len(tokenizer), 4))

    def classes(text):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        return words.classes(torch.tensor([ids]))[0].tolist()

    assert set(classes("harbour")) == {IN_DICTIONARY} and set(classes("zqxv")) == {UNKNOWN}
    assert classes("don't") == [ONCE + 1] * 5 and classes("sailor") == [ONCE] * 6


def test_tokenizers_that_mark_no_words_are_refused():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    with pytest.raises(ModelError, match="does not mark where words begin"):
        word_classes(
            PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="a"), COUNTS, embedding=nn.Embedding(2, 4)
        )


@torch.no_grad()
def test_word_classes_are_saved_and_read_on_every_path(make, sentences, tmp_path, capsys):
    """The packed pass, the network's own, and the folder's say the same; who starts from the encoder alone is told."""
    model = make(ELECTRIC)
    plain = model.token_scores(*sentences)
    embedding = model.main.encoder.get_input_embeddings()
    model.main.words = word_classes(model.tokenizer, COUNTS, embedding=embedding, english=False)
    assert torch.equal(model.token_scores(*sentences), plain)  # all classes are 0 yet
    model.main.words.embedding.weight.normal_(generator=torch.Generator().manual_seed(0))
    read = model.token_scores(*sentences)
    tokens, lengths = sentences
    for row, length in enumerate(lengths.tolist()):
        own = -model.main(framed(model, tokens, lengths, row))[0, 1:-1]
        special = tokens[row, :length] == model.tokenizer.eos_token_id
        assert_close(read[row, :length], own.masked_fill(special, 0.0), atol=1e-5, rtol=1e-5)
    assert float((read - plain).abs().max()) > 0.1
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(ClozeModel.from_pretrained(tmp_path / "model").token_scores(*sentences), read)
    assert "left out" not in capsys.readouterr().err
    EnergyModel.from_encoder(tmp_path / "model", kind="bit")
    assert "reads how common words are; that is left out here" in capsys.readouterr().err
    file = tmp_path / "model" / "words.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"words\.safetensors is damaged"):
        ClozeModel.from_pretrained(tmp_path / "model")


def test_a_folder_knows_whether_texts_are_framed(make, tmp_path):
    """Noise and main network alike; whoever loads it may say otherwise."""
    make(ELECTRA_TT, framed=False).save_pretrained(tmp_path)
    assert [ClozeModel.from_pretrained(tmp_path / part).max_tokens for part in ("", "noise")] == [20, 20]
    assert ClozeModel.from_pretrained(tmp_path, framed=True).max_tokens == 18


@torch.no_grad()
@pytest.mark.parametrize(("kind", "shape"), SHAPED_KINDS)
def test_transformers_reads_the_encoder(make, sentences, kind, shape, tmp_path):
    """AutoModel gives the states that the score is made of; ELECTRA's own class its logits."""
    model, (tokens, _) = make(kind, shape), sentences
    model.save_pretrained(tmp_path)
    two_tower.register()
    states = AutoModel.from_pretrained(tmp_path)(tokens[:1]).last_hidden_state
    if kind == ELECTRIC:
        assert_close(states @ model.main.head.weight[0] + model.main.head.bias, model.main(tokens[:1]))
    elif kind == TWO_TOWER:
        assert torch.equal(states, model.main.towers(tokens[:1]).last_hidden_state)
    else:
        assert torch.equal(states, model.main.base_model(tokens[:1]).last_hidden_state)
        detector_class = ModernBertForTokenClassification if shape is LOCAL else ElectraForPreTraining
        assert torch.equal(detector_class.from_pretrained(tmp_path)(tokens).logits, model.main(tokens).logits)
    energy = EnergyModel.from_encoder(tmp_path, kind="bit")  # and an energy can start from it
    assert energy.network.encoder.config.hidden_size == states.shape[-1]


def test_the_noise_model_is_a_model_of_its_own(make, sentences, tmp_path):
    model = make(ELECTRA_TT)
    model.save_pretrained(tmp_path)
    noise = ClozeModel.from_pretrained(tmp_path / "noise")
    tokens, lengths = sentences
    assert noise.kind == TWO_TOWER
    with torch.no_grad():
        log_q = model.noise(framed(model, tokens, lengths, 0)).logits[0].log_softmax(-1)
    first = int(tokens[0, 0])
    assert_close(noise.token_scores(tokens[:1], lengths[:1])[0, 0], log_q[1, first], atol=1e-5, rtol=1e-5)


def test_empty_batches_and_empty_texts(make):
    model = make(ELECTRIC)
    assert model.token_scores(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    scores = model.token_scores(torch.tensor([[7, 8], [7, 8]]), torch.tensor([0, 2]))
    assert not scores[0].any() and bool(scores[1].all())


def test_sequences_that_cannot_be_read_are_named(make):
    model = make(ELECTRIC)
    with pytest.raises(ModelError, match=r"sequence 2 has 19 tokens but electric holds 18 \(1 of 2 are too long\)"):
        model.token_scores(torch.full((2, 19), 7), torch.tensor([18, 19]))
    with pytest.raises(VocabularyMismatch, match=r"token id 300 came but electric knows ids 0 to 299"):
        model.token_scores(torch.tensor([[300]]), torch.tensor([1]))
    with pytest.raises(ModelError, match="scores with its noise model"):
        make(ELECTRA_TT, noise=None)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("electra", "pretrain electra-tt to score text"),
        ("masked-lm", "a pass for each token"),
        ("language-model", "it is causal"),
        ("energy", "energylm pretrain electric"),
    ],
)
def test_other_models_are_refused_with_the_cure(make, kind, said, tmp_path):
    make(TWO_TOWER).save_pretrained(tmp_path)
    manifest = json.loads((tmp_path / "energylm.json").read_text())
    (tmp_path / "energylm.json").write_text(json.dumps(manifest | {"kind": kind}))
    with pytest.raises(ModelError, match=said) as raised:
        ClozeModel.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_damaged_part_is_named(make, tmp_path):
    make(ELECTRA_TT).save_pretrained(tmp_path)
    file = tmp_path / "noise" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"noise/model\.safetensors is damaged"):
        ClozeModel.from_pretrained(tmp_path)
