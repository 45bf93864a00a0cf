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

    Examples
    --------
    >>> import bnrank
    >>> claim = bnrank.figures.Claim("the rank is found", True, 2, "2")
    >>> claim.passed, claim.expected
    (True, '2')
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
    """Return the claim that ``value > bound``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.above("gap", 20, 20)
    Claim(name='gap', passed=False, measured=20, expected='> 20')
    """
    return _decide(name, value, value > bound, f"> {bound:.4g}", **options)


def at_most(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value <= bound``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.at_most("error", 0.1, 0.1)
    Claim(name='error', passed=True, measured=0.1, expected='<= 0.1')
    """
    return _decide(name, value, value <= bound, f"<= {bound:.4g}", **options)


def below(name: str, value: Any, bound: float, **options: Any) -> Claim:
    """Return the claim that ``value < bound``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.below("error", 0.1, 0.1)
    Claim(name='error', passed=False, measured=0.1, expected='< 0.1')
    """
    return _decide(name, value, value < bound, f"< {bound:.4g}", **options)


def between(name: str, value: Any, low: float, high: float, **options: Any) -> Claim:
    """Return the claim that ``low <= value <= high``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.between("slope", 1.5, 1, 2)
    Claim(name='slope', passed=True, measured=1.5, expected='1 to 2')
    """
    return _decide(name, value, low <= value <= high, f"{low:.4g} to {high:.4g}", **options)


def near(name: str, value: Any, target: float, atol: float, **options: Any) -> Claim:
    """Return the claim that ``|value - target| <= atol``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.near("exponent", 0.5, 0.4, atol=0.2)
    Claim(name='exponent', passed=True, measured=0.5, expected='0.4 ± 0.2')
    """
    return _decide(name, value, abs(value - target) <= atol, f"{target:.4g} ± {atol:.4g}", **options)


def equals(name: str, value: Any, target: Any, **options: Any) -> Claim:
    """Return the claim that ``value == target``; see `at_least`.

    Examples
    --------
    >>> import bnrank
    >>> bnrank.figures.claims.equals("rank", 3, 2)
    Claim(name='rank', passed=False, measured=3, expected='2')
    """
    return _decide(name, value, value == target, str(target), **options)


def is_true(name: str, passed: Any, measured: Any, expected: str) -> Claim:
    """Return a claim that is not decided by a single number.

    Examples
    --------
    >>> import bnrank
    >>> losses = [3.0, 2.0, 1.0]
    >>> bnrank.figures.claims.is_true("the loss falls", losses == sorted(losses)[::-1], "3 to 1", "falling")
    Claim(name='the loss falls', passed=True, measured='3 to 1', expected='falling')
    """
    return Claim(name, bool(passed), measured, expected)


def prefixed(prefix: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims with a prefix added to their names.

    Examples
    --------
    >>> from bnrank.figures import claims
    >>> [claim.name for claim in claims.prefixed("depth 4", [claims.equals("rank", 2, 2)])]
    ['depth 4: rank']
    """
    return tuple(replace(claim, name=f"{prefix}: {claim.name}") for claim in claims)


def largest(values: Iterable[Any]) -> float:
    """Return the largest entry of numbers and arrays; NaN if one is NaN, or there are none.

    Examples
    --------
    >>> import numpy, bnrank
    >>> bnrank.figures.claims.largest([1.0, numpy.array([[2.0, 3.0]])]), bnrank.figures.claims.largest([])
    (3.0, nan)
    """
    return float(np.max(np.concatenate([np.ravel(_array(v)) for v in values] or [np.array([np.nan])])))


def smallest(values: Iterable[Any]) -> float:
    """Return the smallest entry of numbers and arrays; NaN if one is NaN, or there are none.

    Examples
    --------
    >>> import numpy, bnrank
    >>> bnrank.figures.claims.smallest([1.0, numpy.array([[2.0, 3.0]])])
    1.0
    """
    return -largest(-_array(v) for v in values)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _decide(
    name: str, value: Any, holds: Any, expected: str, *, note: str = "", shown: str | None = None, given: bool = True
) -> Claim:
    measured = shown if shown is not None else value if isinstance(value, int | str) else float(value)
    return Claim(name, bool(holds) and bool(given), measured, expected + note)
