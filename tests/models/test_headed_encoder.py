"""Heads on encoders: pooling and joint ends by hand, padding without effect, Auto classes, layer-wise decay."""

import pytest
import torch
from torch.nn.functional import gelu
from torch.testing import assert_close
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, BertConfig, BertModel

from energylm.config.pretrain import masked_preset_shape
from energylm.models import headed_encoder
from energylm.models.cloze_presets import build_encoder, build_two_tower
from energylm.models.headed_encoder import SequenceClassifier, SpanPredictor
from energylm.training.optimizer import layer_multipliers

SIZES = {"vocabulary_size": 50, "max_length": 24, "pad_token_id": 1}
IDS = torch.randint(5, 50, (3, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 8, [1] * 5 + [0] * 3, [1] * 8])


def bert(layers=2):
    shape = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 24}
    return BertModel(BertConfig(vocab_size=50, num_hidden_layers=layers, **shape), add_pooling_layer=False)


def local(layers=2):
    shape = masked_preset_shape("bit-local-tiny", {"width": 32, "heads": 2, "layers": layers})
    return build_encoder(shape, **SIZES)


def electra(layers=2):
    return build_encoder(masked_preset_shape("bit-tiny", {"width": 32, "heads": 2, "layers": layers}), **SIZES)


def two_tower(layers=2):
    shape = masked_preset_shape("bit-tiny", {"width": 16, "heads": 2, "layers": layers})
    return build_two_tower(shape, **SIZES).towers


ENCODERS = {"bert": bert, "local": local, "electra": electra, "two-tower": two_tower}


@pytest.fixture(params=ENCODERS)
def encoder(request):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return ENCODERS[request.param]().eval()


@torch.no_grad()
def test_pooling_by_hand_and_padding_without_effect(encoder):
    for pooling in ("first", "mean"):
        network = SequenceClassifier.of(encoder, num_labels=3, pooling=pooling).eval()
        states_BTD = encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state
        rows = [row[:length] for row, length in zip(states_BTD, MASK.sum(1).tolist(), strict=True)]
        pooled_BD = torch.stack([row[0] if pooling == "first" else row.mean(0) for row in rows])
        logits_BC = network(IDS, MASK).logits
        assert_close(logits_BC, pooled_BD @ network.classifier.weight.T + network.classifier.bias)
        assert_close(logits_BC[1:2], network(IDS[1:2, :5]).logits, atol=1e-5, rtol=1e-4)
        # Teeth: the mean over padding, too, is another number.
        if pooling == "mean":
            wrong = network(IDS[1:2], torch.ones_like(MASK[1:2])).logits
            assert (wrong - logits_BC[1:2]).abs().max() > 1e-4


@torch.no_grad()
def test_ends_are_the_formula_and_see_the_start(encoder):
    network = SpanPredictor.of(encoder, span_width=16).eval()
    context = torch.zeros_like(MASK, dtype=torch.bool)
    context[:, 2:5] = True
    reading = network.read(IDS, MASK, context_mask=context)
    assert_close(reading.start_log_prob_BT.exp().sum(-1), torch.ones(3))
    assert (reading.start_log_prob_BT[:, [0, 1, 5, 6, 7]] == -torch.inf).all()
    starts_BK = torch.tensor([[2, 4], [3, 3], [4, 2]])
    found_BKT = network.end_log_probs(reading, starts_BK)
    h_BTD = reading.states_BTD
    for row, column in ((0, 1), (2, 0)):
        joined = torch.cat([h_BTD[row, 2:5], h_BTD[row, starts_BK[row, column]].expand(3, -1)], dim=-1)
        expected = network.end(gelu(network.end_hidden(joined)))[:, 0].log_softmax(0)
        assert_close(found_BKT[row, column, 2:5], expected, atol=1e-5, rtol=1e-4)
    assert (found_BKT[0, 0, 2:5] - found_BKT[0, 1, 2:5]).abs().max() > 1e-6
    alone = network.read(IDS[1:2, :5], context_mask=context[1:2, :5])
    assert_close(alone.no_answer_log_odds_B, reading.no_answer_log_odds_B[1:2], atol=1e-5, rtol=1e-4)


def test_auto_classes_load_what_was_saved(encoder, tmp_path):
    headed_encoder.register()
    for network, auto in (
        (SequenceClassifier.of(encoder, num_labels=3, pooling="mean"), AutoModelForSequenceClassification),
        (SpanPredictor.of(encoder, span_width=16), AutoModelForQuestionAnswering),
    ):
        folder = tmp_path / auto.__name__
        network.eval().save_pretrained(folder)
        loaded, loading = auto.from_pretrained(folder, output_loading_info=True)
        assert not loading["missing_keys"] and not loading["unexpected_keys"]
        with torch.no_grad():
            pairs = zip(network(IDS, MASK).to_tuple(), loaded.eval()(IDS, MASK).to_tuple(), strict=True)
            assert all(torch.equal(before, after) for before, after in pairs)


def test_a_head_depends_on_the_seed_alone_and_the_encoder_is_taken_over():
    def head(encoder, seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = SequenceClassifier.of(encoder, num_labels=2)
        assert network.encoder is encoder
        return network.classifier.weight

    first, second = bert(1), bert(2)
    assert torch.equal(head(first, 0), head(first, 0)) and not torch.equal(head(first, 0), head(first, 1))
    assert torch.equal(head(first, 0), head(second, 0))  # whatever the encoder's own first weights took


@pytest.mark.parametrize("family", ["bert", "local", "electra"])
def test_layer_wise_decay_by_hand(family):
    """Three layers at 0.8: head 1, the upper layer 0.8, then 0.64, 0.512, embeddings 0.8⁴ = 0.4096."""
    network = SequenceClassifier.of(ENCODERS[family](3), num_labels=2)
    shares = layer_multipliers([name for name, _ in network.named_parameters()], layer_decay=0.8)
    for name, share in shares.items():
        expected = 1.0
        if "embeddings" in name:
            expected = 0.4096
        for layer, at_layer in enumerate((0.512, 0.64, 0.8)):
            if f"layer.{layer}." in name or f"layers.{layer}." in name:
                expected = at_layer
        assert share == pytest.approx(expected), name
    assert {round(share, 4) for share in shares.values()} == {1.0, 0.8, 0.64, 0.512, 0.4096}
    assert shares["classifier.weight"] == 1.0
