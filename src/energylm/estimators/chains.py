"""Whether chains have mixed, from a number that each state has (its energy): R-hat, effective draws, autocorrelation.

    R̂² = ((n − 1)/n · W + B/n) / W         W mean variance within half-chains, B/n variance of their means
    ESS = M / (1 + 2 Σ_t ρ_t)               M draws of all chains, ρ_t their autocorrelation, summed while ρ_2t + ρ_2t+1
                                            falls and stays positive (Geyer 1992)

Chains are split in halves, so that a drift shows too (Gelman et al. 2013; Vehtari et al. 2021). R-hat compares chains
with each other: from one common start it means nothing, so chains must start apart.

Relations  `samplers.epochs` makes the numbers; `energylm mcmc` shows them.
"""

import torch
from torch import Tensor

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
