"""Steps that rotate neurons: curved paths along which the loss is flat.

Let W and V be the incoming and outgoing weights of neurons of one layer that are active on the same samples. Replacing
them by R W and V R^T, with R orthogonal, leaves function and norm unchanged. A straight step along such an orbit leaves
it at second order, where the loss rises, so that only short steps decrease the loss. Here the part of a step that is a
rotation is carried out as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, join

ALIKE = 0.9  # share of the samples on which neurons of one group are both active or both inactive
LARGEST = 0.5  # norm of the generator of the largest rotation


def groups(first: Sequence[Array]) -> list[list[Array]]:
    """Return groups of two or more neurons with nearly the same activation pattern, for every hidden layer.

    Parameters
    ----------
    first : sequence of ndarray
        Derivatives of the activation, (N, n_l), one per hidden layer.
    """
    result = []
    for values in first:
        left, found = list(range(values.shape[1])), []
        while left:
            one = left[0]
            near = [i for i in left if np.abs(values[:, i] - values[:, one]).mean() <= 1 - ALIKE]
            left = [i for i in left if i not in near]
            if len(near) > 1:
                found.append(np.array(near))
        result.append(found)
    return result


def parted(
    layers: Sequence[Array], steps: Sequence[Array], alike: Sequence[Sequence[Array]]
) -> tuple[list[Array], list[tuple[int, Array, Array]]]:
    """Return steps without the rotations of neurons in them, and the generators of these: layer, neurons and Phi.

    The generator Phi, antisymmetric, of a group is the one for which Phi W and -V Phi are nearest to the steps of W and
    V: Phi M + M Phi = K - K^T with M = W W^T + V^T V and K = dW W^T - V^T dV.
    """
    rest, generators = [step.copy() for step in steps], []
    for number, found in enumerate(alike):
        for group in found:
            w, v = layers[number][group], layers[number + 1][:, group]
            dw, dv = rest[number][group], rest[number + 1][:, group]
            size, k = w @ w.T + v.T @ v, dw @ w.T - v.T @ dv
            phi = scipy.linalg.solve_sylvester(size, size, k - k.T)
            phi = (phi - phi.T) / 2
            if not np.isfinite(phi).all():
                continue
            rest[number][group] -= phi @ w
            rest[number + 1][:, group] += v @ phi
            generators.append((number, group, phi))
    return rest, generators


def moved(layers: Sequence[Array], steps: Sequence[Array], alike: Sequence[Sequence[Array]]) -> list[Array]:
    """Return layers + steps to first order, with the rotations that the steps contain carried out exactly."""
    rest, generators = parted(layers, steps, alike)
    result = [layer + step for layer, step in zip(layers, rest, strict=True)]
    for number, group, phi in generators:
        rotation = scipy.linalg.expm(phi * min(1.0, LARGEST / max(float(np.linalg.norm(phi)), 1e-300)))
        result[number][group] = rotation @ result[number][group]
        result[number + 1][:, group] = result[number + 1][:, group] @ rotation.T
    return result


def curving(at: Evaluation) -> float:
    """Return ||gradient|| / ||theta||, the size of the curvature of a symmetry of the loss off a stationary point.

    Along a rotation of neurons active on the same samples the Hessian is of the order of the gradient, and an undamped
    step would be long and leave the curved orbit.
    """
    return float(np.linalg.norm(at.gradient)) / max(float(np.linalg.norm(join(at.layers))), 1e-300)
