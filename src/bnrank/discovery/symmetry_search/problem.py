"""The arguments of `symmetries`: a function and samples of it, in whitened coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.storage import plain_array
from bnrank.discovery.symmetry_search.models import Mean, disagreement, module_of, relative_error, with_columns
from bnrank.measures.jacobian import Jacobian

SPAN = 1e-6  # of the largest standard deviation of standardized columns: smaller directions are outside the data's span
ROUNDING = 1e-10  # of its mean: a column with a smaller standard deviation is constant
SHARE = 0.02  # of the sum of squares of all Jacobians, at most for a single sample
FAIR = 5.0  # times its equal part, where samples are few


@dataclass(frozen=True)
class Coordinates:
    """Affine coordinates z = into (x - mean) on the affine span of the data, x = mean + out z.

    Attributes
    ----------
    mean : Tensor
        (d,).
    out, into : Tensor
        (d, q) and (q, d), with into out = 1.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - r).
    spread : Tensor
        Standard deviation of every column of x, 1 for constant ones, (d,).
    divided_out : Tensor
        Directions of x that a quotient identifies, (d, m).
    """

    mean: Tensor
    out: Tensor
    into: Tensor
    left_out: Tensor
    spread: Tensor
    divided_out: Tensor

    @property
    def dimension(self) -> int:
        """The number of coordinates, q."""
        return self.out.shape[1]

    def of(self, x: Tensor) -> Tensor:
        """Return z, (N, q), of points (N, d)."""
        return (x - self.mean) @ self.into.T

    def to_x(self, fields: Tensor) -> Tensor:
        """Return fields z -> A z + b, (k, q, q + 1), as fields of x, (k, d, d + 1)."""
        matrix = self.out @ fields[..., :-1] @ self.into
        shift = fields[..., -1] @ self.out.T - matrix @ self.mean
        return torch.cat([matrix, shift[..., None]], -1)

    def from_x(self, fields: Tensor) -> Tensor:
        """Return the part along the span of fields of x, (k, d, d + 1), as fields of z, (k, q, q + 1)."""
        shift = fields[..., :-1] @ self.mean + fields[..., -1]
        return torch.cat([self.into @ fields[..., :-1] @ self.out, (shift @ self.into.T)[..., None]], -1)

    def without(self, ignored: Tensor) -> Coordinates:
        """Return coordinates of the quotient by the directions z = ignored, (q, m) orthonormal.

        Fields of the quotient are written in x without a part along these directions, in the metric of standardized
        columns.
        """
        if ignored.shape[1] == 0:
            return self
        rest = torch.linalg.qr(ignored, mode="complete")[0][:, ignored.shape[1] :]
        gone = torch.cat([self.divided_out, self.out @ ignored], 1)
        out = _across(self.out @ rest, gone, self.spread) * self.spread[:, None]
        return Coordinates(self.mean, out, rest.T @ self.into, self.left_out, self.spread, gone)

    def metric(self, units: Tensor) -> Tensor:
        """Return the metric, (q, q), of the lengths of the shortest vectors x that z stands for.

        ``units`` (d,) are those of the columns: all ones for Euclidean length, ``spread`` for that of standardized
        columns.
        """
        out = _across(self.out, self.divided_out, units)
        return out.T @ out

    def lifted(self) -> Tensor:
        """Return the shortest vectors of x that the axes of z stand for, (d, q)."""
        return _across(self.out, self.divided_out, torch.ones_like(self.spread))

    def standardized(self, fields: Tensor) -> Tensor:
        """Return fields of x, (k, d, d + 1), in the units of the columns."""
        return in_units(fields, self.spread)


def in_units(fields: Tensor, units: Tensor) -> Tensor:
    """Return fields of x, (..., d, d + 1), of columns with the given units, (d,)."""
    return fields * torch.cat([units, units.new_ones(1)]) / units[:, None]


def _across(vectors: Tensor, directions: Tensor, units: Tensor) -> Tensor:
    """Return vectors of x, the columns of (d, n), in units (d,), less their part along directions (d, m)."""
    scaled = vectors / units[:, None]
    if not directions.shape[1]:
        return scaled
    along = torch.linalg.qr(directions / units[:, None])[0]
    return scaled - along @ (along.T @ scaled)


def whitened(x: Tensor) -> Coordinates:
    """Return coordinates in which x, (N, d) of float64, has mean 0 and covariance 1 on its affine span.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    >>> z = whitened(x).of(x)
    >>> z.shape, round(float(z.square().mean()), 12)            # the data lie on a line
    (torch.Size([3, 1]), 1.0)
    """
    mean = x.mean(0)
    spread = (x - mean).square().mean(0).sqrt()
    varying = spread > ROUNDING * mean.abs()
    spread = torch.where(varying, spread, 1.0)
    standardized = torch.where(varying, (x - mean) / spread, 0.0)
    _, s, v = torch.linalg.svd(standardized / len(x) ** 0.5, full_matrices=False)
    kept = s > SPAN * s[0]
    basis, s = v[kept].T, s[kept]
    out = spread[:, None] * basis * s
    left_out = torch.linalg.qr(out, mode="complete")[0][:, out.shape[1] :]
    return Coordinates(mean, out, (basis / s).T / spread, left_out, spread, out[:, :0])


@dataclass(frozen=True)
class Sample:
    """Samples and Jacobians in the coordinates of the fields.

    Attributes
    ----------
    x, z : Tensor
        (N, d) and (N, q).
    jacobian : Tensor
        J(x_i), or a matrix with the same J^T J, (N, m, q).
    """

    x: Tensor
    z: Tensor
    jacobian: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Tensor | slice) -> Sample:
        """Return some of the samples."""
        return Sample(self.x[rows], self.z[rows], self.jacobian[rows])

    def within(self, where: Coordinates, inner: Coordinates) -> Sample:
        """Return the samples in the coordinates of a quotient."""
        return Sample(self.x, inner.of(self.x), self.jacobian @ (where.into @ inner.out))


@dataclass(frozen=True)
class Problem:
    """A function and samples of it, in coordinates.

    Attributes
    ----------
    net : nn.Module
        f.
    where : Coordinates
        Coordinates in which the samples have mean 0 and covariance 1.
    sample, held_out : Sample
        Samples with Jacobians; the same where none are held out.
    rtol : float or None
        Relative error of f, where known.
    names : tuple of str
        Names of the columns of x.
    resamples, seed : int
        Settings of the search.
    """

    net: nn.Module
    where: Coordinates
    sample: Sample
    held_out: Sample
    rtol: float | None
    names: tuple[str, ...]
    resamples: int
    seed: int


def read_problem(
    model: Any,
    data: tuple[Any, Any, Any],
    rtol: float | None,
    names: Sequence[str] | None,
    settings: tuple[int, int, int],
) -> Problem:
    """Return the problem of a model, (x, y, held_out), rtol, names and (max_samples, resamples, seed).

    Raises
    ------
    TypeError, ValueError
        If one of them is out of range or does not fit, or f is constant on x.
    """
    max_samples, resamples, seed = settings
    x, y, held_out = data
    x_test, y_test = held_out if isinstance(held_out, tuple) and len(held_out) == 2 else (held_out, None)
    points = validation.samples(_array(x, "x"), "x", minimum=4).detach()
    net = with_columns(module_of(model, points), points)
    resamples, seed = validation.integer(resamples, "resamples", 0), validation.integer(seed, "seed", 0)
    limit = validation.integer(max_samples, "max_samples", 4)
    labels = _names(names, model, x, points.shape[1])
    held = None
    if x_test is None and y_test is not None:
        raise ValueError("held_out: got targets without samples, expected both")
    if x_test is not None:
        name = "held_out" if y_test is None else "held_out[0]"
        held = validation.samples(_array(x_test, name), name, features=points.shape[1], minimum=2).detach()
    if rtol is not None:
        rtol = validation.number(rtol, "rtol", 0.0)
    elif held is not None and y_test is not None:
        rtol = relative_error(net, held, _targets(y_test, "held_out[1]", len(held)))
    elif y is not None:
        rtol = relative_error(net, points, _targets(y, "y", len(points)))
    elif isinstance(net, Mean) and len(net.members) > 1:
        rtol = disagreement(net, points if held is None else held)
    if len(points) > limit:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:limit]]
    where = whitened(points.double().cpu())
    validation.expect(where.dimension, "x", f"{len(points)} samples that are all the same", "some that vary")
    sample = _sample(net, points, where)
    if float(sample.jacobian.square().sum()) == 0:
        raise ValueError(
            "net: got a function that is constant near x, which every transformation leaves alone, expected one that "
            "varies (an estimator that found no function predicts the mean)"
        )
    tested = sample if held is None else _sample(net, held[:limit], where)
    return Problem(net, where, sample, tested, rtol, labels, resamples, seed)


def _array(value: Any, name: str) -> Any:
    """Return the values of a DataFrame or Series as floats, anything else as it is."""
    array = plain_array(value, name)
    return array.astype(np.float64) if hasattr(value, "to_numpy") else array


def _names(names: Sequence[str] | None, model: object, x: object, d: int) -> tuple[str, ...]:
    if names is None:
        known = getattr(x, "columns", getattr(model, "feature_names_in_", None))
        if known is not None and len(known) == d:
            return tuple(str(name) for name in known)
        first = 0 if hasattr(model, "predict") else 1  # scikit-learn's names, which summaries have too, start at x0
        return tuple(f"x{i + first}" for i in range(d))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {validation.describe(names)}, expected a sequence of strings")
    validation.expect(len(names) == d, "names", f"{len(names)}", f"one per column, {d}")
    validation.expect(len(set(names)) >= d, "names", list(names), "a different one for every column")
    return tuple(names)


def _targets(value: Any, name: str, n: int) -> Tensor:
    value = _array(value, name)
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        value = value[:, None]
    y = validation.samples(value, name, ndim=None).detach().cpu()
    validation.expect(len(y) == n, name, f"{len(y)} rows", f"one per sample, {n}")
    return y


def _sample(net: nn.Module, x: Tensor, where: Coordinates) -> Sample:
    parts = []
    for part in Jacobian(net, x, kink_rtol=None).chunks():
        inside = part.cpu() @ where.out
        if not bool(torch.isfinite(inside).all()):
            raise validation.RangeError("net: its Jacobian has NaN or infinite entries, expected finite ones")
        parts.append(torch.linalg.qr(inside)[1] if inside.shape[1] > inside.shape[2] else inside)
    points = x.double().cpu()
    return Sample(points, where.of(points), _shortened(torch.cat(parts)))


def _shortened(jacobians: Tensor) -> Tensor:
    """Return Jacobians (N, m, q), the longest shortened to the largest length c at which none dominates.

    c^2 <= share sum_i min(||J_i||, c)^2, with a share of 2 percent, or 5 / n if fewer than 250 of them, n, are not 0.
    With the m longest shortened, c^2 = share sum_{i > m} ||J_i||^2 / (1 - share m). A function that is steep in a few
    places keeps its behavior there; a sample near a pole does not decide alone.
    """
    lengths = jacobians.flatten(1).norm(dim=1)
    size = lengths.max()
    if not float(size):
        return jacobians
    squares = (lengths / size).square().sort(descending=True).values
    share = max(SHARE, FAIR / int((squares > 0).sum()))
    left = squares.flip(0).cumsum(0).flip(0)
    for m in range(min(len(squares), math.ceil(1 / share))):
        cap = share * float(left[m]) / (1 - share * m)
        if float(squares[m]) <= cap:
            break
    longest = size * math.sqrt(cap) if m else size
    return jacobians * (longest / lengths.clamp(min=longest))[:, None, None]
