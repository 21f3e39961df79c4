"""Which requests share one call of the engine: those that waste little of it on each other.

A call steps all its rows together, every context with the same number of copies, until the longest is written. So a
group's largest number of copies and largest limit are at most twice those of its members, and the longest context with
the largest limit fits the model's window, as the positions of rows that are already done go on being counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_WASTE = 2  # times


@dataclass(frozen=True)
class RequestShape:
    """What a request takes of the engine."""

    context_tokens: int
    n: int
    max_new_tokens: int


def groups(shapes: Sequence[RequestShape], *, window: int | None) -> list[list[int]]:
    """Places of `shapes` in groups, the largest first. One that does not fit the window even alone is a group, too: it
    is the engine that says so."""
    order = sorted(range(len(shapes)), key=lambda place: (-shapes[place].n, -shapes[place].max_new_tokens, place))
    found: list[list[int]] = []
    for place in order:
        for group in found:
            if _fits([shapes[member] for member in (*group, place)], window=window):
                group.append(place)
                break
        else:
            found.append([place])
    return found


def _fits(members: Sequence[RequestShape], *, window: int | None) -> bool:
    copies, limits = [one.n for one in members], [one.max_new_tokens for one in members]
    if max(copies) > MOST_WASTE * min(copies) or max(limits) > MOST_WASTE * min(limits):
        return False
    return window is None or max(one.context_tokens for one in members) + max(limits) <= window
