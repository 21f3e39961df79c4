"""Krippendorff's alpha of votes by name: agreement among any number of raters, of whom each saw some of the units.

    α = 1 − D_observed / D_expected        1: perfect agreement, 0: as by chance, below 0: systematic disagreement

With n_c values c among the n values of units that have two or more, and o_cc' the ordered pairs of values within units,
each weighted by 1 / (m_u − 1):  D_observed = Σ_{c≠c'} o_cc' / n  and  D_expected = Σ_{c≠c'} n_c n_c' / (n (n − 1)).

The computation is that of the package `krippendorff` (extra `energylm[web]`).
"""

from collections.abc import Mapping

import krippendorff
import numpy as np


def krippendorff_alpha(votes: Mapping[tuple[str, str], str]) -> float | None:
    """α of (rater, unit) → vote. None where it is undefined: no unit with two votes, or one and the same vote only."""
    raters, units = (sorted({key[axis] for key in votes}) for axis in (0, 1))
    values = sorted(set(votes.values()))
    if len(values) < 2:
        return None
    table_RU = np.full((len(raters), len(units)), np.nan)
    row, column = ({name: place for place, name in enumerate(names)} for names in (raters, units))
    for (rater, unit), vote in votes.items():
        table_RU[row[rater], column[unit]] = values.index(vote)
    paired_U = (~np.isnan(table_RU)).sum(0) >= 2
    comparable = table_RU[:, paired_U]
    if len(np.unique(comparable[~np.isnan(comparable)])) < 2:
        return None
    return float(krippendorff.alpha(reliability_data=comparable, level_of_measurement="nominal"))
