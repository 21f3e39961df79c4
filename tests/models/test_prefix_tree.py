"""Scores over a tree of prefixes against plain reading, family by family, and the tree itself by hand."""

import pytest
import torch
import transformers

from energylm.config.models import RIGHT_TO_LEFT
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models import packed_passes, prefix_tree
from energylm.models.causal import CausalLanguageModel
from energylm.models.gated_convolution import GatedConvolutionConfig, GatedConvolutionLM
from energylm.models.packed import why_not_packed
from energylm.models.prefix_tree import PrefixTree, TreeBatch, tree_log_probs, why_not_prefix_tree
from energylm.models.shared_prefix import VERIFIED

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW, WIDTH = {"sliding_window": 4}, {"head_dim": 8}
FAMILIES = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24},
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES | WIDTH,
    "gpt_neox": {key: size for key, size in SIZES.items() if key != "num_key_value_heads"},
    "opt": {
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
        "max_position_embeddings": 24, "word_embed_proj_dim": 32,
    },
    "phi3": SIZES | WINDOW,
    "starcoder2": SIZES | WINDOW,
    "olmo2": SIZES,
    "mistral": SIZES | WINDOW | WIDTH,
    "gemma2": SIZES | WINDOW | WIDTH | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": SIZES | WINDOW | WIDTH | {"query_pre_attn_scalar": 8},
    "gpt_oss": SIZES | WINDOW | WIDTH | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": SIZES,  # not verified: compared on first use
}  # fmt: skip
STEM = [5, 17, 3, 44, 90, 8, 23]
LISTS = [
    [[*STEM, 61, 70], [*STEM, 61], [*STEM[:4], 9, 9, 9, 12], STEM, [*STEM, 61, 70], [7]],
    [[11, 2, 31], [11, 2, 32, 4]],
    [[13, 50, 6, 88, 29, 4, 77, 5, 5, 5, 5]],
]


def make_model(family: str, **options) -> CausalLanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
        network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in network.parameters():  # wide enough that attention is far from uniform
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(0.5, 0.3)
    return CausalLanguageModel(network.eval(), start_token_id=1, eos_token_id=2, **options)


def largest_gap(model: CausalLanguageModel, **options) -> float:
    """Between the tree and reading every sequence alone, with no padding."""
    gaps = []
    for sequences, over_tree in zip(LISTS, tree_log_probs(model, LISTS, **options), strict=True):
        for sequence, values_T in zip(sequences, over_tree, strict=True):
            plain_T = model.token_log_probs(torch.tensor([sequence]), torch.tensor([len(sequence)]))[0]
            assert values_T.shape == plain_T.shape
            gaps.append(float((values_T - plain_T).abs().max()))
    return max(gaps)


def test_a_tree_by_hand():
    """Start s; sequences ab, ac, abd, b. Read: s, sa, sab. Asked: s→a, sa→b, sa→c, sab→d, s→b."""
    tree = PrefixTree.of([[10, 11], [10, 12], [10, 11, 13], [11]], start_token_id=7)
    assert tree.token_N.tolist() == [7, 10, 11] and tree.parent_N.tolist() == [0, 0, 1]
    assert tree.depth_N.tolist() == [0, 1, 2]
    edges = list(zip(tree.edge_node_E.tolist(), tree.edge_token_E.tolist(), strict=True))
    assert edges == [(0, 10), (1, 11), (1, 12), (2, 13), (0, 11)]
    assert tree.paths == [[0, 1], [0, 2], [0, 1, 3], [4]]
    assert tree.ancestors().astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_every_verified_family_is_tested():
    assert set(FAMILIES) == VERIFIED | {"granite"}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_tree_scores_as_plain_reading_does(family):
    model = make_model(family)
    assert why_not_prefix_tree(model) is None
    assert largest_gap(model) < 1e-4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_packed_weights_read_trees_as_the_network_does(family, threads, monkeypatch):
    """Two trees of unequal size, shared out among threads. Teeth: nodes that see all others have other logits."""
    monkeypatch.setattr(packed_passes, "TOKENS_A_THREAD", 8)
    network = make_model(family).network
    assert why_not_packed(network) is None
    trees = [PrefixTree.of(sequences, start_token_id=1) for sequences in LISTS]
    batch = TreeBatch.of(trees, device=torch.device("cpu"))
    real_BN = torch.arange(batch.tokens_BN.shape[1]) < torch.tensor([tree.nodes for tree in trees])[:, None]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        own = prefix_tree.tree_logits(network, batch)[real_BN].detach()
        visible = (batch.visible_BNN, torch.ones_like(batch.visible_BNN))
        packed, wrong = (
            packed_passes.tree_logits(network, batch.tokens_BN, batch.depth_BN, each)[real_BN] for each in visible
        )
    finally:
        torch.set_num_threads(before)
    scale = float(own.abs().max())
    assert torch.allclose(packed, own, rtol=0, atol=1e-5 * scale) and (wrong - own).abs().max() > 1e-2 * scale


@pytest.mark.parametrize("logits_at_once", [1, 97 * 9, 97 * 12, 97 * 40])
def test_scores_do_not_depend_on_how_trees_are_cut_and_batched(logits_at_once):
    assert largest_gap(make_model("gpt2"), logits_at_once=logits_at_once) < 1e-4


def test_a_model_that_reads_from_the_right():
    assert largest_gap(make_model("llama", direction=RIGHT_TO_LEFT)) < 1e-4


def test_siblings_seen_are_noticed(monkeypatch):
    """Deliberate mistake: plain causal order in place of ancestry, so that one branch sees another."""

    def all_before(self):
        return torch.ones(self.nodes, self.nodes).tril().bool().numpy()

    monkeypatch.setattr(PrefixTree, "ancestors", all_before)
    assert largest_gap(make_model("gpt2")) > 0.1


def test_a_window_ignored_is_noticed(monkeypatch):
    """Deliberate mistake: the sliding window dropped."""
    monkeypatch.setattr(TreeBatch, "within", lambda self, window: self.visible_BNN)
    assert largest_gap(make_model("mistral")) > 0.01


def test_depth_taken_for_layout_is_noticed(monkeypatch):
    """Deliberate mistake: positions by place in the row, not by depth."""
    right = TreeBatch.of.__func__

    def by_place(cls, trees, *, device):
        batch = right(cls, trees, device=device)
        batch.depth_BN.copy_(torch.arange(batch.depth_BN.shape[1]).expand_as(batch.depth_BN))
        return batch

    monkeypatch.setattr(TreeBatch, "of", classmethod(by_place))
    assert largest_gap(make_model("gpt2")) > 0.1


def test_a_family_that_differs_is_found_out(monkeypatch):
    """An unverified family is compared: with siblings visible it must be refused."""
    monkeypatch.setattr(PrefixTree, "ancestors", lambda self: torch.ones(self.nodes, self.nodes).bool().numpy())
    assert why_not_prefix_tree(make_model("granite")) == "log-probabilities over a tree differ from plain ones"


def test_networks_without_the_attention_interface_say_why():
    network = GatedConvolutionLM(GatedConvolutionConfig(vocab_size=20, width=8, layers=2))
    reason = why_not_prefix_tree(CausalLanguageModel(network.eval(), start_token_id=0, eos_token_id=0))
    assert reason is not None and "attention interface" in reason
    assert "no start token" in why_not_prefix_tree(
        CausalLanguageModel(make_model("gpt2").network, start_token_id=None, eos_token_id=None)
    )


def test_mistakes_are_named():
    model = make_model("gpt2")
    with pytest.raises(ModelError, match="25 tokens is longer than the 24"):
        tree_log_probs(model, [[[5] * 25]])
    assert len(tree_log_probs(model, [[[5] * 24]])[0][0]) == 24  # the last token is scored, not read
    with pytest.raises(VocabularyMismatch, match="token id 97"):
        tree_log_probs(model, [[[5, 97]]])
    model.network.train()
    with pytest.raises(ModelError, match="training mode"):
        tree_log_probs(model, LISTS)


def test_nothing_in_nothing_out():
    model = make_model("gpt2")
    assert tree_log_probs(model, []) == [] and tree_log_probs(model, [[]]) == [[]]
    ((empty_T,),) = tree_log_probs(model, [[[]]])
    assert empty_T.shape == (0,)


def test_the_networks_own_attention_is_back_afterwards():
    model = make_model("gpt2")
    usual = model.network.config._attn_implementation
    tree_log_probs(model, LISTS)
    assert model.network.config._attn_implementation == usual != prefix_tree.ATTENTION_NAME
