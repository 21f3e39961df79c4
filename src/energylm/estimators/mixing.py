"""The diagnosis of a run of chains: rates, R-hat, effective draws, spread, and a verdict in plain words.

Relations  `chains` holds the formulas; Goyal 2021, tables 6.2 to 6.6 report acceptance, novel transitions and energies.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.estimators.chains import MIN_DRAWS, autocorrelation, effective_draws, split_r_hat, spread
from energylm.records import Record

R_HAT_LIMIT = 1.05  # above it chains of one text disagree
EFFECTIVE_DRAWS_A_CHAIN = 5.0  # below it they are too few to tell anything
LUCKLESS_TEXTS = 0.05  # of many texts so many may cross either limit by chance
STUCK_NOVEL = 0.02  # part of the proposals
CURE = "run longer or use block moves"


@dataclass(frozen=True)
class Trace:
    """What was recorded of every epoch: B texts, C chains, N epochs."""

    energy_BCN: Tensor  # after each epoch
    proposed_BCN: Tensor
    accepted_BCN: Tensor
    novel_BCN: Tensor
    temperature_N: Tensor  # of the target
    burn_in: int
    exact: bool  # whether the sampler keeps its target: not degenerate Gibbs
    dispersed: bool  # whether chains started apart


@dataclass(frozen=True)
class Diagnosis(Record):
    """Numbers after burn-in; of several texts, R-hat and effective draws are those of the worst."""

    acceptance: float  # of proposals, those that change nothing included
    novel: float  # of proposals: accepted and changing something
    mean_energy: float
    lowest_energy: float
    spread: float  # standard deviation of chains' mean energies, averaged over texts
    r_hat: float
    texts_above_limit: float  # part of the texts whose R-hat exceeds the limit
    effective_draws: float
    autocorrelation: tuple[float, ...]  # of the energy, by lag in epochs, averaged over texts
    mixed: bool | None  # None where nothing can be said
    verdict: str

    def facts(self) -> str:
        """Its numbers in one line."""
        known = math.isfinite(self.r_hat) and math.isfinite(self.effective_draws)
        mixing = f"; R-hat {self.r_hat:.3f}, worth {self.effective_draws:.0f} independent draws" if known else ""
        return (
            f"{self.acceptance:.1%} of the proposals accepted, {self.novel:.1%} changed the text; "
            f"mean energy {self.mean_energy:.2f}{mixing}"
        )


def diagnose(trace: Trace) -> Diagnosis:
    kept_BCN = trace.energy_BCN[..., trace.burn_in :]
    after = slice(trace.burn_in, None)
    proposed = float(trace.proposed_BCN[..., after].sum())
    acceptance = float(trace.accepted_BCN[..., after].sum()) / proposed
    novel = float(trace.novel_BCN[..., after].sum()) / proposed
    r_hats = [split_r_hat(energy_CN) for energy_CN in kept_BCN]
    draws = [effective_draws(energy_CN) for energy_CN in kept_BCN]
    above = sum(r_hat > R_HAT_LIMIT for r_hat in r_hats) / len(r_hats)
    mixed, verdict = _verdict(trace, r_hats=r_hats, above=above, draws=draws, novel=novel)
    return Diagnosis(
        acceptance=acceptance,
        novel=novel,
        mean_energy=float(kept_BCN.mean()),
        lowest_energy=float(kept_BCN.min()),
        spread=_mean([spread(energy_CN) for energy_CN in kept_BCN]),
        r_hat=_worst(r_hats, largest=True),
        texts_above_limit=above,
        effective_draws=_worst(draws, largest=False),
        autocorrelation=tuple(torch.stack([autocorrelation(energy_CN) for energy_CN in kept_BCN]).nanmean(0).tolist()),
        mixed=mixed,
        verdict=verdict,
    )


def _verdict(
    trace: Trace, *, r_hats: list[float], above: float, draws: list[float], novel: float
) -> tuple[bool | None, str]:
    texts, chains, _ = trace.energy_BCN.shape
    if not trace.exact:
        return None, (
            "degenerate Gibbs: its texts follow no known distribution, so there is nothing to mix to; use sampler mh"
        )
    if float(trace.temperature_N.min()) < float(trace.temperature_N.max()):
        return None, "annealed: the target changed with the epochs, so these are texts near its modes, not samples"
    if novel < STUCK_NOVEL:
        return False, f"not mixed: only {novel:.1%} of the proposals changed a text; {CURE}, or raise the temperature"
    if chains == 1:
        return None, "one chain: nothing tells whether it mixed; run at least 4 chains from different starts"
    if not trace.dispersed:
        return None, (
            "nothing tells whether the chains mixed: all started from one text; start them apart (masks, start "
            "dispersed, or forced epochs)"
        )
    if all(math.isnan(r_hat) for r_hat in r_hats):
        return None, f"fewer than {MIN_DRAWS} epochs after burn-in: nothing tells whether the chains mixed; run longer"
    if above > LUCKLESS_TEXTS:
        where = f" in {above:.0%} of the texts" if texts > 1 else ""
        return False, f"not mixed: chains disagree{where} (R-hat up to {_worst(r_hats, largest=True):.2f}); {CURE}"
    few = sum(count < EFFECTIVE_DRAWS_A_CHAIN * chains for count in draws) / texts
    if few > LUCKLESS_TEXTS:
        least = _worst(draws, largest=False)
        return False, f"not mixed: chains of a text are worth only {least:.0f} independent draws; {CURE}"
    return True, "mixed, as far as the energy shows"


def _worst(values: list[float], *, largest: bool) -> float:
    known = [value for value in values if not math.isnan(value)]
    return (max(known) if largest else min(known)) if known else float("nan")


def _mean(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).nanmean())
