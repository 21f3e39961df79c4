"""From a negatives folder to a calibrated energy folder: tokens and text, validated, killed and resumed."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.config.texts import NegativesSettings
from energylm.data.contrast import Contrast, pad
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_manifest import CorpusRecord, GeneratorRecord, NegativesManifest
from energylm.data.negatives_shards import NegativeRows, write_shard
from energylm.data.tokenizer import train_tokenizer
from energylm.data.windows import Windows
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.jobs.job import Job
from energylm.training.energy_task import contrast_energies
from energylm.training.journal import read_journal
from energylm.verbs.joint.energy_inputs import encoding_for, open_data, start_energy
from energylm.verbs.joint.negatives import MakeNegatives
from energylm.verbs.joint.train_energy import TrainEnergy

LENGTH, CONTEXT = 24, 12
KILLED_AT_STEP = """
import os, signal, sys
from pathlib import Path
from energylm.jobs.job import Job
from energylm.verbs import TrainEnergy
from energylm.training.energy_task import EnergyTask

original = EnergyTask.batch

def killing(self, step, rows):
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, step, rows)

EnergyTask.batch = killing
TrainEnergy.model_validate_json(sys.argv[1]).run(Job(output=Path(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def negatives(corpus_folder, model_folder, tmp_path_factory):
    """Continuations of all training and validation windows by a language model that has learnt nothing."""
    folder = tmp_path_factory.mktemp("negatives")
    for split, k in (("train", 4), ("valid", 3)):
        config = MakeNegatives(
            corpus=str(corpus_folder),
            language_model=str(model_folder),
            split=split,
            k=k,
            length=LENGTH,
            prefix_tokens=(CONTEXT,),
            documents="packed",
        )
        config.run(Job(output=folder / split))
    return folder


@pytest.fixture
def config(corpus_folder, negatives):
    def make(**values):
        training = {
            "steps": 60,
            "global_batch": 8,
            "threads": 1,
            "optimizer": {"learning_rate": 5e-3},
            "validation": {"every_steps": 20},
            "checkpoint": {"every_steps": 20},
        }
        defaults = {
            "negatives": str(negatives / "train"),
            "corpus": str(corpus_folder),
            "init": "tiny",
            "validation_fraction": 0.3,
        }
        small = {} if "init" in values else {"network": {"width": 32, "layers": 1}}
        training |= values.pop("training", {})
        return TrainEnergy.checked(defaults | small | {"training": training} | values, origin="test")

    return make


@pytest.fixture(scope="module")
def encoder_folder(texts_folder, tmp_path_factory):
    """A bidirectional encoder with a tokenizer of its own, which has [CLS]-like tokens nowhere near the corpus's."""
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    texts = [path.read_text() for path in sorted(texts_folder.iterdir())]
    tokenizer = train_tokenizer(texts, vocabulary_size=280)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        network = BertModel(
            BertConfig(vocab_size=len(tokenizer), max_position_embeddings=96, type_vocab_size=1, **shape),
            add_pooling_layer=False,
        )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("start", ["unit from the generator", "bit from scratch", "bit that reads text"])
def test_an_energy_learns_what_the_language_model_lacks(config, model_folder, encoder_folder, tmp_path, start):
    """The language model knows nothing, so real text is easy to tell: above 90 % on contexts held out."""
    values = {
        "unit from the generator": {"init": str(model_folder), "kind": "unit"},
        "bit from scratch": {"init": "bit-tiny", "network": {"width": 32, "layers": 1}, "kind": "bit"},
        "bit that reads text": {"init": str(encoder_folder), "kind": "bit", "reads": "text"},
    }[start]
    settings = config(**values, training={"steps": 80})
    run = settings.run(Job(output=tmp_path / "run"))
    assert run.accuracy > 0.9 and run.loss_after_calibration < 0.7 and run.scale > 0
    assert run.report.exists() and run.steps == 80 and not run.was_finished
    said = settings.check(Job(output=tmp_path / "other"))
    assert f"{run.parameters:,} parameters" in said and run.to_json()["parameters"] == run.parameters > 0

    # What is told is what the saved energy says, computed by the other route: the folder, loaded again.
    data, energy = open_data(settings), EnergyModel.from_pretrained(run.model)
    assert (energy.scale, energy.shift) == (run.scale, run.shift)
    calibration = energy.provenance["calibration"]
    assert (calibration["scale"], calibration["shift"]) == (run.scale, run.shift) and calibration["contexts"] > 1
    assert 0 < calibration["scale_standard_error"] < 10 * run.scale
    contexts = np.arange(len(data.report))
    copies = np.tile(np.arange(4), (len(contexts), 1))
    tokens, lengths = encoding_for(energy, data.corpus)(data.report.sequences(contexts, copies))
    energies = energy.energies(tokens, lengths).view(-1, 5)
    accuracy = 0.5 * float((energies[:, 0] < 0).double().mean()) + 0.5 * float((energies[:, 1:] > 0).double().mean())
    assert run.contexts == len(contexts) and accuracy == pytest.approx(run.accuracy, abs=1e-6)
    assert energy.provenance["loss"] == "nce" and energy.provenance["encoder"]
    assert energy.provenance["sources"][0]["generator"]["sha256"] == weights_sha256(model_folder)

    written = json.loads((tmp_path / "run" / "energies.json").read_text())
    assert sum(written["real"]["counts"]) == run.contexts and sum(written["generated"]["counts"]) == 4 * run.contexts
    assert written["real"]["mean"] < 0 < written["generated"]["mean"]
    line = read_journal(tmp_path / "run" / "journal.jsonl")[-1]
    assert {"validation_accuracy", "validation_loss", "validation_real_energy"} <= line.keys()


@pytest.fixture(scope="module")
def copied(corpus_folder, tmp_path_factory):
    """A folder of "negatives" whose writer copied the real continuations."""
    folder, corpus = tmp_path_factory.mktemp("copied"), Corpus.open(corpus_folder)
    settings = NegativesSettings(k=2, length=LENGTH, prefix_tokens=(CONTEXT,), documents="packed")
    windows = Windows(corpus, "train", length=LENGTH)
    numbers, shape = np.arange(len(windows)), (len(windows), 2)
    tokens = np.repeat(windows.gather(numbers)[:, None, CONTEXT:], 2, axis=1)
    lengths, zeros = np.full(shape, LENGTH - CONTEXT), np.zeros(shape)
    rows = NegativeRows(numbers, np.full(len(windows), CONTEXT), tokens, lengths, zeros, zeros)
    manifest = NegativesManifest.planned(
        settings,
        generator=GeneratorRecord(name="copyist", sha256="0"),
        corpus=CorpusRecord(name="c", identity=corpus.manifest.identity, end_token_id=corpus.end_token_id),
        contexts=len(windows),
    )
    shard = write_shard(folder / "block-00000.parquet", rows, identity=manifest.identity)
    manifest.with_shard(shard).save(folder, file="manifest.json")
    return folder


@pytest.mark.parametrize("reads", ["tokens", "text"])
def test_real_text_against_itself_stays_at_chance(corpus_folder, encoder_folder, config, copied, tmp_path, reads):
    """The control: real text as positive and as negative takes two routes, and through text a round trip on each. Both
    arrive alike, and training on them ends where it began: at an accuracy of one half and a loss of 2 log 2."""
    values = {"init": str(encoder_folder), "reads": "text"} if reads == "text" else {}
    settings = config(negatives=str(copied), training={"steps": 20}, **values)
    corpus = Corpus.open(corpus_folder)
    energy, contrast = start_energy(settings, corpus, length=LENGTH), Contrast(Negatives.open(copied), corpus)
    sequences = contrast.sequences(np.arange(len(contrast)), np.tile([1], (len(contrast), 1)))
    tokens, lengths = encoding_for(energy, corpus)(sequences)
    assert torch.equal(tokens[0::2], tokens[1::2]) and torch.equal(lengths[0::2], lengths[1::2])

    run = settings.run(Job(output=tmp_path))
    assert run.accuracy == pytest.approx(0.5, abs=0.02)
    assert run.loss_after_calibration == pytest.approx(2 * math.log(2), abs=0.01)


def test_a_round_trip_for_generated_text_alone_is_caught(corpus_folder, encoder_folder, config, copied):
    """The mistake that the control is for: real ids go straight to the encoder, generated ones through text."""
    corpus = Corpus.open(corpus_folder)
    energy = start_energy(config(init=str(encoder_folder), reads="text"), corpus, length=LENGTH)
    right, small = encoding_for(energy, corpus), len(energy.tokenizer)

    def wrong(sequences):
        tokens, lengths = right(sequences)
        tokens[0::2, :LENGTH], lengths[0::2] = pad(sequences[0::2])[0] % small, LENGTH
        return tokens, lengths

    contrast = Contrast(Negatives.open(copied), corpus)
    for encode, alike in ((right, True), (wrong, False)):
        options = {"contexts": np.arange(len(contrast)), "negatives": 1, "batch": 16}
        energies = contrast_energies(energy.network, contrast, encode, **options)
        assert torch.allclose(energies.real_B[:, None], energies.noise_BK, rtol=0, atol=1e-6) == alike


def test_text_reaches_the_encoder_as_a_joint_model_will_send_it(corpus_folder, encoder_folder, negatives, config):
    """Decode with the corpus's tokenizer, encode with the energy's: the ids are those of the decoded text."""
    corpus = Corpus.open(corpus_folder)
    energy = start_energy(config(init=str(encoder_folder), reads="text"), corpus, length=LENGTH)
    sequences = Contrast(Negatives.open(negatives / "train"), corpus).sequences(np.arange(3), np.array([[1], [0], [3]]))
    tokens, lengths = encoding_for(energy, corpus)(sequences)
    for row, sequence in enumerate(sequences):
        text = corpus.tokenizer.decode(sequence, skip_special_tokens=True)
        expected = energy.tokenizer(text)["input_ids"]
        assert tokens[row, : lengths[row]].tolist() == expected
    assert not torch.equal(tokens, pad(sequences)[0])


def test_train_report_and_calibration_share_no_context(config, negatives):
    data = open_data(config())
    parts = [set(part.parts[0].rows.tolist()) for part in (data.train, data.report, data.calibration)]
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts)) == len(Negatives.open(negatives / "train"))
    capped = open_data(config(validation_contexts=4))
    assert len(capped.report) + len(capped.calibration) == 4 and len(capped.train) == len(data.train)
    apart = open_data(config(validation=str(negatives / "valid")))
    assert len(apart.train) == len(data.sources[0].negatives) and apart.report.k == 3
    assert len(apart.report) + len(apart.calibration) == len(Negatives.open(negatives / "valid"))


def test_a_run_killed_and_resumed_gives_the_same_energy(config, tmp_path, capsys):
    settings = config()
    alone = settings.run(Job(output=tmp_path / "alone"))
    command = [sys.executable, "-c", KILLED_AT_STEP, settings.model_dump_json(), str(tmp_path / "killed"), "33"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=240)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert "would continue from step-00000020" in settings.check(Job(output=tmp_path / "killed"))
    killed = settings.run(Job(output=tmp_path / "killed"))
    for file in ("model.safetensors", "head.safetensors"):
        assert (alone.model / file).read_bytes() == (killed.model / file).read_bytes()
    assert (tmp_path / "alone/energies.json").read_bytes() == (tmp_path / "killed/energies.json").read_bytes()
    assert (killed.scale, killed.shift, killed.accuracy) == (alone.scale, alone.shift, alone.accuracy)

    capsys.readouterr()
    again = settings.run(Job(output=tmp_path / "killed"))
    assert again.was_finished and "nothing to do" in capsys.readouterr().err
    assert (again.scale, again.loss_after_calibration) == (killed.scale, killed.loss_after_calibration)
    with pytest.raises(CheckpointError, match="negatives_per_context"):
        config(negatives_per_context=2).run(Job(output=tmp_path / "killed"))


def test_validation_on_another_split_without_calibration(config, negatives, tmp_path):
    run = config(
        validation=str(negatives / "valid"), calibrate=False, negatives_per_context=3, training={"steps": 20}
    ).run(Job(output=tmp_path))
    assert (run.scale, run.shift) == (1.0, 0.0) and run.loss_before_calibration == run.loss_after_calibration
    assert "not calibrated" in (tmp_path / "results.md").read_text()


def test_training_stops_when_validation_does(config, tmp_path):
    """A learning rate of nearly nothing: the second validation is no better than the first."""
    validation = {"every_steps": 2, "patience_evaluations": 1, "metric": "accuracy", "larger_is_better": True}
    run = config(training={"steps": 40, "optimizer": {"learning_rate": 1e-9}, "validation": validation}).run(
        Job(output=tmp_path)
    )
    assert run.steps == 4 and run.best_step == 2


def test_what_is_refused(config, negatives, model_folder, encoder_folder, corpus_folder, tmp_path):
    cases = [
        ({"negatives_per_context": 5}, ConfigError, "holds 4 of each context"),
        ({"init": "tiny", "kind": "bit"}, ConfigError, "is of kind 'unit', not 'bit'"),
        ({"init": "bit-tiny", "reads": "text"}, ConfigError, "leave --reads out"),
        ({"init": "conv-tiny"}, ConfigError, "is a convolution"),
        ({"init": str(model_folder), "kind": "bit"}, ModelError, "is causal"),
        ({"init": str(model_folder), "network": {"layers": 2}}, ConfigError, "changes a preset"),
        ({"init": str(encoder_folder)}, VocabularyMismatch, "pass --reads text"),
        ({"validation": str(negatives / "train")}, DataError, "validate on another split"),
        ({"validation_contexts": 2}, DataError, "no context is left"),
        ({"negatives": str(corpus_folder)}, DataError, "no manifest of negatives"),
        ({"negatives": str(tmp_path)}, DataError, "energylm negatives"),
    ]
    for values, error, said in cases:
        with pytest.raises(error) as raised:
            config(**values).check(Job(output=tmp_path / "run"))
        assert said in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="rankking"):
        config(objective="rankking")
    assert not (tmp_path / "run").exists()


def test_negatives_of_another_generator_or_corpus_are_refused(
    config, corpus_folder, model_folder, texts_folder, negatives, tmp_path
):
    from energylm.verbs import BuildCorpus

    lm = LanguageModel.from_pretrained(model_folder)
    with torch.no_grad():
        lm.model.network.get_output_embeddings().weight[0] += 1
    lm.save_pretrained(tmp_path / "other")
    hashes = [weights_sha256(model_folder), weights_sha256(tmp_path / "other")]
    with pytest.raises(DataError) as raised:
        config(language_model=str(tmp_path / "other")).run(Job(output=tmp_path / "run"))
    assert all(sha256 in str(raised.value) for sha256 in hashes) and "make them again" in str(raised.value)

    other = MakeNegatives(
        corpus=str(corpus_folder),
        language_model=str(tmp_path / "other"),
        split="valid",
        k=1,
        length=LENGTH,
        prefix_tokens=(8,),
    )
    other.run(Job(output=tmp_path / "valid"))
    with pytest.raises(DataError, match="were written by 'unnamed'"):
        config(validation=str(tmp_path / "valid")).run(Job(output=tmp_path / "run"))

    BuildCorpus(sources=(str(texts_folder),), vocabulary_size=290).run(Job(output=tmp_path / "corpus"))
    with pytest.raises(DataError, match="give the corpus they were made from"):
        config(corpus=str(tmp_path / "corpus")).run(Job(output=tmp_path / "run"))


def test_overlapping_windows_need_validation_of_their_own(config, corpus_folder, model_folder, tmp_path):
    overlapping = MakeNegatives(
        corpus=str(corpus_folder),
        language_model=str(model_folder),
        k=1,
        length=LENGTH,
        prefix_tokens=(20,),
        stride=12,
        contexts=20,
    )
    overlapping.run(Job(output=tmp_path / "n"))
    with pytest.raises(ConfigError, match="would have been seen"):
        open_data(config(negatives=str(tmp_path / "n")))


def test_a_dry_run_counts_and_writes_nothing(config, tmp_path):
    settings = config()
    said, data = settings.check(Job(output=tmp_path / "run")), open_data(settings)
    assert "would train: unit energy from tiny" in said and "reads tokens, nce, 60 steps (" in said
    assert f"60 steps ({60 * 8 / len(data.train):.3g} epochs) of 8 contexts" in said
    assert f"; {len(data.report)} for validation, {len(data.calibration)} for calibration" in said
    assert not (tmp_path / "run").exists()


def test_presets_of_the_paper():
    """deng2020 table 4 reaches the training through --preset; energies keep their own defaults otherwise."""
    values = {"negatives": "n", "corpus": "c", "init": "bit-base"}
    paper = TrainEnergy.checked(values | {"training": {"preset": "deng2020/joint-bit-base"}}).training
    assert (paper.global_batch, paper.steps, paper.clip_norm, paper.optimizer.learning_rate) == (60, 90_000, 0.25, 5e-5)
    assert paper.validation.every_steps == 100
    own = TrainEnergy.checked(values | {"training": {"optimizer": {"eps": 1e-5}}}).training
    assert own.optimizer.learning_rate == 1e-4 and own.optimizer.eps == 1e-5
