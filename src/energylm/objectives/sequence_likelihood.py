"""Fitting an energy of whole sequences: by likelihood, by pseudo-likelihood, by a masked model's conditionals.

    LL     L = − Σ_y log p(y) = Σ_y ( E(y) + log Z )           log Z = log Σ_y' exp(−E(y'))          Goyal 2021, §6.2.2
    PLL    L = − Σ_y Σ_t log p(y_t | y_\\t)          p(y_t = w | y_\\t) = softmax_w( −E(y with y_t = w) )   Besag 1975
    KL     L = Σ_y Σ_t KL( p_mlm(· | y_\\t) ‖ p(· | y_\\t; θ) )                                      Goyal 2021, §6.2.2

**Likelihood** where the space of sequences can be summed over at every update; its minimiser is the data's
distribution.

**Pseudo-likelihood** needs no partition function, which cancels, and has the same minimiser if the energy can reach it.
What comes in is the energy of every sequence that differs from y in one position at most. The masked-language-model
objective has the same form with the logits of the hidden token instead of −E: the degenerate pseudo-likelihood of
§6.2.1, whose conditionals need not belong to any joint distribution. Hence `pseudo_nll(-logits, tokens)` is that
objective with every position hidden in turn.

**Projection** of a masked model's free conditionals onto those of an energy, which belong to one joint. The masked
model is the fixed first argument: θ must cover whatever it finds possible. It needs contexts, not their tokens, so a
small set of sequences carries what a masked model has learnt from a large one. What the masked model rules out costs
nothing (0 · log 0 = 0), whatever θ thinks of it; what θ rules out and the masked model does not costs +inf.
`pseudo_nll` on the same sequences added is the paper's second variant (KL + PL); pseudo-likelihood is the case of a
teacher that puts all probability on the token that is there.
"""

from torch import Tensor


def sequence_nll(energy_B: Tensor, log_partition: Tensor) -> Tensor:
    """(B,) nats of each sequence; `log_partition` is one number, or one for each row."""
    return energy_B + log_partition


def log_conditionals(replaced_energy_BTV: Tensor) -> Tensor:
    """(B, T, V): log p(y_t = w | y_\\t) from the energies of y with y_t replaced by w."""
    return (-replaced_energy_BTV).log_softmax(-1)


def pseudo_nll(replaced_energy_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """(B,) nats of each sequence, summed over its tokens."""
    chosen_BT = log_conditionals(replaced_energy_BTV).gather(-1, tokens_BT[..., None])[..., 0]
    return -chosen_BT.sum(1)


def projection_kl(teacher_logits_BTV: Tensor, replaced_energy_BTV: Tensor) -> Tensor:
    """(B,) nats of each sequence, summed over its positions; no gradient reaches the teacher."""
    teacher_BTV = teacher_logits_BTV.detach().log_softmax(-1)
    probability_BTV = teacher_BTV.exp()
    difference_BTV = teacher_BTV - log_conditionals(replaced_energy_BTV)
    return (probability_BTV * difference_BTV.masked_fill(probability_BTV == 0, 0.0)).sum((1, 2))
