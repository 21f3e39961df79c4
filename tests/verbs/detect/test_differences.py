"""`energylm probe differences` as a function: the fractions by hand, and every difference against a loop."""

import json
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from energylm import EnergyModel
from energylm.data.contrast import Contrast
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.errors import ConfigError, DataError
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.verbs import CompareEnergies, MakeNegatives
from energylm.verbs.detect.discriminating import DifferencesResult, differences


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
def compared(folders, energy_folder, corpus_folder):
    def make(**changes):
        values = {"energy": str(energy_folder), "negatives": [str(folders / "eight")], "corpus": str(corpus_folder)}
        return CompareEnergies.checked(values | changes)

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


def test_every_difference_equals_a_loop(compared, folders, energy_folder, corpus_folder):
    found = compared(per_context=3).run().generators["g1"]
    energy = EnergyModel.from_pretrained(energy_folder)
    contrast = Contrast(Negatives.open(folders / "eight"), Corpus.open(corpus_folder))
    expected = []
    for row in range(14):
        sequences = contrast.sequences(torch.tensor([row]).numpy(), torch.tensor([[0, 1, 2]]).numpy())
        real, *others = (float(energy.energies(torch.tensor([s]), torch.tensor([len(s)]))[0]) for s in sequences)
        expected += [other - real for other in others]
    assert sorted(found.values) == pytest.approx(sorted(expected), abs=1e-4)
    assert found.contexts == 14 and found.per_context == 3


def test_only_so_many_new_tokens_and_so_many_contexts(compared, folders):
    mixed = Negatives.open(folders / "mixed")
    eight = int((mixed.rows(torch.arange(14).numpy()).context_length_B == 12).sum())
    assert 2 <= eight < 14
    chosen = {"negatives": [str(folders / "mixed")], "new_tokens": 8}
    assert compared(**chosen).run().generators["g1"].contexts == eight
    assert compared(**chosen, contexts=2).run().generators["g1"].contexts == 2
    with pytest.raises(DataError, match="has 0 contexts that are continued by 5 tokens"):
        compared(new_tokens=5).run()


def test_folders_of_one_generator_are_told_apart(compared, folders):
    both = [str(folders / name) for name in ("eight", "mixed")]
    result = compared(negatives=both).run()
    assert [of.name.rpartition("/")[2] for of in result.generators.values()] == ["eight)", "mixed)"]
    assert list(result.curves) == ["g1", "g2"] and result.curves["g1"]["y"] != result.curves["g2"]["y"]


def test_a_report_and_json(compared, tmp_path):
    result = compared(margin=(0.0, 0.5)).run(Job(output=tmp_path / "report"))
    assert (result.report.parent / "distribution.png").exists()
    kept = json.loads(json.dumps(result.to_json()))
    margins = kept["generators"]["g1"]["margins"]
    assert [share["margin"] for share in margins] == [0.0, 0.5] and margins[0]["above"] >= margins[1]["above"]
    assert kept["rows"][0]["> 0.5"] == margins[1]["above"] and len(kept["curves"]["g1"]["x"]) > 40
    assert kept["generators"]["g1"]["name"].endswith("left to right")
    assert DifferencesResult.from_json(kept).to_json() == kept


def test_mistakes_are_named(compared, folders, model_folder, corpus_folder):
    assert "at most 1,000 contexts" in compared().check()
    with pytest.raises(ConfigError, match=r"per_context is 4, but .* holds 3"):
        compared(per_context=4).check()
    with pytest.raises(ConfigError, match="a folder came twice"):
        compared(negatives=[str(folders / "eight")] * 2).check()
    with pytest.raises(DataError, match="holds no negatives"):
        compared(negatives=[str(folders)]).check()


def test_counted_work(compared):
    """Against what torch counts; teeth: the generated texts alone are three quarters of it."""
    around, verb = Surroundings({}, {"networks": {}}), compared(per_context=3)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        verb.run()
    assert verb.cost(around).flops == pytest.approx(counter.get_total_flops(), rel=0.1)
    assert compared(per_context=3, contexts=7).cost(around).flops == pytest.approx(verb.cost(around).flops / 2)
