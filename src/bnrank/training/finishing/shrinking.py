"""Smaller networks of nearly the same function and norm: neurons balanced, removed, merged, and rescaled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bnrank.measures.second_order import Array, Evaluation, Problem, selected

WEAK = 1e-4  # neurons with ||incoming|| ||outgoing|| below this times the largest of their layer are removed
PARALLEL = 1e-3  # neurons whose unit incoming weights are closer than this are merged
CHANGE = 3e-4  # relative increase of the loss that may be predicted for the removal of neurons of one layer
CANDIDATES = 6  # neurons tried at each removal


def balanced(layers: Sequence[Array], sweeps: int = 100) -> list[Array]:
    """Return layers of the same function in which every neuron has incoming and outgoing weights of one norm (T14).

    ||theta||^2 does not increase. A neuron one side of which is zero is left as it is.
    """
    result = [layer.copy() for layer in layers]
    for _ in range(sweeps):
        largest = 0.0
        for low, high in itertools.pairwise(result):
            outgoing = high[:, : len(low)]
            into, out = np.linalg.norm(low, axis=1), np.linalg.norm(outgoing, axis=0)
            alive = (into > 0) & (out > 0)
            factor = np.sqrt(np.divide(out, into, out=np.ones(len(low)), where=alive))
            largest = max(largest, float(np.abs(factor - 1).max(initial=0)))
            low *= factor[:, None]
            outgoing /= factor
        if largest < 1e-15:
            break
    return result


def strengths(layers: Sequence[Array]) -> list[Array]:
    """Return ||incoming|| ||outgoing|| of the neurons of every hidden layer."""
    return [
        np.linalg.norm(low, axis=1) * np.linalg.norm(high[:, : len(low)], axis=0)
        for low, high in itertools.pairwise(layers)
    ]


def tidy(layers: Sequence[Array], weak: float = WEAK, parallel: float = PARALLEL) -> list[Array]:
    """Return balanced layers without weak neurons, with parallel ones merged.

    Neurons c w, c > 0, of unit w with outgoing weights v_c become one neuron w with sum_c c v_c.
    """
    result = balanced(layers)
    for number, strength in enumerate(strengths(result)):
        kept = strength > weak * strength.max()
        kept[int(strength.argmax())] = True
        result = selected(result, number, kept)
        low, high = result[number], result[number + 1].copy()
        size = np.linalg.norm(low, axis=1)
        unit = low / np.maximum(size, np.finfo(float).tiny)[:, None]
        near = np.linalg.norm(unit[:, None] - unit[None], axis=2) <= parallel
        gone = np.zeros(len(low), dtype=bool)
        for i in np.argsort(-size):
            if gone[i]:
                continue
            others = near[i] & ~gone
            others[i] = False
            high[:, i] += high[:, : len(low)][:, others] @ (size[others] / size[i])
            gone |= others
        result[number + 1] = high
        result = selected(result, number, ~gone)
    return balanced(result)


def thinned(problem: Problem, layers: Sequence[Array], smooth: Array, change: float = CHANGE) -> list[Array]:
    """Return layers with fewer neurons: those removed whose work the others of their layer can do.

    A neuron with weights w and v becomes sqrt(c) w and sqrt(c) v, c >= 0. The loss as a function of the c of one layer,
    to second order (its Gauss-Newton approximation), tells how much it rises when a neuron is removed and the others
    adapt (optimal brain surgeon, Hassibi and Stork 1993). The neuron of least increase is removed, as long as the
    increase of a layer remains below ``change`` times the loss; the result of a layer is kept if the loss itself rises
    by at most three times that.
    """
    layers = balanced(layers)
    for number in range(len(layers) - 2, -1, -1):
        at = Evaluation(problem, layers, smooth)
        low, width = layers[number], len(layers[number])
        outgoing, a = layers[number + 1][:, :width], at.inputs[number + 1][:, :width]
        curvature = at.curvatures("none")[number + 1]
        bent = np.matmul(curvature, outgoing)  # (N, n_{l+1}, n_l)
        hessian = np.einsum("ik,ak,iaj,ij->kj", a, outgoing, bent, a, optimize=True)
        cost = problem.ridge * ((low * low).sum(1) + (outgoing * outgoing).sum(0))
        gradient = ((at.deltas[number + 1] @ outgoing) * a).sum(0) + cost
        size = float(np.trace(hessian))
        if not size > 1e-200:  # the layer has no effect
            continue
        hessian[np.diag_indices(width)] += 1e-7 * size / width
        c = _removed(gradient, hessian, change * at.loss)
        kept = np.flatnonzero(c)
        if len(kept) == width:
            continue
        fewer = selected(layers, number, kept, np.sqrt(c[kept]))
        if Evaluation(problem, fewer, smooth).loss - at.loss <= 3 * change * at.loss:
            layers = fewer
    return balanced(layers)


def _removed(gradient: Array, hessian: Array, limit: float) -> Array:
    """Return c >= 0 with many zeros for which g^T (c - 1) + (c - 1)^T H (c - 1) / 2 is at most the limit."""
    c, alive = np.ones(len(gradient)), np.arange(len(gradient))
    while len(alive) > 1:
        inverse = np.linalg.inv(hessian[np.ix_(alive, alive)])
        increase = c[alive] ** 2 / (2 * np.diag(inverse))
        best, least = None, np.inf
        for k in np.argsort(increase)[:CANDIDATES]:
            tried = np.zeros_like(c)
            tried[alive] = np.maximum(c[alive] - c[alive[k]] * inverse[:, k] / inverse[k, k], 0)
            tried[alive[k]] = 0
            value = gradient @ (tried - 1) + (tried - 1) @ hessian @ (tried - 1) / 2
            if value < least:
                best, least = tried, value
        if best is None or least > limit or not best.any():
            break
        c, alive = best, np.flatnonzero(best)
    return c
