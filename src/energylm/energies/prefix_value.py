"""A value of unfinished texts, learned from finished ones: what the energy will be worth, seen from a prefix.

    ψ(c, x_≤t) ≈ log E[exp(−E(c, x)) | x_≤t]                                             x_>t ~ P_LM
    ψ(c, x_≤t) = −(a(τ) · E(c, x_≤t) + b(τ) + (1 − τ) · u · h(c, x_≤t)),   τ = t / T     a(1) = 1, b(1) = 0

The energy that was trained on whole texts reads the prefix as if it were one; a(τ), linear between knots, says how much
of that lasts until the end, and a linear head u on the network's pooled states h, of which the energy is but one
projection, what else they tell of the text to come. Both are one reading. Energies without a network have no h.

It is fitted to draws x of the language model for many contexts, which are kept beside every training set of an energy
(its negatives), cut at several τ. One draw a prefix suffices, because

    L(ψ) = E[exp(r) − r − 1],   r = −E(c, x) − ψ(c, x_≤t)              ("linex"; convex in a, b, u)

is least where E[exp(r) | x_≤t] = 1: at ψ = log E[exp(−E) | x_≤t], while squares would give E[−E | x_≤t]. A few heavy
weights make exp(r) uncertain, so the fit is pulled towards least squares, the answer where energies are normal, and u
towards 0; how hard is chosen by cross-validation over contexts.

Use it     as `lookahead` of the sampler smc; it needs no network of its own.
Relations  `samplers.sequential_monte_carlo` weighs particles by it; `energylm energy value` fits it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from energylm.errors import ConfigError, DataError
from energylm.files import read_json, write_json
from energylm.records import Record

VALUE_FILE = "value.json"
KNOTS = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 4
# On u, of states of unit variance; the last leaves none of it.
HEAD_RIDGES = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e6)
LINE_RIDGES = (0.1, 1.0, 10.0, 100.0)  # nats for a parameter that moves the value by one from least squares
NEWTON_STEPS = 100
UNLIKELY = 1.0  # nats above the worst of what is allowed


@dataclass(frozen=True)
class PrefixValue(Record):
    """−ψ as a function of the prefix's own energy and states. The losses are those of held-out contexts: of this kind
    of value, of one without states, and of a constant."""

    slopes: list[float]  # a at each of `KNOTS`
    offsets: list[float]  # b
    state_weights: list[float]  # u; empty for energies without states
    contexts: int
    loss: float
    loss_of_energy_alone: float
    loss_without: float

    def __call__(self, energy: Tensor, states: Tensor | None, lengths: Tensor, max_new_tokens: int) -> Tensor:
        """−ψ of prefixes of `lengths` tokens that have these energies and states (…, D)."""
        fraction = lengths.double() / max_new_tokens
        hats = hat_functions(fraction)
        slopes, offsets, weights = (
            hats.new_tensor(values) for values in (self.slopes, self.offsets, self.state_weights)
        )
        value = (hats @ slopes) * energy + hats @ offsets
        if not self.state_weights:
            return value
        width = 0 if states is None else states.shape[-1]
        if states is None or width != len(weights):
            raise ConfigError(
                f"the lookahead was fitted to an energy with {len(weights)} states, but this one has {width}; fit one "
                "to it with `energylm energy value`"
            )
        return value + (1 - fraction) * (states.to(weights) @ weights)

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


Lookahead = Callable[[Tensor, Tensor | None, Tensor, int], Tensor]  # as `PrefixValue` is called


def lookahead_energies(name: str) -> Lookahead | None:
    """By what particles are weighed on the way: nothing, the energy of the prefix, or a value that was fitted."""
    if name == "none":
        return None
    if name == "energy":
        return lambda energy, states, lengths, max_new_tokens: energy
    return PrefixValue.load(Path(name))


def values_on_the_way(ahead: Tensor, energy: Tensor, ended: Tensor) -> Tensor:
    """−ψ of texts of which some have `ended`, which have their own energy. What is forbidden now may be allowed later
    (a word that must occur): it only counts as unlikely."""
    ahead = torch.where(ended, energy, ahead)
    return torch.where(ahead.isfinite(), ahead, ahead[ahead.isfinite()].max() + UNLIKELY)


def hat_functions(fraction: Tensor) -> Tensor:
    """(…, K) how much each knot counts at a fraction of the text: 1 at itself, 0 at its neighbours, linear between."""
    knots_K = torch.tensor(KNOTS, dtype=torch.float64, device=fraction.device)
    return (1 - (fraction[..., None] - knots_K).abs() * (len(KNOTS) - 1)).clamp(min=0.0)


@dataclass(frozen=True)
class Cuts:
    """S unfinished texts: −ψ = base + features · θ, to be fitted to the energies of what they became."""

    features_SP: Tensor
    target_S: Tensor  # energy − base
    weight_S: Tensor  # how much each counts
    context_S: Tensor

    def of(self, rows_S: Tensor) -> "Cuts":
        return Cuts(self.features_SP[rows_S], self.target_S[rows_S], self.weight_S[rows_S], self.context_S[rows_S])

    def mean(self, values_S: Tensor) -> Tensor:
        return (self.weight_S * values_S).sum() / self.weight_S.sum()

    def residuals(self, parameters_P: Tensor) -> Tensor:
        """(S,) r = −E − ψ."""
        return self.features_SP @ parameters_P - self.target_S

    def squares(self, parameters_P: Tensor) -> Tensor:
        return self.mean(self.residuals(parameters_P).square())

    def linex(self, parameters_P: Tensor) -> Tensor:
        """In nats; 0 where the energy is known, about half the variance of what is left of it."""
        residual_S = self.residuals(parameters_P)
        return self.mean(residual_S.exp() - residual_S - 1)


def cuts(
    prefix_energy_BKJ: Tensor, states_BKJD: Tensor | None, is_open_BKJ: Tensor, fraction_J: Tensor, energy_BK: Tensor
) -> Cuts:
    """K draws of each of B contexts, cut at J fractions; those that ended before a cut do not count there."""
    shape = prefix_energy_BKJ.shape
    hats_JH = hat_functions(fraction_J.double())
    prefix_BKJ1 = prefix_energy_BKJ.double()[..., None]
    free_BKJH = hats_JH[:, :-1].expand(*shape, -1)  # the last slope is 1, the last offset 0
    features = [prefix_BKJ1 * free_BKJH, free_BKJH]
    if states_BKJD is not None:
        features.append((1 - fraction_J.double())[:, None] * states_BKJD.double())
    target_BKJ = energy_BK.double()[..., None] - hats_JH[:, -1] * prefix_BKJ1[..., 0]
    context_BKJ = torch.arange(shape[0])[:, None, None].expand(shape)
    return Cuts(
        torch.cat(features, dim=-1).flatten(0, 2),
        target_BKJ.flatten(),
        is_open_BKJ.expand(shape).double().flatten(),
        context_BKJ.flatten(),
    )


LINE = 2 * (len(KNOTS) - 1)  # parameters of slopes and offsets; those of states come after them


def fit_prefix_value(
    prefix_energy_BKJ: Tensor, states_BKJD: Tensor | None, is_open_BKJ: Tensor, fraction_J: Tensor, energy_BK: Tensor
) -> PrefixValue:
    """From K draws of each of B contexts, cut at J fractions. One context in four is held out to say what the value is
    worth, and fitted on with the others in the end."""
    if not (prefix_energy_BKJ.isfinite().all() and energy_BK.isfinite().all()):
        raise DataError("an energy is not finite: constraints have no value of prefixes; take lookahead none or energy")
    if len(energy_BK) < 2 * FOLDS:
        raise DataError(f"{len(energy_BK)} contexts came; a value needs {2 * FOLDS} to be fitted and judged")
    empty_D = torch.zeros(0, dtype=torch.float64)
    center_D, scale_D = empty_D, empty_D
    if states_BKJD is not None:
        rows_SD = states_BKJD.double().flatten(0, 2)
        center_D, scale_D = rows_SD.mean(0), rows_SD.std(0) + 1e-30
        states_BKJD = (states_BKJD.double() - center_D) / scale_D
    samples = cuts(prefix_energy_BKJ, states_BKJD, is_open_BKJ, fraction_J, energy_BK)
    by_energy = replace(samples, features_SP=samples.features_SP[:, :LINE])
    whole_S = energy_BK.double()[..., None].expand(prefix_energy_BKJ.shape).flatten()
    by_nothing = replace(samples, features_SP=torch.ones_like(whole_S)[:, None], target_S=whole_S)
    parameters_P = fitted(samples)
    slopes_H, offsets_H = parameters_P[:LINE].view(2, -1)
    weights_D = parameters_P[LINE:] / scale_D
    offsets_H = offsets_H - (1 - torch.tensor(KNOTS[:-1], dtype=torch.float64)) * (weights_D @ center_D)
    return PrefixValue(
        slopes=[*slopes_H.tolist(), 1.0],
        offsets=[*offsets_H.tolist(), 0.0],
        state_weights=weights_D.tolist(),
        contexts=len(energy_BK),
        loss=_held_out_loss(samples),
        loss_of_energy_alone=_held_out_loss(by_energy),
        loss_without=_held_out_loss(by_nothing),
    )


def _held_out_loss(samples: Cuts) -> float:
    is_held_S = samples.context_S % FOLDS == 0
    return float(samples.of(is_held_S).linex(fitted(samples.of(~is_held_S))))


def fitted(samples: Cuts) -> Tensor:
    """(P,) parameters, pulled as hard as is best for contexts that they were not fitted to."""
    head = 0.0

    def least(part: Cuts, ridge: float) -> Tensor:
        return least_linex(part, least_squares(part, head), ridge, head)

    def least_with_head(part: Cuts, ridge: float) -> Tensor:
        return least_linex(part, least_squares(part, ridge), LINE_RIDGES[-1], ridge)

    if samples.features_SP.shape[1] > LINE:  # by the loss itself: squares do not see a value that is far too low
        head = _best(HEAD_RIDGES, samples, least_with_head, Cuts.linex)
    return least(samples, _best(LINE_RIDGES, samples, least, Cuts.linex))


def _best(
    ridges: Sequence[float],
    samples: Cuts,
    fit: Callable[[Cuts, float], Tensor],
    loss: Callable[[Cuts, Tensor], Tensor],
) -> float:
    """By cross-validation over contexts."""
    number_S = samples.context_S.unique(return_inverse=True)[1]
    folds = [number_S % FOLDS == fold for fold in range(FOLDS)]
    return min(ridges, key=lambda ridge: sum(float(loss(samples.of(f), fit(samples.of(~f), ridge))) for f in folds))


def least_squares(samples: Cuts, head_ridge: float) -> Tensor:
    """(P,) the coefficients, of no size where features say nothing; those of states pulled towards 0."""
    share_S1 = (samples.weight_S / samples.weight_S.sum())[:, None]
    gram_PP = samples.features_SP.T @ (share_S1 * samples.features_SP)
    ridge_P = torch.full_like(gram_PP[0], 1e-9 * float(gram_PP.diagonal().mean()) + 1e-30)
    ridge_P[LINE:] += head_ridge
    parameters_P: Tensor = torch.linalg.solve(
        gram_PP + ridge_P.diag(), samples.features_SP.T @ (share_S1[:, 0] * samples.target_S)
    )
    return parameters_P


def least_linex(samples: Cuts, towards_P: Tensor, ridge: float, head_ridge: float = 0.0) -> Tensor:
    """(P,) the least of the loss and of `ridge` times what moving away from `towards_P` changes, in squares, the
    parameters of states being pulled by their own ridge as well: Newton's steps, halved until they lead down."""
    share_S, features_SP = samples.weight_S / samples.weight_S.sum(), samples.features_SP
    size_P = share_S @ features_SP.square()
    ridge_P = 2 * ridge * size_P
    ridge_P[LINE:] += 2 * head_ridge
    floor_P = torch.full_like(size_P, 1e-6 * float(size_P.mean()))  # for features that say nothing

    def height(parameters_P: Tensor) -> Tensor:
        return samples.linex(parameters_P) + 0.5 * (ridge_P * (parameters_P - towards_P).square()).sum()

    parameters_P, best = towards_P, height(towards_P)
    for _ in range(NEWTON_STEPS):
        weight_S = share_S * samples.residuals(parameters_P).exp()
        slope_P = (weight_S - share_S) @ features_SP + ridge_P * (parameters_P - towards_P)
        curvature_PP = features_SP.T @ (weight_S[:, None] * features_SP) + (ridge_P + floor_P).diag()
        step_P: Tensor = torch.linalg.solve(curvature_PP, slope_P)
        while not (now := height(parameters_P - step_P)) <= best and step_P.abs().max() > 1e-12:
            step_P = step_P / 2
        if not now <= best:
            break
        parameters_P, gained, best = parameters_P - step_P, best - now, now
        if gained < 1e-11:  # the step was tiny, and what is left of it tinier: convergence is quadratic
            break
    return parameters_P
