"""The exact likelihood of sequences under an energy whose partition function is known.

    L = − Σ_y log p(y) = Σ_y ( E(y) + log Z )          log Z = log Σ_y' exp(−E(y'))              Goyal 2021, §6.2.2 (LL)

Use it     where the space of sequences can be summed over at every update; its minimiser is the data's distribution.
Relations  `pseudo_likelihood` needs no log Z and has the same minimiser if the energy can reach it.
"""

from torch import Tensor


def sequence_nll(energy_B: Tensor, log_partition: Tensor) -> Tensor:
    """(B,) nats of each sequence; `log_partition` is one number, or one for each row."""
    return energy_B + log_partition
