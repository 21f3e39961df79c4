"""The LSTM encoder and decoder: steps against the fused pass, what a position may see, folders, a gradient."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

from energylm.contracts import Stepper
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig, register

VOCABULARY, SOURCE = 5, 9
LENGTHS = torch.tensor([4, 2, 3])


def build(**values):
    config = {"source_vocab_size": SOURCE, "vocab_size": VOCABULARY, "hidden_size": 6, "source_embedding_size": 4,
              "embedding_size": 3}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LSTMSeq2Seq(LSTMSeq2SeqConfig(**config | values)).double().eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn_like(parameter) / 2)
    return network


def sources():
    return torch.randint(SOURCE, (3, 4), generator=torch.Generator().manual_seed(1))


def targets():
    return torch.randint(VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(2))


SHAPES = [
    {"attention": attention, "bidirectional": both} for attention in ("fixed", "learned") for both in (True, False)
]


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_and_the_fused_pass_agree_with_gradients(shape):
    network = build(**shape)
    target_BT = targets()
    gradients = []
    for route in ("fused", "stepped"):
        if route == "fused":
            scores_BTV = network.scores(sources(), LENGTHS, target_BT)
        else:
            stepper = network.stepper(sources(), LENGTHS)
            assert isinstance(stepper, Stepper)
            state, inputs_BKE = stepper.start()
            steps = []
            for t in range(4):
                state, scores = stepper.step(state, inputs_BKE, position=t)
                steps.append(scores)
                inputs_BKE = network.embedding(target_BT[:, t : t + 1])
            scores_BTV = torch.cat(steps, 1)
        scores_BTV[:, -1].square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None})
        network.zero_grad()
        gradients.append(scores_BTV.detach())
    assert_close(gradients[1], gradients[3])
    assert_close(gradients[0], gradients[2])


def test_elements_of_a_beam_are_independent():
    network = build(attention="learned")
    stepper = network.stepper(sources(), LENGTHS)
    generator = torch.Generator().manual_seed(3)
    state = tuple(torch.randn(3, 2, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    inputs = torch.randn(3, 2, 3, dtype=torch.float64, generator=generator)
    _, together = stepper.step(state, inputs, position=1)
    for k in range(2):
        _, alone = stepper.step(tuple(s[:, k : k + 1] for s in state), inputs[:, k : k + 1], position=1)
        assert_close(together[:, k : k + 1], alone)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_is_not_seen(shape):
    network = build(**shape)
    source_BS, target_BT = sources(), targets()
    whole = network.scores(source_BS, LENGTHS, target_BT)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = network.scores(
            source_BS[row : row + 1, :length], LENGTHS[row : row + 1], target_BT[row : row + 1, :length]
        )
        assert_close(whole[row, :length], alone[0])


def sees(network, position):
    """Which source positions the scores at `position` depend on, by gradients of the embedded source."""
    seen = []
    network.source_embedding.register_forward_hook(lambda m, i, out: (out.retain_grad(), seen.append(out))[0])
    scores = network.scores(sources()[:1], LENGTHS[:1], targets()[:1])
    scores[0, position].sum().backward()
    return (seen[0].grad[0].abs().sum(-1) > 0).tolist()


def test_fixed_attention_controls_what_is_seen():
    """Unidirectional and fixed: x_1 … x_t and no more (goyal2021 §5.4.2). Bidirectional, or learned: everything."""
    assert sees(build(attention="fixed", bidirectional=False), 1) == [True, True, False, False]
    assert sees(build(attention="fixed", bidirectional=True), 1) == [True] * 4
    assert sees(build(attention="learned", bidirectional=False), 1) == [True] * 4


def test_a_tagger_starts_from_zeros_and_a_translator_from_its_source():
    (hidden, cell), _ = build(attention="fixed").stepper(sources(), LENGTHS).start()
    assert float(hidden.abs().max()) == float(cell.abs().max()) == 0
    (hidden, _), _ = build(attention="learned").stepper(sources(), LENGTHS).start()
    assert float(hidden.detach().abs().min()) > 0


def test_auto_classes_read_what_was_saved(tmp_path):
    register()
    network = build(attention="learned", eos_token_id=0).float()
    network.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(again, LSTMSeq2Seq) and again.config.eos_token_id == 0
    mask = (torch.arange(4) < LENGTHS[:, None]).long()
    labels = targets().masked_fill(mask == 0, -100)
    first, second = (each(input_ids=sources(), attention_mask=mask, labels=labels) for each in (network, again))
    assert_close((first.logits, first.loss), (second.logits, second.loss))
    with pytest.raises(ValueError, match="pass labels"):
        again(input_ids=sources())


def test_dropout_is_one_mask_for_all_steps_of_a_row():
    network = build(attention="fixed", dropout=0.5).train()
    stepper = network.stepper(sources(), LENGTHS)
    state, start = stepper.start()
    same = [stepper.step(state, start, position=0)[1] for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], network.stepper(sources(), LENGTHS).step(state, start, position=0)[1])


def test_cells_remember_at_first():
    fresh = LSTMSeq2Seq(LSTMSeq2SeqConfig(source_vocab_size=SOURCE, vocab_size=VOCABULARY, hidden_size=6))
    assert fresh.decoder.bias_ih_l0[6:12].eq(1).all() and fresh.decoder.bias_ih_l0[:6].eq(0).all()
    assert fresh.start_embedding.isfinite().all() and float(fresh.start_embedding.detach().abs().max()) > 0
