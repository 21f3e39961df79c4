"""Binary cross-entropy against the most offending of K negatives: the one that passes best for real text.

    L = softplus(E(x+)) + softplus(−E(x−_i)),  i = argmin_k E(x−_k)                  Bakhtin et al. 2019, eq. 1

Eq. 1 is printed with + log σ(−E(x−)), which is unbounded below; the cross-entropy is −log σ(E(x−)) = softplus(−E(x−)).
Only the chosen negative gets a gradient; among equals it is the first.

Use it     to discriminate: more and harder negatives help (table 7). K = 1 is `residual_nce` with one negative.
Relations  `residual_nce` takes the mean over all K and gives log-ratios; a minimum over K does not, since the lowest
           of K draws is no draw from the language model. `ranking` looks at the same negative.
"""

from torch import Tensor
from torch.nn.functional import softplus


def most_offending(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) the loss of each context with its real continuation and the worst of its K negatives."""
    return softplus(real_energy_B) + softplus(-offending_energy(noise_energy_BK))


def offending_energy(noise_energy_BK: Tensor) -> Tensor:
    """(B,) the energy of the most offending negative of each context."""
    return noise_energy_BK.gather(-1, offending_index(noise_energy_BK)[..., None])[..., 0]


def offending_index(noise_energy_BK: Tensor) -> Tensor:
    """(B,) which negative has the lowest energy."""
    return noise_energy_BK.argmin(-1)
