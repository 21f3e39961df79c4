"""Our models in the lm-evaluation-harness: a causal model's numbers are those of the harness's own `hf`; a joint
model's lie around the truth, which is enumerated; a pseudo-log-likelihood is what it says."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("lm_eval", reason="pip install 'energylm[harness]'")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from energylm import EnergyModel, LanguageModel, ResidualModel, Scorer
from energylm.apps.harness import DEFAULT_DEVICE, CausalHarness, JointHarness, harness_model
from energylm.errors import ConfigError, ModelError
from energylm.models import causal

pytestmark = pytest.mark.filterwarnings("default")  # the harness's own

PAIRS = [
    ("The clerk counts", " the boats."),
    ("The clerk counts ", "a bridge."),
    ("", "A sailor mends a bridge."),
    ("A stranger forgets the winter coats." * 4, " The council paints."),
]


def requests(kind, arguments):
    return [Instance(kind, {}, given, index) for index, given in enumerate(arguments)]


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def hf(lm):
    tokenizer = lm.tokenizer
    return HFLM(pretrained=lm.model.network, tokenizer=tokenizer, batch_size=2, max_length=16)


@pytest.fixture(scope="module")
def ours(model_folder):
    return harness_model(str(model_folder), max_length=16)


def test_a_causal_model_equals_the_harness_own(ours, hf):
    """Contexts that are empty, that end with a space, and that are longer than the model."""
    theirs = hf.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True)
    told = ours.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True)
    assert [greedy for _, greedy in told] == [greedy for _, greedy in theirs]
    torch.testing.assert_close(
        torch.tensor([value for value, _ in told]), torch.tensor([value for value, _ in theirs]), atol=1e-4, rtol=0
    )
    other = ours.log_likelihoods([(given[1:], scored) for given, scored in [([1, 2, 3], [4, 5])]])
    assert abs(other[0][0] - ours.log_likelihoods([([1, 2, 3], [4, 5])])[0][0]) > 1e-3  # teeth: a token of context less


def test_log_likelihoods_are_made_by_the_network_itself(ours, monkeypatch):
    """Packed weights round by more than the 1e-4 that a large model's sentences may differ from the harness's own."""
    monkeypatch.setattr(causal, "causal_logits", lambda *_, **__: pytest.fail("packed weights were read"))
    ours.log_likelihoods([([1, 2, 3], [4, 5])])
    with pytest.raises(pytest.fail.Exception, match="packed weights"):  # teeth: elsewhere they are
        ours.lm.model.token_statistics(torch.tensor([[1, 2, 3]]), torch.tensor([3]), first=1)


def test_in_double_precision_nothing_is_left_of_a_difference(model_folder):
    """So what is left in single precision, some 5e-5 nats of a large model's sentences, is rounding."""
    asked = requests("loglikelihood", PAIRS)
    values = {}
    for dtype in ("float64", "float32"):
        lm = LanguageModel.from_pretrained(model_folder, dtype=dtype)
        hf = HFLM(pretrained=lm.model.network, tokenizer=lm.tokenizer, batch_size=1, max_length=16)
        told = CausalHarness(lm, max_length=16).loglikelihood(asked, disable_tqdm=True)
        theirs = hf.loglikelihood(asked, disable_tqdm=True)
        values[dtype] = [torch.tensor([value for value, _ in of], dtype=torch.float64) for of in (told, theirs)]
    torch.testing.assert_close(*values["float64"], atol=1e-10, rtol=0)
    assert not torch.allclose(values["float32"][0], values["float64"][0], atol=1e-10, rtol=0)  # teeth


def test_documents_equal_the_harness_own(ours, hf):
    texts = [("The clerk counts the boats. A sailor mends a bridge and an old map. " * 2,), ("Our neighbour",)]
    theirs = hf.loglikelihood_rolling(requests("loglikelihood_rolling", texts), disable_tqdm=True)
    told = ours.loglikelihood_rolling(requests("loglikelihood_rolling", texts))
    torch.testing.assert_close(torch.tensor(told), torch.tensor(theirs), atol=1e-4, rtol=0)


def test_greedy_text_equals_the_harness_own_and_is_greedy(ours, hf):
    wanted = [("The clerk", {"until": ["zebra"], "max_gen_toks": 5, "do_sample": False})]
    told = ours.generate_until(requests("generate_until", wanted))
    assert told == hf.generate_until(requests("generate_until", wanted), disable_tqdm=True)
    ids = ours.tok_encode("The clerk")
    drawn = ours.lm.sample([ids], n=1, top_k=1, max_new_tokens=5, stop_at_eos=False).continuations.tokens[0, 0].tolist()
    (written, wrong) = ours.log_likelihoods([(ids, drawn), (ids, [(drawn[0] + 1) % 300, *drawn[1:]])])
    assert written[1] and not wrong[1]


@pytest.fixture(scope="module")
def joint(lm, energy_folder):
    return ResidualModel(lm, EnergyModel.from_pretrained(energy_folder))


def test_a_joint_model_s_ends_enclose_the_truth(joint, lm):
    """Two tokens of 300 are enumerated: Σ_x P_LM(x | c) exp(−E(c, x)) is log Z, up to nothing."""
    given, scored = lm.encode("The clerk"), lm.encode(" counts the boats")[:1]
    every = [[*given, token] for token in range(lm.vocabulary_size)]
    log_weights = joint.log_weights(every, prefix_tokens=len(given))
    truth = float(joint.log_weights([given + scored], prefix_tokens=len(given))[0] - log_weights.logsumexp(0))
    harness = JointHarness(joint, n=2000)
    harness.log_likelihoods([(given, scored)])
    ((lower, upper),) = harness.ends
    assert lower - 0.05 <= truth <= upper + 0.05 and upper - lower < 0.2
    flipped = float(joint.log_weights([given + scored], prefix_tokens=len(given))[0] + log_weights.logsumexp(0))
    assert not lower - 0.05 <= flipped <= upper + 0.05  # teeth: log Z added where it is to be taken away
    info = harness.get_model_info()
    assert info["energylm_mean_lower"] == lower and info["energylm_mean_upper"] == upper
    assert JointHarness(joint, n=2000, end="upper").log_likelihoods([(given, scored)])[0][0] == upper


def test_a_joint_model_reads_documents_in_blocks_and_writes(joint):
    harness = JointHarness(joint, n=4, block_tokens=4)
    pairs = harness.rolling_pairs("The clerk counts the boats.")
    assert [harness.prefix_token_id, *itertools.chain(*(scored for _, scored in pairs))] == [
        *pairs[-1][0],
        *pairs[-1][1],
    ]
    (total,) = harness.loglikelihood_rolling(requests("loglikelihood_rolling", [("The clerk counts the boats.",)]))
    assert total == math.fsum(lower for lower, _ in harness.ends)
    wanted = [("The clerk", {"until": ["."], "max_gen_toks": 4})]
    (text,) = harness.generate_until(requests("generate_until", wanted))
    assert "." not in text


@pytest.fixture(scope="module")
def masked(masked_folder):
    return harness_model(str(masked_folder))


def test_a_pseudo_log_likelihood_counts_the_continuation_s_tokens(masked, masked_folder):
    (told,) = masked.loglikelihood(requests("loglikelihood", [("The clerk counts", " the boats.")]))
    (whole,) = Scorer.from_pretrained(masked_folder).token_scores(["The clerk counts the boats."])
    given = len(masked.scorer.reader.read("The clerk counts"))
    assert told == (math.fsum(whole.token_scores[given:]), False) and given > 0
    (rolled,) = masked.loglikelihood_rolling(requests("loglikelihood_rolling", [("The clerk counts the boats.",)]))
    assert rolled == pytest.approx(whole.score) and abs(rolled - told[0]) > 1e-3
    with pytest.raises(ModelError, match="continues no text; leave tasks that generate out"):
        masked.generate_until([])


TASK = """
task: tiny_pairs
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{{{[good, bad]}}}}"
metric_list: [{{metric: acc}}]
"""


@pytest.mark.parametrize("kind", ["causal", "masked", "electric", "joint"])
def test_a_task_runs_from_end_to_end(
    kind, model_folder, masked_folder, electric_folder, energy_folder, tmp_path, monkeypatch
):
    """BLiMP's form: a pair of sentences, no context."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    rows = [{"good": "The clerk counts the boats.", "bad": "The boats clerk counts the."}] * 2
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(TASK.format(file=tmp_path / "pairs.jsonl"))
    models = {
        "causal": f"pretrained={model_folder}",
        "masked": f"pretrained={masked_folder}",
        "electric": f"pretrained={electric_folder}",
        "joint": f"pretrained={model_folder},energy={energy_folder},n=8",
    }
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(
        "energylm", models[kind], tasks=["tiny_pairs"], task_manager=manager, bootstrap_iters=0
    )
    assert 0 <= results["results"]["tiny_pairs"]["acc,none"] <= 1
    assert "energylm_convention" in results["config"]
    assert ("energylm_mean_upper" in results["config"]) == (kind == "joint")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_the_device_that_nobody_asked_for_is_not_insisted_on(model_folder):
    """The harness's program says "cuda:0" wherever it runs; who asks for a device that is not there is told so."""
    (asked,) = (field.default for field in dataclasses.fields(EvaluatorConfig) if field.name == "device")
    assert asked == DEFAULT_DEVICE
    added = {"batch_size": 1, "max_batch_size": None, "device": asked}
    made = CausalHarness.create_from_arg_string(f"pretrained={model_folder}", added)
    assert isinstance(made, CausalHarness) and next(made.lm.model.network.parameters()).device.type == "cpu"
    with pytest.raises(ConfigError, match="device cuda:1 came, but this machine has 0 of type cuda"):
        CausalHarness.create_from_arg_string(f"pretrained={model_folder}", added | {"device": "cuda:1"})


def test_the_harness_asks_no_installed_package_for_models():
    """Why there is a program of ours beside `lm_eval`, as docs/harness.md says. Once this fails, an entry point of the
    package is enough, and `energylm-lm-eval` can go."""
    package = Path(lm_eval.__file__).parent
    sources = [file for room in ("api", "models", "_cli", "config") for file in sorted((package / room).glob("*.py"))]
    asking = [file.name for file in sources if re.search(r"entry_points\(|pkgutil|iter_modules", file.read_text())]
    assert len(sources) > 30 and asking == []


def test_mistakes_are_one_line(model_folder, energy_folder):
    with pytest.raises(ModelError, match="is an energy; give it as energy=… beside pretrained=LANGUAGE-MODEL"):
        harness_model(str(energy_folder))
    with pytest.raises(ConfigError, match=r"--model_args: .*blok_tokens"):
        harness_model(str(model_folder), energy=str(energy_folder), blok_tokens=3)
    with pytest.raises(ConfigError, match="end 'middle' is neither"):
        harness_model(str(model_folder), energy=str(energy_folder), end="middle")
    assert isinstance(harness_model(str(model_folder)), CausalHarness)
