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


def line_interpolant(
    x: Tensor | np.ndarray, y: Tensor | np.ndarray, depth: int, seed: int = 0, *, slope: float = 0.0
) -> MLP:
    """Return a network with f(x_i) = y_i, bottleneck rank 1 and norm L + C_N.

    With ReLU, f = h(t) with t = max(0, u . x - min_i u . x_i), for a unit vector u, and h joins the values by straight
    lines. Let t_1 < t_2 < ... be the sorted u . x_i, delta_i = t_i - t_1, c_i the change of slope at t_i (c_1 is the
    first slope), and P = sum_{i<N} |c_i| sqrt(1 + delta_i^2). Of 64 random vectors u, the one with the lowest P is
    chosen. The layers are, in order:

    - M layers, whose first neuron holds t times a factor that grows to r.
    - A hidden layer, which bends the line into the path through the y_i. The points are kinks of f.
    - The output layer.

    As it stands, this costs about 2 P. The scale is spread over p of the layers in one of two ways:

    - The last p of the M layers have a second neuron, which holds a constant that grows to K. It replaces the last two
      biases, which can thus be small weights.
    - The path is bent at the scale epsilon, and stretched by p more layers of width q, the dimension of the affine span
      of the y_i. Its coordinates z are at least 0.

    The cheaper of the two is taken, with the best p and the best scales. With ReLU, the norms are

    ||theta||^2 = M (r^2 (1 + t_1^2))^{1/M} + 2 sum_{i<N} |c_i| sqrt(1 / r^2 + delta_i^2 / K^2)
                  + p K^{2/p} + 2 |y_1| / K,
    ||theta||^2 = M (r^2 (1 + t_1^2))^{1/M} + 2 epsilon sum_{i<N} |c_i| sqrt(1 / r^2 + delta_i^2)
                  + p q epsilon^{-2/p} + epsilon^2 |z_1|^2 + |b|^2,

    where M is L - 2 and L - 2 - p, and b is the point with z = 0, the nearest to the origin unless values have both
    signs. With slope s, each c_i is divided by 1 - s, then s sum_i c_i / (1 - s) is subtracted from the first, and
    s sum_i c_i delta_i / (1 - s) is added to y_1.

    C_N falls with L to a limit of about 2 log P for one output (the second way), and 7.5 log P for more (the first). If
    all y_i are equal, the norm is p |y_1|^{2/p} for the best p.

    Before the first point f is constant for ReLU; beyond the last it is linear until a coordinate reaches 0. The
    incoming and outgoing norms of every neuron of the hidden layers are equal (T14). Rounding errors are amplified by
    the slopes: for N = 1000 standard normal points in d = 20 and as many outputs, the error is 1e-9 in float64, and
    interpolation fails in float32.

    Parameters
    ----------
    x : Tensor or ndarray
        Samples, shape (N, d_in). Equal samples must have equal y.
    y : Tensor or ndarray
        Values, shape (N, d_out).
    depth : int
        L, at least 3 (projection, hidden layer, output).
    seed : int
        Seed of the random directions.
    slope : float
        s in (-1, 1).

    Returns
    -------
    MLP
        With biases, in the higher precision of x and y. Hidden widths are 1, ..., 1, with the first way 2, ..., 2, then
        up to N once, with the second way q, ..., q.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, if two equal samples have different y, or if the rounding error at a point would
        exceed a thousandth of the range of y.
    RangeError
        If the largest |x| or |y| is above 1e30 or below 1e-30.

    Notes
    -----
    Source: T30, T12; Jacot2023a, Proposition 2. P is of order N^2 for points in disorder. Without the last terms, which
    spread the scale, the norm would be too.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.randn(30, 5, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    >>> net = line_interpolant(x, y, 10)
    >>> net.depth, min(net.widths), torch.allclose(net(x), y, atol=1e-9)
    (10, 1, True)
    """
    depth, slope, seed = validation.depth(depth, 3), validation.slope(slope), validation.seed(seed)
    x, y = validation.samples(x, "x").detach(), validation.samples(y, "y").detach()
    validation.expect(len(x) == len(y), "y", f"{len(y)} samples", f"as many as x has, {len(x)}")
    points, values = _distinct(x.to(torch.float64), y.to(x.device, torch.float64))
    for name, data in (("x", points), ("y", values)):
        size = float(data.abs().max())
        if size and not 1 / FAR <= size <= FAR:
            expected = f"between {1 / FAR:g} and {FAR:g}"
            raise validation.RangeError(f"{name}: got entries up to {size:.2g}, expected {expected}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    if bool((values == values[0]).all()):
        net = Chain(*_constant(values[0], x.shape[1], depth), slope, dtype, x.device).network()
    else:
        net = _network(_path(points, values, seed, slope), depth, slope, dtype)
    span = float((y.max(0).values - y.min(0).values).max()) or float(y.abs().max())
    with torch.no_grad():
        miss = float((net(x.to(dtype)).to(torch.float64) - y.to(x.device, torch.float64)).abs().max())
    if miss > MISS * span:
        raise ValueError(
            f"x: got samples so close on every line tried that a network in {dtype} misses y by {miss:.2g}, expected "
            f"at most {MISS:g} of its range, {span:.3g}; pass float64 data"
        )
    return net


def _distinct(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different points in order and their values."""
    _, first, which = np.unique((x + 0.0).cpu().numpy(), axis=0, return_index=True, return_inverse=True)  # -0 is 0
    which = which.ravel()  # NumPy 2.0 returns a column
    differs = (y != y[first[which]]).any(1).nonzero().flatten().tolist()
    if differs:
        pair = f"{first[which[differs[0]]]} and {differs[0]}"
        raise ValueError(f"y: got different values for samples {pair}, whose x are equal")
    return x[first], y[first]


@dataclass(frozen=True)
class _Path:
    """Straight lines from point to point, and the two layers of neurons that bend a line into them.

    Attributes
    ----------
    direction, start : Tensor, float
        u, (d_in,), and t_1.
    values : Tensor
        y_i, (N, d_out), sorted by u . x_i.
    constant : Tensor
        The bias of the last layer for r = epsilon = 1, (d_out,).
    knots, changes : Tensor
        delta_i, and the change of slope there divided by 1 - s, where it is not 0.
    """

    direction: Tensor
    start: float
    values: Tensor
    constant: Tensor
    knots: Tensor
    changes: Tensor

    def cost(self, r: float, scale: float, held: float) -> float:
        """Return the norm of the weights and biases of the layers, without the last bias."""
        return 2 * scale * float((self.changes.norm(dim=1) * (r**-2 + (self.knots / held) ** 2).sqrt()).sum())

    def layers(self, r: float, scale: float, held: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights and biases of the hidden layer, from r t and a constant, and the weights of the next."""
        places = r * self.knots / held
        incoming = (scale * self.changes.norm(dim=1) / r / (1 + places**2).sqrt()).sqrt()
        return incoming, -incoming * places, (scale * self.changes / (r * incoming)[:, None]).T


def _path(x: Tensor, y: Tensor, seed: int, slope: float) -> _Path:
    """Return the path through the values on the best of the random lines."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(DRAWS, x.shape[1], generator=generator, dtype=torch.float64).to(x.device)
    directions = directions / directions.norm(dim=1, keepdim=True)
    places, orders = (x @ directions.T).sort(0)
    lines = []
    for i in range(DRAWS):
        knots, values = places[:, i] - places[0, i], y[orders[:, i]]
        if bool((knots.diff() > 0).all()):
            slopes = values.diff(dim=0) / knots.diff()[:, None]
            changes = torch.cat([slopes[:1], slopes.diff(dim=0)])
            variation = float((changes.norm(dim=1) * (1 + knots[:-1] ** 2).sqrt()).sum())
            lines.append((variation, i, values, knots[:-1], changes))
    if not lines:
        raise ValueError(f"x: got different samples that fall on one point of each of {DRAWS} lines tried")
    _, i, values, knots, changes = min(lines, key=lambda line: line[0])
    # max(z, 0) = (sigma_s(z) - s z) / (1 - s); the linear parts combine at the first knot, since t >= 0
    constant = values[0] + slope / (1 - slope) * (changes * knots[:, None]).sum(0)
    changes = changes / (1 - slope)
    changes[:1] -= slope * changes.sum(0)
    bends = changes.norm(dim=1) > 0
    return _Path(directions[i], float(places[0, i]), values, constant, knots[bends], changes[bends])


def _network(path: _Path, depth: int, slope: float, dtype: torch.dtype) -> MLP:
    """Return the network of lowest norm: layers of width 1, those that bend the line, and those that stretch it."""
    values, constant, basis, device = path.values, path.constant, _basis(path.values), path.direction.device
    # the point with coordinates 0: nearest to the origin, or lower where values have both signs
    corner = values[0] - basis @ (values[0] @ basis) + basis @ (values @ basis).min(0).values.clamp(max=0)
    origin = (constant - corner) @ basis
    first = math.hypot(1, path.start)  # norm of the first layer, with its bias, per factor of t
    most = depth - 2  # number of layers before those that bend, and of those that stretch

    def grown(log_r: float, count: float) -> float:
        return count * math.exp(2 * (log_r + math.log(first)) / count)

    def with_constant(log_r: float, log_held: float, p: float) -> float:
        """Return the norm with p layers that hold a constant."""
        total = grown(log_r, most) + path.cost(math.exp(log_r), 1.0, math.exp(log_held))
        if not p:
            return total + float(constant @ constant)
        return total + 2 * float(constant.norm()) * math.exp(-log_held) + p * math.exp(2 * log_held / p)

    def with_copy(log_r: float, log_scale: float, p: float) -> float:
        """Return the norm with p layers that stretch a copy, p > 0."""
        bent = path.cost(math.exp(log_r), math.exp(log_scale), 1.0) + math.exp(2 * log_scale) * float(origin @ origin)
        stretched = p * basis.shape[1] * math.exp(-2 * log_scale / p) + float(corner @ corner)
        return grown(log_r, most - p) + bent + stretched

    plain, copy = _least(with_constant, 0, 0), _least(with_copy, 1, most - 1)
    pair = _least(with_constant, 1, most - 1)
    _, log_r, log_other, p = min(plain, copy, pair)
    r, other, copied = math.exp(log_r), math.exp(log_other), copy < min(plain, pair)
    gain = (r * first) ** (1 / (most - p if copied else most))
    ones, zero = values.new_ones(1, 1), values.new_zeros(1)
    layers = [(gain / first * path.direction[None], -gain / first * path.start * ones[0])]
    layers += [(gain * ones, zero)] * (most - p - 1)
    if copied:
        incoming, shift, outgoing = path.layers(r, other)
        stretch = other ** (-1 / p) * torch.eye(basis.shape[1], dtype=torch.float64, device=device)
        layers += [(incoming[:, None], shift), (basis.T @ outgoing, other * origin)]
        layers += [*[(stretch, 0 * origin)] * (p - 1), (basis @ stretch, corner)]
    elif p:
        grow = torch.tensor([gain, other ** (1 / p)], dtype=torch.float64, device=device)
        layers.append((grow[:, None] * ones.new_tensor([[1.0], [0.0]]), grow * ones.new_tensor([0.0, 1.0])))
        layers += [(torch.diag(grow), 0 * grow)] * (p - 1)
        incoming, shift, outgoing = path.layers(r, 1.0, other)
        into = (constant.norm() / other).sqrt()  # of a neuron that passes the constant on
        out = constant / (other * into if float(into) else 1.0)
        bend = torch.cat([torch.stack([incoming, shift], 1), shift.new_tensor([[0.0, float(into)]])])
        layers += [(bend, 0 * bend[:, 0]), (torch.cat([outgoing, out[:, None]], 1), 0 * out)]
    else:
        incoming, shift, outgoing = path.layers(r, 1.0)
        layers += [(incoming[:, None], shift), (outgoing, constant)]
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

    def search(low: float, high: float) -> tuple[float, float, float, float]:
        bounds = [(-100.0, 100.0), (-100.0, 100.0) if high else (0.0, 0.0), (low, high)]
        options, start = {"ftol": 1e-15, "gtol": 1e-10}, [0.0, 0.0, low]
        result = minimize(lambda p: math.log(norm(*p)), start, method="L-BFGS-B", bounds=bounds, options=options)
        return (result.fun, *result.x)

    if high < low:
        return math.inf, 0.0, 0.0, 0
    best = search(low, high)
    if low < high:
        best = min(search(count, count) for count in {math.floor(best[3]), math.ceil(best[3])})
    return best[0], best[1], best[2], round(best[3])
