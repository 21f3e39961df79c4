"""Raters: how far they agree, and how likely one of a known kind passes qualification and attention checks.

    α = 1 − D_observed / D_expected        1: perfect agreement, 0: as by chance, below 0: systematic disagreement

Krippendorff's alpha of votes by name is for any number of raters, of whom each saw some of the units. With n_c values c
among the n values of units that have two or more, and o_cc' the ordered pairs of values within units, each weighted by
1 / (m_u − 1):  D_observed = Σ_{c≠c'} o_cc' / n  and  D_expected = Σ_{c≠c'} n_c n_c' / (n (n − 1)). The computation is
that of the package `krippendorff` (extra `energylm[web]`).

    P(pass)  = P(X ≥ m),  X ~ Binomial(n, a)          n items, m right answers needed, a the chance of one
    P(drop)  = 1 − P(X ≥ m'),  X ~ Binomial(c, b)     c checks, m' of them needed, b the chance of one

A coin-tosser has a = b = 1/2 (1/3 where ties may be answered). Whoever always takes one side passes a check in half of
the cases, since sides are drawn; in a qualification whose sides are balanced that rater is right in half of the items.

Use it     to choose a qualification long enough, and to judge a panel's exclusions against what was to be expected.
Relations  `pairwise_preference` counts the votes.
"""

from collections.abc import Mapping

import numpy as np

from energylm.errors import extra

with extra("web"):
    from scipy.stats import binom


def krippendorff_alpha(votes: Mapping[tuple[str, str], str]) -> float | None:
    """α of (rater, unit) → vote. None where it is undefined: no unit with two votes, or one and the same vote only."""
    with extra("web"):
        import krippendorff

    raters, units = (sorted({key[axis] for key in votes}) for axis in (0, 1))
    values = sorted(set(votes.values()))
    if len(values) < 2:
        return None
    table_RU = np.full((len(raters), len(units)), np.nan)
    row, column = ({name: index for index, name in enumerate(names)} for names in (raters, units))
    for (rater, unit), vote in votes.items():
        table_RU[row[rater], column[unit]] = values.index(vote)
    paired_U = (~np.isnan(table_RU)).sum(0) >= 2
    comparable = table_RU[:, paired_U]
    if len(np.unique(comparable[~np.isnan(comparable)])) < 2:
        return None
    return float(krippendorff.alpha(reliability_data=comparable, level_of_measurement="nominal"))


def pass_probability(items: int, needed: int, chance: float) -> float:
    """P(X ≥ needed) for X ~ Binomial(items, chance); nothing asked is passed."""
    return float(binom.sf(needed - 1, items, chance))


def one_side_passes(items: int, needed: int) -> bool:
    """Whether always answering one side passes a qualification in which the right side is balanced."""
    return (items + 1) // 2 >= needed
