"""Pseudo-likelihood: every token given all others, under the conditionals that belong to an energy.

    L = − Σ_y Σ_t log p(y_t | y_\\t)         p(y_t = w | y_\\t) = softmax_w( −E(y with y_t = w) )

Besag 1975; Goyal 2021, §6.2.2 (PLL). No partition function is needed: it cancels. What comes in is the energy of every
sequence that differs from y in one place at most.

The masked-language-model objective has the same form with the logits of the hidden token in the place of −E: the
degenerate pseudo-likelihood of §6.2.1, whose conditionals need not belong to any joint distribution. Hence
`pseudo_nll(-logits, tokens)` is that objective with every position hidden in turn.

Use it     to fit an energy whose log Z is out of reach but whose one-token changes are not.
Relations  `sequence_likelihood` is what it stands for; `conditional_projection` fits the same to a model's.
"""

from torch import Tensor


def log_conditionals(replaced_energy_BTV: Tensor) -> Tensor:
    """(B, T, V): log p(y_t = w | y_\\t) from the energies of y with y_t replaced by w."""
    return (-replaced_energy_BTV).log_softmax(-1)


def pseudo_nll(replaced_energy_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """(B,) nats of each sequence, summed over its tokens."""
    chosen_BT = log_conditionals(replaced_energy_BTV).gather(-1, tokens_BT[..., None])[..., 0]
    return -chosen_BT.sum(1)
