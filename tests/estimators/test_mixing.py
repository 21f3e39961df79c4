"""The verdict on chains, case by case."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from energylm.estimators.mixing import Diagnosis, Trace, diagnose

TEXTS, CHAINS, EPOCHS, BURN_IN = 2, 4, 120, 20


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def trace(energy_BCN: Tensor | None = None) -> Trace:
    energy_BCN = noise(TEXTS, CHAINS, EPOCHS) if energy_BCN is None else energy_BCN
    counts = torch.full(energy_BCN.shape, 10)
    return Trace(
        energy_BCN=energy_BCN,
        proposed_BCN=counts,
        accepted_BCN=counts * 6 // 10,
        novel_BCN=counts * 3 // 10,
        temperature_N=torch.ones(energy_BCN.shape[2]),
        burn_in=BURN_IN,
        exact=True,
        dispersed=True,
    )


def test_independent_draws_are_mixed_and_burn_in_does_not_count() -> None:
    right = trace()
    right.energy_BCN[..., :BURN_IN] += 100
    found = diagnose(right)
    assert found.mixed is True and found.verdict.startswith("mixed")
    assert (found.acceptance, found.novel) == (0.6, 0.3)
    assert abs(found.mean_energy) < 0.2 and found.lowest_energy == float(right.energy_BCN[..., BURN_IN:].min())
    assert found.r_hat < 1.05 and found.effective_draws > 200 and len(found.autocorrelation) == EPOCHS - BURN_IN
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["mixed"] is True
    assert diagnose(replace(right, burn_in=0)).mixed is False  # teeth: burn-in counted in


@pytest.mark.parametrize(
    ("change", "mixed", "words"),
    [
        ({"exact": False}, None, "no known distribution"),
        ({"temperature_N": torch.linspace(1, 0.5, EPOCHS)}, None, "annealed"),
        ({"dispersed": False}, None, "all started from one text"),
        ({"novel_BCN": torch.zeros(TEXTS, CHAINS, EPOCHS)}, False, "only 0.0% of the proposals changed a text"),
        ({"burn_in": EPOCHS - 3}, None, "fewer than 4 epochs"),
    ],
)
def test_what_speaks_against_a_verdict(change: dict[str, object], mixed: bool | None, words: str) -> None:
    found = diagnose(replace(trace(), **change))
    assert found.mixed is mixed and words in found.verdict


def test_chains_that_disagree_or_crawl_are_told_what_to_do() -> None:
    apart = noise(1, CHAINS, EPOCHS) + torch.arange(CHAINS)[None, :, None]
    found = diagnose(trace(apart))
    assert found.mixed is False and "run longer or use block moves" in found.verdict and "R-hat up to" in found.verdict
    slow = noise(1, CHAINS, EPOCHS).cumsum(-1)
    assert diagnose(trace(slow - slow.mean(-1, keepdim=True))).mixed is False
    brief = torch.tensor([0.0, 1.0, 5.0, 0.0, 1.0], dtype=torch.float64).expand(1, CHAINS, 5)  # all halves agree
    assert "independent draws; run longer" in diagnose(replace(trace(brief), burn_in=0)).verdict
    many = noise(100, CHAINS, EPOCHS)
    many[:3] += torch.arange(CHAINS)[:, None]
    assert diagnose(trace(many)).mixed is True  # three of a hundred texts may look bad by chance
    many[:30] += torch.arange(CHAINS)[:, None]
    assert "in 30% of the texts" in diagnose(trace(many)).verdict


def test_one_chain_tells_nothing() -> None:
    found = diagnose(trace(noise(1, 1, EPOCHS)))
    assert found.mixed is None and "one chain" in found.verdict and found.to_json()["spread"] == "nan"
    assert isinstance(found, Diagnosis) and "R-hat" in found.facts()
