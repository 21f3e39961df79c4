"""A test kit for energies, estimators and samplers: tiny languages where every expectation is a sum.

`enumeration`             every sequence over a tiny vocabulary; expectations of estimators over all sets of n draws
`tabular_language_model`  P(x_t | x_<t) from a table, behind `contracts.CausalModel`
`tabular_scores`          E(x) and logits of hidden tokens from tables: `contracts.SequenceEnergy` and `MaskedModel`
`exact`                   exact distributions, partition functions, next-token conditionals, truncated proposals
`choices`, `transitions`  every random path of a sampler's own code; exact transition matrices; stationarity
`statistics`              chi-square and t checks with a declared false-alarm rate
"""

from energylm.testing.choices import enumerate_paths, enumerate_rows
from energylm.testing.enumeration import enumerate_expectation, enumerate_sequences, index_of, sequence_lengths
from energylm.testing.exact import (
    ExactDistribution,
    exact_joint,
    exact_language_model,
    exact_proposal,
    truncated_probabilities,
)
from energylm.testing.statistics import assert_mean, assert_same_counts, assert_same_distribution, assert_same_mean
from energylm.testing.tabular_language_model import TabularLanguageModel
from energylm.testing.tabular_scores import TabularEnergy, TabularMaskedModel
from energylm.testing.transitions import (
    assert_stationary,
    exact_transition_matrix,
    is_irreducible,
    is_reversible,
    stationary_distribution,
)

__all__ = [
    "ExactDistribution",
    "TabularEnergy",
    "TabularLanguageModel",
    "TabularMaskedModel",
    "assert_mean",
    "assert_same_counts",
    "assert_same_distribution",
    "assert_same_mean",
    "assert_stationary",
    "enumerate_expectation",
    "enumerate_paths",
    "enumerate_rows",
    "enumerate_sequences",
    "exact_joint",
    "exact_language_model",
    "exact_proposal",
    "exact_transition_matrix",
    "index_of",
    "is_irreducible",
    "is_reversible",
    "sequence_lengths",
    "stationary_distribution",
    "truncated_probabilities",
]
