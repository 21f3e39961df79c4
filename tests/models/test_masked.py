"""Masked networks as conditionals: the same logits by the long way (every copy alone, all positions, no padding)."""

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from energylm.contracts import MaskedModel
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models import contexts
from energylm.models.masked import MaskedNetwork

V, MASK = 23, 2
SHAPE = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
}
FAMILIES = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SHAPE)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SHAPE, pad_token_id=1)),
    "electra": lambda: ElectraForMaskedLM(ElectraConfig(**SHAPE, embedding_size=8)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**SHAPE, embedding_size=8)),
    "distilbert": lambda: DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=V, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=20)
    ),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**SHAPE, pad_token_id=0, bos_token_id=3, eos_token_id=4, cls_token_id=3, sep_token_id=4)
    ),
}


def network_of(family: str) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FAMILIES[family]().eval()
    for weight in network.parameters():
        if weight.dim() > 1:
            weight.data *= 8  # as they start, weights are so small that contexts hardly matter
    return network


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_hidden_positions_are_those_of_each_copy_read_alone(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(family)
    model = MaskedNetwork(network, mask_token_id=MASK, prefix=(3,), suffix=(4, 5))
    assert isinstance(model, MaskedModel)
    monkeypatch.setattr(contexts, "CPU_ACTIVATION_BYTES", 16 * 16 * 20)  # 20 tokens at once: several micro-batches
    generator = torch.Generator().manual_seed(1)
    tokens_RT = torch.randint(6, V, (5, 7), generator=generator)
    lengths_R = torch.tensor([7, 3, 5, 7, 1])
    real_RT = torch.arange(7) < lengths_R[:, None]
    hidden_RT = (torch.rand(5, 7, generator=generator) < 0.5) & real_RT
    hidden_RT[4, 0] = True
    expected = []
    for tokens_T, length, hidden_T in zip(tokens_RT, lengths_R.tolist(), hidden_RT, strict=True):
        row = tokens_T[:length].masked_fill(hidden_T[:length], MASK).tolist()
        ids = torch.tensor([[3, *row, 4, 5]])
        with torch.no_grad():
            logits_SV = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        expected += [logits_SV[1 + place] for place in range(length) if hidden_T[place]]
    # What stands in the padding must not matter.
    found_NV = model.masked_logits(tokens_RT.masked_fill(~real_RT, 22), lengths_R, hidden_RT)
    torch.testing.assert_close(found_NV, torch.stack(expected), atol=1e-5, rtol=1e-5)
    with_padding_read = model.masked_logits(tokens_RT, torch.full((5,), 7), hidden_RT)
    assert (found_NV - with_padding_read).abs().max() > 1e-3  # the check sees a forgotten mask


def test_logits_of_given_sequences_leave_the_frame_out() -> None:
    network = network_of("bert")
    model = MaskedNetwork(network, mask_token_id=MASK, prefix=(3,), suffix=(4,))
    tokens_BT, lengths_B = torch.tensor([[7, MASK, 9], [8, MASK, 0]]), torch.tensor([3, 2])
    logits_BTV = model.logits(tokens_BT, lengths_B)
    assert logits_BTV.shape == (2, 3, V)
    hidden_BT = tokens_BT == MASK
    torch.testing.assert_close(logits_BTV[hidden_BT], model.masked_logits(tokens_BT, lengths_B, hidden_BT))


def test_sequences_that_the_network_cannot_read_are_refused() -> None:
    model = MaskedNetwork(network_of("roberta"), mask_token_id=MASK, prefix=(3,), suffix=(4,))
    assert model.max_tokens == 20 - 2 - 2  # RoBERTa reserves padding index + 1 positions; the frame takes two
    ones_1T = torch.ones(1, 17, dtype=torch.int64)
    with pytest.raises(ModelError, match="17 tokens is longer than the 16"):
        model.masked_logits(ones_1T, torch.tensor([17]), ones_1T == 1)
    with pytest.raises(VocabularyMismatch, match="to 99"):
        model.masked_logits(torch.tensor([[99]]), torch.tensor([1]), torch.tensor([[True]]))
    model.network.train()
    with pytest.raises(ModelError, match="training mode"):
        model.logits(torch.tensor([[1]]), torch.tensor([1]))
