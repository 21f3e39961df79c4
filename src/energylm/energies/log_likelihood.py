"""A language model's own log-likelihood as an energy: the baseline that learns two numbers.

    E(x) = s · (ℓ(x) − θ),   ℓ(x) = (1/T) Σ_t log P_LM(x_t | x_<t),   s = ±1         Bakhtin et al. 2019, a baseline

Threshold θ *and direction* s are fitted on held-out texts: text drawn by top-k is likelier than real text (s = +1),
text drawn at a high temperature less likely (s = −1). Both are those of the highest balanced accuracy, so E < 0 says
real and E > 0 says machine, as for every other energy.

Use it     beside any trained energy: what the latter knows beyond the generator's likelihood is the difference.
Relations  `bundles.log_likelihood_energy` brings the language model; the rule knows mean log-likelihoods only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.errors import DataError


@dataclass(frozen=True)
class LikelihoodRule:
    """Before it is fitted: likelier text has a higher energy, with no threshold."""

    sign: int = 1
    threshold: float = 0.0  # nats a token

    def __call__(self, mean_log_prob_B: Tensor) -> Tensor:
        """(B,) energies of mean log-likelihoods."""
        return self.sign * (mean_log_prob_B - self.threshold)


def fit_rule(real_N: Tensor, machine_M: Tensor) -> LikelihoodRule:
    """The direction and threshold that tell these mean log-likelihoods apart best; thresholds lie between values."""
    for name, values in (("real", real_N), ("machine", machine_M)):
        if not len(values):
            raise DataError(f"no {name} text came to fit the likelihood threshold on; give texts of both classes")
        if not values.isfinite().all():
            raise DataError(f"a mean log-likelihood of {name} text is not finite; leave that text out")
    value_L, which_P = torch.cat([real_N, machine_M]).double().unique(return_inverse=True)
    share_P = torch.cat(
        [torch.full((len(real_N),), 1 / len(real_N)), torch.full((len(machine_M),), -1 / len(machine_M))]
    )
    # Up to and including value l: the share of real text minus the share of machine text. Where it is largest, calling
    # everything above it machine is best; where it is smallest, calling everything below it machine is.
    lead_L = torch.zeros(len(value_L), dtype=torch.float64).index_add(0, which_P, share_P.double()).cumsum(0)
    best, worst = int(lead_L.argmax()), int(lead_L.argmin())
    sign, place = (1, best) if lead_L[best] >= -lead_L[worst] else (-1, worst)
    return LikelihoodRule(sign=sign, threshold=float(value_L[place : place + 2].mean()))
