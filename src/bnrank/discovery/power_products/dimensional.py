"""The search for power products among the dimensionless groups that the units allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score

from bnrank._core import validation
from bnrank.discovery.estimators import BottleneckRegressor
from bnrank.discovery.estimators.counts import is_better
from bnrank.discovery.power_products import units as dimensions
from bnrank.discovery.power_products.exponents import Table, fraction_in, half_widths
from bnrank.discovery.power_products.fits import drawn_together, exponents_of, fitted, log_is_closer_to_normal, seed_of
from bnrank.discovery.power_products.result import DimensionlessGroups, Factor, PowerProduct, products_of
from bnrank.discovery.power_products.units import Quantities

VARIES = 1e-9  # range of the logarithm of a group above which it is not constant
LESS = 0.1  # of R^2 on the rows, by which groups may explain less than the inputs where y has no logarithm
CLEARLY = 2.0  # standard errors by which the groups may predict worse than the inputs


@dataclass(frozen=True)
class Dimensionless:
    """A table without units.

    Attributes
    ----------
    z, names : ndarray and tuple of str
        Logarithms of the groups that vary, then signed inputs, (N, d).
    positive : ndarray
        Which of them are logarithms, (d,), bool.
    bases : dict
        Name -> the group as a product of inputs; for a signed input, itself.
    target : ndarray
        y without its unit, (N,), as logarithm if ``use_log``.
    observed : ndarray
        y in base units, (N,), as logarithm if ``use_log``.
    use_log : bool
        Whether these are logarithms.
    scale : PowerProduct
        The product of inputs by which y was divided.
    inputs : DataFrame
        The inputs in base units.
    """

    z: np.ndarray
    names: tuple[str, ...]
    positive: np.ndarray
    bases: dict[str, PowerProduct]
    target: np.ndarray
    observed: np.ndarray
    use_log: bool
    scale: PowerProduct
    inputs: pd.DataFrame


def without_units(table: Quantities, names: Sequence[str]) -> Dimensionless | None:
    """Return a table in dimensionless groups; None if no product of powers of the inputs has the unit of y.

    Raises
    ------
    ValueError
        If an input with negative values has a unit that no product of the others has.
    """
    x, y, own = table.x, table.y, table.powers
    place = [int(i) for i in np.flatnonzero((x > 0).all(axis=0))]
    known, logs = [own[i] for i in place], np.log(x[:, place])
    scale = dimensions.with_dimension(known, table.of_y)
    if scale is None:
        return None
    columns, bases = list[np.ndarray](), dict[str, PowerProduct]()
    for row in dimensions.pi_groups(known):
        column = logs @ np.array(row, dtype=np.float64)
        if np.ptp(column) > VARIES:
            made = _product(row, [names[i] for i in place])
            bases[str(made)] = made
            columns.append(column)
    groups = len(columns)
    for i in (i for i in range(len(names)) if i not in place and np.ptp(x[:, i]) > 0):
        divisor = dimensions.with_dimension(known, own[i])
        found = f"{names[i]} in {table.units[i]}, with negative values or 0"
        validation.expect(divisor is not None, "units", found, "a unit that a product of positive inputs has")
        assert divisor is not None
        under = _product(divisor, [names[j] for j in place])
        columns.append(x[:, i] / np.exp(logs @ np.array(divisor, dtype=np.float64)))
        signed = Factor(names[i], 1.0, 1.0, 1.0, Fraction(1), positive=False, divisor=under if under.factors else None)
        bases[signed.label] = PowerProduct((signed,))
    divided = y / np.exp(logs @ np.array(scale, dtype=np.float64))
    above = bool((divided > 0).all())
    use_log = above and (np.ptp(np.log(divided)) <= VARIES or log_is_closer_to_normal(divided))
    z = np.column_stack(columns) if columns else np.zeros((len(x), 0))
    target, observed = (np.log(divided), np.log(y)) if use_log else (divided, y)
    frame = pd.DataFrame(x, columns=list(names))
    made = _product(scale, [names[i] for i in place])
    return Dimensionless(z, tuple(bases), np.arange(len(bases)) < groups, bases, target, observed, use_log, made, frame)


def search_by_units(model: BottleneckRegressor, table: Dimensionless, groups: Any) -> DimensionlessGroups:
    """Return the groups that y depends on, among those that the units allow.

    If they predict held-out rows worse than the inputs as they are, an input or a constant with a unit is missing, and
    the result is undetermined.
    """
    given = fitted(model, table.inputs, table.observed, groups)
    allowed = tuple(base for base, logarithm in zip(table.bases.values(), table.positive, strict=True) if logarithm)
    logs = None
    if table.names:
        logs = fitted(model, pd.DataFrame(table.z, columns=list(table.names)), table.target, groups)
    n = logs.n_input_directions_ if logs is not None else 0
    interval = logs.n_input_directions_interval_ if logs is not None else (0, 0)
    law = table.use_log and (_is_scaled(table) if n == 0 else logs is not None and logs.model_ == "linear")
    made, left = tuple[PowerProduct, ...](), tuple[Factor, ...]()
    drawn = drawn_together(table.inputs.to_numpy(), table.observed, groups)
    if logs is not None and n and (law or n < len(table.names)):
        found, kept, left = exponents_of(
            Table(table.z, table.target, drawn, seed_of(model)), logs, law, table.names, table.positive
        )
        own = products_of(found, [table.names[i] for i in kept], list(table.positive[kept]))
        made = tuple(expanded(product, table.bases) for product in own)
    elif n:
        made = tuple(table.bases.values())
    verdict, reason = _judged(given, logs, table)
    coefficient = None
    if verdict == "nothing found":
        made, left, law = (), (), False
    if law and table.positive.all():
        made = (_times(table.scale, made[0]) if made else table.scale,)
        coefficient = float(np.exp((table.observed - made[0].logarithm(table.inputs)).mean()))
    elif not made and verdict == "power products":
        verdict, reason = "nothing found", "y, without its unit, does not depend on the groups that the units allow"
    summaries = given.summary(), logs.summary() if logs is not None else None
    varies = table.inputs.nunique() > 1
    names = tuple(name for name in table.inputs if varies[name] and (table.inputs[name] > 0).all())
    result = DimensionlessGroups(verdict, reason, made, interval, coefficient, names, left, *summaries)
    return replace(result, pi=allowed, scale=table.scale)


def _is_scaled(table: Dimensionless) -> bool:
    """Return whether log y varies less, by two standard errors, without the product of inputs that has its unit."""
    if not table.scale.factors:
        return False
    before, after = (np.square(values - values.mean()) for values in (table.observed, table.target))
    return is_better(after, before)


def expanded(product: PowerProduct, bases: dict[str, PowerProduct]) -> PowerProduct:
    """Return a product of groups as a product of inputs, with the intervals of the exponents of these.

    An input of several groups has the sum of their contributions, whose error is that of the sum on half-samples.
    Without these, the ends of the intervals are those of the worst case.

    Examples
    --------
    >>> group = PowerProduct((Factor("v", 2.0, 2.0, 2.0, Fraction(2)), Factor("L", -1.0, -1.0, -1.0, Fraction(-1))))
    >>> squared = PowerProduct((Factor("Fr", 0.51, 0.49, 0.53, Fraction(1, 2)),))
    >>> print(expanded(squared, {"Fr": group}))
    v / L^(1/2)
    """
    total = PowerProduct(())
    for factor in product.factors:
        made = []
        for base in bases[factor.name].factors:
            ends = sorted((factor.low * base.value, factor.high * base.value))
            exact = None if factor.fraction is None or base.fraction is None else factor.fraction * base.fraction
            made.append(replace(base, value=factor.value * base.value, low=ends[0], high=ends[1], fraction=exact))
        total = _times(total, PowerProduct(tuple(made)))
    if product.deviations is None:
        return total
    rows = [{base.label: base.value for base in bases[factor.name].factors} for factor in product.factors]
    powers = np.array([[row.get(factor.label, 0.0) for factor in total.factors] for row in rows])
    widths = half_widths(product.deviations @ powers)
    factors = [_within(f, f.value - w, f.value + w) for f, w in zip(total.factors, map(float, widths), strict=True)]
    return PowerProduct(tuple(factor for factor in factors if factor.fraction != 0))


def _within(factor: Factor, low: float, high: float) -> Factor:
    """Return a factor with this interval; a fraction outside it gives way to the only one inside, if there is one."""
    exact = factor.fraction
    if exact is None or not low <= exact <= high:
        exact = fraction_in(low, high)
    return replace(factor, low=low, high=high, fraction=exact)


def _times(one: PowerProduct, other: PowerProduct) -> PowerProduct:
    """Return the product of two products, without the inputs whose exponents cancel exactly."""
    total = {factor.label: factor for factor in one.factors}
    for f in other.factors:
        if (known := total.get(f.label)) is not None:
            exact = None if known.fraction is None or f.fraction is None else known.fraction + f.fraction
            ends = known.low + f.low, known.high + f.high
            total[f.label] = replace(f, value=known.value + f.value, low=ends[0], high=ends[1], fraction=exact)
        else:
            total[f.label] = f
    return PowerProduct(tuple(factor for factor in total.values() if factor.fraction != 0))


def _product(row: Sequence[Fraction], names: Sequence[str]) -> PowerProduct:
    powers = zip(row, names, strict=False)
    return PowerProduct(tuple(Factor(name, *(float(power),) * 3, power) for power, name in powers if power))


def _judged(given: BottleneckRegressor, logs: BottleneckRegressor | None, table: Dimensionless) -> tuple[str, str]:
    """Return the verdict, and the evidence in words."""
    size = int(table.positive.sum())
    said = f"the units allow {size} dimensionless group{'' if size == 1 else 's'}"
    if not table.use_log and table.scale.factors:  # losses of y and of y without its unit cannot be compared
        return _judged_in_units(given, logs, table, said)
    n = given.n_input_directions_
    loss, error = (float(values[n]) / given.output_scale_[0] ** 2 for values in _losses(given))
    own, spread = float(np.var(table.target)), 0.0
    if logs is not None:
        n = logs.n_input_directions_
        own, spread = (float(values[n]) / max(logs.output_scale_[0], 1e-300) ** 2 for values in _losses(logs))
    said += (
        f"; held-out mean squared error {own:.3g} +- {spread:.2g} with groups, {loss:.3g} +- {error:.2g} with inputs"
    )
    said += " as they are" + (" (of log y)" if table.use_log else "")
    variance = float(np.var(table.observed))
    if min(own + CLEARLY * spread, loss + CLEARLY * error) >= variance:
        return "nothing found", f"{said}, {variance:.3g} with the mean: nothing predicts y better than its mean"
    if own > loss + CLEARLY * np.hypot(error, spread):
        return "undetermined", f"{said}: an input, or a constant with a unit, may be missing"
    if logs is not None and logs.input_directions_undetermined_:
        return "undetermined", f"{logs.input_directions_reason_.removeprefix('undetermined: ')}; {said}"
    return "power products", said


def _losses(fit: BottleneckRegressor) -> tuple[np.ndarray, np.ndarray]:
    return fit.input_held_out_, fit.input_held_out_error_


def _judged_in_units(
    given: BottleneckRegressor, logs: BottleneckRegressor | None, table: Dimensionless, said: str
) -> tuple[str, str]:
    """Return the verdict for a y that has no logarithm, by R^2 on the rows of the fit, in units of y."""
    divided = np.full(len(table.observed), table.target.mean())
    if logs is not None:
        divided = np.asarray(logs.predict(pd.DataFrame(table.z, columns=list(table.names)))).ravel()
    own = float(r2_score(table.observed, divided * np.exp(table.scale.logarithm(table.inputs))))
    inputs = float(r2_score(table.observed, np.asarray(given.predict(table.inputs)).ravel()))
    said += f"; R^2 {own:.3g} with groups, {inputs:.3g} with inputs as they are"
    if max(own, inputs) < LESS:
        return "nothing found", f"{said}: nothing predicts y better than its mean"
    if own < inputs - LESS:
        return "undetermined", f"{said}: an input or a constant with a unit may be missing"
    if logs is not None and logs.input_directions_undetermined_:
        return "undetermined", f"{logs.input_directions_reason_.removeprefix('undetermined: ')}; {said}"
    return "power products", said
