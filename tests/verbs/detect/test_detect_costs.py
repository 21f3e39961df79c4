"""Counted work of detectors against what torch counts while it is done, on a tiny network."""

import json

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from energylm.data.tokenizer import load_tokenizer
from energylm.jobs import costs
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.verbs import CalibrateDetector, EvaluateDetector, RunDetector, TrainDetector

AROUND = Surroundings({}, {"networks": {}})
TRAINING = {"steps": 12, "global_batch": 4, "threads": 1, "validation": {"every_steps": 6}}


def counted_by_torch(verb, job):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it does not know the CPU's own
        verb.run(job)
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def trained(bert_folder, detection_folder, tmp_path_factory):
    """A training verb, what torch counted of its run, and the detector."""
    output = tmp_path_factory.mktemp("costs") / "run"
    data = {"human": str(detection_folder / "human.jsonl"), "machine": str(detection_folder / "machine.jsonl")}
    verb = TrainDetector.checked(
        {
            "data": data,
            "init": str(bert_folder),
            "fpr": 0.1,
            "probe_pairs": 16,
            "text_blocks": {"tokens": 32},
            "shorter_blocks": 0.0,
            "training": TRAINING,
        }
    )
    return verb, counted_by_torch(verb, Job(output=output)), output / "model"


@pytest.fixture(autouse=True)
def tokens_are_known(monkeypatch, bert_folder, detection_folder):
    texts = [json.loads(line)["text"] for line in (detection_folder / "human.jsonl").read_text().splitlines()]
    encoder = load_tokenizer(bert_folder).backend_tokenizer
    tokens = sum(len(encoder.encode(text, add_special_tokens=False).ids) for text in texts)
    monkeypatch.setattr(costs, "bytes_per_token", lambda _: sum(len(text.encode()) for text in texts) / tokens)


def test_training(trained):
    verb, torchs, _ = trained
    counted = verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.1)
    shallow = verb.model_copy(update={"probe_pairs": 1600}).cost(AROUND)  # teeth: what reads beside the updates counts
    assert shallow.flops > 1.2 * counted.flops
    elsewhere = verb.model_copy(update={"data": verb.data.model_copy(update={"human": ("none.jsonl",)})})
    assert "texts are not here" in elsewhere.cost(AROUND).notes[-1]


def test_judging(trained, detection_folder, tmp_path):
    verb, _, detector = trained
    files = (str(detection_folder / "human.jsonl"),)
    for judge in (
        CalibrateDetector(detector=str(detector), data=verb.data, fpr=0.1),
        EvaluateDetector(detector=str(detector), data=verb.data, lengths=(20, 40), lengths_texts=30, resamples=2),
        RunDetector(detector=str(detector), files=files),
        RunDetector(detector=str(detector), files=files, max_tokens=32),
    ):
        torchs, counted = counted_by_torch(judge, Job()), judge.cost(AROUND)
        assert counted.flops == pytest.approx(torchs, rel=0.1), type(judge).__name__
    no_curve = EvaluateDetector(detector=str(detector), data=verb.data, lengths=()).cost(AROUND)  # teeth
    with_curve = EvaluateDetector(detector=str(detector), data=verb.data, lengths=(20, 40)).cost(AROUND)
    assert with_curve.flops > 1.1 * no_curve.flops
    assert RunDetector(detector=str(detector), files=("none.txt",)).cost(AROUND) is None


def test_a_detector_that_is_still_to_be_made(trained, detection_folder):
    """In a plan its network is what the training step leaves behind: half of the layers."""
    verb, _, _ = trained
    network = verb.cost(AROUND).product
    around = Surroundings({"store/detect-train/model": network}, AROUND.facts)
    counted = EvaluateDetector(detector="store/detect-train/model", data=verb.data).cost(around)
    assert counted.flops > 0 and network.layers == 1
