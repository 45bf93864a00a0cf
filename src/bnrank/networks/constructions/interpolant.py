"""Networks of bottleneck rank 1 that interpolate arbitrary points."""

import itertools
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
FAR = 1e30  # largest size of x and y, and of its inverse
SPAN = 1e-12  # singular values of the values above this, relative to the largest, span their dimensions
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

    With ReLU, f = h(t) with t = max(0, u . x - min_i u . x_i), for a unit vector u. Let t_1 < t_2 < ... be the sorted
    u . x_i, delta_i = t_i - t_1, c_i the change of slope at t_i of the straight lines through the points (c_1 is the
    first slope), and P = sum_{i<N} |c_i| sqrt(1 + delta_i^2). Of 64 random vectors u, the one with the lowest P is
    chosen. The layers are, in order:

    - M layers, whose first neuron holds t times a factor that grows to r.
    - One or two hidden layers, which bend the line into the path through the y_i:

      - "dots" connects the points by straight lines, with one hidden layer, so the points are kinks of f.
      - "steps" goes from y_i to y_{i+1} in the middle third of each gap and is constant elsewhere, with two hidden
        layers. Jf(x_i) = 0.

    - The output layer.

    As it stands, this costs about 2 P. The scale is spread over p of the layers in one of two ways:

    - The last p of the M layers have a second neuron, which holds a constant that grows to K. It replaces the last two
      biases, which can thus be small weights. Only for "dots".
    - The path is bent at the scale epsilon, and stretched by p more layers of width q, the dimension of the affine span
      of the y_i. Its coordinates z are at least 0.

    The cheaper of the two is taken, with the best p and the best scales. With ReLU, the norms are, for "dots",

    ||theta||^2 = M (r^2 (1 + t_1^2))^{1/M} + 2 sum_{i<N} |c_i| sqrt(1 / r^2 + delta_i^2 / K^2)
                  + p K^{2/p} + 2 |y_1| / K,
    ||theta||^2 = M (r^2 (1 + t_1^2))^{1/M} + 2 epsilon sum_{i<N} |c_i| sqrt(1 / r^2 + delta_i^2)
                  + p q epsilon^{-2/p} + epsilon^2 |z_1|^2 + |b|^2,

    where M is L - 2 and L - 2 - p, and b is the point with z = 0, the nearest to the origin unless values have both
    signs. With slope s, each c_i is divided by 1 - s, then s sum_i c_i / (1 - s) is subtracted from the first, and
    s sum_i c_i delta_i / (1 - s) is added to y_1. "steps" has sum_{i<N} min_g (2 K_i g + g^2 + epsilon^2 |y_{i+1} -
    y_i|^2 / g^2) in place of the second sum, K_i = sqrt(1 / r^2 + (delta_i + w_i)^2) / w_i, w_i = (t_{i+1} - t_i) / 3,
    y_N in place of y_1, and M = L - 3 - p.

    C_N falls with L to a limit of about 2 log P for one output (the second way), and 7.5 log P for more (the first). If
    all y_i are equal, the norm is p |y_1|^{2/p} for the best p.

    Before the first point f is constant. Beyond the last point it is constant ("steps") or linear ("dots"), until a
    coordinate reaches 0. With another slope, f is not constant before the first point. The incoming and outgoing norms
    of every neuron of the hidden layers are equal (T14).

    Accuracy: "dots" amplifies rounding errors by the slopes. For N = 1000 standard normal points in d = 20 and as many
    outputs, the error is 1e-9 in float64, and interpolation fails in float32. "steps" loses no precision as long as the
    gaps exceed the rounding of u . x: on the same points the error is 1e-13 in float64 and 1e-5 in float32. Its norm is
    ten times as large (about 2,000 instead of 190 at depth 40).

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
        With biases, in the higher precision of x and y. Hidden widths are 1, ..., 1, with the first way 2, ..., 2, then
        up to N (once, or twice for "steps"), with the second way q, ..., q.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, if two equal samples have different y, or if the rounding error at a point would
        exceed a thousandth of the range of y.
    RangeError
        If the largest |x| or |y| is above 1e30 or below 1e-30.

    Notes
    -----
    Source: T30, T12; Jacot2023a, Proposition 2.

    P is of order N^2 for points in disorder. Without the last terms, which spread the scale, the norm would be too.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.randn(30, 5, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    >>> net = line_interpolant(x, y, 10)
    >>> net.depth, min(net.widths), torch.allclose(net(x), y, atol=1e-9)
    (10, 1, True)
    """
    method = method if method is None else validation.choice(method, "method", list(_METHODS))
    depth = validation.integer(depth, "depth", 4 if method == "steps" else 3)
    validation.allocation(256 * depth, "depth", depth)
    slope, seed = validation.slope(slope), validation.seed(seed)
    validation.expect(not (method == "steps" and slope != 0), "slope", f"{slope:g}", "0 with method 'steps'")
    x, y = validation.samples(x, "x").detach(), validation.samples(y, "y").detach()
    validation.expect(len(x) == len(y), "y", f"{len(y)} samples", f"as many as x has, {len(x)}")
    points, values = _distinct(x.to(torch.float64), y.to(x.device, torch.float64))
    for name, data in (("x", points), ("y", values)):
        size = float(data.abs().max())
        if size and not 1 / FAR <= size <= FAR:
            raise validation.RangeError(
                f"{name}: got entries up to {size:.2g}, expected between {1 / FAR:g} and {FAR:g}"
            )
    line = _project(points, values, seed)
    dtype = torch.promote_types(x.dtype, y.dtype)
    span = float((y.max(0).values - y.min(0).values).max()) or float(y.abs().max())
    methods = [method] if method else ["dots", "steps"] if depth > 3 and slope == 0 else ["dots"]
    for name in methods:
        net = _network(line, name, depth, slope, dtype)
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
    places, orders = (x @ directions.T).sort(0)
    lines = [
        _Line(directions[i], float(places[0, i]), places[:, i] - places[0, i], y[orders[:, i]]) for i in range(DRAWS)
    ]
    apart = [line for line in lines if bool((line.delta.diff() > 0).all())]
    if not apart:
        raise ValueError(f"x: got different samples that fall on one point of each of {DRAWS} lines tried")
    return min(apart, key=_variation)


def _changes(line: _Line) -> Tensor:
    """Return the first slope and the changes of slope at the points, for interpolation by straight lines."""
    slopes = line.values.diff(dim=0) / line.delta.diff()[:, None]
    return torch.cat([slopes[:1], slopes.diff(dim=0)])


def _variation(line: _Line) -> float:
    """Return P, the sum of |c_i| sqrt(1 + delta_i^2)."""
    return float((_changes(line).norm(dim=1) * (1 + line.delta[:-1] ** 2).sqrt()).sum())


@dataclass(frozen=True)
class _Bends:
    """The part of the network that bends the line: hidden layers of width up to N - 1.

    Attributes
    ----------
    cost : function
        (r, epsilon, K) -> norm of its weights and biases, without the last bias.
    layers : function
        (r, epsilon, K) -> weights and biases from r t to epsilon (h(t) - constant), or from r t and K unless K is None.
    constant : Tensor
        The bias of the last layer for r = epsilon = 1.
    count : int
        Number of layers.
    """

    cost: Callable[[float, float, float], float]
    layers: Callable[[float, float, float | None], list[tuple[Tensor, Tensor]]]
    constant: Tensor
    count: int


def _dots(line: _Line, slope: float) -> _Bends:
    """Return the layers for interpolation by straight lines."""
    changes, knots = _changes(line), line.delta[:-1]
    # max(z, 0) = (sigma_s(z) - s z) / (1 - s); the linear parts combine at the first knot, since t >= 0
    constant = line.values[0] + slope / (1 - slope) * (changes * knots[:, None]).sum(0)
    changes = changes / (1 - slope)
    changes[:1] -= slope * changes.sum(0)
    size = changes.norm(dim=1)
    changes, knots, size = changes[size > 0], knots[size > 0], size[size > 0]

    def cost(r: float, scale: float, constant: float) -> float:
        return 2 * scale * float((size * (r**-2 + (knots / constant) ** 2).sqrt()).sum())

    def layers(r: float, scale: float, held: float | None) -> list[tuple[Tensor, Tensor]]:
        places = r * knots / (held or 1.0)
        incoming = (scale * size / r / (1 + places**2).sqrt()).sqrt()
        first, outgoing = torch.stack([incoming, -incoming * places], 1), scale * changes / (r * incoming)[:, None]
        rest = outgoing.T, torch.zeros_like(constant)
        return [(first[:, :1], first[:, 1]) if held is None else (first, torch.zeros_like(places)), rest]

    return _Bends(cost, layers, constant, 2)


def _steps(line: _Line, slope: float) -> _Bends:
    """Return the layers for interpolation by steps."""
    third, jumps = line.delta.diff() / 3, line.values.diff(dim=0)
    size, starts = jumps.norm(dim=1), line.delta[:-1] + third
    jumps, third, starts, size = (v[size > 0] for v in (jumps, third, starts, size))

    def heights(r: float, scale: float) -> tuple[Tensor, Tensor]:
        steepness = (r**-2 + starts**2).sqrt() / third
        return steepness, _heights(steepness, scale * size)

    def cost(r: float, scale: float, _: float) -> float:
        k, g = heights(r, scale)
        return float((2 * k * g + g**2 + (scale * size / g) ** 2).sum())

    def layers(r: float, scale: float, _: float | None) -> list[tuple[Tensor, Tensor]]:
        k, g = heights(r, scale)
        fall = (k * g).sqrt()  # e with e p r w = g, so the step has width w
        rise = g / (fall * r * third)
        last = -(scale * jumps / g[:, None]).T
        return [(rise[:, None], -rise * r * starts), (-torch.diag(fall), g), (last, torch.zeros_like(jumps[0]))]

    return _Bends(cost, layers, line.values[-1], 3)


def _heights(k: Tensor, size: Tensor) -> Tensor:
    """Return the g > 0 with g^4 + k g^3 = size^2, which minimizes 2 k g + g^2 + size^2 / g^2."""
    g = torch.minimum((size**2 / k) ** (1 / 3), size.sqrt())
    for _ in range(20):  # Newton steps for a convex function, from the right of its root
        g = g - (g**4 + k * g**3 - size**2) / (4 * g**3 + 3 * k * g**2)
    return g


_METHODS = {"dots": _dots, "steps": _steps}


def _network(line: _Line, method: str, depth: int, slope: float, dtype: torch.dtype) -> MLP:
    """Return the network of lowest norm: layers of width 1, those that bend the line, and those that stretch it."""
    values, device = line.values, line.direction.device
    if not bool(values.diff(dim=0).norm(dim=1).any()):
        return Chain(*_constant(values[0], len(line.direction), depth), slope, dtype, device).network()
    bends, basis = _METHODS[method](line, slope), _basis(values)
    # the point with coordinates 0: nearest to the origin, or lower where values have both signs
    corner = values[0] - basis @ (values[0] @ basis) + basis @ (values @ basis).min(0).values.clamp(max=0)
    origin = (bends.constant - corner) @ basis
    first = math.hypot(1, line.start)  # norm of the first layer, with its bias, per factor of t
    most = depth - bends.count  # number of layers before those that bend, and of those that stretch

    def held(log_r: float, count: float) -> float:
        return count * math.exp(2 * (log_r + math.log(first)) / count)

    def with_constant(log_r: float, log_constant: float, p: float) -> float:
        """Return the norm with p layers that hold a constant."""
        total = held(log_r, most) + bends.cost(math.exp(log_r), 1.0, math.exp(log_constant))
        if not p:
            return total + float(bends.constant @ bends.constant)
        return total + 2 * float(bends.constant.norm()) * math.exp(-log_constant) + p * math.exp(2 * log_constant / p)

    def with_copy(log_r: float, log_scale: float, p: float) -> float:
        """Return the norm with p layers that stretch a copy, p > 0."""
        bent = bends.cost(math.exp(log_r), math.exp(log_scale), 1.0) + math.exp(2 * log_scale) * float(origin @ origin)
        stretched = p * basis.shape[1] * math.exp(-2 * log_scale / p) + float(corner @ corner)
        return held(log_r, most - p) + bent + stretched

    plain, copy = _least(with_constant, 0, 0), _least(with_copy, 1, most - 1)
    pair = _least(with_constant, 1, most - 1) if method == "dots" else plain
    _, log_r, log_other, p = min(plain, copy, pair)
    r, other, copied = math.exp(log_r), math.exp(log_other), copy < min(plain, pair)
    before = most - p if copied else most
    gain = (r * first) ** (1 / before)
    ones, zero = values.new_ones(1, 1), values.new_zeros(1)
    layers = [(gain / first * line.direction[None], -gain / first * line.start * ones[0])]
    layers += [(gain * ones, zero)] * (most - p - 1)
    if copied:
        *bent, (last, _) = bends.layers(r, other, None)
        stretch = other ** (-1 / p) * torch.eye(basis.shape[1], dtype=torch.float64, device=device)
        layers += [*bent, (basis.T @ last, other * origin), *[(stretch, 0 * origin)] * (p - 1)]
        layers.append((basis @ stretch, corner))
    else:
        if p:
            grow = torch.tensor([gain, other ** (1 / p)], dtype=torch.float64, device=device)
            layers.append((grow[:, None] * ones.new_tensor([[1.0], [0.0]]), grow * ones.new_tensor([0.0, 1.0])))
            layers += [(torch.diag(grow), 0 * grow)] * (p - 1)
            (bend, _), (last, _) = bends.layers(r, 1.0, other)
            into = (bends.constant.norm() / other).sqrt()  # of a neuron that passes the constant on
            out = bends.constant / (other * into if float(into) else 1.0)
            bend = torch.cat([bend, bend.new_tensor([[0.0, float(into)]])])
            layers += [(bend, 0 * bend[:, 0]), (torch.cat([last, out[:, None]], 1), 0 * out)]
        else:
            *bent, (last, _) = bends.layers(r, 1.0, None)
            layers += [*bent, (last, bends.constant)]
    return Chain([w for w, _ in layers], [b for _, b in layers], slope, dtype, device).network()


def _constant(value: Tensor, d_in: int, depth: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and biases of a constant of least norm, p |value|^{2/p}: a bias, stretched by p - 1 layers."""
    size = float(value.norm())
    p = min(range(1, depth + 1), key=lambda count: count * size ** (2 / count))
    widths = [d_in, *[1] * (depth - 1), len(value)]
    weights = [value.new_zeros(out, into) for into, out in itertools.pairwise(widths)]
    biases = [weight.new_zeros(len(weight)) for weight in weights]
    if p == 1:
        return weights, [*biases[:-1], value]
    for layer in range(depth - p + 1, depth):
        weights[layer] += size ** (1 / p)
    weights[-1] *= value[:, None] / size
    biases[depth - p] += size ** (1 / p)
    return weights, biases


def _basis(values: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of the differences of the values, (d_out, q).

    Signs are chosen so that max >= -min in every coordinate, which keeps the corner min(0, min) small.
    """
    _, sizes, right = torch.linalg.svd(values - values[0], full_matrices=False)
    rank = int((sizes > SPAN * sizes[0]).sum())
    basis = torch.eye(values.shape[1]).to(values) if rank == values.shape[1] else right[:rank].T
    reach = values @ basis
    return torch.where(reach.amax(0) + reach.amin(0) < 0, -basis, basis)


def _least(norm: Callable[[float, float, float], float], low: int, high: int) -> tuple[float, float, float, int]:
    """Return the least norm, the two logarithms and the whole number from low to high at which it is attained.

    The norm is convex in all three, so the best whole number is next to the best real one. Infinite if there is none.
    """
    from scipy.optimize import minimize

    def search(least: float, most: float) -> tuple[float, float, float, float]:
        bounds = [(-100.0, 100.0), (-100.0, 100.0) if most else (0.0, 0.0), (least, most)]
        options = {"ftol": 1e-15, "gtol": 1e-10}
        start = [0.0, 0.0, least]
        found = minimize(lambda p: math.log(norm(*p)), start, method="L-BFGS-B", bounds=bounds, options=options)
        return (found.fun, *found.x)

    if high < low:
        return math.inf, 0.0, 0.0, 0
    best = search(low, high)
    if low < high:
        best = min(search(count, count) for count in {math.floor(best[3]), math.ceil(best[3])})
    return best[0], best[1], best[2], round(best[3])
