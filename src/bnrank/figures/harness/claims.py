"""Claims: measured values compared with bounds, from which the expected text is derived."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bnrank._core import validation
from bnrank.reporting import tables

__all__ = [
    "Claim",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "equals",
    "is_true",
    "largest",
    "near",
    "prefixed",
    "smallest",
]


@dataclass(frozen=True)
class Claim:
    """One expected result, and whether it was reproduced.

    Attributes
    ----------
    name : str
        What is claimed.
    passed : bool or None
        Whether it was reproduced; None if that could not be decided.
    measured : str or float
        The measured value.
    expected : str
        The expected value or range.
    """

    name: str
    passed: bool | None
    measured: str | float
    expected: str

    def __post_init__(self) -> None:
        validation.text(self.name, "name")
        validation.text(self.expected, "expected")
        tables.check_passed(self.passed, "passed")
        known = isinstance(self.measured, str | int | float | np.generic | Tensor)
        validation.expect(known, "measured", self.measured, "a text or a number", TypeError)


def at_least(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value >= bound``; NaN fails.

    Parameters
    ----------
    name : str
        What is claimed.
    value : number
        The measured value, compared with the bound.
    bound : float
        The bound; the expected text is derived from it.
    note : str
        Text after the bound.
    shown : str, optional
        Text to show for the measured value.
    given : bool
        A further condition that must hold.

    Examples
    --------
    >>> at_least("s_4 / s_5", 120.0, 20)
    Claim(name='s_4 / s_5', passed=True, measured=120.0, expected='>= 20')
    >>> below("error", 0.2, 0.1, note=", of the variance").expected
    '< 0.1, of the variance'
    """
    return _decide(name, value, value >= bound, f">= {bound:.4g}", **options)


def above(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value > bound``; see `at_least`."""
    return _decide(name, value, value > bound, f"> {bound:.4g}", **options)


def at_most(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value <= bound``; see `at_least`."""
    return _decide(name, value, value <= bound, f"<= {bound:.4g}", **options)


def below(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value < bound``; see `at_least`."""
    return _decide(name, value, value < bound, f"< {bound:.4g}", **options)


def between(name: str, value: Any, low: float, high: float, **options: Any) -> Claim:
    """Return the claim that ``low <= value <= high``; see `at_least`."""
    return _decide(name, value, low <= value <= high, f"{low:.4g} to {high:.4g}", **options)


def near(name: str, value: Any, target: float, atol: float, **options: Any) -> Claim:
    """Return the claim that ``|value - target| <= atol``; see `at_least`."""
    return _decide(name, value, abs(value - target) <= atol, f"{target:.4g} ± {atol:.4g}", **options)


def equals(name: str, value: Any, target: Any, **options: Any) -> Claim:
    """Return the claim that ``value == target``; see `at_least`."""
    return _decide(name, value, value == target, str(target), **options)


def is_true(name: str, passed: Any, measured: Any, expected: str) -> Claim:
    """Return a claim that is not decided by a single number."""
    return Claim(name, bool(passed), measured, expected)


def prefixed(prefix: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims with a prefix added to their names."""
    return tuple(replace(claim, name=f"{prefix}: {claim.name}") for claim in claims)


def largest(values: Iterable[Any]) -> float:
    """Return the largest entry of numbers and arrays; NaN if one is NaN, or there are none."""
    return float(np.max(np.concatenate([np.ravel(v) for v in values] or [np.array([np.nan])])))


def smallest(values: Iterable[Any]) -> float:
    """Return the smallest entry of numbers and arrays; NaN if one is NaN, or there are none."""
    return -largest(-np.asarray(v) for v in values)


def _decide(
    name: str, value: Any, holds: Any, expected: str, *, note: str = "", shown: str | None = None, given: bool = True
) -> Claim:
    measured = shown if shown is not None else value if isinstance(value, int | str) else float(value)
    return Claim(name, bool(holds) and bool(given), measured, expected + note)
