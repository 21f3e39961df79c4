"""Claims: a published finding as a predicate over our results, told as it is: holds, does not hold, or cannot be told.

    bit.upper < base.perplexity                          numbers are reached by dotted paths into the results; a name
                                                         after a list is looked up in each of its entries
    1 < unit.upper <= ralm.perplexity * 1.02             arithmetic and chains of comparisons
    decreasing(gain.upper) and last(gain.gap) < 0.1      a few functions of lists (FUNCTIONS)

The language is closed: a predicate is parsed, and only the node types below are evaluated, over plain numbers and
lists. It cannot call, index or reach anything else. What a path does not find, or what is not a number, is not a
failure of the claim but of the results, and is said so.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, linear_regression
from typing import Any, Literal

from energylm.errors import ConfigError
from energylm.tables import Table

Verdict = Literal["holds", "does not hold", "cannot be told"]


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
    "increasing": lambda values: all(before < after for before, after in pairwise(values)),
    "decreasing": lambda values: all(before > after for before, after in pairwise(values)),
}
_TRUTHS = ("increasing", "decreasing")
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class JudgedClaim:
    """A claim beside what became of it here."""

    says: str
    predicate: str
    published: str
    verdict: Verdict
    numbers: str  # those that the predicate looked at, or why it cannot be told


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
    parser = _Parser(predicate, results=None)
    parser.value()
    return list(parser.seen)


def judge(says: str, predicate: str, results: Mapping[str, Any], *, published: str = "") -> JudgedClaim:
    paths(predicate)
    parser = _Parser(predicate, results=results)
    try:
        verdict: Verdict = "holds" if parser.value() else "does not hold"
        numbers = ", ".join(f"{path} = {_short(value)}" for path, value in parser.seen.items())
    except (_Unknown, ZeroDivisionError, IndexError, ValueError, TypeError) as error:
        verdict, numbers = "cannot be told", str(error)
    return JudgedClaim(says, predicate, published, verdict, numbers)


def claims_table(claims: Sequence[JudgedClaim]) -> Table:
    return Table(
        ["claim", "here", "published", "numbers", "predicate"],
        [[claim.says, claim.verdict, claim.published or None, claim.numbers, claim.predicate] for claim in claims],
        convention="every claim of the recipe is listed, whether it holds here or not; the published numbers are of "
        "other data and, at scale mini, of far larger models",
    )


class _Parser:
    """Walks the syntax tree; with `results=None` it only checks that every node belongs to the language."""

    def __init__(self, predicate: str, *, results: Mapping[str, Any] | None) -> None:
        self.predicate, self.results = predicate, results
        self.seen: dict[str, Any] = {}
        try:
            self.tree = ast.parse(predicate.strip(), mode="eval").body
        except SyntaxError as error:
            raise ConfigError(f"claim {predicate!r} is not a predicate: {error.msg}") from None
        if not _is_truth(self.tree):
            raise ConfigError(f"claim {predicate!r} compares nothing; write e.g. a.b < c.d or increasing(a.b)")

    def value(self) -> Any:
        return self._value(self.tree)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.Name() | ast.Attribute():
                return self._lookup(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply(operator.neg, self._value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._apply(_OPERATORS[type(op)], self._value(left), self._value(right))
            case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _OPERATORS for op in ops):
                values = [self._value(left), *map(self._value, rest)]
                pairs = zip(ops, pairwise(values), strict=True)
                return all([self._apply(_OPERATORS[type(op)], *pair) for op, pair in pairs])
            case ast.BoolOp(op=op, values=parts):
                values = [self._value(part) for part in parts]  # all of them, so that all numbers are shown
                return all(values) if isinstance(op, ast.And) else any(values)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                return self._apply(FUNCTIONS[name], *map(self._value, arguments))
        raise ConfigError(
            f"claim {self.predicate!r}: {ast.unparse(node)!r} is not in the language of claims; it has numbers, paths "
            f"a.b.c, + - * /, < <= > >=, and, or, and {', '.join(FUNCTIONS)}"
        )

    def _apply(self, function: Callable[..., Any], *values: Any) -> Any:
        return None if self.results is None else function(*values)

    def _lookup(self, node: ast.expr) -> Any:
        path = ast.unparse(node)
        parts = path.split(".")
        if not all(part.isidentifier() for part in parts):
            raise ConfigError(f"claim {self.predicate!r}: {path!r} is not a path of names joined by dots")
        if self.results is None:
            self.seen[path] = None
            return None
        try:
            value = look_up(self.results, path)
        except LookupError as missing:
            raise _Unknown(f"the results have no {missing.args[0]}") from None
        numbers = value if isinstance(value, list) else [value]
        if not numbers or not all(_is_finite_number(number) for number in numbers):
            raise _Unknown(f"{path} is {_short(value)}, not a finite number or a list of them")
        self.seen[path] = value
        return value


def _is_truth(node: ast.expr) -> bool:
    """Whether a node is true or false rather than a number."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and ast.unparse(node.func) in _TRUTHS)


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_short(entry) for entry in value[:6])
        return f"[{shown}{', …' if len(value) > 6 else ''}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
