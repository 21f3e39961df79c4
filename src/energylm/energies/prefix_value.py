"""A value of unfinished texts, learned from finished ones: what the energy will be worth, seen from a prefix.

    ψ(c, x_≤t) ≈ log E[exp(−E(c, x)) | x_≤t]        x_>t ~ P_LM
    ψ(c, x_≤t) = −(a(τ) · E(c, x_≤t) + b(τ)),  τ = t / T        a, b linear between knots; a(1) = 1, b(1) = 0

The energy that was trained on whole texts reads the prefix as if it were one; a(τ) says how much of that lasts until
the end. It is fitted to draws x_1 … x_K of the language model for each of many contexts, which are kept beside every
training set of an energy (its negatives), cut at several τ. The loss is the cross-entropy of shares,

    L = −Σ_k p_k log s_k,   p = softmax of −E(c, x_k),   s = softmax of ψ(c, x_k,≤t)       for each context and cut

whose minimum is where prefixes have the share that their completions have on average: contrastive learning of a twist,
convex in a. With few draws of uneven weights shares are flatter than weights, and so is a. What depends on context and
cut alone cancels in L, as it does in resampling; b matters only beside texts that have ended, and is the mean of
E(c, x) − a E(c, x_≤t). A ridge pulls a towards the least-squares slope of E(c, x)
on E(c, x_≤t), which is the answer where energies are normal, and which a few heavy weights do not move.

Use it     as `lookahead` of the sampler smc; it needs no network of its own: one reading of the energy a block.
Relations  `samplers.sequential_monte_carlo` weighs particles by it; `energylm energy value` fits it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from energylm.errors import ConfigError, DataError
from energylm.files import read_json, write_json
from energylm.records import Record

VALUE_FILE = "value.json"
KNOTS = (0.0, 0.25, 0.5, 0.75, 1.0)
RIDGE = 1e-2  # nats for a slope that is off by one standard deviation of the energies

Lookahead = Callable[[Tensor, Tensor, int], Tensor]  # energies of prefixes, their lengths, the full length → −ψ


@dataclass(frozen=True)
class PrefixValue(Record):
    """−ψ as a function of the prefix's own energy; `loss` and `loss_without` are those of held-out contexts, with this
    value and with none."""

    slopes: list[float]  # a at each of `KNOTS`
    offsets: list[float]  # b
    contexts: int
    loss: float
    loss_without: float

    def __call__(self, energy: Tensor, lengths: Tensor, max_new_tokens: int) -> Tensor:
        """−ψ of prefixes of `lengths` tokens that have these energies."""
        hats = hat_functions(lengths.double() / max_new_tokens)
        slopes, offsets = (hats.new_tensor(values) for values in (self.slopes, self.offsets))
        return (hats @ slopes) * energy + hats @ offsets

    def save(self, folder: Path) -> None:
        write_json(folder / VALUE_FILE, self.to_json())

    @classmethod
    def load(cls, folder: Path) -> "PrefixValue":
        path = folder / VALUE_FILE
        if not path.is_file():
            raise ConfigError(
                f"lookahead {str(folder)!r} is neither 'energy' nor 'none', nor a folder that `energylm energy value` "
                f"wrote (with {VALUE_FILE}); give one of them"
            )
        return cls.from_json(read_json(path))


def lookahead_energies(name: str) -> Lookahead | None:
    """By what particles are weighed on the way: nothing, the energy of the prefix, or a value that was fitted."""
    if name == "none":
        return None
    if name == "energy":
        return lambda energy, lengths, max_new_tokens: energy
    return PrefixValue.load(Path(name))


def hat_functions(fraction: Tensor) -> Tensor:
    """(…, K) how much each knot counts at a fraction of the text: 1 at itself, 0 at its neighbours, linear between."""
    knots_K = torch.tensor(KNOTS, dtype=torch.float64, device=fraction.device)
    return (1 - (fraction[..., None] - knots_K).abs() * (len(KNOTS) - 1)).clamp(min=0.0)


@torch.enable_grad()
def fit_prefix_value(prefix_energy_BKJ: Tensor, fraction_J: Tensor, energy_BK: Tensor) -> PrefixValue:
    """From K draws of each of B contexts, cut at J fractions. One context in four is held out to say what it is worth,
    and fitted on with the others in the end."""
    if not (prefix_energy_BKJ.isfinite().all() and energy_BK.isfinite().all()):
        raise DataError("an energy is not finite: constraints have no value of prefixes; take lookahead none or energy")
    if len(energy_BK) < 4 or energy_BK.shape[1] < 2:
        raise DataError(
            f"{len(energy_BK)} contexts with {energy_BK.shape[1]} draws each came; a value needs 4 contexts and 2 draws"
        )
    prefix_BKJ, energy_BK, hats_JK = prefix_energy_BKJ.double(), energy_BK.double(), hat_functions(fraction_J.double())
    held_B = torch.arange(len(energy_BK)) % 4 == 0
    trial_K = _fit(prefix_BKJ[~held_B], hats_JK, energy_BK[~held_B])
    loss = float(_loss(trial_K, prefix_BKJ[held_B], hats_JK, energy_BK[held_B]))
    slopes_K = _fit(prefix_BKJ, hats_JK, energy_BK)
    rest_J = (energy_BK[..., None] - (hats_JK @ slopes_K) * prefix_BKJ).mean((0, 1))
    offsets_K = torch.cat([_regression(hats_JK[:, :-1], rest_J), rest_J.new_zeros(1)])
    without = float(torch.tensor(float(energy_BK.shape[1])).log())  # all prefixes have the same share
    return PrefixValue(slopes_K.tolist(), offsets_K.tolist(), len(energy_BK), loss=loss, loss_without=without)


def _fit(prefix_BKJ: Tensor, hats_JK: Tensor, energy_BK: Tensor) -> Tensor:
    """(knots,) slopes, the last of which is 1."""
    # Least squares within contexts: what depends on the context alone is left out on both sides.
    prefix_BKJ, energy_BK = prefix_BKJ - prefix_BKJ.mean(1, keepdim=True), energy_BK - energy_BK.mean(1, keepdim=True)
    features = (prefix_BKJ[..., None] * hats_JK[:, :-1]).flatten(0, 2)
    line_K = _regression(features, (energy_BK[..., None] - hats_JK[:, -1] * prefix_BKJ).flatten())
    spread = energy_BK.std()
    free_K = line_K.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([free_K], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(_with_last(free_K), prefix_BKJ, hats_JK, energy_BK)
        loss = loss + RIDGE * ((free_K - line_K) * spread).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return _with_last(free_K.detach())


def _with_last(free_K: Tensor) -> Tensor:
    return torch.cat([free_K, free_K.new_ones(1)])


def _regression(features_SK: Tensor, target_S: Tensor) -> Tensor:
    """(K,) the least-squares coefficients, of no size where features say nothing."""
    scale = features_SK.square().mean() + 1e-30
    normal_KK = features_SK.T @ features_SK / len(features_SK)
    ridge_KK = 1e-9 * scale * torch.eye(features_SK.shape[1], dtype=torch.float64)
    coefficients_K: Tensor = torch.linalg.solve(normal_KK + ridge_KK, features_SK.T @ target_S / len(features_SK))
    return coefficients_K


def _loss(slopes_K: Tensor, prefix_BKJ: Tensor, hats_JK: Tensor, energy_BK: Tensor) -> Tensor:
    """Cross-entropy of shares, in nats, averaged over contexts and cuts."""
    log_share_BKJ = (-(hats_JK @ slopes_K) * prefix_BKJ).log_softmax(1)
    return -((-energy_BK).softmax(1)[..., None] * log_share_BKJ).sum(1).mean()
