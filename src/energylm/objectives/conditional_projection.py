"""Projection of a masked model's free conditionals onto the conditionals of an energy, which belong to one joint.

    L = Σ_y Σ_t KL( p_mlm(· | y_\\t) ‖ p(· | y_\\t; θ) )                                          Goyal 2021, §6.2.2

The masked model is the fixed first argument: θ must cover whatever it finds possible. It needs contexts, not their
tokens, so a small set of sequences carries what a masked model has learnt from a large one. What the masked model rules
out costs nothing (0 · log 0 = 0), whatever θ thinks of it; what θ rules out and the masked model does not costs +inf.

Use it     after masked training on much data, to get a distribution over sequences from little; add `pseudo_nll` on the
           same sequences for the paper's second variant (KL + PL).
Relations  `pseudo_likelihood` is the case of a teacher that puts all probability on the token that is there.
"""

from torch import Tensor

from energylm.objectives.pseudo_likelihood import log_conditionals


def projection_kl(teacher_logits_BTV: Tensor, replaced_energy_BTV: Tensor) -> Tensor:
    """(B,) nats of each sequence, summed over its positions; no gradient reaches the teacher."""
    teacher_BTV = teacher_logits_BTV.detach().log_softmax(-1)
    probability_BTV = teacher_BTV.exp()
    difference_BTV = teacher_BTV - log_conditionals(replaced_energy_BTV)
    return (probability_BTV * difference_BTV.masked_fill(probability_BTV == 0, 0.0)).sum((1, 2))
