"""Unique n-grams: how much a body of text repeats itself.

    unique_n = 100 · |{n-grams that occur}| / (number of n-grams)        percent        Deng et al. 2020, fig. 2 right

The more text, the fewer of its n-grams are new, so bodies of text are comparable at equal token counts only: all are
cut to the shortest of them, text by text in turn, and an n-gram never crosses from one text to the next.

Use it     on continuations of the same contexts: real, by the base model, by the joint model.
"""

from collections.abc import Mapping, Sequence

from energylm.errors import DataError
from energylm.tables import Table
from energylm.report.plots import LinePlot, Series

ORDERS = (2, 3, 4)  # the paper's


def unique_percentage(texts: Sequence[Sequence[int]], order: int) -> float:
    """The percentage of different n-grams among all n-grams of `texts` (token ids)."""
    grams = [tuple(text[start : start + order]) for text in texts for start in range(len(text) - order + 1)]
    if not grams:
        raise DataError(f"no text has {order} tokens, so there are no {order}-grams to count; give longer texts")
    return 100 * len(set(grams)) / len(grams)


def unique_ngrams(
    bodies: Mapping[str, Sequence[Sequence[int]]], *, orders: Sequence[int] = ORDERS
) -> dict[str, dict[int, float]]:
    """name -> order -> percentage, after cutting all bodies to equal token counts."""
    tokens = min(sum(map(len, texts)) for texts in bodies.values())
    return {
        name: {order: unique_percentage(first_tokens(texts, tokens), order) for order in orders}
        for name, texts in bodies.items()
    }


def first_tokens(texts: Sequence[Sequence[int]], tokens: int) -> list[Sequence[int]]:
    """The first texts, the last of them cut, so that they have `tokens` tokens together."""
    kept, left = [], tokens
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
        if left == 0:
            break
    return kept


def ngram_table(percentages: Mapping[str, Mapping[int, float]], *, tokens: int) -> Table:
    orders = list(next(iter(percentages.values())))
    return Table(
        ["text", *(f"unique {order}-grams (%)" for order in orders)],
        [[name, *values.values()] for name, values in percentages.items()],
        convention=f"percent of all n-grams of tokens, counted within texts, over {tokens:,} tokens of each body",
    )


def ngram_plot(percentages: Mapping[str, Mapping[int, float]]) -> LinePlot:
    lines = [Series(name, list(values), list(values.values())) for name, values in percentages.items()]
    return LinePlot(lines, x_label="n", y_label="unique n-grams (%)")
