"""Expressions of SymPy: read from the text of an engine, evaluated on rows, fitted, rounded and printed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy
from scipy.optimize import least_squares
from sympy.printing.str import StrPrinter

DIGITS = (4, 6, 8, 10, 12, 15)  # significant digits of constants that are tried, in turn
SAME = 1e-3  # share of the spread of a formula that rounding may change
MAX_CONSTANTS = 8  # of an expression that are fitted by nonlinear least squares
FITTED_ROWS = 1000  # at most, in nonlinear least squares
EXACT = 1e-9  # relative distance to a whole number that is rounding

Expr = Any  # sympy.Expr, whose methods have no types

PREFIX: dict[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "sqrt": lambda a: sympy.sqrt(sympy.Abs(a)),
    "log": lambda a: sympy.log(sympy.Abs(a)),
    "neg": lambda a: -a,
    "inv": lambda a: 1 / a,
    "abs": sympy.Abs,
    "max": sympy.Max,
    "min": sympy.Min,
    "square": lambda a: a**2,
    "sig": lambda a: 1 / (1 + sympy.exp(-a)),
}
"""Functions of gplearn by name: square roots and logarithms are of absolute values."""


def variables(number: int) -> list[Expr]:
    """Return the symbols X0, X1, ... of the columns of a table."""
    return [sympy.Symbol(f"X{i}", real=True) for i in range(number)]


def parsed(text: str, number: int, functions: dict[str, Callable[..., Expr]] | None = None) -> Expr | None:
    """Return the expression that a text stands for, in X0, X1, ...; None if it has no finite value anywhere.

    Examples
    --------
    >>> parsed("add(mul(X0, X0), sqrt(X1))", 2, PREFIX)
    X0**2 + sqrt(Abs(X1))
    >>> parsed("(X0 ^ 2) + X1", 2)
    X0**2 + X1
    >>> parsed("1 / 0", 1) is None
    True
    """
    names = {str(symbol): symbol for symbol in variables(number)}
    expr = sympy.sympify(text, locals={**names, **(functions or {})}, convert_xor=True)
    return None if expr.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I) else expr


def values(expr: Expr, table: np.ndarray) -> np.ndarray:
    """Return an expression in X0, X1, ... on the rows of a table, (N,); NaN where it has no finite real value.

    Examples
    --------
    >>> values(parsed("1 / X0", 1), np.array([[2.0], [0.0]])).tolist()
    [0.5, nan]
    """
    function = sympy.lambdify(variables(table.shape[1]), expr, "numpy")
    with np.errstate(all="ignore"):
        made = np.broadcast_to(np.asarray(function(*table.T), dtype=np.complex128), (len(table),))
    real = np.where(np.abs(made.imag) > 0, np.nan, made.real)
    return np.where(np.isfinite(real), real, np.nan)


def complexity(expr: Expr) -> int:
    """Return the number of operations, variables and constants.

    Examples
    --------
    >>> complexity(parsed("2 * X0 + sin(X1)", 2))
    6
    """
    return sum(1 for _ in sympy.preorder_traversal(expr))


def rounded(expr: Expr, digits: int = DIGITS[0]) -> Expr:
    """Return an expression whose constants have so many significant digits; whole numbers become integers.

    Examples
    --------
    >>> rounded(parsed("2.00000000001 * X0 + 0.123456", 1))
    2*X0 + 0.1235
    """

    def near(value: Expr) -> Expr:
        number = float(value)
        short = float(f"{number:.{digits}g}")
        whole = short == round(short) and abs(short) < 10**digits
        return sympy.Integer(round(short)) if whole else sympy.Float(short, 15)

    return expr.replace(lambda e: e.is_Float, near)


def concise(expr: Expr, table: np.ndarray, y: np.ndarray) -> Expr:
    """Return an expression with as few digits as change its values little: by a thousandth of their spread at most.

    The spread of a constant is that of y. If 15 digits are too few, the constants remain as they are.

    Parameters
    ----------
    expr : Expr
        In X0, X1, ...
    table, y : ndarray
        Rows, (N, d), and what the expression stands for, (N,).

    Examples
    --------
    >>> offset = np.array([[101320.0], [101325.0], [101331.0]])
    >>> concise(parsed("0.123456 * X0 - 12509.1792", 1), offset, offset[:, 0])
    0.123456*X0 - 12509.179
    >>> concise(parsed("0.123456 * X0 + 1.23456", 1), offset - 101325, offset[:, 0])
    0.1235*X0 + 1.235
    """
    made = values(expr, table)
    spread = float(made.std()) if expr.free_symbols else float(y.std())
    allowed = max(SAME * spread, 1e-12 * float(np.abs(made).max()))
    for digits in DIGITS:
        short = rounded(expr, digits)
        if np.sqrt(np.square(values(short, table) - made).mean()) <= allowed:
            return short
    return expr


def linear(weights: np.ndarray, constant: float) -> Expr:
    """Return constant + sum_i weights_i X_i, without weights of 0."""
    terms = [_number(w) * symbol for w, symbol in zip(weights, variables(len(weights)), strict=True) if w]
    return sympy.Add(*terms, _number(constant))


def scaled(expr: Expr, table: np.ndarray, y: np.ndarray) -> Expr | None:
    """Return a + b expr, by least squares on the rows; None if the expression is constant or undefined on a row."""
    made = values(expr, table)
    if not np.isfinite(made).all() or not np.ptp(made) > EXACT * np.abs(made).max():
        return None
    b = float(np.cov(made, y, ddof=0)[0, 1] / made.var())
    a = float(y.mean() - b * made.mean())
    return _number(a) + _number(b) * expr if np.isfinite([a, b]).all() else None


def refined(expr: Expr, table: np.ndarray, y: np.ndarray) -> Expr:
    """Return the expression with its decimal numbers fitted to y by nonlinear least squares, where that is better."""
    found = sorted(expr.atoms(sympy.Float), key=float)
    if not 0 < len(found) <= MAX_CONSTANTS:
        return expr
    marks = [sympy.Symbol(f"c{i}", real=True) for i in range(len(found))]
    symbols = variables(table.shape[1])
    function = sympy.lambdify([*marks, *symbols], expr.xreplace(dict(zip(found, marks, strict=True))), "numpy")
    some = slice(None, None, max(1, len(table) // FITTED_ROWS))
    rows, target = table[some].T, y[some]
    scale = float(target.std()) or 1.0

    def residual(constants: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            made = (np.broadcast_to(np.asarray(function(*constants, *rows)), target.shape) - target) / scale
        return np.nan_to_num(np.real(made), nan=1e6, posinf=1e6, neginf=-1e6)

    start = np.array([float(value) for value in found])
    with np.errstate(all="ignore"):
        fit = least_squares(residual, start, x_scale=np.maximum(np.abs(start), 1e-3), max_nfev=60)
    if not np.square(fit.fun).sum() < np.square(residual(start)).sum():
        return expr
    return expr.xreplace({old: _number(new) for old, new in zip(found, fit.x, strict=True)})


def inner(expr: Expr) -> Expr:
    """Return an expression without a constant that is added or multiplied to all of it, outermost first.

    Examples
    --------
    >>> inner(parsed("3 - 2.5 * X0 * X1", 2))
    X0*X1
    """
    while True:
        rest = expr.as_coeff_Add()[1] if expr.is_Add else expr.as_coeff_Mul()[1]
        if rest == expr:
            return expr
        expr = rest


def renamed(expr: Expr, names: Sequence[str]) -> Expr:
    """Return an expression with the names of the columns in place of X0, X1, ..."""
    return expr.xreplace({old: symbol(name) for old, name in zip(variables(len(names)), names, strict=True)})


def symbol(name: str) -> Expr:
    """Return a symbol with a name; in brackets, unless it is a word.

    Examples
    --------
    >>> symbol("mass"), symbol("sepal length (cm)")
    (mass, [sepal length (cm)])
    """
    return sympy.Symbol(name if name.isidentifier() else f"[{name}]", real=True)


def printed(expr: Expr) -> str:
    """Return an expression as text, with all digits of its constants.

    Examples
    --------
    >>> printed(parsed("0.3333 * X0 + 2.0 * X1", 2))
    '0.3333*X0 + 2*X1'
    """
    return str(_Printer({"order": "lex"}).doprint(expr))


class _Printer(StrPrinter):  # type: ignore[misc]
    def _print_Float(self, expr: Expr) -> str:  # noqa: N802
        number = float(expr)
        short = f"{number:.15g}"
        return short if float(short) == number else repr(number)


def _number(value: float) -> Expr:
    whole = round(value)
    near = abs(value - whole) <= EXACT * max(abs(value), EXACT)
    return sympy.Integer(whole) if near else sympy.Float(value, 17)
