"""Newton's method for an escape direction whose kinks are known."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.escape.direction import preactivations
from bnrank.theory.escape.stationarity import Stationarity, deltas, of_weights

Array = np.ndarray
DEAD = 1e-6  # a neuron is dead if the norms of its row and column are at most this
PARALLEL = 1e-4  # largest distance between unit rows that count as parallel
TOLERANCES = (1e-8, 1e-6, 1e-4)  # kink tolerances, tried in this order
MAX_UNKNOWNS = 1200
MAX_COST = 1 << 19  # unknowns times samples
SOLVED = 1e-15  # residual at which the equations count as solved, for data of norm 1


def reduce(weights: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return the weights with dead neurons removed and neurons with parallel incoming rows merged.

    Neurons that an escape direction does not use shrink under projected steps: incoming rows and outgoing columns
    shrink together. Neurons with rows c_i w, c_i > 0, are equivalent to one neuron, whose norm is no larger (by
    Cauchy-Schwarz). At least one neuron per layer is kept.

    Parameters
    ----------
    weights : sequence of ndarray
        W_1, ..., W_L.

    Returns
    -------
    weights, factors : lists of ndarray
        w_l, each of norm 1, and U_0 = I, U_1, ..., U_L = I with orthonormal non-negative columns. The layers
        U_l w_l U_{l-1}^T compute a multiple of the function of the W_l, up to the removed neurons. They are multiples
        of the W_l if merged neurons also have parallel columns, in the ratio of their rows.
    """
    result, factors = [w.copy() for w in weights], [np.eye(weights[0].shape[1])]
    for layer in range(len(weights) - 1):
        rows, columns = result[layer], result[layer + 1]
        size = np.linalg.norm(rows, axis=1)
        alive = np.maximum(size, np.linalg.norm(columns, axis=0)) > DEAD
        alive[int(size.argmax())] = True
        unit = rows / np.maximum(size, np.finfo(float).tiny)[:, None]
        groups: list[list[int]] = []
        for i in np.argsort(-size):
            if alive[i]:
                near = [group for group in groups if np.linalg.norm(unit[group[0]] - unit[i]) <= PARALLEL]
                near[0].append(i) if near else groups.append([i])
        factor = np.zeros((len(rows), len(groups)))
        for number, group in enumerate(groups):
            factor[group, number] = size[group] / max(float(np.linalg.norm(size[group])), np.finfo(float).tiny)
        result[layer], result[layer + 1] = factor.T @ rows, columns @ factor
        factors.append(factor)
    return _normalized(result), [*factors, np.eye(len(weights[-1]))]


def grow(weights: Sequence[Array], factors: Sequence[Array]) -> list[Array]:
    """Return U_l w_l U_{l-1}^T, with the function and norms of w, for factors U_l as returned by :func:`reduce`."""
    return [u @ w @ v.T for w, v, u in zip(weights, factors, factors[1:], strict=False)]


def snap(weights: Sequence[Array], x: Array, g: Array, slope: float) -> tuple[list[Array], Stationarity]:
    """Return a nearly stationary direction moved onto its kinks and made stationary there, if the network is small.

    The unknowns are theta and the derivatives alpha of the activation at the kinks; the equations, equal in number, are
    T36 and z = 0 at the kinks. Newton steps of minimum norm solve them on the network that :func:`reduce` returns. The
    result is accepted only if its residual, with the subgradients of :func:`bnrank.theory.escape.residual`, is smaller
    than before and its speed decreases by at most a fraction of 1e-5. It may still not be a maximum: the speed may
    increase on one side of a kink.

    Parameters
    ----------
    weights : sequence of ndarray
        W_1, ..., W_L, (n_l, n_{l-1}), each of norm 1.
    x, g : ndarray
        X and G, float64.
    slope : float
        Slope of the activation.

    Returns
    -------
    weights, Stationarity
        Weights of the given shapes; the residual and the kinks of the reduced network, whose subgradients are also
        subgradients of the full network.
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


def _newton(weights: Sequence[Array], x: Array, g: Array, slope: float, at: Stationarity) -> list[Array]:
    """Return the weights after Newton steps for T36 with layers of norm 1, and z = 0 at the kinks."""
    sizes, shapes = [w.size for w in weights], [w.shape for w in weights]
    inputs, outputs = (torch.from_numpy(values.T / np.linalg.norm(values)) for values in (x, g))
    groups, sides = torch.from_numpy(at.groups), torch.from_numpy(at.sides)
    first = torch.from_numpy(np.unique(at.groups, return_index=True)[1])
    patterns = [torch.from_numpy(np.where(z > 0, 1.0, slope)) for z in preactivations(weights, x, slope)[:-1]]
    kinks = [np.flatnonzero(at.layers == layer) for layer in range(1, len(weights))]
    places = [(torch.from_numpy(at.neurons[i]), torch.from_numpy(at.samples[i])) for i in kinks]

    def layers_of(v: Tensor) -> list[Tensor]:
        return [part.reshape(shape) for part, shape in zip(v.split([*sizes, len(first)]), shapes, strict=False)]

    def equations(v: Tensor) -> Tensor:
        """Return the residuals of all equations."""
        layers, free = layers_of(v), v[sum(sizes) :]
        alphas = torch.where(sides > 0, free[groups], 1 + slope - free[groups])
        activations, slopes, zeros = [inputs], [], []
        for w, pattern, i, place in zip(layers[:-1], patterns, kinks, places, strict=True):
            z = w @ activations[-1]
            zeros.append(z[place])  # those of one group are multiples of each other
            slopes.append(torch.index_put(pattern, place, alphas[i]) if len(i) else pattern)
            activations.append(z * slopes[-1])
        ascent = [d @ a.T for d, a in zip(deltas(layers, slopes, outputs)[0], activations, strict=True)]
        speed = (layers[-1] * ascent[-1]).sum()
        off = [(a - speed * w).flatten() for a, w in zip(ascent, layers, strict=True)]
        return torch.cat([*off, torch.cat(zeros)[first]])

    v = torch.cat([*(torch.from_numpy(w).flatten() for w in weights), torch.from_numpy(at.derivatives)[first]])
    now = equations(v)
    chunk = max(1, (1 << 22) // max(1, sum(pattern.numel() for pattern in patterns) + now.numel()))
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
    return _normalized([w.numpy() for w in layers_of(v)])
