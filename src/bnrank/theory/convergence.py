"""How far each layer's weights are from those that its inputs and gradients determine at a stationary point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.measures.second_order import Array, Evaluation, Problem
from bnrank.measures.subgradients import KINK_RTOL, least
from bnrank.networks.chain import as_mlp
from bnrank.tasks.task import Task, as_task

if TYPE_CHECKING:
    import pandas as pd

NEGLIGIBLE = 1e-8  # size of both sides, relative to ||theta||^2 / L, below which it does not count


@dataclass(frozen=True)
class FeatureConvergence(Printed):
    """Both sides of the stationarity identity of features, layer by layer.

    Attributes
    ----------
    features : tuple of ndarray
        W_l^T W_l, (n_{l-1}, n_{l-1}), l = 1..L.
    predicted : tuple of ndarray
        -(1 / (2 lambda)) (1/N) sum_i g_i a_i^T, the same shapes: a_i is the input of layer l at sample i, and g_i the
        gradient of the cost of sample i with respect to it.
    outer_products : tuple of ndarray
        The average gradient outer product (1/N) sum_i J_i^T J_i, the same shapes, J_i the Jacobian of the outputs with
        respect to the input of layer l.
    errors : ndarray, (L,)
        ||features - predicted||_F / (||features||_F + ||predicted||_F), in [0, 1]; with biases, both sides have one
        more column, W_l^T b_l and -(1 / (2 lambda)) (1/N) sum_i g_i. Where the layer is negligible, the
        error is relative to 1e-8 ||theta||^2 / L.
    correlations, root_correlations : ndarray, (L,)
        Cosine <A, B> / (||A||_F ||B||_F) of the features with the average gradient outer product, and with its root of
        order L - l + 1. NaN where one of them is 0.
    residual : float
        Relative norm of the least subgradient of C + lambda ||theta||^2, as of `bnrank.cost.stationarity`.
    """

    features: tuple[Array, ...]
    predicted: tuple[Array, ...]
    outer_products: tuple[Array, ...]
    errors: Array
    correlations: Array
    root_correlations: Array
    residual: float

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with a row per layer."""
        import pandas as pd

        columns = {"error": self.errors, "correlation": self.correlations, "root_correlation": self.root_correlations}
        return pd.DataFrame({"layer": range(1, len(self.errors) + 1), **columns})

    def _content(self) -> list[Part]:
        title = f"W^T W and its prediction from inputs and gradients; relative gradient {self.residual:.2g}"
        return [title, Table("Layers", self.to_frame().to_dict("records"))]


def feature_convergence(
    net: nn.Module, task: Task | tuple[Any, ...], ridge: float, *, kink_rtol: float = KINK_RTOL
) -> FeatureConvergence:
    r"""Return how far W_l^T W_l of every layer is from its value at a stationary point of C + lambda ||theta||^2.

    There W_l^T W_l = -(1 / (2 lambda)) (1/N) sum_i g_i a_i^T, with a_i the input of layer l at sample i and g_i the
    gradient of the cost of sample i with respect to a_i. The relative error of this identity is a gauge of convergence
    for each layer. A consequence is the neural feature ansatz: W_l^T W_l is nearly a multiple of a power of the average
    gradient outer product.

    Parameters
    ----------
    net : nn.Module
        A chain of linear layers with one activation of slope in (-1, 1), such as `bnrank.MLP`, or 1.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss). With ``Task.weights``, means are weighted.
    ridge : float
        lambda > 0, of both weights and biases.
    kink_rtol : float
        A preactivation counts as 0 up to this times ||w|| ||a|| (with b and 1 appended). The derivatives of the
        activation there are those of least gradient.

    Returns
    -------
    FeatureConvergence
        Both sides, their relative difference, and the correlation with the average gradient outer product.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain, the sizes of network and task differ, ridge is not positive, or there are
        too many kinks.

    Notes
    -----
    Stationarity in layer l is 2 lambda [W_l, b_l] = -(1/N) sum_i delta_i [a_i; 1]^T with delta_i the gradient with
    respect to the preactivations; the product with W_l^T from the left gives the identity, as g_i = W_l^T delta_i. In
    linear networks at a minimum, W_l^T W_l is a multiple of the root of order L - l + 1 of the average gradient outer
    product. Source: Boix-Adsera, Mallinar, Simon and Belkin 2026 (T50); the ansatz is from Radhakrishnan et al. 2024.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)
    >>> run = bnrank.train(bnrank.MLP([3, 6, 6, 3]), task, ridge=5e-3, steps=300, seed=0, progress=False)
    >>> trained = bnrank.theory.feature_convergence(run.network(0), task, 5e-3)
    >>> done = bnrank.finish(run.network(0), task, 5e-3, progress=False)
    >>> finished = bnrank.theory.feature_convergence(done.network, task, 5e-3)
    >>> bool(trained.errors.max() > 1e-4), bool(finished.errors.max() < 1e-8)
    (True, True)
    """
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    kink_rtol = validation.number(kink_rtol, "kink_rtol", 0.0)
    task, chain = as_task(task, weighted=True), as_mlp(net)
    problem = Problem.of(chain, task, ridge)
    layers = problem.layers(chain)
    problem.refuse_infinite(layers)
    found = least(problem, layers, kink_rtol)
    return of_evaluation(found.evaluation(problem, layers), found.best.relative_gradient)


def of_evaluation(at: Evaluation, residual: float) -> FeatureConvergence:
    """Return both sides at an evaluation with the derivatives at kinks, whose relative gradient is ``residual``."""
    depth = len(at.layers)
    parts = [sides(at, number) for number in range(depth)]
    features = tuple(left[:, : len(left)] for left, _, _ in parts)
    predicted = tuple(right[:, : len(right)] for _, right, _ in parts)
    errors = [float(np.linalg.norm(left - right)) / size if size > 0 else 0.0 for left, right, size in parts]
    outer = tuple(_outer_products(at))
    correlations, root_correlations = np.full((2, depth), np.nan)
    for number, (feature, product) in enumerate(zip(features, outer, strict=True)):
        values, vectors = np.linalg.eigh(product)
        root = (vectors * np.maximum(values, 0) ** (1 / (depth - number))) @ vectors.T
        correlations[number], root_correlations[number] = _cosine(feature, product), _cosine(feature, root)
    return FeatureConvergence(features, predicted, outer, np.array(errors), correlations, root_correlations, residual)


def sides(at: Evaluation, number: int) -> tuple[Array, Array, float]:
    """Return both sides for a layer, from 0, with the column of the biases, and the size errors are relative to."""
    layer, width = at.layers[number], len(at.layers[number - 1]) if number else at.problem.x.shape[1]
    left = layer[:, :width].T @ layer
    right = -((at.deltas[number] @ layer[:, :width]).T @ at.inputs[number]) / (2 * at.problem.ridge)
    smallest = NEGLIGIBLE * sum(float((w * w).sum()) for w in at.layers) / len(at.layers)
    return left, right, max(float(np.linalg.norm(left) + np.linalg.norm(right)), smallest)


def _outer_products(at: Evaluation) -> list[Array]:
    """Return the average gradient outer products with respect to the inputs of all layers, (n_{l-1}, n_{l-1})."""
    problem, found = at.problem, []
    shares = np.sqrt(np.bincount(problem.rows, weights=problem.weights, minlength=len(problem.x)))
    jacobian = shares[:, None, None] * np.eye(len(at.layers[-1]))
    for number in reversed(range(len(at.layers))):
        width = len(at.layers[number - 1]) if number else problem.x.shape[1]
        jacobian = jacobian @ at.layers[number][:, :width]
        flat = jacobian.reshape(-1, width)
        found.append(flat.T @ flat)
        jacobian = jacobian * at.first[number - 1][:, None, :] if number else jacobian
    return found[::-1]


def _cosine(a: Array, b: Array) -> float:
    """Return <A, B> / (||A||_F ||B||_F), NaN where a norm is 0."""
    sizes = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    return float(((a / sizes[0]) * (b / sizes[1])).sum()) if min(sizes) > 0 else np.nan
