"""The neuron of largest effect: max over unit v of ||G^T sigma(X v)||_2, found or bracketed."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import null_space
from scipy.optimize import minimize_scalar
from torch import Tensor

from bnrank._core import linalg, validation

BRANCHING_RANK = 5  # largest rank of the inputs for branch and bound over cones
ZERO = 1e-14  # speeds up to this times ||X||_op ||G||_op count as 0
POLISHED = 4  # number of ascents that are continued on great circles
MAX_CIRCLES = 60  # great circles per ascent
NEAR = 1e-5  # a sample is near a kink if |x . v| is at most this times |x|
MAX_ACTIVE = 8  # largest number of nearby kinks, per dimension, that a direction is moved onto
BATCH = 64  # cones split at a time


@dataclass(frozen=True)
class OneNeuron:
    """The speed of the fastest chain of single neurons, or a bracket of it; ``float()`` returns the lower end.

    Attributes
    ----------
    lower : float
        Speed of the chain found, evaluated on the data.
    upper : float
        Upper bound on the speed of every chain.
    exact : bool
        Whether both ends are the closed-form optimum, up to rounding.
    direction : Tensor
        v, the weights of the first neuron, (d_in,), ||v|| = 1.
    output : Tensor
        u, the outgoing weights of the last neuron, (d_out,), ||u|| = 1: u = -G^T sigma(X v) / s, so that L0 = -s. Zeros
        if the speed is 0.
    method : str
        Origin of the upper end: "closed form", "cones" or "norms"; "sides" if
        every sample may choose its side of a kink.
    note : str
        Remark, or empty.
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


def fastest(
    x: np.ndarray,
    g: np.ndarray,
    slope: float,
    *,
    signed: bool = False,
    starts: int = 64,
    steps: int = 150,
    rtol: float = 1e-6,
    max_cones: int = 20_000,
    seed: int = 0,
    rank_rtol: float = 0.0,
) -> OneNeuron:
    """Return the largest ||G^T sigma(X v)|| over unit v, of float64 arrays; zeros are allowed and give 0.

    The method and the arguments are those of `bnrank.escape.rank_one_speed`. With one output and ``signed``, it is the
    maximum of G^T sigma(X v) itself, or 0 if that is negative. Directions of X and of G with singular values up to
    ``rank_rtol`` times the largest are left out of the search. The lower end is evaluated on all of X and G, and the
    upper end accounts for the omitted directions.
    """
    starts, steps = validation.integer(starts, "starts"), validation.integer(steps, "steps")
    max_cones, seed = validation.integer(max_cones, "max_cones", 0), validation.seed(seed, bits=128)
    rtol = validation.number(rtol, "rtol", 0.0, strict=True)
    if not x.size or not g.size:
        none = "no single neuron changes the loss to first order: it has no inputs or no outputs"
        zeros = [torch.zeros(matrix.shape[1], dtype=torch.float64) for matrix in (x, g)]
        return OneNeuron(0.0, 0.0, True, zeros[0], zeros[1], "closed form", none)
    (x, x_exponent), (g, g_exponent) = linalg.scaled(x), linalg.scaled(g)
    used = x.any(1) & g.any(1)
    rows, x_left = _rows_of(x[used], rank_rtol)
    columns, g_left = _rows_of(g[used], rank_rtol)
    neuron, rank = Neuron(x, g, slope, signed), len(rows)
    v, upper, scale, exact, method = np.eye(1, x.shape[1])[0], 0.0, 0.0, True, "closed form"
    if rows.size and columns.size:
        columns = np.ones((1, 1)) if signed else columns  # not its negative
        inner = Neuron(x[used] @ rows.T, g[used] @ columns.T, slope, signed)  # the data in their row spaces
        x_size, g_size = (float(np.linalg.norm(matrix, 2)) for matrix in (inner.x, inner.g))
        scale = x_size * g_size
        left_out = (x_size * g_left + g_size * x_left) * (rank_rtol > 0)  # without it, only rounding is left out
        exact = left_out == 0
        if slope == 1:
            product = inner.g.T @ inner.x
            v = product[0] if signed else np.linalg.svd(product)[2][0]
            v = v if v.any() else np.eye(rank)[0]
        elif rank <= 2:
            angle = best_on_circle(Neuron(np.pad(inner.x, ((0, 0), (0, 2 - rank))), inner.g, slope, signed))
            v = np.array([math.cos(angle), math.sin(angle)])[:rank]
        else:
            exact, method, upper = False, "norms", norm_bound(inner)
            v = ascend(inner, starts, steps, np.random.default_rng(seed))
        if method == "closed form":
            upper = max(inner.size(v / np.linalg.norm(v)), 0.0)
        elif rank <= BRANCHING_RANK and max_cones:
            bound, v = branch_and_bound(inner, v, rtol=rtol, max_cones=max_cones)
            upper, method = (bound, "cones") if bound <= upper else (upper, method)
        v, upper = v @ rows, upper + left_out
    v = v / np.linalg.norm(v)
    output, speed, note = neuron.outputs(v[:, None])[:, 0], neuron.size(v), ""
    if speed <= ZERO * scale:
        speed, output, note = 0.0, 0 * output, "no neuron was found that changes the loss to first order"
        if exact or upper <= ZERO * scale:
            note = "no single neuron changes the loss to first order: sigma(X v) is orthogonal to G for every v"
            upper = 0.0
    u = -output / speed if speed else output
    upper = speed if exact else max(upper, speed)
    with np.errstate(over="ignore"):
        lower, upper = np.ldexp([speed, upper], x_exponent + g_exponent).tolist()
    if not math.isfinite(upper):
        raise validation.RangeError(f"x, g: the speed is too large for float64: {speed:g} 2^{x_exponent + g_exponent}")
    return OneNeuron(lower, upper, exact, torch.from_numpy(v), torch.from_numpy(u), method, note)


def _rows_of(matrix: np.ndarray, rtol: float = 0.0) -> tuple[np.ndarray, float]:
    """Return an orthonormal basis of the row space, (rank, columns), and the largest omitted singular value."""
    if not matrix.size:
        return matrix[:0], 0.0
    tall = matrix.shape[0] > matrix.shape[1]
    _, s, vt = np.linalg.svd(np.linalg.qr(matrix, mode="r") if tall else matrix, full_matrices=False)
    rank = int((s > max(rtol, max(matrix.shape) * np.finfo(float).eps) * s[0]).sum())
    return vt[:rank], float(s[rank]) if rank < len(s) else 0.0


@dataclass(frozen=True)
class Neuron:
    """The map v -> G^T sigma(X v) of one neuron, with X, (N, d), and G, (N, k).

    The size of an output is its norm, or, with one output and ``signed``, the value itself.
    """

    x: np.ndarray
    g: np.ndarray
    slope: float
    signed: bool = False

    def outputs(self, v: np.ndarray) -> np.ndarray:
        """Return G^T sigma(X v), (k, K), for the columns of v, (d, K)."""
        z = self.x @ v
        return self.g.T @ np.where(z >= 0, z, self.slope * z)

    def sizes(self, outputs: np.ndarray) -> np.ndarray:
        """Return the sizes of the columns of G^T sigma(X v)."""
        return outputs[0] if self.signed else np.linalg.norm(outputs, axis=0)

    def size(self, v: np.ndarray) -> float:
        """Return the size at one v, (d,)."""
        return float(self.sizes(self.outputs(v[:, None]))[0])

    def gradient(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the size and its gradient in v for the columns of v."""
        output = self.outputs(v)
        value = self.sizes(output)
        u = np.ones_like(output) if self.signed else output / np.where(value > 0, value, 1.0)
        return value, self.x.T @ (self.g @ u * np.where(self.x @ v > 0, 1.0, self.slope))


def best_on_circle(neuron: Neuron) -> float:
    """Return the angle phi at which the size of G^T sigma(P v), v = (cos phi, sin phi), is largest, for P, (N, 2).

    Between the kinks, where v is orthogonal to a point, G^T sigma(P v) = M v and with A = M^T M

        ||M v||^2 = (A_11 + A_22)/2 + (A_11 - A_22)/2 cos 2 phi + A_12 sin 2 phi,

    largest at 2 phi = atan2(2 A_12, A_11 - A_22) if that lies on the arc, or else at one of its ends. M changes by
    +-(1 - s) g_i p_i^T at a kink. If ``signed``, M v itself is largest at atan2(M_2, M_1) on an arc.
    """
    used, slope = neuron.x.any(1), neuron.slope
    p, w = neuron.x[used], neuron.g[used]
    if not len(p):
        return 0.0
    middle = np.arctan2(p[:, 1], p[:, 0])
    kinks = np.concatenate([middle - np.pi / 2, middle + np.pi / 2]) % (2 * np.pi)
    order = np.argsort(kinks, kind="stable")
    begins = kinks[order]
    ends = np.append(begins[1:], begins[0] + 2 * np.pi)
    on, off = np.argsort(order).reshape(2, -1)  # a neuron switches on at its first kink
    active = np.where(on < off, on == 0, (on == 0) | (off > 0))  # on the first arc
    first = (w * np.where(active, 1.0, slope)[:, None]).T @ p
    sign, i = np.where(order < len(p), 1.0, -1.0)[1:] * (1 - slope), order[1:] % len(p)
    changes = sign[:, None, None] * w[i][:, :, None] * p[i][:, None, :]
    ms = np.cumsum(np.concatenate([first[None], changes]), axis=0)  # (arcs, k, 2)
    a, b, c = (ms[..., 0] ** 2).sum(1), (ms[..., 0] * ms[..., 1]).sum(1), (ms[..., 1] ** 2).sum(1)
    if neuron.signed:
        top, period = np.arctan2(ms[:, 0, 1], ms[:, 0, 0]), 2 * np.pi
    else:
        top, period = np.arctan2(2 * b, a - c) / 2, np.pi
    inside = np.minimum(begins + (top - begins) % period, ends)  # the first equivalent angle on the arc
    angles = np.stack([begins, ends, inside])
    values = (a + c) / 2 + (a - c) / 2 * np.cos(2 * angles) + b * np.sin(2 * angles)
    if neuron.signed:
        values = ms[:, 0, 0] * np.cos(angles) + ms[:, 0, 1] * np.sin(angles)
    return float(angles.ravel()[values.argmax()])


def ascend(neuron: Neuron, starts: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return the best unit vector of many ascents, the best of which are continued on great circles.

    Starts: the top singular directions of G^T X and X with both signs, and random ones. A step moves v towards the
    direction of the gradient by a share that decays from 1 to 1e-7; the best v of each ascent is kept.
    """
    x, few = neuron.x, max(1, starts // 8)
    linear = np.linalg.svd(neuron.g.T @ x, full_matrices=False)[2][:few].T
    main = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :few]
    whitened = x.T @ rng.normal(size=(len(x), max(1, starts // 4)))  # random, with the spread of the data
    drawn = rng.normal(size=(x.shape[1], starts))
    v = np.concatenate([linear, -linear, main, -main, whitened, drawn], axis=1)[:, :starts]
    v = v / np.linalg.norm(v, axis=0)
    best, at = np.full(v.shape[1], -np.inf), v.copy()
    for share in np.concatenate([np.linspace(1, 0.3, steps // 3), np.geomspace(0.3, 1e-7, steps - steps // 3)]):
        value, gradient = neuron.gradient(v)
        better = value > best
        best[better], at[:, better] = value[better], v[:, better]
        norm = np.linalg.norm(gradient, axis=0)
        v = (1 - share) * v + share * np.divide(gradient, norm, out=v.copy(), where=norm > 0)
        length = np.linalg.norm(v, axis=0)
        v = np.divide(v, length, out=at.copy(), where=length > 1e-8)
    polished = [_polish(neuron, at[:, i], rng) for i in np.argsort(-best, kind="stable")[:POLISHED]]
    return max(polished, key=neuron.size)


def _polish(neuron: Neuron, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return v after exact maximizations on great circles for the current u; the size never falls."""
    x, g, lengths = neuron.x, neuron.g, np.linalg.norm(neuron.x, axis=1)
    value, idle = neuron.size(v), 0
    for turn in range(MAX_CIRCLES):
        z, before, output = x @ v, value, neuron.outputs(v[:, None])[:, 0]
        if not output.any() or idle >= 6:
            break
        c = g[:, 0] if neuron.signed else g @ (output / np.linalg.norm(output))
        near = np.abs(z) <= NEAR * lengths
        center, along = v, x.T @ (c * np.where(z > 0, 1.0, neuron.slope))
        if turn % 3 == 0 and 0 < near.sum() <= MAX_ACTIVE * x.shape[1]:  # move along the nearby kinks
            free = null_space(x[near], rcond=1e-9)
            center, along = free @ (free.T @ v), free @ (free.T @ along)
        elif turn % 3 == 2:
            along = rng.normal(size=v.shape)
        for candidate in _on_great_circle(Neuron(x, c[:, None], neuron.slope, signed=True), center, along):
            new = neuron.size(candidate)
            if new > value:
                value, v = new, candidate
        idle = idle + 1 if value - before <= 1e-14 * abs(value) else 0
    return v


def _on_great_circle(neuron: Neuron, center: np.ndarray, along: np.ndarray) -> list[np.ndarray]:
    """Return the normalized center, and the best v on the great circle through it in the given direction."""
    size = np.linalg.norm(center)
    if size < 0.5:
        return []
    center = center / size
    tangent = along - center * (center @ along)
    length = np.linalg.norm(tangent)
    if length <= 1e-12 * np.linalg.norm(along):
        return [center]
    axes = np.stack([center, tangent / length], 1)
    angle = best_on_circle(Neuron(neuron.x @ axes, neuron.g, neuron.slope, neuron.signed))
    best = axes @ [math.cos(angle), math.sin(angle)]
    return [center, best / np.linalg.norm(best)]


def norm_bound(neuron: Neuron) -> float:
    """Return an upper bound on ||G^T sigma(X v)|| over unit v, from norms of X, G and G^T X.

    With sigma(z) = p z + q |z|, p = (1 + s)/2 and q = (1 - s)/2, and || |X v| || = ||X v||,

        ||G^T sigma(X v)|| <= p ||G^T X v|| + q ||G||_op ||X v||.

    For every tau > 0 the square of the right-hand side is at most

        v^T ((1 + tau) p^2 X^T G G^T X + (1 + 1/tau) q^2 ||G||_op^2 X^T X) v,

    whose largest eigenvalue is minimized over tau. The minimum is at most (p ||G^T X||_op + q ||G||_op ||X||_op)^2,
    the bound that maximizes the two norms separately. With one output, ||G||_op is replaced by the larger of the norms
    of the positive and the negative part of G, since |X v| >= 0. The bound max(1, |s|) ||G||_op ||X||_op is never
    better.
    """
    x, g, slope = neuron.x, neuron.g, neuron.slope
    p, q = (1 + slope) / 2, (1 - slope) / 2
    if g.shape[1] == 1:
        size = max(np.linalg.norm(np.maximum(g, 0)), np.linalg.norm(np.maximum(-g, 0)))
    else:
        size = np.sqrt(max(np.linalg.eigvalsh(g.T @ g)[-1], 0.0))
    product = g.T @ x
    linear, rest = p**2 * product.T @ product, (q * size) ** 2 * (x.T @ x)

    def squared(log_tau: float) -> float:
        tau = np.exp(log_tau)
        return float(np.linalg.eigvalsh((1 + tau) * linear + (1 + 1 / tau) * rest)[-1])

    a, b = (np.sqrt(max(float(np.linalg.eigvalsh(m)[-1]), 0.0)) for m in (linear, rest))
    bound = float(a + b)  # tau = b/a; tight if the same v maximizes both terms
    if a > 0 and b > 0:
        middle = float(np.log(b / a))
        best = minimize_scalar(squared, bounds=(middle - 5, middle + 5), method="bounded", options={"maxiter": 30})
        bound = min(bound, float(np.sqrt(max(best.fun, 0.0))))
    return bound * (1 + 1e-12)


def branch_and_bound(
    neuron: Neuron, start: np.ndarray, *, rtol: float = 1e-6, max_cones: int = 20_000
) -> tuple[float, np.ndarray]:
    """Return an upper bound on the size of G^T sigma(X v) over unit v, and the best v found, by splitting cones.

    The space is split into simplicial cones. In a cone with corners p_j (unit vectors), v = sum_j lambda_j p_j with
    lambda_j >= 0. With z_ij = x_i . p_j,

        G^T sigma(X v) = sum_j lambda_j F_j - (1 - s) sum_i g_i e_i,    F_j = G^T sigma(X p_j),
        0 <= e_i = sum_j lambda_j relu(z_ij) - relu(sum_j lambda_j z_ij) <= Lambda a b / (a + b),

    where a and b are the largest of relu(z_ij) and of relu(-z_ij), and Lambda is the maximum of sum_j lambda_j over
    unit v. The linear function with value ||F_j|| at p_j is at most the norm of its gradient, and at most Lambda
    max_j ||F_j||. The e_i contribute at most sum_i |g_i| e_i, or, with one output, the sum over the g_i of one sign.
    Both errors are of the order of the squared width of the cone. The cones with the largest bounds are split across
    their widest edge.

    Parameters
    ----------
    neuron : Neuron
        With X, (N, r), of rank r >= 2.
    start : ndarray
        A good unit vector, (r,).
    rtol : float
        The search stops when upper - lower is at most ``rtol`` times lower.
    max_cones : int
        Number of bounded cones from which on the search stops in any case.
    """
    x, g, slope, signed = neuron.x, neuron.g, neuron.slope, neuron.signed
    rank = x.shape[1]
    parts = np.linalg.norm(g, axis=1, keepdims=True)
    if g.shape[1] == 1:
        parts = np.maximum(-g, 0) if signed else np.concatenate([np.maximum(g, 0), np.maximum(-g, 0)], 1)
    best, lower = start, max(neuron.size(start), 0.0)

    def bounds_of(corners: np.ndarray) -> np.ndarray:
        """Return an upper bound on the size in each cone, for corners (cone, corner, coordinate)."""
        nonlocal best, lower
        z = corners @ x.T  # (C, r, N)
        above, below = np.maximum(z, 0), np.maximum(-z, 0)
        outputs = (above - slope * below) @ g
        values = outputs[..., 0] if signed else np.linalg.norm(outputs, axis=2)  # (C, r)
        cone, corner = np.unravel_index(values.argmax(), values.shape)
        if values[cone, corner] > lower:
            best, lower = corners[cone, corner], float(values[cone, corner])
        a, b = above.max(1), below.max(1)
        gap = (np.divide(a * b, a + b, out=np.zeros_like(a), where=a + b > 0) @ parts).max(1)
        targets = np.stack([np.ones_like(values), values], 2)
        gradients = np.linalg.norm(np.linalg.solve(corners, targets), axis=1)  # (C, 2)
        spread = gradients[:, 0]
        linear = np.minimum(gradients[:, 1], spread * np.maximum(values.max(1), 0))
        return (linear + (1 - slope) * spread * gap) * (1 + 1e-12)

    signs = np.array(list(itertools.product([1.0, -1.0], repeat=rank)))
    corners = signs[:, :, None] * np.eye(rank)
    bounds, seen = bounds_of(corners), len(signs)
    batch = max(1, min(BATCH, 2**22 // (rank * len(x))))
    while seen < max_cones:
        order = np.argsort(-bounds, kind="stable")
        order = order[bounds[order] > lower * (1 + rtol)]
        if not len(order):
            break
        split, rest = order[:batch], order[batch:]
        halves = _halves(corners[split])
        try:
            smaller = np.minimum(bounds_of(halves), np.tile(bounds[split], 2))  # a cone's bound holds for its halves
        except np.linalg.LinAlgError:  # degenerate cones if the maximum is nearly 0; keep the bounds
            break
        corners, bounds = np.concatenate([corners[rest], halves]), np.concatenate([bounds[rest], smaller])
        seen += len(halves)
    left = bounds[bounds > lower * (1 + rtol)]
    return (float(left.max()) if len(left) else lower * (1 + rtol)), best


def _halves(corners: np.ndarray) -> np.ndarray:
    """Return both halves of every cone, bisected at the middle of its widest edge."""
    cosines = corners @ corners.transpose(0, 2, 1)
    rank = corners.shape[1]
    cosines[:, np.arange(rank), np.arange(rank)] = 2.0
    i, j = np.unravel_index(cosines.reshape(len(corners), -1).argmin(1), (rank, rank))
    cone = np.arange(len(corners))
    middle = corners[cone, i] + corners[cone, j]
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    halves = np.repeat(corners[None], 2, axis=0)
    halves[0, cone, i] = middle
    halves[1, cone, j] = middle
    return halves.reshape(-1, rank, rank)
