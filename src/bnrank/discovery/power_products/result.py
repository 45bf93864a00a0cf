"""The power products that an output depends on, as text and as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.discovery.columns import columns_of, texts
from bnrank.discovery.estimators import Summary
from bnrank.discovery.power_products.exponents import Exponents, smallest_integers
from bnrank.discovery.power_products.units import in_base_units


@dataclass(frozen=True)
class Factor:
    """One input of a power product, x^value.

    Attributes
    ----------
    name : str
        The input.
    value, low, high : float
        Its exponent, with the ends of a 99 percent interval, in units of those of the product.
    fraction : Fraction or None
        The only fraction with a denominator of at most 4 in the interval, if there is one.
    positive : bool
        Whether the input is positive; otherwise the factor is exp(value x).
    divisor : PowerProduct or None
        By what an input that is not positive is divided, to have no unit.
    """

    name: str
    value: float
    low: float
    high: float
    fraction: Fraction | None
    positive: bool = True
    divisor: "PowerProduct | None" = None

    @property
    def label(self) -> str:
        """The input, divided by what removes its unit."""
        return self.name if self.divisor is None else f"{self.name} / ({self.divisor})"

    @property
    def exponent(self) -> float:
        """The fraction where there is one, and else the value."""
        return self.value if self.fraction is None else float(self.fraction)

    def power(self, sign: int = 1) -> str:
        """Return the factor as text, with its exponent or minus its exponent."""
        exact = self.fraction is not None
        size = f"{self.fraction * sign if self.fraction is not None else self.value * sign:{'' if exact else '.3g'}}"
        if not self.positive:
            return f"exp({'' if size == '1' else f'{size} '}{self.label})"
        return self.name if size == "1" else f"{self.name}^({size})" if "/" in size else f"{self.name}^{size}"


@dataclass(frozen=True)
class PowerProduct(Printed):
    """A product of powers of inputs.

    Attributes
    ----------
    factors : tuple of Factor
        The inputs with their exponents, without those of exponent 0.
    deviations : ndarray or None
        Differences of the exponents on m half-samples and their values, (m, number of factors), where they are kept.
    """

    factors: tuple[Factor, ...]
    deviations: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.factors and not any(factor.positive for factor in self.factors):  # a sum, not a product
            return " + ".join(f.label if f.exponent == 1 else f"{f.exponent:.3g} {f.label}" for f in self.factors)
        above = [factor.power() for factor in self.factors if factor.exponent > 0]
        below = [factor.power(-1) for factor in self.factors if factor.exponent < 0]
        under = f"({' '.join(below)})" if len(below) > 1 else "".join(below)
        return " / ".join([" ".join(above) or "1", *([under] if below else [])])

    def logarithm(self, table: pd.DataFrame) -> np.ndarray:
        """Return the logarithm of the product on the rows of a table, (N,)."""
        total = np.zeros(len(table))
        for factor in self.factors:
            column = table[factor.name].to_numpy(dtype=np.float64)
            if factor.divisor is not None:
                column = column / np.exp(factor.divisor.logarithm(table))
            total += factor.exponent * (np.log(column) if factor.positive else column)
        return total


def products_of(found: Exponents, names: Sequence[str], positive: Sequence[bool]) -> tuple[PowerProduct, ...]:
    """Return power products with exponents: the smallest integers, where all are fractions and only ratios are known.

    Examples
    --------
    >>> values = np.array([[0.5, -0.5, 1.0]])
    >>> print(*products_of(Exponents(values, values, values, (2,)), ["L", "g", "f"], [True] * 3))
    L f^2 / g
    """
    made = []
    rows = zip(found.values, found.low, found.high, found.rounded, strict=True)
    for number, (value, low, high, fractions) in enumerate(rows):
        scale: float | Fraction = 1
        known = [fraction for fraction in fractions if fraction is not None]
        if found.pivots and len(known) == len(fractions) and any(known):
            first = next(place for place, fraction in enumerate(known) if fraction)
            scale = smallest_integers(known)[first] / known[first]
        largest = [s * (1 if f is None else abs(f)) for s, f in zip(np.sign(value), fractions, strict=True) if f != 0]
        lead = next((v for v, f in zip(value, fractions, strict=True) if f != 0), 1.0)
        if found.pivots and (np.sum(np.sign(largest)) < 0 or (np.sum(np.sign(largest)) == 0 and lead < 0)):
            scale = -scale
        factors = []
        for place, fraction in enumerate(fractions):
            if fraction != 0:
                first_end, last_end = sorted(float(end[place]) * float(scale) for end in (low, high))
                exact = None if fraction is None else Fraction(fraction * scale)
                size = float(value[place]) * float(scale)
                factors.append(Factor(names[place], size, first_end, last_end, exact, bool(positive[place])))
        used = [place for place, fraction in enumerate(fractions) if fraction != 0]
        own = None if found.deviations is None else found.deviations[:, number, used] * float(scale)
        made.append(PowerProduct(tuple(factors), own))
    return tuple(made)


@dataclass(frozen=True)
class DimensionlessGroups(Printed):
    """The power products of the inputs that y depends on; prints itself.

    Attributes
    ----------
    verdict : {"power products", "linear combinations", "undetermined", "nothing found"}
        What describes y with fewest combinations of the inputs.
    reason : str
        The evidence.
    groups : tuple of PowerProduct
        The power products; empty unless this is the verdict, or ``undetermined`` concerns their number only.
    interval : tuple of int
        Interval of their number (of combinations of the logarithms).
    coefficient : float or None
        c, where y is the power law c x_1^a_1 x_2^a_2 ...
    logarithms : tuple of str
        The inputs whose logarithms were tried: those with positive values.
    left_out : tuple of Factor
        Inputs whose exponents could not be told from 0, with these exponents.
    as_given, in_logarithms : Summary or None
        The fits with the inputs as they are, and with logarithms (with units, of the groups that these allow); None
        where no input is positive, or no group.
    pi : tuple of PowerProduct
        A basis of the dimensionless groups that the units allow, with smallest integers; empty without units.
    scale : PowerProduct or None
        The product of inputs with the unit of y by which y was divided; None without units.
    units : tuple of str
        The units in which the inputs were given, and in which :meth:`values` takes them; empty without units.
    outliers : tuple of int
        Rows with gross outliers, which are left out or have other values in all fits.
    notes : tuple of str
        What was done with them.
    """

    verdict: str
    reason: str
    groups: tuple[PowerProduct, ...]
    interval: tuple[int, int]
    coefficient: float | None
    logarithms: tuple[str, ...]
    left_out: tuple[Factor, ...]
    as_given: Summary
    in_logarithms: Summary | None
    pi: tuple[PowerProduct, ...] = ()
    scale: PowerProduct | None = None
    units: tuple[str, ...] = ()
    outliers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def _content(self) -> list[Part]:
        table = [Table("Exponents", self.rows)] if self.groups else []
        return [*self._lines(), *table, *self._left()]

    @property
    def sentences(self) -> list[str]:
        """The printed text without the table."""
        return [line.strip() for line in (*self._lines(), *self._left())]

    @property
    def rows(self) -> list[dict[str, object]]:
        """The printed table: one row for each exponent."""
        return list(self._rows())

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each exponent: group (from 1), input, exponent, low, high, and fraction as text."""
        rows = [
            (number, f.label, f.value, f.low, f.high, "" if f.fraction is None else str(f.fraction))
            for number, group in enumerate(self.groups, 1)
            for f in group.factors
        ]
        return pd.DataFrame(rows, columns=["group", "input", "exponent", "low", "high", "fraction"])

    def values(self, X: Any) -> np.ndarray:
        """Return the power products on rows, (N, n); for a power law, its values of y without the coefficient.

        With ``units``, X is in these units, and values are in SI base units, as the coefficient is.

        Raises
        ------
        ValueError
            If a column is missing, or not positive where it was.
        """
        table = pd.DataFrame(X)
        if isinstance(X, pd.DataFrame):
            table.columns = pd.Index(texts(columns_of(X, "x", X.shape[1]), "x"))
        else:
            named = self.as_given.inputs
            validation.expect(table.shape[1] == len(named), "X", f"{table.shape[1]} columns", f"{len(named)}")
            table.columns = pd.Index(named)
        factors = [factor for group in self.groups for factor in group.factors]
        needed = [
            other for factor in factors for other in (factor, *(factor.divisor.factors if factor.divisor else ()))
        ]
        for name in dict.fromkeys(factor.name for factor in needed):
            validation.expect(name in table, "X", f"columns {list(table)}", f"one named {name}")
            if self.units:
                unit = self.units[self.as_given.inputs.index(name)]
                table = table.assign(**{name: in_base_units(table[name].to_numpy(), unit, "units")[0]})
        for factor in needed:
            low = float(table[factor.name].min())
            validation.expect(low > 0 or not factor.positive, "X", f"{factor.name} down to {low:.3g}", "above 0")
        columns = [np.exp(group.logarithm(table)) for group in self.groups]
        return np.column_stack(columns) if columns else np.zeros((len(table), 0))

    def _lines(self) -> Iterator[str]:
        given, (low, high) = self.as_given, self.interval
        yield f"dimensionless_groups: {given.rows} rows, {len(given.inputs)} inputs ({len(self.logarithms)} positive)"
        yield from (f"  {note}" for note in self.notes)
        named = "; ".join(map(str, self.groups))
        if self.coefficient is not None:
            units = "" if self.scale is None else " (SI base units)"
            yield f"y is a power law: y = {self.coefficient:.4g} {named}{units}"
        elif self.groups and self.scale is not None:
            divided = f"y / ({self.scale})" if self.scale.factors else "y"
            what = f"{len(self.groups)} dimensionless group{'' if len(self.groups) == 1 else 's'}"
            yield f"{divided} depends on {what} (interval {low} to {high}): {named}"
        elif self.groups:
            number = len(self.groups)
            what = "power product" if number == 1 else "power products"
            yield f"y depends on {number} {what} of the inputs (interval {low} to {high}): {named}"
        elif self.verdict == "linear combinations":
            yield f"no power products: {given.dependence} as they are"
        elif self.verdict == "nothing found":
            yield "nothing was found that y depends on"
        if self.pi:
            yield f"  groups that the units allow: {'; '.join(map(str, self.pi))}"
        yield f"  {self.reason}" if self.verdict != "undetermined" else f"  undetermined: {self.reason}"

    def _left(self) -> Iterator[str]:
        for f in self.left_out:
            yield f"left out: {f.label}, exponent {f.value:.2g} ({f.low:.2g} to {f.high:.2g}) not told from 0"

    def _rows(self) -> Iterator[dict[str, object]]:
        for number, group in enumerate(self.groups, 1):
            for f in group.factors:
                fixed = f.low == f.high
                yield {
                    "group": number,
                    "input": f.label,
                    "exponent": f"{f.value:.5g}",
                    "99 percent interval": "fixed" if fixed else f"{f.low:.5g} to {f.high:.5g}",
                    "fraction": "-" if f.fraction is None else str(f.fraction),
                }
