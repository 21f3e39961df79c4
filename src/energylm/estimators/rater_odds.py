"""How likely a rater of a known kind passes qualification and attention checks: binomial tails, before anybody answers.

    P(pass)  = P(X ≥ m),  X ~ Binomial(n, a)          n items, m right answers needed, a the chance of one
    P(drop)  = 1 − P(X ≥ m'),  X ~ Binomial(c, b)     c checks, m' of them needed, b the chance of one

A coin-tosser has a = b = 1/2 (1/3 where ties may be answered). Whoever always takes one side passes a check in half of
the cases, since sides are drawn; in a qualification whose sides are balanced that rater is right in half of the items.

Use it     to choose a qualification long enough, and to judge a panel's exclusions against what was to be expected.
"""

from scipy.stats import binom


def pass_probability(items: int, needed: int, chance: float) -> float:
    """P(X ≥ needed) for X ~ Binomial(items, chance); nothing asked is passed."""
    return float(binom.sf(needed - 1, items, chance))


def one_side_passes(items: int, needed: int) -> bool:
    """Whether always answering one side passes a qualification in which the right side is balanced."""
    return (items + 1) // 2 >= needed
