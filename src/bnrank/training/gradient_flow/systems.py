"""The two vector fields: the true flow, and the flow of the homogeneous part L0 around the origin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnrank.training.ensemble import PIECE, squared_norm
from bnrank.training.gradient_flow.costs import Cost

__all__ = ["Plateau", "Rate", "System", "TrueFlow", "norm"]

TINY = 1e-12


def norm(row: Tensor) -> float:
    """Return the Euclidean norm, added up in float64; float32 to its precision, in a seventh of the time."""
    if row.dtype == torch.float32:
        pieces = torch.stack([torch.linalg.vector_norm(piece) for piece in row.split(PIECE)])
        if bool((pieces > TINY).all()):  # no square has underflown
            return float(torch.linalg.vector_norm(pieces.double()))
    return float(squared_norm(row).sqrt())


@dataclass
class Rate:
    """The field at a point.

    Attributes
    ----------
    velocity : Tensor
        d theta / d tau.
    clock : float
        dt / d tau, t the time of the gradient flow.
    speed : float
        ||d theta / d tau||.
    cosine, slope : float
        On the plateau, the cosine of the angle between theta and -grad L0, and ||grad L0|| on the unit sphere; else 0
        and 1.
    cost, gradient_norm : float
        C and ||grad C|| at the point.
    """

    velocity: Tensor
    clock: float
    speed: float
    cost: float
    gradient_norm: float
    cosine: float = 0.0
    slope: float = 1.0


class System(Protocol):
    """A vector field in some independent variable tau.

    ``depth`` is L on the plateau. ``radial`` says whether errors along theta matter; on the plateau they do not (an
    error in u, on which nothing else depends). ``batch`` holds the sample numbers, (1, B), that a step is made on; None
    for all samples.
    """

    radial: bool
    depth: int
    batch: Tensor | None

    def rate(self, theta: Tensor) -> Rate:
        """Return the field at a point."""

    def closed_form(self, rho: float) -> float:
        """Return the clock along an escape direction from radius 1 to rho, times r^{1-L} dr/dt."""


class TrueFlow:
    """d theta / dt = -grad C(theta), in the time t or in the relative arc length u, du = ||d theta|| / ||theta||."""

    radial = True
    depth = 0

    def __init__(self, cost: Cost, time: str) -> None:
        self.cost, self.time = cost, time
        self.batch: Tensor | None = None

    def rate(self, theta: Tensor) -> Rate:
        """Return the field at a point."""
        cost, gradient = self.cost.evaluate(theta, self.batch)
        size = norm(gradient)
        if self.time == "t" or not size > 0:
            return Rate(gradient.neg(), 1.0 if self.time == "t" else math.inf, size, cost, size)
        radius = norm(theta)
        return Rate(gradient * (-radius / size), radius / size, radius, cost, size)

    def closed_form(self, rho: float) -> float:
        """Return 0; see `System`."""
        return 0.0


class Plateau:
    """The flow of L0 (T35), for a bias-free network of depth L, in the relative arc length u.

    A point is phi with theta = r phi, ||phi|| = 1 where a step begins: direction and log-norm are separate, and with
    w = ||grad L0(phi)|| on the unit sphere, d phi / du = -||phi|| grad L0 / ||grad L0||, dt/du = (r ||phi||)^{2-L} / w.

    The gradient of L0 on the unit sphere is that of C itself at ``scale`` times the point, times scale^{1-L}: the scale
    is so small that the outputs change the gradient at the outputs by less than it is rounded.
    """

    radial = False

    def __init__(self, cost: Cost, depth: int, scale: float) -> None:
        self.cost, self.depth, self.scale = cost, depth, scale
        self.log_radius = 0.0
        self.batch: Tensor | None = None
        self._room = torch.empty_like(cost.theta)

    def rate(self, theta: Tensor) -> Rate:
        """Return the field at phi; ``cost`` is C(0) + L0, ``gradient_norm`` ||grad L0||, at theta = r phi."""
        size = norm(theta)
        torch.mul(theta, self.scale / size, out=self._room)
        cost, gradient = self.cost.evaluate(self._room, self.batch)
        length = norm(gradient)
        w = length * self.scale ** (1 - self.depth)
        if not length > 0:
            return Rate(torch.zeros_like(theta), math.inf, 0.0, cost, length)
        cosine = -float(torch.dot(self._room, gradient)) / (self.scale * length)
        log_r = self.log_radius + math.log(size)
        loss = cost - (_exp(self.depth * log_r) - self.scale**self.depth) * w * cosine / self.depth
        clock = _exp((2 - self.depth) * log_r) / w
        gradient_norm = w * _exp((self.depth - 1) * log_r)
        return Rate(gradient * (-size / length), clock, size, loss, gradient_norm, cosine, w)

    def closed_form(self, rho: float) -> float:
        """Return (rho^{2-L} - 1) / (2 - L), or log rho; see `System`."""
        return math.log(rho) if self.depth == 2 else math.expm1((2 - self.depth) * math.log(rho)) / (2 - self.depth)

    def outputs(self, phi: Tensor, log_radius: float, batch: Tensor | None = None) -> Tensor:
        """Return f at theta = r phi / ||phi||, shape (N, d_out), float64."""
        torch.mul(phi, self.scale / norm(phi), out=self._room)
        return self.cost.outputs(self._room, batch).double() * _exp(self.depth * (log_radius - math.log(self.scale)))


def _exp(exponent: float) -> float:
    """Return e^exponent, infinite instead of an error."""
    return math.exp(exponent) if exponent < 709 else math.inf
