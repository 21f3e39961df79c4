"""From parallel files to a conditional masked model: trained, finished, continued, planned, refused."""

import pytest

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.config.pretrain_cmlm import PretrainCMLMConfig
from energylm.errors import CheckpointError, ConfigError, DataError
from energylm.estimators.sequence_scores import translation_scores
from energylm.pipelines.pretrain_cmlm import plan_cmlm, pretrain_cmlm
from energylm.training.cmlm_task import ConditionalMaskedTask


def config(folder, **values):
    training = {
        "steps": 12,
        "global_batch": 16,
        "threads": 1,
        "optimizer": {"learning_rate": 5e-3},
        "validation": {"every_steps": 6},
        "checkpoint": {"every_steps": 4},
    }
    shape = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    files = {"train": [str(folder / f"train.{end}") for end in ("de", "en")]}
    files["valid"] = [str(folder / f"val.{end}") for end in ("de", "en")]
    sizes = {"vocabulary_size": 320, "longest": 32, "network": shape, "training": training}
    return PretrainCMLMConfig.checked({**files, **sizes, **values})


@pytest.fixture(scope="module")
def run(parallel_folder, tmp_path_factory):
    return pretrain_cmlm(config(parallel_folder), output=tmp_path_factory.mktemp("cmlm") / "run")


def test_parallel_text_becomes_a_translator_whose_bleu_is_sacrebleus(run, parallel_folder):
    import sacrebleu

    model = ConditionalMaskedModel.from_pretrained(run.model)
    sources, references = (
        (parallel_folder / f"val.{end}").read_text(encoding="utf-8").splitlines() for end in ("de", "en")
    )
    outputs = model.translate(sources, iterations=4)
    assert run.validation["bleu"] == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score, abs=1e-9)
    assert translation_scores(sources, references, references).bleu == pytest.approx(100)
    assert run.validation["bleu"] != pytest.approx(sacrebleu.corpus_bleu(references, [outputs]).score, abs=1e-9)
    assert {"loss", "accuracy", "length_loss", "length_accuracy"} <= run.validation.keys()
    assert "nats per hidden token" in run.summary() and model.name == "run"
    assert model.provenance["train"] == ["train.de", "train.en"]  # names, no places


def test_a_second_run_does_nothing_and_other_settings_are_refused(run, parallel_folder):
    again = pretrain_cmlm(config(parallel_folder), output=run.folder)
    assert again.was_finished and again.validation == run.validation
    assert "is finished" in plan_cmlm(config(parallel_folder), output=run.folder).state
    with pytest.raises(CheckpointError, match=r"length_weight \(was 0\.1, now 0\.5\)"):
        pretrain_cmlm(config(parallel_folder, length_weight=0.5), output=run.folder)


def test_an_interrupted_run_continues_to_the_same_bits(run, parallel_folder, tmp_path, monkeypatch):
    whole_batch = ConditionalMaskedTask.batch

    def interrupted_batch(self, step, rows):
        if step == 10:
            raise KeyboardInterrupt
        return whole_batch(self, step, rows)

    monkeypatch.setattr(ConditionalMaskedTask, "batch", interrupted_batch)
    with pytest.raises(KeyboardInterrupt):
        pretrain_cmlm(config(parallel_folder), output=tmp_path / "run")
    assert "continue from step-00000008" in plan_cmlm(config(parallel_folder), output=tmp_path / "run").state
    monkeypatch.undo()
    second = pretrain_cmlm(config(parallel_folder), output=tmp_path / "run")
    assert (second.model / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()


def test_a_plan_counts_and_writes_nothing(parallel_folder, tmp_path, capsys):
    chosen = config(parallel_folder, longest=20)
    plan = plan_cmlm(chosen, output=tmp_path / "run")
    assert plan.vocabulary_size == 320 and 0 < plan.pairs < 160 and plan.epochs == 12 / (plan.pairs // 16)
    assert "pairs have over 20 tokens on a side: left out" in capsys.readouterr().err
    said = plan.describe(chosen, tmp_path / "run")
    assert "would train: cmlm of 1 + 1 layers, width 32" in said and not (tmp_path / "run").exists()


def test_empty_lines_are_left_out(parallel_folder, tmp_path):
    for end in ("de", "en"):
        lines = (parallel_folder / f"train.{end}").read_text(encoding="utf-8").splitlines()
        lines[3 if end == "de" else 7] = ""
        (tmp_path / f"train.{end}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [str(tmp_path / f"train.{end}") for end in ("de", "en")]
    assert plan_cmlm(config(parallel_folder, train=files), output=tmp_path / "run").pairs == 158


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"network": {"width": 30, "heads": 4}}, ConfigError, "heads must divide width"),
        ({"network": {"widht": 30}}, ConfigError, "did you mean 'network.width'"),
        ({"longest": 2}, DataError, "no example of .* has at most 2 tokens"),
        ({"train": ["one"]}, ConfigError, "train came with 1 files; parallel text is two"),
        ({"train": ["nowhere.de", "nowhere.en"]}, DataError, "nowhere.de does not exist"),
    ],
)
def test_refusals(parallel_folder, tmp_path, values, error, said):
    with pytest.raises(error, match=said) as raised:
        pretrain_cmlm(config(parallel_folder, **values), output=tmp_path / "run")
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


def test_files_of_unequal_length_are_not_parallel(parallel_folder, tmp_path):
    (tmp_path / "short.en").write_text("one\n", encoding="utf-8")
    files = [str(parallel_folder / "train.de"), str(tmp_path / "short.en")]
    with pytest.raises(DataError, match=r"short.en ends after 1 lines but .* goes on with line 2"):
        pretrain_cmlm(config(parallel_folder, train=files), output=tmp_path / "run")
