"""Claims: a published finding as differences with intervals over our results, told as it is.

    bit.upper < base.perplexity                          numbers are reached by dotted paths into the results; a name
                                                         after a list is looked up in each of its entries
    1 < unit.upper <= ralm.perplexity * 1.02             arithmetic and chains of comparisons
    decreasing(gain.upper) and last(gain.gap) < 0.1      a few functions of lists (FUNCTIONS)

Every comparison is a difference d, positive where it says so. From several runs of one recipe, each with seeds of its
own, or from two lists of the same length (the same texts, lists or sentences under two models), it has an interval:

    mean(d) ± t · s / √m             m runs, or m pairs in one run; Student's t with m − 1 degrees, 95 % of both sides

It *holds* where the interval lies above zero, does *not hold* where it lies below, and is *too close to call* between.
`and` and `or` join the three as Kleene's logic does. From one run and plain numbers there is no interval: the verdict
is that of the numbers, and it says "one run". Differences that do not vary at all (counts of parameters) need none.

The language is closed: a predicate is parsed, and only the node types below are evaluated, over plain numbers and
lists. It cannot call, index or reach anything else. What a path does not find, or what is not a number, is not a
failure of the claim but of the results, and is said so.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, linear_regression, stdev
from typing import Any, Literal

from energylm.errors import ConfigError, extra
from energylm.tables import Table

Verdict = Literal["holds", "does not hold", "too close to call", "cannot be told"]
Kind = Literal["finding", "duplicate", "accounting", "ours", "simulated"]
CONFIDENCE = 0.95


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through the values at 0, 1, 2, …: negative where they fall on the whole."""
    return linear_regression(range(len(values)), values).slope


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": fmean,
    "slope": slope,
}
_ORDERS: dict[str, type[ast.cmpop]] = {"increasing": ast.Lt, "decreasing": ast.Gt}  # of neighbours in a list
_COMPARISONS: dict[type[ast.cmpop], tuple[int, Callable[[float, float], bool]]] = {  # sign of left − right that says so
    ast.Lt: (-1, operator.lt),
    ast.LtE: (-1, operator.le),
    ast.Gt: (1, operator.gt),
    ast.GtE: (1, operator.ge),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Difference:
    """One comparison: by how much it is so, with its interval where runs or pairs give one."""

    value: float  # positive where the numbers say what the claim says
    lower: float | None
    upper: float | None
    relative: float | None  # to the size of the right-hand side; none where that is zero
    verdict: Verdict

    @property
    def told(self) -> str:
        interval = "one run" if self.lower is None else f"{self.lower:+.3g} to {self.upper:+.3g}"
        return f"{self.value:+.3g} ({interval})"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim beside what became of it here."""

    says: str
    predicate: str
    published: str
    verdict: Verdict
    numbers: str  # those that the predicate looked at (means over runs), or why it cannot be told
    difference: Difference | None  # of the comparison that decided; none where it cannot be told
    kind: Kind = "finding"


class _Unknown(Exception):
    """A path that leads nowhere, or to something that is no finite number or list of them."""


def look_up(results: Mapping[str, Any], path: str) -> Any:
    """What a dotted path leads to; a name after a list is looked up in each of its entries. Of a result that is none (a
    rate that too few texts show) every part is none. A path that leads nowhere is a `LookupError` with the part of it
    that is missing."""
    parts = path.split(".")
    value: Any = results
    for depth, part in enumerate(parts, start=1):
        if value is None:
            return None
        inside = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, Mapping) and part in entry for entry in inside):
            raise LookupError(".".join(parts[:depth]))
        value = [entry[part] for entry in inside] if isinstance(value, list) else value[part]
    return value


def paths(predicate: str) -> list[str]:
    """The paths into the results that a predicate looks at. One that is not in the language is refused."""
    parser = _Parser(predicate, runs=())
    parser.verdict()
    return list(parser.seen)


def judge(
    says: str, predicate: str, runs: Sequence[Mapping[str, Any]], *, published: str = "", kind: Kind = "finding"
) -> JudgedClaim:
    """The claim over the results of one run, or of several that differ in their seeds."""
    if isinstance(runs, Mapping):
        raise TypeError("judge takes a list of results, one for each run")
    paths(predicate)
    parser = _Parser(predicate, runs=runs)
    try:
        verdict = parser.verdict()
        numbers = ", ".join(f"{path} = {_short(mean_of_runs(values))}" for path, values in parser.seen.items())
    except (_Unknown, ZeroDivisionError, IndexError, ValueError, TypeError) as error:
        return JudgedClaim(says, predicate, published, "cannot be told", str(error), None, kind)
    return JudgedClaim(says, predicate, published, verdict, numbers, _deciding(parser.differences, verdict), kind)


def gated(claims: Sequence[JudgedClaim], gates: Sequence[str]) -> list[JudgedClaim]:
    """The claims, of which findings cannot be told where one of `gates`, controls by what they say, does not hold."""
    broken = [claim for claim in claims if claim.says in gates and claim.verdict != "holds"]
    if not broken:
        return list(claims)
    why = "; ".join(f"the control “{claim.says}” fails: {claim.numbers}" for claim in broken)
    return [
        replace(claim, verdict="cannot be told", numbers=why, difference=None)
        if claim.kind in ("finding", "duplicate")
        else claim
        for claim in claims
    ]


def difference_of(differences: Sequence[float], *, as_numbers: bool, relative: float | None) -> Difference:
    """A comparison from its differences, one a run or a pair; `as_numbers` is its truth by the means alone."""
    value = fmean(differences)
    plain: Verdict = "holds" if as_numbers else "does not hold"
    if len(differences) == 1:
        return Difference(value, None, None, relative, plain)
    half = _student(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    if half == 0:
        return Difference(value, value, value, relative, plain)
    verdict: Verdict = "holds" if value > half else "does not hold" if value < -half else "too close to call"
    return Difference(value, value - half, value + half, relative, verdict)


def _student(degrees: int) -> float:
    with extra("train"):
        from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


def _deciding(differences: Sequence[Difference], verdict: Verdict) -> Difference:
    """The narrowest of the comparisons whose verdict is that of the claim: it decides a conjunction."""
    same = [difference for difference in differences if difference.verdict == verdict]
    return min(same, key=lambda d: abs(d.value if d.relative is None else d.relative))


def claims_table(claims: Sequence[JudgedClaim]) -> Table:
    return Table(
        ["claim", "here", "difference", "from", "to", "relative", "published", "numbers", "predicate", "kind"],
        [
            [
                claim.says,
                claim.verdict,
                *_cells(claim.difference),
                claim.published or None,
                claim.numbers,
                claim.predicate,
                claim.kind,
            ]
            for claim in claims
        ],
        convention="every claim of the recipe is listed, whether it holds here or not; of the comparison that decides "
        f"the difference, positive where the numbers say so, with its {CONFIDENCE:.0%} interval over runs with seeds "
        "of their own or over pairs (none: one run), and relative to its right-hand side; the published numbers are of "
        "other data and, at scale mini, of far larger models",
    )


def _cells(difference: Difference | None) -> list[float | None]:
    if difference is None:
        return [None] * 4
    return [difference.value, difference.lower, difference.upper, difference.relative]


class _Parser:
    """Walks the syntax tree. A number is a list with one value a run; without runs only the language is checked."""

    def __init__(self, predicate: str, *, runs: Sequence[Mapping[str, Any]]) -> None:
        self.predicate, self.runs = predicate, runs
        self.seen: dict[str, list[Any]] = {}
        self.differences: list[Difference] = []
        try:
            self.tree = ast.parse(predicate.strip(), mode="eval").body
        except SyntaxError as error:
            raise ConfigError(f"claim {predicate!r} is not a predicate: {error.msg}") from None
        if not _is_truth(self.tree):
            raise ConfigError(f"claim {predicate!r} compares nothing; write e.g. a.b < c.d or increasing(a.b)")

    def verdict(self) -> Verdict:
        return self._verdict(self.tree)

    def _verdict(self, node: ast.expr) -> Verdict:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARISONS for op in ops):
                sides = pairwise([self._values(left), *map(self._values, rest)])
                return _all_of([self._compared(op, *pair) for op, pair in zip(map(type, ops), sides, strict=True)])
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _ORDERS:
                neighbours = list(pairwise(zip(*self._values(argument), strict=True)))
                if self.runs and not neighbours:
                    raise _Unknown(f"{ast.unparse(argument)} has one entry: it neither rises nor falls")
                return _all_of([self._compared(_ORDERS[name], list(a), list(b)) for a, b in neighbours])
            case ast.BoolOp(op=op, values=parts):
                verdicts = [self._verdict(part) for part in parts]  # all of them, so that all numbers are shown
                return _all_of(verdicts) if isinstance(op, ast.And) else _any_of(verdicts)
        raise self._refusal(node)

    def _compared(self, op: type[ast.cmpop], left: list[Any], right: list[Any]) -> Verdict:
        """One comparison over the runs; two lists in each run are pairs."""
        if not self.runs:
            return "cannot be told"
        sign, says = _COMPARISONS[op]
        lists = [isinstance(value, list) for value in (*left, *right)]
        if any(lists) and not all(lists):
            raise _Unknown("a list is compared with a number; take its mean, first, last, min or max")
        if all(lists):
            if len(self.runs) == 1:
                left, right = left[0], right[0]
            else:
                left, right = [fmean(values) for values in left], [fmean(values) for values in right]
        differences = [sign * (a - b) for a, b in zip(left, right, strict=True)]
        size = abs(fmean(right))
        difference = difference_of(
            differences,
            as_numbers=says(fmean(left), fmean(right)),
            relative=fmean(differences) / size if size else None,
        )
        self.differences.append(difference)
        return difference.verdict

    def _values(self, node: ast.expr) -> list[Any]:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return [number] * len(self.runs)
            case ast.Name() | ast.Attribute():
                return self._lookup(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return list(map(operator.neg, self._values(operand)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return list(map(_ARITHMETIC[type(op)], self._values(left), self._values(right)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                return list(map(FUNCTIONS[name], *map(self._values, arguments)))
        raise self._refusal(node)

    def _refusal(self, node: ast.expr) -> ConfigError:
        return ConfigError(
            f"claim {self.predicate!r}: {ast.unparse(node)!r} is not in the language of claims; it has numbers, paths "
            f"a.b.c, + - * /, < <= > >=, and, or, and {', '.join([*FUNCTIONS, *_ORDERS])}"
        )

    def _lookup(self, node: ast.expr) -> list[Any]:
        path = ast.unparse(node)
        if not all(part.isidentifier() for part in path.split(".")):
            raise ConfigError(f"claim {self.predicate!r}: {path!r} is not a path of names joined by dots")
        self.seen[path] = [_number_at(results, path) for results in self.runs]
        return self.seen[path]


def _number_at(results: Mapping[str, Any], path: str) -> Any:
    """A finite number, or a list of them."""
    try:
        value = look_up(results, path)
    except LookupError as missing:
        raise _Unknown(f"the results have no {missing.args[0]}") from None
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(_is_finite_number(number) for number in numbers):
        raise _Unknown(f"{path} is {_short(value)}, not a finite number or a list of them")
    return value


def _all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Kleene's conjunction: one that does not hold decides, then one too close to call."""
    return max(verdicts, key=_STRENGTH.__getitem__, default="holds")


def _any_of(verdicts: Sequence[Verdict]) -> Verdict:
    return min(verdicts, key=_STRENGTH.__getitem__)


_STRENGTH: dict[Verdict, int] = {"holds": 0, "too close to call": 1, "does not hold": 2, "cannot be told": 3}


def mean_of_runs(values: Sequence[Any]) -> Any:
    """Results of several runs as one: numbers as their means, at every depth; what is no number, or has another shape
    in another run, as in the first."""
    if all(map(_is_finite_number, values)):
        return fmean(values) if len(set(values)) > 1 else values[0]
    if all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        return [mean_of_runs(entries) for entries in zip(*values, strict=True)]
    if all(isinstance(value, Mapping) and value.keys() == values[0].keys() for value in values):
        return {key: mean_of_runs([value[key] for value in values]) for key in values[0]}
    return values[0]


def _is_truth(node: ast.expr) -> bool:
    """Whether a node is true or false rather than a number."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and ast.unparse(node.func) in _ORDERS)


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_short(entry) for entry in value[:6])
        return f"[{shown}{', …' if len(value) > 6 else ''}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
