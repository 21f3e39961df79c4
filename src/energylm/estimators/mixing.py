"""Whether chains have mixed, from a number that each state has (its energy): rates, R-hat, effective draws, a verdict.

    R̂² = ((n − 1)/n · W + B/n) / W         W mean variance within half-chains, B/n variance of their means
    ESS = M / (1 + 2 Σ_t ρ_t)               M draws of all chains, ρ_t their autocorrelation, summed while ρ_2t + ρ_2t+1
                                            falls and stays positive (Geyer 1992)

Chains are split in halves, so that a drift shows too (Gelman et al. 2013; Vehtari et al. 2021). R-hat compares chains
with each other: from one common start it means nothing, so chains must start apart. Goyal 2021, tables 6.2 to 6.6
report acceptance, novel transitions and energies.

Relations  `samplers.epochs` makes the numbers; `energylm mcmc` shows them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.records import Record

MIN_DRAWS = 4  # of a chain: two in each half


def split_r_hat(values_CN: Tensor) -> float:
    """Near 1 for chains that agree; infinite where each stands still at another value; NaN where all stand at one, or
    where chains are shorter than `MIN_DRAWS`."""
    if values_CN.shape[1] < MIN_DRAWS:
        return float("nan")
    halves_CN = _halves(values_CN)
    draws = halves_CN.shape[1]
    within, between = float(halves_CN.var(1).mean()), float(halves_CN.mean(1).var())
    if within == 0:
        return float("inf") if between > 0 else float("nan")
    return float(((draws - 1) / draws + between / within) ** 0.5)


def effective_draws(values_CN: Tensor) -> float:
    """How many independent draws the chains' draws are worth for estimating the mean; NaN where nothing moves."""
    if values_CN.shape[1] < MIN_DRAWS:
        return float("nan")
    halves_CN = _halves(values_CN)
    chains, draws = halves_CN.shape
    within = float(halves_CN.var(1).mean())
    variance = within * (draws - 1) / draws + float(halves_CN.mean(1).var())
    if variance == 0:
        return float("nan")
    covariance_N = _autocovariance(halves_CN).mean(0) * draws / (draws - 1)
    correlation_N = 1 - (within - covariance_N) / variance
    correlation_N[0] = 1.0
    pairs_P = correlation_N[: draws // 2 * 2].view(-1, 2).sum(1)
    positive = int((pairs_P > 0).long().cumprod(0).sum())  # the first pair that is not positive ends the sum
    time = -1 + 2 * float(pairs_P[:positive].cummin(0).values.sum())
    total = chains * draws
    # Antithetic chains can be worth more than independent draws, but estimates of that are not to be trusted far.
    return total / max(time, 1 / torch.log10(torch.tensor(float(total))).item())


def autocorrelation(values_CN: Tensor) -> Tensor:
    """(N,) by lag, averaged over chains, each around its own mean; NaN where nothing moves."""
    covariance_N = _autocovariance(values_CN.double()).mean(0)
    return covariance_N / covariance_N[0] if covariance_N[0] > 0 else torch.full_like(covariance_N, float("nan"))


def spread(values_CN: Tensor) -> float:
    """Standard deviation of the chains' means: how far chains of one text lie apart. NaN for a single chain."""
    return float(values_CN.double().mean(1).std()) if len(values_CN) > 1 else float("nan")


def _halves(values_CN: Tensor) -> Tensor:
    """Each chain as two; the middle draw of an odd number is left out."""
    half = values_CN.shape[1] // 2
    return torch.cat([values_CN[:, :half], values_CN[:, -half:]]).double()


def _autocovariance(values_CN: Tensor) -> Tensor:
    """(C, N) by lag, each sum divided by N whatever the lag, through the Fourier transform."""
    draws = values_CN.shape[1]
    centred_CN = values_CN - values_CN.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred_CN, n=2 * draws)
    inverse: Tensor = torch.fft.irfft(spectrum * spectrum.conj(), n=2 * draws)
    return inverse[:, :draws] / draws


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
