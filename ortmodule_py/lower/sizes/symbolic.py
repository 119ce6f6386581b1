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
    kind = type(expr).__name__
    if kind in _TEMPLATES:
        return _TEMPLATES[kind].format(*map(dim_text, expr.args))
    if kind not in _WRITERS:
        raise CannotLower(f"size expression {expr} uses {kind}, which has no integer form")
    return _WRITERS[kind](expr)


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
        if fraction.denominator == 1:
            return dim_text(a)  # an integer already, as in `int(np.ceil(n / 2))`
    if kind == "TruncToInt" and not (a.is_nonnegative and b.is_positive):
        raise CannotLower(f"size expression {expr} truncates a value that may be negative")
    division = "CeilDiv" if kind == "CeilToInt" else "FloorDiv"
    return _TEMPLATES[division].format(dim_text(a), dim_text(b))


_TEMPLATES = {
    "FloorDiv": "({0} // {1})",
    "CleanDiv": "({0} // {1})",
    "CeilDiv": "(0 - ((0 - {0}) // {1}))",
    "Mod": "({0} % {1})",
    "PythonMod": "({0} % {1})",
    "ModularIndexing": "(({0} // {1}) % {2})",
    "Abs": "max({0}, (0 - {0}))",
    "Identity": "{0}",
}
"""Texts made of those of the arguments."""
_WRITERS: dict[str, Callable[[sympy.Expr], str]] = {
    "Add": _add,
    "Mul": _mul,
    "Pow": _power,
    "PowByNatural": _power,
    "Max": _nary_call("max"),
    "Min": _nary_call("min"),
    "TruncToInt": _rounded,
    "FloorToInt": _rounded,
    "CeilToInt": _rounded,
}
