"""Dimensional analysis: units of measurement by pint, and products of powers that have no dimension."""

import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from bnrank._core import validation
from bnrank.discovery.power_products.exponents import smallest_integers

MAX_CHOICES = 300  # of the inputs that the others are expressed in
Row = list[Fraction]


@dataclass(frozen=True)
class Quantities:
    """A table in SI base units.

    Attributes
    ----------
    x, y : ndarray
        (N, d) and (N,), in base units.
    units : tuple of str
        The units in which the inputs were given.
    powers : list of dict
        Exponents of the base dimensions of every input.
    of_y : dict
        The same of y.
    """

    x: np.ndarray
    y: np.ndarray
    units: tuple[str, ...]
    powers: list[dict[str, Fraction]]
    of_y: dict[str, Fraction]


def quantities(x: np.ndarray, y: np.ndarray, names: Sequence[str], units: Any, y_unit: Any) -> Quantities:
    """Return a table in SI base units.

    Raises
    ------
    ValueError
        If a unit is missing or unknown.
    """
    given = given_units(units, names)
    expected = "the unit of y as text, as units are given ('' for a number)"
    validation.expect(y_unit is not None, "y_unit", "None", expected)
    read = [in_base_units(column, unit, "units") for column, unit in zip(x.T, given, strict=True)]
    output, of_y = in_base_units(y, y_unit, "y_unit")
    return Quantities(np.column_stack([v for v, _ in read]), output, tuple(given), [p for _, p in read], of_y)


def in_base_units(values: np.ndarray, unit: Any, name: str) -> tuple[np.ndarray, dict[str, Fraction]]:
    """Return values in SI base units (degrees Celsius become kelvin), and the exponents of the base dimensions.

    Parameters
    ----------
    values : ndarray
        Numbers, (N,).
    unit : str
        Such as "kg/m^3", "degC", or "" for a number.
    name : str
        The argument that an error names.

    Raises
    ------
    ImportError
        If pint is not installed.
    ValueError
        If pint does not know the unit.

    Examples
    --------
    >>> values, dimensions = in_base_units(np.array([36.0]), "km/h", "units")
    >>> values.round(9).tolist(), {name: str(power) for name, power in dimensions.items()}
    ([10.0], {'[length]': '1', '[time]': '-1'})
    """
    registry = _registry()
    validation.expect(isinstance(unit, str), name, validation.describe(unit), "a unit as text, such as 'kg/m^3'")
    try:
        quantity = registry.Quantity(np.asarray(values, dtype=np.float64), registry.parse_units(unit)).to_base_units()
    except Exception as error:  # pint raises errors of its own, of the parser and of Python
        raise ValueError(f"{name}: got {unit!r}, expected a unit that pint knows ({error})") from None
    powers = {name: Fraction(power).limit_denominator(12) for name, power in quantity.dimensionality.items()}
    return np.asarray(quantity.magnitude), dict(sorted(powers.items()))


def given_units(units: Any, names: Sequence[str]) -> list[Any]:
    """Return the unit of every input, from a mapping of names or a sequence.

    Raises
    ------
    ValueError
        If an input has no unit, or the mapping names another.

    Examples
    --------
    >>> given_units({"v": "m/s", "L": "m"}, ["L", "v"])
    ['m', 'm/s']
    """
    if isinstance(units, Mapping):
        missing = [name for name in names if name not in units]
        validation.expect(
            not missing, "units", f"none for {', '.join(missing)}", "one for every input ('' for numbers)"
        )
        other = [str(name) for name in units if name not in names]
        validation.expect(not other, "units", f"one for {', '.join(other)}", f"only {', '.join(names)}")
        return [units[name] for name in names]
    listed = validation.sequence(units, "units", "a mapping from names of inputs to units, or a sequence")
    validation.expect(len(listed) == len(names), "units", f"{len(listed)} units", f"{len(names)}, one for every input")
    return listed


def matrix_of(dimensions: Sequence[Mapping[str, Fraction]]) -> list[Row]:
    """Return the dimension matrix: a row for each base dimension, a column for each quantity."""
    bases = sorted({base for powers in dimensions for base in powers})
    return [[powers.get(base, Fraction(0)) for powers in dimensions] for base in bases]


def pi_groups(dimensions: Sequence[Mapping[str, Fraction]]) -> list[Row]:
    """Return a basis of the products of powers without dimension, as rows of smallest integers (Buckingham 1914).

    Of all choices of the inputs that the others are expressed in, that with the smallest integers is taken.

    Examples
    --------
    >>> L, T, M = (Fraction(1),) * 3
    >>> speed, length, density = {"L": L, "T": -T}, {"L": L}, {"M": M, "L": -3 * L}
    >>> viscosity = {"M": M, "L": -L, "T": -T}
    >>> [[int(power) for power in row] for row in pi_groups([density, speed, length, viscosity])]
    [[1, 1, 1, -1]]
    """
    matrix, best = matrix_of(dimensions), None
    for pivots, rows in _eliminations(matrix, len(dimensions)):
        made = []
        for free in (place for place in range(len(dimensions)) if place not in pivots):
            row = [Fraction(place == free) for place in range(len(dimensions))]
            for pivot, reduced in zip(pivots, rows, strict=True):
                row[pivot] = -reduced[free]
            made.append(_turned(smallest_integers(row)))
        size = sum(abs(power) for row in made for power in row)
        if best is None or size < best[0]:
            best = size, made
    return best[1] if best else []


def with_dimension(dimensions: Sequence[Mapping[str, Fraction]], wanted: Mapping[str, Fraction]) -> Row | None:
    """Return the exponents of a product of powers that has a dimension, the smallest; None if there is none.

    Examples
    --------
    >>> length, gravity, time = {"L": Fraction(1)}, {"L": Fraction(1), "T": Fraction(-2)}, {"T": Fraction(1)}
    >>> [str(power) for power in with_dimension([length, gravity], time)]
    ['1/2', '-1/2']
    """
    number, best = len(dimensions), None
    for pivots, rows in _eliminations(matrix_of([*dimensions, wanted]), number):
        made = [Fraction(0)] * number
        for pivot, reduced in zip(pivots, rows, strict=False):
            made[pivot] = reduced[number]
        if any(row[number] for row in rows[len(pivots) :]):
            return None
        size = sum(abs(power) for power in made)
        if best is None or size < best[0]:
            best = size, made
    return best[1] if best else None


def _eliminations(matrix: list[Row], columns: int) -> Iterator[tuple[tuple[int, ...], list[Row]]]:
    """Yield the reduced forms of a matrix for choices of pivots among its first columns.

    Rows beyond the pivots are 0 in these columns; they are left out where they are 0 everywhere.
    """
    rank = len(_reduced(matrix, range(columns))[0])
    for chosen in itertools.islice(itertools.combinations(range(columns), rank), MAX_CHOICES):
        pivots, rows = _reduced(matrix, chosen)
        if len(pivots) == rank:
            yield tuple(pivots), [row for i, row in enumerate(rows) if i < rank or any(row)]


def _reduced(matrix: list[Row], columns: Sequence[int]) -> tuple[list[int], list[Row]]:
    """Return the pivots among some columns and the row-reduced matrix."""
    rows, pivots = [list(row) for row in matrix], list[int]()
    for column in columns:
        place = next((i for i in range(len(pivots), len(rows)) if rows[i][column]), None)
        if place is None:
            continue
        top = len(pivots)
        rows[top], rows[place] = rows[place], rows[top]
        rows[top] = [value / rows[top][column] for value in rows[top]]
        for i, row in enumerate(rows):
            if i != top and row[column]:
                rows[i] = [a - row[column] * b for a, b in zip(row, rows[top], strict=True)]
        pivots.append(column)
    return pivots, rows


def _turned(row: Row) -> Row:
    balance = sum(1 if power > 0 else -1 for power in row if power)
    first = next((power for power in row if power), Fraction(1))
    return [-power for power in row] if balance < 0 or (balance == 0 and first < 0) else row


@cache
def _registry() -> Any:
    try:
        return importlib.import_module("pint").UnitRegistry()
    except ImportError as error:
        raise ImportError("units: the package pint is not installed; pip install 'bnrank[units]'") from error
