"""Networks of bottleneck rank 1 that interpolate arbitrary points."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.chain import Chain
from bnrank.networks.mlp import MLP

DRAWS = 64  # number of random directions
MISS = 1e-3  # maximum error relative to the range of y; an error is raised beyond it
CLOSE = 1e-6  # maximum error of "dots" relative to the range of y; "steps" is used beyond it


def line_interpolant(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    depth: int,
    seed: int = 0,
    *,
    slope: float = 0.0,
    method: str | None = None,
) -> MLP:
    """Return a network with f(x_i) = y_i, bottleneck rank 1 and norm L + C_N.

    With ReLU, f = h(t) with t = r max(0, u . x - min_i u . x_i). Among 64 random unit vectors, u maximizes the smallest
    gap between the projections u . x_i, so that distinct points have distinct projections. A single non-negative neuron
    holds t, layers of weight 1 preserve it, and h is piecewise linear. Before the first point f is constant. Beyond the
    last point it is linear ("dots") or constant ("steps"). With another slope, f is not constant before the first
    point.

    The norm is ||theta||^2 = L + C_N for every depth L >= 3 ("steps": L >= 4), where C_N depends only on the points:

    - "dots" connects the points by straight lines, with one hidden layer, so the points are kinks of f. Let
      t_1 < t_2 < ... be the sorted u . x_i, delta_i = t_i - t_1, and c_i the change of slope at t_i (c_1 the first
      slope). With ReLU,
      L + C_N = L - 3 + r^2 (1 + t_1^2) + 2 sum_{i<N} |c_i| sqrt(1 / r^2 + delta_i^2) + |y_1|^2.
      With slope s, each c_i is divided by 1 - s, then s sum_i c_i / (1 - s) is subtracted from the first, and
      s sum_i c_i delta_i / (1 - s) is added to y_1.
    - "steps" goes from y_i to y_{i+1} in the middle third of each gap and is constant elsewhere, with two hidden
      layers:
      L + C_N = L - 4 + r^2 (1 + t_1^2) + sum_{i<N} min_g (2 K_i g + g^2 + |y_{i+1} - y_i|^2 / g^2) + |y_N|^2,
      K_i = sqrt(1 / r^2 + (delta_i + w_i)^2) / w_i, w_i = (t_{i+1} - t_i) / 3. Jf(x_i) = 0.

    The factor r minimizes the norm, and the incoming and outgoing norms of every neuron of h are equal (T14).

    Accuracy: "dots" amplifies rounding errors by the slopes. For N = 1000 standard normal points in d = 20 (smallest
    gap about 1e-5), the error is 1e-9 in float64, and interpolation fails in float32. "steps" loses no precision as
    long as the gaps exceed the rounding of u . x: on the same points the error is 1e-13 in float64 and 1e-4 in float32,
    with less than a tenth of the norm.

    Parameters
    ----------
    x : Tensor or ndarray
        Samples, shape (N, d_in). Equal samples must have equal y.
    y : Tensor or ndarray
        Values, shape (N, d_out).
    depth : int
        L, at least 3 for "dots" (projection, hidden layer, output), 4 for "steps".
    seed : int
        Seed of the random directions.
    slope : float
        s in (-1, 1); "steps" requires 0.
    method : str, optional
        "dots" or "steps". Default: "dots", or "steps" if the rounding error of "dots" exceeds 1e-6 times the range of y
        and depth and slope permit "steps".

    Returns
    -------
    MLP
        With biases, in the higher precision of x and y. Hidden widths are 1, ..., 1, followed by one ("dots") or two
        ("steps") layers of width up to N - 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, if two equal samples have different y, or if the rounding error at a point would
        exceed a thousandth of the range of y.

    Notes
    -----
    Source: T30, T12; Jacot2023a, Proposition 2.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.randn(30, 5, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    >>> net = line_interpolant(x, y, 10)
    >>> net.widths, torch.allclose(net(x), y, atol=1e-9)
    ([5, 1, 1, 1, 1, 1, 1, 1, 1, 29, 2], True)
    """
    method = method if method is None else validation.choice(method, "method", list(_METHODS))
    depth = validation.integer(depth, "depth", 4 if method == "steps" else 3)
    validation.allocation(256 * depth, "depth", depth)
    slope, seed = validation.slope(slope), validation.seed(seed)
    validation.expect(not (method == "steps" and slope != 0), "slope", f"{slope:g}", "0 with method 'steps'")
    x, y = validation.samples(x, "x").detach(), validation.samples(y, "y").detach()
    validation.expect(len(x) == len(y), "y", f"{len(y)} samples", f"as many as x has, {len(x)}")
    points, values = _distinct(x.to(torch.float64), y.to(x.device, torch.float64))
    line = _project(points, values, seed)
    dtype = torch.promote_types(x.dtype, y.dtype)
    span = float((y.max(0).values - y.min(0).values).max()) or float(y.abs().max())
    methods = [method] if method else ["dots", "steps"] if depth > 3 and slope == 0 else ["dots"]
    for name in methods:
        if not bool(values.diff(dim=0).norm(dim=1).any()):
            gain, layers = 0.0, [(values.new_zeros(values.shape[1], 1), values[0])]
        else:
            gain, layers = _METHODS[name](line, slope)
        net = _through(line, gain, layers, depth, slope, dtype)
        with torch.no_grad():
            miss = float((net(x.to(dtype)).to(torch.float64) - y.to(x.device, torch.float64)).abs().max())
        if miss <= (MISS if name == methods[-1] else CLOSE) * span:
            return net
    raise ValueError(
        f"x: got samples so close on every line tried that a network in {dtype} misses y by {miss:.2g}, expected at "
        f"most {MISS:g} of its range, {span:.3g}; pass float64 data, or method='steps'"
    )


@dataclass(frozen=True)
class _Line:
    """Points sorted by their projections t_i = u . x_i: the direction u, t_1, delta_i = t_i - t_1, and the values."""

    direction: Tensor
    start: float
    delta: Tensor
    values: Tensor


def _distinct(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    points, which = torch.unique(x, dim=0, return_inverse=True)
    numbers = torch.arange(len(x), device=x.device)
    first = numbers.new_full((len(points),), len(x)).scatter_reduce(0, which, numbers, "amin")
    differs = (y != y[first[which]]).any(1).nonzero().flatten().tolist()
    if differs:
        i = differs[0]
        raise ValueError(f"y: got different values for samples {int(first[which[i]])} and {i}, whose x are equal")
    return points, y[first]


def _project(x: Tensor, y: Tensor, seed: int) -> _Line:
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(DRAWS, x.shape[1], generator=generator, dtype=torch.float64).to(x.device)
    directions = directions / directions.norm(dim=1, keepdim=True)
    places = x @ directions.T
    best = 0
    if len(x) > 1:
        gaps = places.sort(0).values.diff(dim=0).min(0).values
        best = int(gaps.argmax())
        if not float(gaps[best]) > 0:
            raise ValueError(f"x: got different samples that fall on one point of each of {DRAWS} lines tried")
    t, order = places[:, best].sort()
    return _Line(directions[best], float(t[0]), t - t[0], y[order])


def _dots(line: _Line, slope: float) -> tuple[float, list[tuple[Tensor, Tensor]]]:
    """Return r, and the weights and biases of the last two layers for interpolation by straight lines."""
    delta, y = line.delta, line.values
    slopes = y.diff(dim=0) / delta.diff()[:, None]
    changes, knots = torch.cat([slopes[:1], slopes.diff(dim=0)]), delta[:-1]
    # max(z, 0) = (sigma_s(z) - s z) / (1 - s); the linear parts combine at the first knot, since t >= 0
    constant = y[0] + slope / (1 - slope) * (changes * knots[:, None]).sum(0)
    changes = changes / (1 - slope)
    changes[:1] -= slope * changes.sum(0)
    size = changes.norm(dim=1)
    changes, knots, size = changes[size > 0], knots[size > 0], size[size > 0]
    gain = _best_gain(line, lambda r: float((2 * size * (r**-2 + knots**2).sqrt()).sum()))
    incoming = (size / gain / (1 + (gain * knots) ** 2).sqrt()).sqrt()
    hidden = incoming[:, None], -incoming * gain * knots
    return gain, [hidden, ((changes / (gain * incoming)[:, None]).T, constant)]


def _steps(line: _Line, slope: float) -> tuple[float, list[tuple[Tensor, Tensor]]]:
    """Return r, and the weights and biases of the last three layers for interpolation by steps."""
    third, jumps = line.delta.diff() / 3, line.values.diff(dim=0)
    size, starts = jumps.norm(dim=1), line.delta[:-1] + third
    jumps, third, starts, size = (v[size > 0] for v in (jumps, third, starts, size))

    def steepness(r: float) -> Tensor:
        return (r**-2 + starts**2).sqrt() / third

    def cost(r: float) -> float:
        k = steepness(r)
        g = _heights(k, size)
        return float((2 * k * g + g**2 + (size / g) ** 2).sum())

    gain = _best_gain(line, cost)
    g = _heights(steepness(gain), size)
    fall = (steepness(gain) * g).sqrt()  # e with e p r w = g, so the step has width w
    rise = g / (fall * gain * third)
    first = rise[:, None], -rise * gain * starts
    return gain, [first, (-torch.diag(fall), g), (-(jumps / g[:, None]).T, line.values[-1])]


def _heights(k: Tensor, size: Tensor) -> Tensor:
    """Return the g > 0 with g^4 + k g^3 = size^2, which minimizes 2 k g + g^2 + size^2 / g^2."""
    g = torch.minimum((size**2 / k) ** (1 / 3), size.sqrt())
    for _ in range(20):  # Newton steps for a convex function, from the right of its root
        g = g - (g**4 + k * g**3 - size**2) / (4 * g**3 + 3 * k * g**2)
    return g


def _best_gain(line: _Line, cost: Callable[[float], float]) -> float:
    """Return the r > 0 that minimizes r^2 (1 + t_1^2) + cost(r), a convex function of log r."""
    from scipy.optimize import minimize_scalar

    def norm(log_r: float) -> float:
        return math.exp(2 * log_r) * (1 + line.start**2) + cost(math.exp(log_r))

    return math.exp(minimize_scalar(norm, bounds=(-35.0, 35.0), method="bounded", options={"xatol": 1e-9}).x)


def _through(
    line: _Line, gain: float, hidden: list[tuple[Tensor, Tensor]], depth: int, slope: float, dtype: torch.dtype
) -> MLP:
    """Return the network composed of the projection, the layers that preserve t, and the layers of h."""
    hold = torch.full((1, 1), 1.0 if gain else 0.0, dtype=torch.float64, device=line.direction.device)
    weights = [gain * line.direction[None], *[hold] * (depth - 1 - len(hidden))]
    biases = [hold.new_tensor([-gain * line.start]), *[hold.new_zeros(1)] * (len(weights) - 1)]
    weights, biases = [*weights, *[w for w, _ in hidden]], [*biases, *[b for _, b in hidden]]
    return Chain(weights, biases, slope, dtype, hold.device).network()


_METHODS = {"dots": _dots, "steps": _steps}
