"""Integer expressions of captured sizes, written as text for the C++ side.

The grammar: integers, symbols, `+ - * // %`, `max(a, b)`, `min(a, b)`, parentheses around every operation.
`//` and `%` round towards minus infinity, as in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.sizes.scaled import scaled


def dim_text(expr: sympy.Expr) -> str:
    """`expr` in the grammar of this module; raises CannotLower where it is not made of integers."""
    if isinstance(expr, sympy.Integer):
        return str(int(expr))
    if isinstance(expr, sympy.Symbol):
        return _symbol_text(expr)
    writer = _WRITERS.get(type(expr).__name__)
    if writer is None:
        raise CannotLower(
            f"size expression {expr} uses {type(expr).__name__}, which has no integer form"
        )
    return writer(expr)


def _symbol_text(symbol: sympy.Symbol) -> str:
    if symbol.name.startswith(("u", "zuf")):
        raise CannotLower(f"size {symbol} depends on data")
    return str(symbol.name)


def _joined(operator: str, parts: Sequence[str]) -> str:
    text = parts[0]
    for part in parts[1:]:
        text = f"({text} {operator} {part})"
    return text


def _add(expr: sympy.Expr) -> str:
    """Sums, with `a - b` instead of `a + -1 * b`, so that texts stay short and evaluation stays within range."""
    fraction = _as_fraction(expr)
    if fraction is not None:
        return fraction
    plus = [arg for arg in expr.args if not arg.could_extract_minus_sign()]
    minus = [-arg for arg in expr.args if arg.could_extract_minus_sign()]
    text = _joined("+", [dim_text(arg) for arg in plus]) if plus else "0"
    return _joined("-", [text, *(dim_text(arg) for arg in minus)])


def _as_fraction(expr: sympy.Expr) -> str | None:
    """A sum or product with rational coefficients: as a size it is an integer, so one exact
    division at the end is right."""
    numerator, denominator = expr.as_numer_denom()
    if denominator == 1:
        return None
    return f"({dim_text(numerator)} // {dim_text(denominator)})"


def _mul(expr: sympy.Expr) -> str:
    fraction = _as_fraction(expr)
    if fraction is not None:
        return fraction
    return _joined("*", [dim_text(arg) for arg in expr.args])


def _power(expr: sympy.Expr) -> str:
    base, exponent = expr.args
    if not isinstance(exponent, sympy.Integer) or int(exponent) < 0:
        raise CannotLower(f"size expression {expr} has an exponent that is not a natural number")
    if int(exponent) == 0:
        return "1"
    return _joined("*", [dim_text(base)] * int(exponent))


def _binary(operator: str) -> Callable[[sympy.Expr], str]:
    return lambda expr: _joined(operator, [dim_text(arg) for arg in expr.args])


def _nary_call(name: str) -> Callable[[sympy.Expr], str]:
    def write(expr: sympy.Expr) -> str:
        # Max and Min keep their arguments as a set; sorted, equal expressions have equal texts.
        parts = sorted(dim_text(arg) for arg in expr.args)
        text = parts[0]
        for part in parts[1:]:
            text = f"{name}({text}, {part})"
        return text

    return write


def _rounded(expr: sympy.Expr) -> str:
    """int(a / b), floor(a / b) and ceil(a / b) as integer divisions."""
    number, kind = expr.args[0], type(expr).__name__
    if type(number).__name__ == "IntTrueDiv":
        a, b = number.args
    else:
        found = scaled(number)
        if found is None:
            raise CannotLower(f"size expression {expr} goes through floating point numbers")
        size, fraction = found
        a, b = size * fraction.numerator, sympy.Integer(fraction.denominator)
    if kind == "TruncToInt" and not (a.is_nonnegative and b.is_positive):
        raise CannotLower(f"size expression {expr} truncates a value that may be negative")
    if kind == "CeilToInt":
        return f"(0 - ((0 - {dim_text(a)}) // {dim_text(b)}))"
    return f"({dim_text(a)} // {dim_text(b)})"


def _ceil_div(expr: sympy.Expr) -> str:
    a, b = expr.args
    return f"(0 - ((0 - {dim_text(a)}) // {dim_text(b)}))"


def _modular_indexing(expr: sympy.Expr) -> str:
    base, divisor, modulus = expr.args
    return f"(({dim_text(base)} // {dim_text(divisor)}) % {dim_text(modulus)})"


def _absolute(expr: sympy.Expr) -> str:
    text = dim_text(expr.args[0])
    return f"max({text}, (0 - {text}))"


_WRITERS: dict[str, Callable[[sympy.Expr], str]] = {
    "Add": _add,
    "Mul": _mul,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _binary("//"),
    "CleanDiv": _binary("//"),
    "CeilDiv": _ceil_div,
    "Abs": _absolute,
    "Mod": _binary("%"),
    "PythonMod": _binary("%"),
    "Max": _nary_call("max"),
    "Min": _nary_call("min"),
    "TruncToInt": _rounded,
    "FloorToInt": _rounded,
    "CeilToInt": _rounded,
    "ModularIndexing": _modular_indexing,
    "Identity": lambda expr: dim_text(expr.args[0]),
}
