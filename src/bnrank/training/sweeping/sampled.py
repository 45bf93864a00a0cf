"""Settings sampled from ranges: independently, or as a Latin hypercube."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnrank._core import validation

METHODS = ("latin-hypercube", "random")
MAX_SETTINGS = 10_000_000


@dataclass(frozen=True)
class Range:
    """A range of an axis, uniform or uniform in the logarithm.

    Attributes
    ----------
    low, high : int or float
        Its ends. Of two integers, it is a range of integers, both ends included.
    log : bool
        Whether the logarithm is uniform; of integers, each has the share of the logarithms that are rounded to it.

    Raises
    ------
    TypeError, ValueError
        If the ends are not finite numbers in this order, or not positive with ``log``.

    Examples
    --------
    >>> Range(1e-5, 1e-1, log=True).at(0.5)
    0.001
    >>> [Range(2, 4).at(u) for u in (0.0, 0.34, 0.99)]
    [2, 3, 4]
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        low, high = validation.number(self.low, "low"), validation.number(self.high, "high")
        log = validation.flag(self.log, "log")
        validation.expect(low < high, "low, high", f"{low:g} and {high:g}", "low < high")
        validation.expect(not log or low > 0, "low", f"{low:g}", "a number above 0 for log=True")
        object.__setattr__(self, "log", log)

    @property
    def is_integer(self) -> bool:
        """Whether it is a range of integers."""
        return all(isinstance(end, int | np.integer) for end in (self.low, self.high))

    def at(self, u: float) -> float:
        """Return the value at a share u of the range, 0 <= u < 1.

        Raises
        ------
        TypeError, ValueError
            If u is not such a number.
        """
        u = validation.number(u, "u", 0.0)
        validation.expect(u < 1, "u", f"{u:g}", "a number in [0, 1)")
        low, high = self.low, self.high
        if self.is_integer:
            low, high = low - 0.5, high + 0.5
        if self.log:
            low, high = math.log10(low), math.log10(high)
        value = low + u * (high - low)
        if self.log:
            value = float(10.0**value)
        if self.is_integer:
            return int(min(max(math.floor(value + 0.5), self.low), self.high))
        return float(min(max(value, self.low), self.high))


def sample_settings(
    ranges: Mapping[str, Range | Sequence[Any]], n: int, *, method: str = "latin-hypercube", seed: int = 0
) -> list[dict[str, Any]]:
    """Return settings of `bnrank.sweep` that are sampled from ranges.

    Parameters
    ----------
    ranges : mapping
        A `Range`, or a list of values of which each is equally likely, by the names of axes.
    n : int
        Number of settings.
    method : {"latin-hypercube", "random"}
        With "latin-hypercube" each of n equal shares of every range has one setting (McKay, Beckman and Conover 1979;
        ``scipy.stats.qmc``), with "random" the settings are independent.
    seed : int
        Seed of the samples.

    Returns
    -------
    list of dict
        One value for each name. Settings of ranges of integers and of lists can be equal.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Examples
    --------
    >>> ranges = {"ridge": Range(1e-5, 1e-1, log=True), "depth": Range(2, 5), "init": ["he", 0.1]}
    >>> settings = sample_settings(ranges, 8, seed=0)
    >>> sorted(setting["depth"] for setting in settings)
    [2, 2, 3, 3, 4, 4, 5, 5]
    """
    expected = "a mapping of the names of axes to ranges or lists of values"
    validation.expect(isinstance(ranges, Mapping) and len(ranges), "ranges", validation.describe(ranges), expected)
    n = validation.integer(n, "n", 1, MAX_SETTINGS)
    validation.choice(method, "method", METHODS)
    generator = np.random.default_rng(validation.seed(seed))
    if method == "random":
        shares = generator.random((n, len(ranges)))
    else:
        from scipy.stats import qmc

        renamed = "rng" if "rng" in inspect.signature(qmc.LatinHypercube).parameters else "seed"  # since SciPy 1.15
        shares = qmc.LatinHypercube(len(ranges), **{renamed: generator}).random(n)
    columns = [_column(name, values, shares[:, i]) for i, (name, values) in enumerate(ranges.items())]
    return [dict(zip(ranges, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(name: Any, values: Any, shares: np.ndarray[Any, Any]) -> list[Any]:
    if isinstance(values, Range):
        return [values.at(float(u)) for u in shares]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    listed = isinstance(values, list | tuple | range) and len(values) > 0
    validation.expect(listed, f"ranges[{name!r}]", validation.describe(values), "a Range, or a list of values")
    return [values[int(u * len(values))] for u in shares]
