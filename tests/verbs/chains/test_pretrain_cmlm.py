"""From parallel files to a conditional masked model: trained, finished, continued, planned, refused."""

import re

import pytest

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.errors import CheckpointError, ConfigError, DataError
from energylm.estimators.sequence_scores import translation_scores
from energylm.jobs.job import Job
from energylm.training.sequence_pair_task import ConditionalMaskedTask
from energylm.verbs import PretrainCMLM


def pretrain(folder, **values):
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
    return PretrainCMLM.checked({**files, **sizes, **values})


@pytest.fixture(scope="module")
def run(parallel_folder, tmp_path_factory):
    return pretrain(parallel_folder).run(Job(output=tmp_path_factory.mktemp("cmlm") / "run"))


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
    assert run.parameters == sum(parameter.numel() for parameter in model.network.parameters())
    assert run.epochs == 12 / (160 // 16)
    assert {"loss", "accuracy", "length_loss", "length_accuracy"} <= run.validation.keys()
    assert "nats per hidden token" in run.summary() and model.name == "run"
    assert model.provenance["train"] == ["train.de", "train.en"]  # names, no paths


def test_a_second_run_does_nothing_and_other_settings_are_refused(run, parallel_folder):
    again = pretrain(parallel_folder).run(Job(output=run.folder))
    assert again.was_finished and again.validation == run.validation
    assert "is finished" in pretrain(parallel_folder).check(Job(output=run.folder))
    with pytest.raises(CheckpointError, match=r"length_weight \(was 0\.1, now 0\.5\)"):
        pretrain(parallel_folder, length_weight=0.5).run(Job(output=run.folder))


def test_an_interrupted_run_continues_to_the_same_bits(run, parallel_folder, tmp_path, monkeypatch):
    whole_batch = ConditionalMaskedTask.batch

    def interrupted_batch(self, step, rows):
        if step == 10:
            raise KeyboardInterrupt
        return whole_batch(self, step, rows)

    monkeypatch.setattr(ConditionalMaskedTask, "batch", interrupted_batch)
    with pytest.raises(KeyboardInterrupt):
        pretrain(parallel_folder).run(Job(output=tmp_path / "run"))
    assert "continue from step-00000008" in pretrain(parallel_folder).check(Job(output=tmp_path / "run"))
    monkeypatch.undo()
    second = pretrain(parallel_folder).run(Job(output=tmp_path / "run"))
    assert (second.model / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()


def test_a_plan_counts_and_writes_nothing(parallel_folder, tmp_path, capsys):
    said = pretrain(parallel_folder, longest=20).check(Job(output=tmp_path / "run"))
    pairs = int(re.search(r"\((\d+) pairs\)", said)[1])
    assert 0 < pairs < 160 and f"12 steps ({12 / (pairs // 16):.3g} epochs)" in said and "320 tokens" in said
    assert "pairs have over 20 tokens on a side: left out" in capsys.readouterr().err
    assert "would train: cmlm of 1 + 1 layers, width 32" in said and not (tmp_path / "run").exists()


def test_empty_lines_are_left_out(parallel_folder, tmp_path):
    for end in ("de", "en"):
        lines = (parallel_folder / f"train.{end}").read_text(encoding="utf-8").splitlines()
        lines[3 if end == "de" else 7] = ""
        (tmp_path / f"train.{end}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [str(tmp_path / f"train.{end}") for end in ("de", "en")]
    assert "(158 pairs)" in pretrain(parallel_folder, train=files).check(Job(output=tmp_path / "run"))


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
        pretrain(parallel_folder, **values).run(Job(output=tmp_path / "run"))
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


def test_files_of_unequal_length_are_not_parallel(parallel_folder, tmp_path):
    (tmp_path / "short.en").write_text("one\n", encoding="utf-8")
    files = [str(parallel_folder / "train.de"), str(tmp_path / "short.en")]
    with pytest.raises(DataError, match=r"short.en ends after 1 lines but .* goes on with line 2"):
        pretrain(parallel_folder, train=files).run(Job(output=tmp_path / "run"))
