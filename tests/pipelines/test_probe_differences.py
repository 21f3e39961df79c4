"""`energylm probe differences` as a function: the fractions by hand, and every difference against a loop."""

import json
import math

import pytest
import torch

from energylm import EnergyModel
from energylm.config.probe import DifferencesConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast
from energylm.errors import ConfigError, DataError
from energylm.evaluation.probe_differences import differences
from energylm.jobs.job import Job
from energylm.pipelines.probe_differences import plan_differences, run_differences
from energylm.verbs.joint.negatives import MakeNegatives


@pytest.fixture(scope="module")
def folders(corpus_folder, model_folder, tmp_path_factory):
    """Two folders of the same contexts: continued by 8 tokens, and by 8 or 4."""
    root = tmp_path_factory.mktemp("negatives")
    for name, lengths in (("eight", (12,)), ("mixed", (12, 16))):
        config = MakeNegatives(
            corpus=str(corpus_folder), language_model=str(model_folder), split="valid", k=3, length=20,
            prefix_tokens=lengths, contexts=14, seed=len(lengths),
        )  # fmt: skip
        config.run(Job(output=root / name))
    return root


@pytest.fixture
def config(folders, energy_folder, corpus_folder):
    def make(**changes):
        values = {"energy": str(energy_folder), "negatives": [str(folders / "eight")], "corpus": str(corpus_folder)}
        return DifferencesConfig.checked(values | changes)

    return make


def test_the_numbers_by_hand():
    """Real −1 and 2; generated (0, 1) and (2, 2.05): differences (1, 2) and (0, 0.05)."""
    found = differences(
        "g", torch.tensor([-1.0, 2.0]), torch.tensor([[0.0, 1.0], [2.0, 2.05]]), margins=(0.0, 0.1, 1.0)
    )
    assert found.values == pytest.approx((1.0, 2.0, 0.0, 0.05), abs=1e-6)
    assert found.mean == pytest.approx(0.7625) and (found.contexts, found.per_context) == (2, 2)
    assert found.median == pytest.approx((0.05 + 1) / 2)
    assert float(torch.tensor(found.values).median()) == pytest.approx(0.05), "teeth: torch's is the lower median"
    at_0, at_tenth, at_1 = found.margins
    assert (at_0.above, at_tenth.above, at_1.above) == (0.75, 0.5, 0.25)
    assert at_tenth.ranking_loss == pytest.approx((0.1 + 0.05) / 4) and at_1.ranking_loss == pytest.approx(1.95 / 4)
    assert at_0.standard_error == pytest.approx(math.sqrt(0.125) / math.sqrt(2))  # of 1 and 0.5, over contexts
    turned = differences("g", torch.tensor([1.0, -2.0]), -torch.tensor([[0.0, 1.0], [2.0, 2.05]]), margins=(0.1,))
    assert turned.margins[0].above == 0.0, "teeth: the sign of the score turned round"


def test_every_difference_equals_a_loop(config, folders, energy_folder, corpus_folder):
    found = run_differences(config(per_context=3)).found.generators[0]
    energy = EnergyModel.from_pretrained(energy_folder)
    contrast = Contrast(Negatives.open(folders / "eight"), Corpus.open(corpus_folder))
    expected = []
    for row in range(14):
        sequences = contrast.sequences(torch.tensor([row]).numpy(), torch.tensor([[0, 1, 2]]).numpy())
        real, *others = (float(energy.energies(torch.tensor([s]), torch.tensor([len(s)]))[0]) for s in sequences)
        expected += [other - real for other in others]
    assert sorted(found.values) == pytest.approx(sorted(expected), abs=1e-4)
    assert found.contexts == 14 and found.per_context == 3


def test_only_so_many_new_tokens_and_so_many_contexts(config, folders):
    mixed = Negatives.open(folders / "mixed")
    eight = int((mixed.rows(torch.arange(14).numpy()).context_length_B == 12).sum())
    assert 2 <= eight < 14
    chosen = {"negatives": [str(folders / "mixed")], "new_tokens": 8}
    assert run_differences(config(**chosen)).found.generators[0].contexts == eight
    assert run_differences(config(**chosen, contexts=2)).found.generators[0].contexts == 2
    with pytest.raises(DataError, match="has 0 contexts that are continued by 5 tokens"):
        run_differences(config(new_tokens=5))


def test_folders_of_one_generator_are_told_apart(config, folders):
    both = [str(folders / name) for name in ("eight", "mixed")]
    found = run_differences(config(negatives=both)).found.generators
    assert [one.name.rpartition("/")[2] for one in found] == ["eight)", "mixed)"]


def test_a_report_and_json(config, tmp_path):
    run = run_differences(config(margins=(0.0, 0.5)), output=tmp_path / "report")
    assert (run.report.parent / "distribution.png").exists()
    kept = json.loads(json.dumps(run.to_json()))
    assert kept["g1"]["margins"] == [0.0, 0.5] and kept["g1"]["above"][0] >= kept["g1"]["above"][1]
    assert kept["rows"][0]["> 0.5"] == kept["g1"]["above"][1] and len(kept["g1"]["curve"]["x"]) > 40
    assert kept["g1"]["name"].endswith("left to right")


def test_mistakes_are_named(config, folders, model_folder, corpus_folder):
    assert "at most 1,000 contexts" in plan_differences(config())
    with pytest.raises(ConfigError, match=r"per_context is 4, but .* holds 3"):
        plan_differences(config(per_context=4))
    with pytest.raises(ConfigError, match="a folder came twice"):
        plan_differences(config(negatives=[str(folders / "eight")] * 2))
    with pytest.raises(DataError, match="holds no negatives"):
        plan_differences(config(negatives=[str(folders)]))
