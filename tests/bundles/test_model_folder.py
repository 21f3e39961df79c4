"""Loading: damaged weights, types that a CPU has not, output layers that are left out, folders of runs."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from energylm import Detector, EnergyModel, LanguageModel, Scorer
from energylm.bundles import devices
from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.bundles.known_models import absolute_place
from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.model_folder import MANIFEST, check_finite, model_identity, weights_sha256
from energylm.bundles.zero_shot_energy import ZeroShotEnergy, load_energy
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ModelError
from energylm.files import read_json, sha256_of_file, write_json


def damaged(folder: Path, copy: Path, *, file: str = "model.safetensors", value: float = float("nan")) -> str:
    """A copy of a model folder with one bad number in its last tensor, whose name is returned; hashes are mended, as if
    the training itself had diverged."""
    shutil.copytree(folder, copy)
    tensors = load_file(copy / file)
    name = sorted(tensors)[-1]
    tensors[name].view(-1)[-1] = value
    save_file(tensors, copy / file, metadata={"format": "pt"})
    if (copy / MANIFEST).is_file():
        manifest = read_json(copy / MANIFEST)
        write_json(copy / MANIFEST, manifest | {"weights": manifest["weights"] | {file: sha256_of_file(copy / file)}})
    return name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_file_and_name(model_folder, tmp_path, value):
    name = damaged(model_folder, tmp_path / "bad", value=value)
    said = rf"bad/model\.safetensors: 1 of the [\d,]+ numbers in .*{name} are NaN or infinite"
    with pytest.raises(ModelError, match=said) as caught:
        LanguageModel.from_pretrained(tmp_path / "bad")
    assert "\n" not in str(caught.value)


def test_every_kind_of_model_is_checked(
    energy_folder, bert_folder, masked_folder, electric_folder, translator_folder, tmp_path
):
    cases = [
        (energy_folder, "model.safetensors", EnergyModel.from_pretrained),
        (energy_folder, "head.safetensors", EnergyModel.from_pretrained),
        (bert_folder, "model.safetensors", EnergyModel.from_encoder),
        (masked_folder, "model.safetensors", MaskedLanguageModel.from_pretrained),
        (electric_folder, "model.safetensors", ClozeModel.from_pretrained),
        (electric_folder, "head.safetensors", ClozeModel.from_pretrained),
        (translator_folder, "model.safetensors", ConditionalMaskedModel.from_pretrained),
    ]
    for number, (folder, file, load) in enumerate(cases):
        damaged(folder, tmp_path / str(number), file=file)
        with pytest.raises(ModelError, match=rf"{number}/{file}: 1 of the [\d,]+ numbers in [\w.]+ are NaN"):
            load(tmp_path / str(number))


def test_large_weights_whose_sum_overflows_are_finite():
    """Teeth of the quick look: a sum that is infinite does not mean that a weight is."""
    network = torch.nn.Linear(4, 1, bias=False)
    network.weight.data.fill_(3e38)
    assert network.weight.sum().isinf()
    check_finite(network, "large")
    network.weight.data[0, 2] = float("nan")
    with pytest.raises(ModelError, match="large: 1 of the 4 numbers in weight are NaN or infinite"):
        check_finite(network, "large")


def test_logits_that_overflow_are_one_line_not_a_number(model_folder):
    """Finite weights, infinite logits: neither a NaN score nor a traceback of the sampler."""
    lm = LanguageModel.from_pretrained(model_folder)
    lm.model.network.get_output_embeddings().weight.data.mul_(1e38)
    with pytest.raises(ModelError, match="gives NaN for a token"):
        lm.score(["The clerk counts."])
    with pytest.raises(ModelError, match="rows of logits hold NaN or infinity"):
        lm.sample("The clerk", n=2, max_new_tokens=3)


def test_a_scorers_nan_is_one_line(masked_folder):
    """Teeth: without the check the sum over tokens is NaN, and the text is simply never chosen."""
    scorer = Scorer.from_pretrained(masked_folder)
    scorer.reader.token_scores = lambda readings: [[float("nan")] * len(reading) for reading in readings]
    with pytest.raises(ModelError, match="gives NaN for text 1"):
        scorer.score(["The clerk counts."])


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "torch.bfloat16", "float16", "half"])
def test_a_cpu_takes_no_short_floats_by_any_name(model_folder, dtype, monkeypatch):
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    with pytest.raises(ModelError, match=r"torch\.(bfloat16|float16) came for a CPU that needs torch\.float32"):
        LanguageModel.from_pretrained(model_folder, device="cpu", dtype=dtype)


def test_a_cpu_that_multiplies_bfloat16_takes_it(model_folder, monkeypatch):
    """Sums are in float32 all the same; teeth: log-probabilities in bfloat16 are 0.03 apart from 8 nats on."""
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    plain = Scorer.from_pretrained(model_folder).token_scores(["The clerk counts the boats."])[0].token_scores
    half = Scorer.from_pretrained(model_folder, dtype="bfloat16")
    assert half.reader.lm.model.network.dtype == torch.bfloat16
    short = half.token_scores(["The clerk counts the boats."])[0].token_scores
    assert short == pytest.approx(plain, abs=0.1) and short != pytest.approx(plain, abs=1e-6)
    assert any(score != float(torch.tensor(score).bfloat16()) for score in short)
    with pytest.raises(ModelError, match=r"torch\.float16 came for a CPU"):
        LanguageModel.from_pretrained(model_folder, device="cpu", dtype="float16")


@pytest.mark.parametrize("dtype", ["float99", "auto", "nn", "int64", torch.int16])
def test_what_is_no_type_of_weights_is_named(model_folder, dtype):
    with pytest.raises(ModelError, match="is no type of weights; give e"):
        LanguageModel.from_pretrained(model_folder, device="cpu", dtype=dtype)


def test_types_may_be_given_by_name(model_folder):
    for dtype in (torch.float64, "float64", "double"):
        assert (
            LanguageModel.from_pretrained(model_folder, device="cpu", dtype=dtype).model.network.dtype == torch.float64
        )
    assert LanguageModel.from_pretrained(model_folder, device="cpu").model.network.dtype == torch.float32


def test_a_classifiers_output_layer_is_not_dropped_in_silence(bert_folder, tmp_path, capsys):
    """A masked model's output layer goes without saying; a classifier's was trained to judge, and a random one would
    judge in its place."""
    config = BertConfig.from_pretrained(bert_folder)
    tokenizer = load_tokenizer(bert_folder)
    for network_class in (BertForSequenceClassification, BertForMaskedLM):
        folder = tmp_path / network_class.__name__
        network_class(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        EnergyModel.from_encoder(folder, reads="text")
        said = capsys.readouterr().err
        assert ("its trained output layer" in said) == (network_class is BertForSequenceClassification)
        assert ("classifier.bias, classifier.weight" in said) == (network_class is BertForSequenceClassification)


def test_a_runs_folder_stands_for_its_model_everywhere(
    model_folder, energy_folder, masked_folder, electric_folder, detector_folder, translator_folder, tmp_path
):
    def run(folder: Path) -> Path:
        shutil.copytree(folder, tmp_path / folder.name / "model")
        (tmp_path / folder.name / "training.json").write_text("{}")
        return tmp_path / folder.name

    lm = run(model_folder)
    assert LanguageModel.from_pretrained(lm).location == lm / "model"
    assert EnergyModel.from_pretrained(run(energy_folder)).scale == 50.0
    assert isinstance(load_energy(tmp_path / energy_folder.name), EnergyModel)
    assert EnergyModel.from_encoder(lm).network.kind == "unit"
    for folder in (lm, run(masked_folder), run(electric_folder)):
        assert len(Scorer.from_pretrained(folder).score(["The clerk."])) == 1
    detector = Detector.from_pretrained(run(detector_folder))
    assert detector.calibration is not None
    detector.save_calibration(tmp_path / detector_folder.name, detector.calibration)
    assert not (tmp_path / detector_folder.name / "calibration.json").exists()
    assert ConditionalMaskedModel.from_pretrained(run(translator_folder)).name == "translator"
    assert weights_sha256(lm) == weights_sha256(model_folder) and model_identity(lm) == model_identity(model_folder)
    assert absolute_place(lm) == str(lm / "model")
    likelihood = ZeroShotEnergy(LanguageModel.from_pretrained(lm))
    likelihood.save_pretrained(tmp_path / "likelihood" / "model")
    assert isinstance(load_energy(tmp_path / "likelihood"), ZeroShotEnergy)


def test_a_run_without_a_model_is_not_finished(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"run is a training run without a model: it is not finished; run the same"):
        LanguageModel.from_pretrained(tmp_path / "run")
