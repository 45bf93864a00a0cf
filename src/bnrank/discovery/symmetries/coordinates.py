"""Coordinates in which data have mean zero and covariance one, so that nothing depends on the units of x."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SPAN", "Coordinates", "whitened"]

SPAN = 1e-6  # of the largest standard deviation of standardized columns: directions below it the data do not span
ROUNDING = 1e-10  # of its mean: a column with a smaller standard deviation is constant


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
        Directions of x that the coordinates do not see, of a quotient, (d, m).
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

        Fields of the quotient are written in x without a part along the directions divided out, in the metric of
        standardized columns.
        """
        if ignored.shape[1] == 0:
            return self
        rest = torch.linalg.qr(ignored, mode="complete")[0][:, ignored.shape[1] :]
        gone = torch.cat([self.divided_out, self.out @ ignored], 1)
        out = _across(self.out @ rest, gone, self.spread) * self.spread[:, None]
        return Coordinates(self.mean, out, rest.T @ self.into, self.left_out, self.spread, gone)

    def metric(self, lengths: Tensor | None = None) -> Tensor:
        """Return the metric, (q, q), that lengths of x have here, of the shortest of the vectors x that z stands for.

        ``lengths`` (d,) are the units of the columns: all ones for Euclidean length, ``spread`` for that of
        standardized columns.
        """
        lengths = torch.ones_like(self.spread) if lengths is None else lengths
        out = self.lifted(lengths) / lengths[:, None]
        return out.T @ out

    def lifted(self, lengths: Tensor | None = None) -> Tensor:
        """Return the shortest vectors of x that the axes of z stand for, (d, q), in units ``lengths``."""
        lengths = torch.ones_like(self.spread) if lengths is None else lengths
        return _across(self.out, self.divided_out, lengths) * lengths[:, None]

    def standardized(self, fields: Tensor) -> Tensor:
        """Return fields of x, (k, d, d + 1), in the units of the columns."""
        return fields * torch.cat([self.spread, self.spread.new_ones(1)]) / self.spread[:, None]


def _across(vectors: Tensor, directions: Tensor, lengths: Tensor) -> Tensor:
    """Return vectors of x, the columns of (d, n), in units ``lengths`` without their part along directions (d, m)."""
    scaled = vectors / lengths[:, None]
    if not directions.shape[1]:
        return scaled
    along = torch.linalg.qr(directions / lengths[:, None])[0]
    return scaled - along @ (along.T @ scaled)


def whitened(x: Tensor) -> Coordinates:
    """Return coordinates in which x, (N, d) of float64, has mean 0 and covariance 1 on its affine span.

    Examples
    --------
    >>> import torch
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
    into = (basis / s).T / spread
    left_out = torch.linalg.qr(out, mode="complete")[0][:, out.shape[1] :]
    return Coordinates(mean, out, into, left_out, spread, out[:, :0])
