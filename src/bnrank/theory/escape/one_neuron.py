"""The fastest escape with one neuron per layer: max over unit v of ||G^T sigma(X v)|| (T38 to T41)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.theory.escape.one_neuron_bounds import branch_and_bound, norm_bound
from bnrank.theory.escape.one_neuron_search import ascend, best_on_circle, sizes, values_at

__all__ = ["OneNeuron", "one_neuron_speed", "rank_one_speed"]

BRANCHING_RANK = 5  # of the inputs, up to which cones are searched
ZERO = 1e-14  # times ||X||_op ||G||_op counts as 0
SMALLEST = 1e-290  # size of a speed


@dataclass(frozen=True)
class OneNeuron:
    """The speed of the fastest chain of single neurons, or a bracket of it; ``float()`` gives the lower end.

    Attributes
    ----------
    lower : float
        Speed of the chain found, evaluated on the data.
    upper : float
        No chain is faster.
    exact : bool
        Whether both are the closed-form optimum, up to rounding.
    direction : Tensor
        v, the weights of the first neuron, (d_in,), ||v|| = 1.
    output : Tensor
        u, the outgoing weights of the last neuron, (d_out,), ||u|| = 1: u = -G^T sigma(X v) / s, so that L0 = -s. Zeros
        where the speed is 0.
    method : str
        How the upper end was found: "closed form", "cones" or "norms"; "sides" where
        :func:`~bnrank.theory.escape.joins.join_rate` let every sample choose its side of a kink.
    note : str
        What is to be said of it.
    """

    lower: float
    upper: float
    exact: bool
    direction: Tensor
    output: Tensor
    method: str
    note: str = ""

    def __float__(self) -> float:
        return self.lower


def rank_one_speed(
    x: Tensor | np.ndarray,
    g: Tensor | np.ndarray,
    *,
    slope: float = 0.0,
    starts: int = 64,
    steps: int = 150,
    rtol: float = 1e-6,
    cones: int = 20_000,
    seed: int = 0,
) -> OneNeuron:
    """Return the largest speed at which a chain of single neurons leaves the origin.

    Layers v^T, 1, ..., 1, u with unit vectors v and u lie on the sphere ||theta||^2 = L, and L0 there is
    u^T G^T sigma(X v). With the best u the speed s = -L0 is

        s = max_{||v|| = 1} ||G^T sigma(X v)||_2,

    the same at every depth of at least 2 for ReLU. Of a leaky ReLU the slope to give is that of all hidden layers
    together, slope^{L-1}.

    Exact (up to rounding) where the inputs span one or two dimensions: there G^T sigma(X v) = M v on the arcs between
    the kinks, and ||M v|| is largest at a stationary angle of the quadratic form or at an end of an arc. Exact for
    slope 1 too, ||G^T X||_op. Otherwise a bracket: below, the best of many projected ascents with decaying steps and
    exact searches over great circles; above, branch and bound over cones for inputs of rank 5 or less, as far as it
    gets, and bounds from norms (:func:`~bnrank.theory.escape.one_neuron_bounds.norm_bound`), whichever is smaller.

    Parameters
    ----------
    x : Tensor or ndarray
        Samples, (N, d_in).
    g : Tensor or ndarray
        G, the gradient of the loss at zero output, (N, d_out), with the factors of the loss, such as 1/N.
    slope : float
        s in (-1, 1]; 0 is ReLU, 1 the identity.
    starts, steps : int
        Ascents, and steps of each. Cost of a step: 4 N (d_in + d_out) operations per start.
    rtol : float
        Branch and bound stops at upper - lower <= rtol lower.
    cones : int
        Most cones it looks at; 0 for none.
    seed : int
        Of the starts.

    Returns
    -------
    OneNeuron
        Where no chain moves the loss, as sigma(X v) is orthogonal to G for every v, a speed of 0 with a note.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or X or G is zero: then the loss is flat at the origin to first order.
        RangeError, a ValueError, if max |x| max |g|, the order of the speed, is not between 1e-290 and 1e290.

    Notes
    -----
    Source: T40 and T41; Bantzis2025, Example 1 and Figure 5.

    Examples
    --------
    >>> angle = 2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8
    >>> x, g = torch.stack([angle.sin(), angle.cos()], 1), torch.tensor([[1.0], [-1.0]] * 4)
    >>> speed = rank_one_speed(x, g)
    >>> speed.exact, abs(speed.lower - (2**0.5 - 1)) < 1e-12
    (True, True)
    """
    samples, gradient, slope = _data(x, g, slope)
    for name, value in (("x", samples), ("g", gradient)):
        if not value.any():
            raise ValueError(f"{name}: got zeros only, so the loss is flat at the origin to first order; no speed")
    size = float(np.abs(samples).max()) * float(np.abs(gradient).max())
    if not SMALLEST <= size <= 1 / SMALLEST:
        raise validation.RangeError(
            f"x, g: the largest entries have the product {size:g}, expected {SMALLEST:g} to {1 / SMALLEST:g}: float64 "
            "may not hold the speed; bring x or g to another scale, the speed is proportional to both"
        )
    starts, steps = validation.integer(starts, "starts"), validation.integer(steps, "steps")
    rtol = validation.number(rtol, "rtol", 0.0, strict=True)
    cones, seed = validation.integer(cones, "cones", 0), validation.integer(seed, "seed", 0)
    return fastest(samples, gradient, slope, starts, steps, rtol, cones, seed)


def one_neuron_speed(
    x: Tensor | np.ndarray, g: Tensor | np.ndarray, directions: Tensor | np.ndarray, *, slope: float = 0.0
) -> Tensor:
    """Return ||G^T sigma(X v)||, the speed of a chain of single neurons with the best output, for given v.

    Parameters
    ----------
    x, g, slope
        As in :func:`rank_one_speed`; zeros are allowed.
    directions : Tensor or ndarray
        (K, d_in); each row is brought to norm 1.

    Returns
    -------
    Tensor
        (K,), float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or a direction is zero.

    Examples
    --------
    >>> one_neuron_speed(torch.eye(2), torch.tensor([[1.0], [-1.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    samples, gradient, slope = _data(x, g, slope)
    directions = validation.samples(directions, "directions", features=samples.shape[1])
    v = directions.detach().cpu().double().numpy()
    largest = np.abs(v).max(1, keepdims=True)
    if not largest.all():
        raise ValueError(f"directions: got zeros in row {int(largest.argmin())}, expected non-zero vectors")
    v = v / largest
    norms = np.linalg.norm(v, axis=1, keepdims=True)
    (samples, x_unit), (gradient, g_unit) = _scaled(samples), _scaled(gradient)
    sizes_there = np.linalg.norm(values_at(samples, gradient, (v / norms).T, slope), axis=0)
    return torch.from_numpy(sizes_there * (x_unit * g_unit))


def fastest(
    x: np.ndarray,
    g: np.ndarray,
    slope: float,
    starts: int = 64,
    steps: int = 150,
    rtol: float = 1e-6,
    cones: int = 20_000,
    seed: int = 0,
    compress: float = 0.0,
    signed: bool = False,
) -> OneNeuron:
    """Do what :func:`rank_one_speed` does, on float64 arrays, and return speed 0 for zeros.

    The search leaves out directions of X and of G whose singular values are at most ``compress`` times the largest;
    the lower end is evaluated on all of X and G, and the upper end covers what was left out. With one output and
    ``signed``, it is the maximum of G^T sigma(X v) itself, or 0 if that is negative.
    """
    (x, x_unit), (g, g_unit) = _scaled(x), _scaled(g)
    found = _fastest(x, g, slope, starts, steps, rtol, cones, seed, compress, signed)
    lower, upper = found.lower * (x_unit * g_unit), found.upper * (x_unit * g_unit)
    if not math.isfinite(upper):
        raise validation.RangeError(
            f"the speed is too large for float64: {found.lower:g} times {x_unit:g} times {g_unit:g}"
        )
    return replace(found, lower=lower, upper=upper)


def _fastest(
    x: np.ndarray,
    g: np.ndarray,
    slope: float,
    starts: int,
    steps: int,
    rtol: float,
    cones: int,
    seed: int,
    compress: float,
    signed: bool,
) -> OneNeuron:
    used = x.any(1) & g.any(1)
    rows, x_left = _rows_of(x[used], compress)
    columns, g_left = _rows_of(g[used], compress)
    if not (rows.size and columns.size):
        unit = np.eye(1, x.shape[1])[0]
        return _result(x, g, unit, slope, 0.0, True, "closed form", 0.0, signed)
    if signed:
        columns = np.ones((1, 1))  # not its negative
    z, h = x[used] @ rows.T, g[used] @ columns.T  # the data in their row spaces
    x_size, g_size = _largest(z), _largest(h)
    scale = x_size * g_size
    rest = (x_size * g_left + g_size * x_left) * (compress > 0)  # what is left out without it is rounding
    exact, method, upper = rest == 0, "closed form", math.inf
    rank = z.shape[1]
    if slope == 1:
        product = h.T @ z
        v = product[0] if signed else np.linalg.svd(product)[2][0]
        v = v if v.any() else np.eye(rank)[0]
    elif rank == 1:
        sides = sizes(values_at(z, h, np.array([[1.0, -1.0]]), slope), signed)
        v = np.array([1.0 if sides[0] >= sides[1] else -1.0])
    elif rank == 2:
        angle = best_on_circle(z, h, slope, signed)
        v = np.array([math.cos(angle), math.sin(angle)])
    else:
        exact, method, upper = False, "norms", norm_bound(z, h, slope)
        v = ascend(z, h, slope, starts, steps, np.random.default_rng(seed), signed)
    if method == "closed form":
        upper = max(float(sizes(values_at(z, h, v[:, None] / np.linalg.norm(v), slope), signed)[0]), 0.0)
    elif rank <= BRANCHING_RANK and cones:

        def value(direction: np.ndarray) -> float:
            return max(float(sizes(values_at(z, h, direction[:, None], slope), signed)[0]), 0.0)

        found = branch_and_bound(z, h, slope, v, value, rtol=rtol, budget=cones, signed=signed)
        v = found.direction
        if found.upper <= upper:
            upper, method = found.upper, "cones"
    return _result(x, g, v @ rows, slope, upper + rest, exact, method, scale, signed)


def _scaled(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a matrix with a largest entry from 1 to 2, so that no square leaves the range, and the power of two."""
    largest = float(np.abs(matrix).max())
    if largest == 0:
        return matrix, 1.0
    exponent = math.frexp(largest)[1] - 1
    return np.ldexp(matrix, -exponent), math.ldexp(1.0, exponent)


def _largest(matrix: np.ndarray) -> float:
    """Return the operator norm."""
    return float(np.sqrt(max(np.linalg.eigvalsh(matrix.T @ matrix)[-1], 0.0)))


def _result(
    x: np.ndarray,
    g: np.ndarray,
    v: np.ndarray,
    slope: float,
    upper: float,
    exact: bool,
    method: str,
    scale: float,
    signed: bool,
) -> OneNeuron:
    v = v / np.linalg.norm(v)
    output = values_at(x, g, v[:, None], slope)[:, 0]
    speed = float(sizes(output[:, None], signed)[0])
    if speed <= ZERO * scale or speed == 0:
        speed, output = 0.0, np.zeros_like(output)
    u = -output / speed if speed else output
    note = ""
    if speed == 0 and (exact or upper <= ZERO * scale):
        note = "no single neuron changes the loss to first order: sigma(X v) is orthogonal to G for every v"
        upper = 0.0
    elif speed == 0:
        note = "no neuron was found that changes the loss to first order"
    upper = speed if exact else max(upper, speed)
    return OneNeuron(speed, upper, exact, torch.from_numpy(v), torch.from_numpy(u), method, note)


def _rows_of(matrix: np.ndarray, rtol: float = 0.0) -> tuple[np.ndarray, float]:
    """Return an orthonormal basis of the row space, (rank, columns), and the largest singular value outside of it."""
    if not matrix.size:
        return matrix[:0], 0.0
    tall = matrix.shape[0] > matrix.shape[1]
    _, s, vt = np.linalg.svd(np.linalg.qr(matrix, mode="r") if tall else matrix, full_matrices=False)
    rank = int((s > max(rtol, max(matrix.shape) * np.finfo(float).eps) * s[0]).sum())
    return vt[:rank], float(s[rank]) if rank < len(s) else 0.0


def _data(x: object, g: object, slope: object) -> tuple[np.ndarray, np.ndarray, float]:
    samples = validation.samples(x, "x").detach().cpu().double().numpy()
    gradient = validation.samples(g, "g").detach().cpu().double().numpy()
    if len(gradient) != len(samples):
        raise ValueError(f"g: got {len(gradient)} samples, expected as many as x has, {len(samples)}")
    number = validation.number(slope, "slope")
    return samples, gradient, 1.0 if number == 1 else validation.slope(slope)
