"""The conditional masked network: what a position may see, padding, shared sources, the law of lengths, folders."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

from energylm.contracts import MaskedModel
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.models import contexts
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM, View, register
from energylm.models.masked import ConditionalMaskedNetwork

V, MASK, LONGEST = 19, 2, 12
SOURCES = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]


def build(**values: object) -> ConditionalMaskedLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ConditionalMaskedConfig(
            vocab_size=V,
            hidden_size=12,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=LONGEST,
            reach=4,
            **values,
        )
        network = ConditionalMaskedLM(config).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)  # nothing at its neutral start
    return network


NETWORK = build()
MODEL = ConditionalMaskedNetwork(NETWORK, SOURCES, mask_token_id=MASK)
TOKENS_RT = torch.randint(3, V, (4, 6), generator=torch.Generator().manual_seed(1))
LENGTHS_R, SOURCE_R = torch.tensor([6, 4, 2, 5]), torch.tensor([1, 0, 2, 0])
REAL_RT = torch.arange(6) < LENGTHS_R[:, None]
HIDDEN_RT = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]) == 1


def masked_logits(model: ConditionalMaskedNetwork = MODEL, tokens_RT: torch.Tensor = TOKENS_RT) -> torch.Tensor:
    return model.masked_logits(tokens_RT, LENGTHS_R, HIDDEN_RT, source_R=SOURCE_R)


def test_a_hidden_token_never_leaks_and_every_other_token_is_seen() -> None:
    """Other tokens at the hidden positions change nothing, not a bit; a visible token, of whichever side, does."""
    assert isinstance(MODEL, MaskedModel)
    before_NV = masked_logits()
    other_RT = torch.where(HIDDEN_RT, (TOKENS_RT - 3 + 5) % (V - 3) + 3, TOKENS_RT)
    assert (other_RT != TOKENS_RT).sum() == HIDDEN_RT.sum()
    assert torch.equal(masked_logits(tokens_RT=other_RT), before_NV)
    unhidden_NV = NETWORK.logits_at(other_RT, LENGTHS_R, HIDDEN_RT, MODEL.memory, source_R=SOURCE_R)
    seen_NV = NETWORK.logits_at(TOKENS_RT, LENGTHS_R, HIDDEN_RT, MODEL.memory, source_R=SOURCE_R)
    assert (unhidden_NV - seen_NV).abs().max() > 1e-2  # teeth: tokens that were not hidden would be seen
    hidden_1T = torch.arange(6)[None] == 3
    for place in (0, 1, 2, 4, 5):
        changed_1T = TOKENS_RT[:1].clone()
        changed_1T[0, place] = 3 if TOKENS_RT[0, place] != 3 else 4
        rows = [
            MODEL.masked_logits(tokens, LENGTHS_R[:1], hidden_1T, source_R=SOURCE_R[:1])
            for tokens in (TOKENS_RT[:1], changed_1T)
        ]
        assert (rows[0] - rows[1]).abs().max() > 1e-4
    for place in range(len(SOURCES[0])):  # and so does every token of the source
        sources = [[*SOURCES[0][:place], 18, *SOURCES[0][place + 1 :]], *SOURCES[1:]]
        found_NV = masked_logits(ConditionalMaskedNetwork(NETWORK, sources, mask_token_id=MASK))
        of_row_N = HIDDEN_RT.nonzero()[:, 0]
        reads_it_N = SOURCE_R[of_row_N] == 0
        assert (found_NV - before_NV)[reads_it_N].abs().max() > 1e-4
        assert torch.equal(found_NV[~reads_it_N], before_NV[~reads_it_N])


@pytest.mark.parametrize("budget", [16 << 20, 16 * 12 * 8])  # all rows at once, or a few of like length
def test_padding_of_either_side_never_matters(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "CPU_ACTIVATION_BYTES", budget)
    expected = []
    for tokens_T, length, hidden_T, source in zip(TOKENS_RT, LENGTHS_R.tolist(), HIDDEN_RT, SOURCE_R, strict=True):
        alone = ConditionalMaskedNetwork(NETWORK, [SOURCES[int(source)]], mask_token_id=MASK)
        row = (tokens_T[None, :length], torch.tensor([length]), hidden_T[None, :length])
        expected.append(alone.masked_logits(*row))
    expected_NV = torch.cat(expected)
    garbage_RT = torch.where(REAL_RT, TOKENS_RT, 7)
    assert_close(masked_logits(tokens_RT=garbage_RT), expected_NV, atol=1e-5, rtol=1e-5)
    padding_read_NV = MODEL.masked_logits(TOKENS_RT, torch.full((4,), 6), HIDDEN_RT, source_R=SOURCE_R)
    assert (padding_read_NV - expected_NV).abs().max() > 1e-3
    lengths_B = torch.tensor([7, 2, 4])
    padded_BS = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in SOURCES], batch_first=True)
    memory = NETWORK.encode(padded_BS.masked_fill(torch.arange(7) >= lengths_B[:, None], 18), lengths_B)
    for number, ids in enumerate(SOURCES):
        alone = NETWORK.encode(torch.tensor([ids]), torch.tensor([len(ids)]))
        assert_close(memory.states_BSD[number, : len(ids) + 1], alone.states_BSD[0], atol=1e-5, rtol=1e-5)
    source_padding_read = NETWORK.encode(padded_BS, torch.full((3,), 7))
    assert (source_padding_read.states_BSD[1, :3] - memory.states_BSD[1, :3]).abs().max() > 1e-3


def test_the_last_layer_at_chosen_positions_is_the_whole_layer_with_gradients() -> None:
    """Two routes: only the hidden positions ask in the last layer, or all do and the hidden ones are picked."""
    network = build().double()
    inputs_RT = TOKENS_RT.masked_fill(HIDDEN_RT, MASK)
    gradients = []
    for chosen_RT in (HIDDEN_RT, torch.ones_like(HIDDEN_RT)):
        memory = network.encode(torch.tensor([SOURCES[0]]).expand(4, -1), torch.full((4,), 7))
        logits_NV = network.logits_at(inputs_RT, LENGTHS_R, chosen_RT, memory)
        if chosen_RT is not HIDDEN_RT:
            logits_NV = logits_NV.view(4, 6, V)[HIDDEN_RT]
        gradients.append((logits_NV, torch.autograd.grad(logits_NV.square().sum(), network.embedding.weight)[0]))
    for few, all_of_them in zip(*gradients, strict=True):
        assert_close(few, all_of_them, atol=1e-10, rtol=1e-10)


def test_distances_by_hand() -> None:
    """Target of 2, source of 4: half a position of the target is a whole one of the source, so target 0 lies at
    0.5 · 2 − 0.5 = 0.5 (to even: 0) and target 1 at 2.5 (2); the length's own position stands before the source."""
    view = View.of(torch.tensor([2]), torch.tensor([4]), target=3, source=6)
    assert view.source_distance_RQS[0, :2].tolist() == [[1, 0, -1, -2, -3, -4], [3, 2, 1, 0, -1, -2]]
    assert view.source_real_RS.tolist() == [[True] * 5 + [False]]
    assert view.target_distance_RQT[0].tolist() == [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
    chosen, meant = view.at_chosen(torch.tensor([[False, True, False]]))
    assert chosen.target_distance_RQT.tolist() == [[[1, 0, -1]]] and meant.tolist() == [[True]]


@torch.no_grad()
def test_lengths_follow_a_law_of_their_own() -> None:
    """log P(T) = score(T − S) − log Σ_T' exp score(T' − S): a head that prefers offset +2 adds 2 to every length."""
    probability_BL = NETWORK.length_log_probs(MODEL.memory).exp()
    assert probability_BL.shape == (3, LONGEST)
    assert_close(probability_BL.sum(1), torch.ones(3))
    scores_BO = NETWORK.length_head(MODEL.memory.states_BSD[:, 0])
    for number, source in enumerate((7, 2, 4)):
        scores_L = torch.stack([scores_BO[number, target - source + LONGEST] for target in range(1, LONGEST + 1)])
        assert_close(probability_BL[number], scores_L.softmax(0))
        assert MODEL.likely_lengths(4)[number] == (scores_L.argsort(descending=True)[:4] + 1).tolist()
    network = build()
    network.length_head.weight.data.zero_()
    network.length_head.bias.data = -(torch.arange(-LONGEST, LONGEST + 1) - 2.0).abs()
    assert ConditionalMaskedNetwork(network, SOURCES, mask_token_id=MASK).likely_lengths(1) == [[9], [4], [6]]
    with pytest.raises(ModelError, match="13 lengths came but targets have at most 12 tokens"):
        MODEL.likely_lengths(13)


def test_a_folder_and_the_plain_forward_pass(tmp_path: object) -> None:
    register()
    NETWORK.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ids_BS, masks_BS = torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    targets_BT = torch.tensor([[3, MASK, 4, 0], [MASK, 5, 6, 7]])
    target_masks_BT = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    with torch.no_grad():
        logits_BTV = again.eval()(ids_BS, targets_BT, masks_BS, target_masks_BT).logits
        unpadded_BTV = again(ids_BS[1:], targets_BT[1:]).logits
    model = ConditionalMaskedNetwork(NETWORK, [[5, 6], [7, 8, 9]], mask_token_id=MASK)
    assert_close(model.logits(targets_BT, torch.tensor([3, 4])), logits_BTV, atol=1e-5, rtol=1e-5)
    assert_close(logits_BTV[1:], unpadded_BTV, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(DataError, match="source 2 has 13 tokens but the model holds 12"):
        ConditionalMaskedNetwork(NETWORK, [[5], [5] * 13], mask_token_id=MASK)
    with pytest.raises(DataError, match="source 1 is empty; leave it out"):
        ConditionalMaskedNetwork(NETWORK, [[]], mask_token_id=MASK)
    ones_1T = torch.ones(1, 13, dtype=torch.int64)
    with pytest.raises(ModelError, match="13 tokens is longer than the 12"):
        MODEL.masked_logits(ones_1T, torch.tensor([13]), ones_1T == 1, source_R=torch.tensor([0]))
    with pytest.raises(VocabularyMismatch, match="to 99"):
        MODEL.masked_logits(99 * ones_1T[:, :1], torch.tensor([1]), ones_1T[:, :1] == 1, source_R=torch.tensor([0]))
    with pytest.raises(ModelError, match="4 targets came for 3 sources"):
        MODEL.masked_logits(TOKENS_RT, LENGTHS_R, HIDDEN_RT)
    with pytest.raises(ModelError, match="training mode"):
        ConditionalMaskedNetwork(build().train(), SOURCES, mask_token_id=MASK)
