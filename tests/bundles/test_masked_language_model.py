"""The one way to load a masked language model: text, frame, and everything that is no masked language model."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from energylm.bundles.masked_language_model import MaskedLanguageModel, save_masked_language_model
from energylm.errors import ModelError

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sailor", "mends", "a", "boat")


def word_tokenizer(*, framed: bool, mask: bool = True) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if mask:
        names["mask_token"] = "[MASK]"
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def small_bert(network_class: type = BertForMaskedLM) -> BertForMaskedLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=12,
        )
        return network_class(config).eval()


def saved(folder: Path, network: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> Path:
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("framed", "frame"), [(True, (3,)), (False, ())])
def test_our_own_folders_say_whether_texts_are_framed(tmp_path: Path, framed: bool, frame: tuple[int, ...]) -> None:
    """Where the tokenizer frames nothing; the token that ends documents is [SEP] here."""
    network, tokenizer = small_bert(), word_tokenizer(framed=False)
    save_masked_language_model(network, tokenizer, tmp_path / "own", name="own", framed=framed, provenance={})
    model = MaskedLanguageModel.from_pretrained(tmp_path / "own")
    assert (model.model.prefix, model.model.suffix, model.name) == (frame, frame, "own")
    tokens_1T = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        read = network(input_ids=torch.tensor([[*frame, 5, 4, 7, *frame]])).logits[0, 1 + len(frame)]
    torch.testing.assert_close(model.masked_logits(tokens_1T, torch.tensor([3]), tokens_1T == 6)[0], read)


def test_a_bert_folder_keeps_its_frame_and_speaks_text(tmp_path: Path) -> None:
    network = small_bert()
    model = MaskedLanguageModel.from_pretrained(saved(tmp_path / "bert", network, word_tokenizer(framed=True)))
    assert model.encode("the sailor mends") == [5, 6, 7]
    assert model.decode([2, 5, 6, 3]) == "the sailor"
    assert (model.model.prefix, model.model.suffix) == ((2,), (3,))
    assert model.max_tokens == 10 and model.mask_token_id == 4 and model.vocabulary_size == 10
    assert model.ordinary_V.tolist() == [False] * 5 + [True] * 5
    with torch.no_grad():
        expected_V = network(input_ids=torch.tensor([[2, 5, 4, 7, 3]])).logits[0, 2]
    tokens_1T = torch.tensor([[5, 6, 7]])
    found_1V = model.masked_logits(tokens_1T, torch.tensor([3]), tokens_1T == 6)
    torch.testing.assert_close(found_1V[0], expected_V)


def test_a_tokenizer_without_frame_adds_none(tmp_path: Path) -> None:
    folder = saved(tmp_path / "own", small_bert(), word_tokenizer(framed=False))
    assert MaskedLanguageModel.from_pretrained(folder).model.prefix == ()


def test_what_is_no_masked_language_model_is_refused_with_its_reason(tmp_path: Path, model_folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(ModelError, match=r"kind 'language-model', no masked language model.*pretrain mlm"):
        MaskedLanguageModel.from_pretrained(model_folder)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    causal = saved(tmp_path / "gpt2", gpt2, word_tokenizer(framed=False))
    with pytest.raises(ModelError, match=r"causal language model \(GPT2LMHeadModel\), no masked language model"):
        MaskedLanguageModel.from_pretrained(causal)
    encoder = saved(tmp_path / "encoder", small_bert(BertModel), word_tokenizer(framed=True))
    with pytest.raises(ModelError, match=r"lacks cls\.predictions.*output layer"):
        MaskedLanguageModel.from_pretrained(encoder)
    maskless = saved(tmp_path / "maskless", small_bert(), word_tokenizer(framed=True, mask=False))
    with pytest.raises(ModelError, match="no mask token"):
        MaskedLanguageModel.from_pretrained(maskless)
    with pytest.raises(ModelError, match="does not exist"):
        MaskedLanguageModel.from_pretrained(tmp_path / "nowhere")
