"""A conditional masked model as a folder and as text: round trip, Mask-Predict, and everything that is none."""

from pathlib import Path

import pytest
import torch

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.errors import DataError, ModelError
from energylm.samplers.mask_predict import MaskPredict

SOURCES = ["eht krelc stnuoc eht .staob", "a rolias"]


@pytest.fixture(scope="module")
def model(translator_folder: Path) -> ConditionalMaskedModel:
    return ConditionalMaskedModel.from_pretrained(translator_folder)


def test_a_folder_round_trip(model: ConditionalMaskedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "again")
    again = ConditionalMaskedModel.from_pretrained(tmp_path / "again")
    assert again.name == "translator" and again.translate(SOURCES) == model.translate(SOURCES)
    assert model.source_ids(["a", "rolias"]) == model.source_ids("a rolias") == model.target_ids("a rolias")
    assert model.tokenizer.mask_token_id not in model.target_ids("<|mask|>")  # text that spells a special token is text
    weights = tmp_path / "again" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        ConditionalMaskedModel.from_pretrained(tmp_path / "again")


def test_a_reading_is_a_masked_model_of_translations(model: ConditionalMaskedModel) -> None:
    read = model.reading(SOURCES)
    assert isinstance(read, MaskedLanguageModel) and read.max_tokens == 32
    assert not read.ordinary_V[read.tokenizer.all_special_ids].any()
    tokens_1T = torch.tensor([model.target_ids("a sailor mends")])
    every_1T = torch.ones_like(tokens_1T, dtype=torch.bool)
    logits = [
        read.masked_logits(tokens_1T, torch.tensor([tokens_1T.shape[1]]), every_1T, source_R=torch.tensor([source]))
        for source in (0, 1)
    ]
    assert (logits[0] - logits[1]).abs().max() > 1e-3  # each row reads the source that it names


def test_mask_predict_keeps_the_most_confident_of_the_likely_lengths(model: ConditionalMaskedModel) -> None:
    """By hand: each of the likeliest lengths by itself, its tokens' mean log-probability, the best one."""
    for number, source in enumerate(SOURCES):
        read = model.reading([source])
        found = []
        for length in read.likely_lengths(3)[0]:
            masks_1T = torch.full((1, length), read.mask_token_id)
            state = MaskPredict(read, read.ordinary_V, 4).run(
                masks_1T, torch.tensor([length]), free_RT=masks_1T > 0, source_R=torch.tensor([0])
            )
            found.append((float(state.score_R), read.decode(state.tokens_RT[0].tolist()).strip()))
        assert len(found) == 3
        assert model.translate(SOURCES, iterations=4, length_beam=3)[number] == max(found)[1]
        assert model.translate(SOURCES, iterations=4)[number] == found[0][1]


def test_what_is_no_conditional_masked_model_is_refused(
    model: ConditionalMaskedModel, translator_folder: Path, model_folder: Path, masked_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"kind 'language-model', which reads no source.*pretrain cmlm"):
        ConditionalMaskedModel.from_pretrained(model_folder)
    with pytest.raises(ModelError, match="kind 'unknown', which reads no source"):
        ConditionalMaskedModel.from_pretrained(masked_folder)
    with pytest.raises(ModelError, match=r"nowhere.* does not exist"):
        ConditionalMaskedModel.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="reads a source: give --source"):
        MaskedLanguageModel.from_pretrained(translator_folder)
    with pytest.raises(DataError, match="source 2 is empty"):
        model.translate(["a", ""])
    with pytest.raises(DataError, match=r"source 1 has .* tokens but the model holds 32"):
        model.reading(["krelc " * 40])
