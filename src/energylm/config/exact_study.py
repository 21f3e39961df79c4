"""What exact studies compare: objectives of one energy, on languages that can be enumerated (goyal2021 §6.2.2).

    likelihood              E(y) + log Z                                      sums over all V^T sequences at each update
    pseudo_likelihood       − Σ_t log p(y_t | rest), conditionals of E        over all one-token variants of a sequence
    masked                  − Σ_t log p_mlm(y_t | rest)                       one pass
    projection              Σ_t KL(p_mlm ‖ p), p_mlm a fixed masked model     as pseudo-likelihood
    projection_and_pseudo   the sum of the last and pseudo-likelihood         as pseudo-likelihood

Languages: palindromes, hidden Markov models of low and of high entropy (all of five symbols and five positions), and
English words as phonemes (39 symbols, up to six), whose likelihood is out of reach as an objective: every update would
sum over 39⁶ sequences.

Relations  `training.exact_study_task` computes the objectives; the step `exact study` of recipes makes a study of them.
"""

from typing import Literal

Language = Literal["palindromes", "hmm_low", "hmm_high", "phonemes"]
PHONEMES: Language = "phonemes"

Objective = Literal["likelihood", "pseudo_likelihood", "masked", "projection", "projection_and_pseudo"]
LIKELIHOOD: Objective = "likelihood"
PSEUDO_LIKELIHOOD: Objective = "pseudo_likelihood"
MASKED: Objective = "masked"
PROJECTION: Objective = "projection"
PROJECTION_AND_PSEUDO: Objective = "projection_and_pseudo"
PROJECTIONS = (PROJECTION, PROJECTION_AND_PSEUDO)  # which need a masked model, the teacher

TEACHER: Literal["teacher"] = "teacher"
Trained = Objective | Literal["teacher"]  # whatever a study trains
