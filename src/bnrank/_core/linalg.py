"""Singular values: which count, and the numbers computed from them, along the last axis; and scaling by powers of 2."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation

Values = Tensor | np.ndarray | Sequence[float]


def rank(values: Values, rtol: float = 1e-6, atol: float = 0.0) -> Tensor:
    """Return the number of singular values above ``rtol`` times the largest, for each matrix.

    Parameters
    ----------
    values : array of shape (..., K)
        Non-negative, in any order along the last axis; NaN entries (padding) do not count.
    rtol : float
        Relative tolerance, in [0, 1).
    atol : float
        Values up to ``atol`` do not count either.

    Returns
    -------
    Tensor
        (...), int64; 0 where all values are zero.

    Raises
    ------
    TypeError, ValueError
        If a value is negative or ``rtol`` is out of range.

    Examples
    --------
    >>> rank([3.0, 1.0, 1e-9])
    tensor(2)
    >>> rank(torch.tensor([[3.0, 1.0], [0.0, 0.0]])).tolist()
    [2, 0]
    """
    values = _checked(values)
    return _counts(values, rtol, atol).sum(-1)


def counted(values: Values, rtol: float = 1e-6, atol: float = 0.0) -> Tensor:
    """Return the singular values with those that do not count for the rank set to 0. See `rank` for the arguments.

    Examples
    --------
    >>> counted([3.0, 1.0, 1e-9])
    tensor([3., 1., 0.], dtype=torch.float64)
    """
    values = _checked(values)
    return torch.where(_counts(values, rtol, atol), values, 0.0)


def log_pseudo_determinant(values: Values, rank: int | None = None, rtol: float = 1e-6) -> Tensor:
    """Return log |A|_+, the sum of the natural logarithms of the non-zero singular values, for each matrix (T7).

    Parameters
    ----------
    values : array of shape (..., K)
        Singular values, descending if ``rank`` is given.
    rank : int, optional
        Take the first ``rank`` values of each matrix; the result is -inf where one of them is 0.
    rtol : float
        Without ``rank``: take those above ``rtol`` times the largest; the result is 0 (the empty product) where all
        are 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> log_pseudo_determinant([1.0, 1.0, 0.0])
    tensor(0., dtype=torch.float64)
    """
    values = _checked(values)
    if rank is not None:
        rank = validation.integer(rank, "rank", 0)
        validation.expect(rank <= values.shape[-1], "rank", f"{rank}", f"at most min(d_in, d_out) = {values.shape[-1]}")
        return values[..., :rank].log().sum(-1)
    return torch.where(_counts(values, rtol), values, 1.0).log().sum(-1)


def schatten(values: Values, depth: float, rtol: float = 1e-12) -> Tensor:
    """Return sum_k s_k^{2/L} for L = ``depth``, the Schatten norm ||A||_{2/L}^{2/L}, for each matrix (T4).

    Values up to ``rtol`` times the largest count as 0: the rounding error of a zero, 1e-17, has the power 0.04 at
    L = 24.

    Examples
    --------
    >>> schatten([9.0, 4.0, 1e-17], depth=4)
    tensor(5., dtype=torch.float64)
    """
    return counted(values, rtol).pow(2 / depth).sum(-1)


def effective_rank(values: Values) -> Tensor:
    """Return the effective rank (sum_i s_i)^2 / sum_i s_i^2: r for r equal values, 1 for one; 0 where all are 0.

    Unlike a rank it needs no tolerance, which matters where the spectrum has no gap.

    Raises
    ------
    ValueError
        If there is no value, or one that is negative, NaN or infinite.

    Examples
    --------
    >>> effective_rank(torch.tensor([[2.0, 2.0, 2.0], [5.0, 0.0, 0.0]]))
    tensor([3., 1.], dtype=torch.float64)
    """
    values = _usable(values)
    return values.sum(-1).square() / values.square().sum(-1).clamp(min=1.0)


def entropy_rank(values: Values) -> Tensor:
    """Return the entropy rank exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j; 0 where all values are 0.

    It is r for r equal values.

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality", 2007. It is at least
    :func:`effective_rank`, the name of which bnrank uses for (sum_i s_i)^2 / sum_i s_i^2 throughout.

    Raises
    ------
    ValueError
        As :func:`effective_rank`.

    Examples
    --------
    >>> entropy_rank(torch.tensor([[2.0, 2.0, 2.0], [5.0, 0.0, 0.0]])).round(decimals=9)
    tensor([3., 1.], dtype=torch.float64)
    """
    values = _usable(values)
    shares = values / values.sum(-1, keepdim=True).clamp(min=1.0)  # divided by the largest, they sum to at least 1
    return torch.where(_largest(values)[..., 0] > 0, torch.special.entr(shares).sum(-1).exp(), 0.0)


def stable_rank(values: Values) -> Tensor:
    """Return ||A||_F^2 / ||A||_op^2 = sum_i s_i^2 / s_1^2 of each matrix, at least 1; NaN where all values are 0.

    In a wide layer it also sees the bulk: n^2 entries of size eps add 1 to it where n eps reaches s_1.

    Examples
    --------
    >>> stable_rank([2.0, 1.0])
    tensor(1.2500, dtype=torch.float64)
    """
    values = _checked(values)
    validation.expect(not bool(torch.isinf(values).any()), "values", "infinite entries", "finite ones")
    return (values / _largest(values)).square().sum(-1)


def stable_rank_from(squared_norm: float, values: Tensor) -> float:
    """Return the stable rank of a matrix of which only the norm and the largest singular value are exact.

    A lower bound where the largest is an upper one.

    Examples
    --------
    >>> stable_rank_from(5.0, torch.tensor([2.0, 1.5])), stable_rank_from(5.0, torch.tensor([3.0, 1.5]))
    (1.25, 1.0)
    """
    top = float(values[0])
    return max(1.0, squared_norm / top / top) if top > 0 else math.nan


def exp(value: float) -> float:
    """Return e^value of a number, infinite where it is beyond the range of floats.

    Examples
    --------
    >>> exp(0.0), exp(1e4)
    (1.0, inf)
    """
    return math.exp(value) if value < 709 else math.inf


def scaled(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return 2^-e times the values, with a largest size in [1/2, 1), and e, so that no square leaves the float range.

    Examples
    --------
    >>> scaled(np.array([1e200, 0.0]))[0].round(2).tolist()
    [0.65, 0.0]
    """
    exponent = int(np.frexp(np.abs(values).max())[1])
    return np.ldexp(values, -exponent), exponent


def tails(values: Values) -> Tensor:
    """Return the sums of squares sum_{i > k} s_i^2 for k = 0, ..., K, shape (..., K + 1); the last one is 0.

    Examples
    --------
    >>> tails([2.0, 1.0])
    tensor([5., 1., 0.], dtype=torch.float64)
    """
    squares = torch.nn.functional.pad(_checked(values).square(), (0, 1))
    return squares.flip(-1).cumsum(-1).flip(-1)


def _checked(values: Values) -> Tensor:
    plain = not isinstance(values, Tensor | np.ndarray)
    values = validation.numbers(values, "values", "singular values (..., K)")
    values = values.to(torch.float64) if plain else values
    usable = values.ndim > 0 and not bool((values < 0).any())
    validation.expect(usable, "values", values, "(..., K), all non-negative")
    return values


def _usable(values: Values) -> Tensor:
    """Return finite values over the largest: squares of what is large or small overflow or vanish."""
    values = _checked(values).double()
    usable = values.numel() > 0 and bool(torch.isfinite(values).all())
    validation.expect(usable, "values", values, "(..., K), finite and non-negative")
    largest = _largest(values)
    return values / torch.where(largest > 0, largest, 1.0)


def _counts(values: Tensor, rtol: float, atol: float = 0.0) -> Tensor:
    rtol = validation.rtol(rtol)
    atol = atol if isinstance(atol, float) and atol == math.inf else validation.number(atol, "atol", 0.0)
    atol = math.inf if atol > torch.finfo(values.dtype).max else atol
    return values > (rtol * _largest(values)).clamp(min=atol)


def _largest(values: Tensor) -> Tensor:
    """Return the largest value along the last axis, NaN aside, (..., 1)."""
    if not values.shape[-1]:
        return values.new_zeros((*values.shape[:-1], 1))
    return values.nan_to_num(nan=0.0, posinf=torch.inf).amax(-1, keepdim=True)
