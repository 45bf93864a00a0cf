"""Newton's method for an escape direction whose kinks are known."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.escape.stationarity import Stationarity, of_weights

Array = np.ndarray
TOLERANCES = (1e-8, 1e-6, 1e-4)  # of kinks, tried in turn
MAX_UNKNOWNS = 1200
MAX_COST = 1 << 19  # unknowns times samples
SOLVED = 1e-15  # residual of the solved equations, for data of norm 1


def reduce(weights: Sequence[Array], dead: float = 1e-6, angle: float = 1e-4) -> tuple[list[Array], list[Array]]:
    """Return the weights without neurons that died out, and with those of parallel incoming rows merged.

    Neurons that an escape direction does not use shrink under projected steps, rows and outgoing columns together.
    Neurons with rows c_i w, c_i > 0, are equivalent to one neuron; its norm is no larger (by Cauchy-Schwarz).

    Parameters
    ----------
    weights : sequence of ndarray
        W_1, ..., W_L.
    dead : float
        Norm of row and column below which a neuron is left out. One neuron per layer stays.
    angle : float
        Largest distance of unit rows that count as parallel.

    Returns
    -------
    weights, factors : lists of ndarray
        w_l, each of norm 1, and U_0 = I, U_1, ..., U_L = I with orthonormal non-negative columns, so that
        W_l = U_l w_l U_{l-1}^T up to the removed neurons.
    """
    result, factors = [w.copy() for w in weights], [np.eye(weights[0].shape[1])]
    for layer in range(len(weights) - 1):
        rows, columns = result[layer], result[layer + 1]
        size = np.linalg.norm(rows, axis=1)
        alive = np.maximum(size, np.linalg.norm(columns, axis=0)) > dead
        alive[int(size.argmax())] = True
        unit = rows / np.maximum(size, np.finfo(float).tiny)[:, None]
        groups: list[list[int]] = []
        for i in np.argsort(-size):
            if alive[i]:
                near = [group for group in groups if np.linalg.norm(unit[group[0]] - unit[i]) <= angle]
                near[0].append(i) if near else groups.append([i])
        factor = np.zeros((len(rows), len(groups)))
        for number, group in enumerate(groups):
            factor[group, number] = size[group] / max(float(np.linalg.norm(size[group])), np.finfo(float).tiny)
        result[layer], result[layer + 1] = factor.T @ rows, columns @ factor
        factors.append(factor)
    return _normalized(result), [*factors, np.eye(len(weights[-1]))]


def grow(weights: Sequence[Array], factors: Sequence[Array]) -> list[Array]:
    """Return U_l w_l U_{l-1}^T, which computes what w does, with the same norms, for factors as of :func:`reduce`."""
    return [u @ w @ v.T for w, v, u in zip(weights, factors, factors[1:], strict=False)]


def snap(weights: Sequence[Array], x: Array, g: Array, slope: float) -> tuple[list[Array], Stationarity]:
    """Return a nearly stationary direction moved onto its kinks and made stationary there, if it is small enough.

    With theta and the derivatives alpha of the activation at the kinks as unknowns, T36 and z = 0 at the kinks are as
    many equations; Newton steps of least norm solve them, on the network that :func:`reduce` leaves. The result is
    accepted only if its residual, with the subgradients of :func:`bnrank.theory.escape.residual`, is less and its speed
    no lower than before (by more than 1e-5 of it). It may still not be a maximum: the speed may grow on one side.

    Parameters
    ----------
    weights : sequence of ndarray
        W_1, ..., W_L, (n_l, n_{l-1}), each of norm 1.
    x, g : ndarray
        X and G, float64.
    slope : float
        That of the activation.

    Returns
    -------
    weights, Stationarity
        Of the given shapes; the residual and the kinks are those of the reduced network, whose subgradients are
        subgradients of the whole one.
    """
    small, factors = reduce(weights)
    best, stands = small, of_weights(small, x, g, slope)
    tried: set[bytes] = set()
    size = sum(w.size for w in small)
    for rtol in TOLERANCES if size <= MAX_UNKNOWNS and size * len(x) <= MAX_COST else ():
        at = of_weights(small, x, g, slope, rtol)
        key = np.stack([at.layers, at.neurons, at.samples]).tobytes()
        unknowns = len(at.derivatives) + size
        if key in tried or unknowns > MAX_UNKNOWNS or unknowns * len(x) > MAX_COST:
            continue
        tried.add(key)
        candidate = _newton(small, x, g, slope, at)
        now = of_weights(candidate, x, g, slope)
        if now.residual < stands.residual and now.speed >= stands.speed * (1 - 1e-5):
            best, stands = candidate, now
    return grow(best, factors), stands


def _normalized(weights: Sequence[Array]) -> list[Array]:
    return [w / max(float(np.linalg.norm(w)), np.finfo(float).tiny) for w in weights]


class _Equations:
    """T36 with the layers of norm 1, and z = 0 at the kinks."""

    def __init__(self, weights: Sequence[Array], x: Array, g: Array, slope: float, at: Stationarity):
        self.shapes = [w.shape for w in weights]
        self.x = torch.from_numpy(x.T / np.linalg.norm(x))
        self.g = torch.from_numpy(g.T / np.linalg.norm(g))
        self.slope = slope
        self.groups, self.sides = torch.from_numpy(at.groups), torch.from_numpy(at.sides)
        self.first = torch.from_numpy(np.unique(at.groups, return_index=True)[1])
        self.alphas = torch.from_numpy(at.derivatives)[self.first]
        self.at = [torch.from_numpy(np.flatnonzero(at.layers == layer)) for layer in range(1, len(weights))]
        self.where = [
            (torch.from_numpy(at.neurons[i.numpy()]), torch.from_numpy(at.samples[i.numpy()])) for i in self.at
        ]
        self.parameters = sum(w.size for w in weights)
        self.pattern, a = [], x.T
        for w in weights[:-1]:
            z = w @ a
            d = np.where(z > 0, 1.0, slope)
            self.pattern.append(torch.from_numpy(d))
            a = z * d

    def split(self, v: Tensor) -> tuple[list[Tensor], Tensor]:
        pieces = torch.split(v[: self.parameters], [a * b for a, b in self.shapes])
        return [p.reshape(s) for p, s in zip(pieces, self.shapes, strict=True)], v[self.parameters :]

    def __call__(self, v: Tensor) -> Tensor:
        """Return the residuals of all equations."""
        weights, free = self.split(v)
        alphas = torch.where(self.sides > 0, free[self.groups], 1 + self.slope - free[self.groups])
        inputs, slopes, zeros = [self.x], [], []
        for w, pattern, i, where in zip(weights[:-1], self.pattern, self.at, self.where, strict=True):
            z = w @ inputs[-1]
            zeros.append(z[where])  # of one group, multiples of each other
            slopes.append(torch.index_put(pattern, where, alphas[i]) if len(i) else pattern)
            inputs.append(z * slopes[-1])
        delta, ascent = -self.g, []
        for layer in reversed(range(len(weights))):
            ascent.append(delta @ inputs[layer].T)
            if layer:
                delta = (weights[layer].T @ delta) * slopes[layer - 1]
        ascent = ascent[::-1]
        speed = (weights[-1] * ascent[-1]).sum()
        return torch.cat(
            [*((a - speed * w).flatten() for a, w in zip(ascent, weights, strict=True)), torch.cat(zeros)[self.first]]
        )


def _newton(weights: Sequence[Array], x: Array, g: Array, slope: float, at: Stationarity) -> list[Array]:
    equations = _Equations(weights, x, g, slope, at)
    v = torch.cat([*(torch.from_numpy(w).flatten() for w in weights), equations.alphas])
    now = equations(v)
    chunk = max(1, (1 << 22) // max(1, sum(p.numel() for p in equations.pattern) + now.numel()))
    jacobian = torch.func.jacrev(equations, chunk_size=chunk)
    for _ in range(20):
        if now.norm() <= SOLVED:
            break
        move = torch.linalg.lstsq(jacobian(v), -now[:, None], rcond=1e-9, driver="gelsd").solution[:, 0]
        size = 1.0
        while size > 1e-3:
            tried = equations(v + size * move)
            if tried.norm() < now.norm():
                break
            size /= 2
        else:
            break
        v, now = v + size * move, tried
    return _normalized([w.numpy() for w in equations.split(v)[0]])
