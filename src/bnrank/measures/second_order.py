"""Loss, gradient and exact Hessian of a chain of layers with an L2 penalty, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from bnrank._core import validation
from bnrank.networks.mlp import MLP
from bnrank.tasks.losses import cost_and_gradient, output_hessians
from bnrank.tasks.task import Task

Array = np.ndarray
Shapes = list[tuple[int, int]]


@dataclass(frozen=True)
class Problem:
    """C(f_theta) + lambda ||theta||^2 on data, for layers W_l with the bias b_l as their last column, if there is one.

    Samples with the same x are one row of ``x`` with several targets: they share every preactivation, and so the
    derivative of the activation at a kink.

    Attributes
    ----------
    x : ndarray
        The distinct samples, (N, d_in).
    y : Tensor
        Targets of all samples, as in :class:`~bnrank.tasks.Task`.
    rows : ndarray
        For every sample its row of ``x``.
    loss : str
        "mse", "cross_entropy" or "logistic".
    weights : ndarray
        Weights of all samples, of sum 1.
    ridge : float
        lambda.
    slope : float
        Slope s of the activation at negative values.
    bias : bool
        Whether the layers have biases.
    """

    x: Array
    y: torch.Tensor
    rows: Array
    loss: str
    weights: Array
    ridge: float
    slope: float
    bias: bool

    @classmethod
    def of(cls, net: MLP, task: Task, ridge: float) -> Problem:
        """Return the problem of a network and a task, in float64 on the CPU.

        Raises
        ------
        ValueError
            If the sizes of network and task differ.
        """
        outputs = 1 if task.loss == "logistic" else task.d_out
        expected = f"{net.widths[0]} inputs and {net.widths[-1]} outputs, as the network"
        fits = task.x[0].numel() == net.widths[0] and outputs == net.widths[-1]
        validation.expect(fits, "task", f"{task.x[0].numel()} inputs and {outputs} outputs", expected)
        x = task.x.detach().cpu().double().flatten(1).numpy()
        distinct, rows = np.unique(x, axis=0, return_inverse=True)
        if len(distinct) == len(x):
            distinct, rows = x, np.arange(len(x))
        y = task.y.detach().cpu()
        y = y if task.loss == "cross_entropy" else y.double()
        weights = torch.ones(len(x)) if task.weights is None else task.weights.detach().cpu()
        shares = weights.double().numpy() / float(weights.double().sum())
        return cls(distinct, y, rows.ravel(), task.loss, shares, ridge, net.slope, net.bias)

    def cost(self, outputs: Array) -> tuple[float, Array]:
        """Return C and its gradient with respect to the outputs, (N, d_out)."""
        every = torch.from_numpy(outputs[self.rows])
        weights = torch.from_numpy(self.weights * len(self.rows))
        cost = float(cost_and_gradient(self.loss, every[None], self.y, len(self.rows), weights))
        return cost, self._gathered(every.numpy())

    def curvature(self, outputs: Array) -> Array:
        """Return the Hessian of C with respect to the outputs of every distinct sample, (N, d_out, d_out)."""
        every = output_hessians(self.loss, torch.from_numpy(outputs[self.rows]), torch.from_numpy(self.weights))
        return self._gathered(every.numpy())

    def _gathered(self, values: Array) -> Array:
        result = np.zeros((len(self.x), *values.shape[1:]))
        np.add.at(result, self.rows, values)
        return result

    def refuse_infinite(self, layers: Sequence[Array]) -> None:
        """Raise if the loss or the square of its gradient is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            at = Evaluation(self, layers)
            size = at.loss + float(at.gradient @ at.gradient) + float(sum((z * z).sum() for z in at.z))
        expected = "a finite one; bring weights and data to another scale"
        validation.expect(
            np.isfinite(size), "net, task", f"a loss of {at.loss:g} with its gradient out of range", expected
        )

    def layers(self, net: MLP) -> list[Array]:
        """Return the layers of a network: W_l with b_l as last column."""
        weights = [w.detach().cpu().double().numpy() for w in net.weights]
        if not self.bias:
            return [w.copy() for w in weights]
        biases = [b.detach().cpu().double().numpy()[:, None] for b in net.biases]
        return [np.concatenate(pair, axis=1) for pair in zip(weights, biases, strict=True)]


def split(theta: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the layers as views of a vector of parameters."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(theta, ends), shapes, strict=True)]


def join(layers: Sequence[Array]) -> Array:
    """Return the vector of the parameters of all layers."""
    return np.concatenate([layer.ravel() for layer in layers])


def selected(layers: Sequence[Array], number: int, kept: Array, factors: Array | None = None) -> list[Array]:
    """Return the layers with only the kept neurons of hidden layer ``number``, from 0, on both sides times factors."""
    result, width = list(layers), len(layers[number])
    scale = np.ones(len(layers[number][kept])) if factors is None else factors
    high = layers[number + 1]
    result[number] = layers[number][kept] * scale[:, None]
    result[number + 1] = np.concatenate([high[:, :width][:, kept] * scale, high[:, width:]], axis=1)
    return result


class Evaluation:
    """One forward pass, and the derivatives that follow from it.

    With ``smooth``, one eps > 0 per hidden layer, the activation is s z + (1 - s) (z + sqrt(z^2 + eps^2)) / 2. Without
    it, it is piecewise linear, with the given derivatives at kinks: a = s_k z there.

    Parameters
    ----------
    problem : Problem
        Data, loss and penalty.
    layers : sequence of ndarray
        W_l, with b_l as last column if there are biases.
    smooth : sequence of float
        eps of every hidden layer, or nothing.
    kinks : tuple of three ndarrays, optional
        Hidden layers, from 0, neurons and samples of the kinks.
    slopes : ndarray, optional
        The derivatives of the activation at the kinks.

    Attributes
    ----------
    loss, cost : float
        C + lambda ||theta||^2, and C.
    inputs : list of ndarray
        a_{l-1} with a column of ones if there are biases, (N, n_{l-1} + 1), l = 1..L.
    z : list of ndarray
        Preactivations, (N, n_l), l = 1..L; the last are the outputs.
    first, second : list of ndarray
        First derivatives of the activation at z_l, l = 1..L-1, and second ones if it is smooth.
    """

    def __init__(
        self,
        problem: Problem,
        layers: Sequence[Array],
        smooth: Sequence[float] | Array = (),
        kinks: tuple[Array, Array, Array] | None = None,
        slopes: Array | None = None,
    ) -> None:
        self.problem, self.layers, self.smooth = problem, list(layers), smooth
        self.inputs: list[Array] = []
        self.z: list[Array] = []
        self.first: list[Array] = []
        self.second: list[Array] = []
        s, a = problem.slope, problem.x
        for number, layer in enumerate(layers):
            if problem.bias:
                a = np.concatenate([a, np.ones((len(a), 1))], axis=1)
            z = a @ layer.T
            self.inputs.append(a)
            self.z.append(z)
            if number == len(layers) - 1:
                break
            if len(smooth):
                eps = smooth[number]
                root = np.sqrt(z * z + eps * eps)
                a = s * z + (1 - s) * (z + root) / 2
                self.first.append(s + (1 - s) * (1 + z / root) / 2)
                self.second.append((1 - s) * (eps / root) ** 2 / root / 2)
            else:
                first = np.where(z > 0, 1.0, s)
                if kinks is not None and slopes is not None:
                    at = kinks[0] == number
                    first[kinks[2][at], kinks[1][at]] = slopes[at]
                a = z * first
                self.first.append(first)
        self.cost, self._last = problem.cost(self.z[-1])
        self.loss = self.cost + problem.ridge * sum(float((w * w).sum()) for w in layers)

    @cached_property
    def deltas(self) -> list[Array]:
        """dC/dz_l, (N, n_l), l = 1..L."""
        found = [self._last]
        for number in range(len(self.layers) - 1, 0, -1):
            width = len(self.layers[number - 1])
            found.append((found[-1] @ self.layers[number][:, :width]) * self.first[number - 1])
        return found[::-1]

    @cached_property
    def below(self) -> list[Array]:
        """dC/da_l, (N, n_l), l = 1..L-1."""
        pairs = zip(self.deltas[1:], self.layers[1:], self.layers, strict=False)
        return [delta @ layer[:, : len(before)] for delta, layer, before in pairs]

    @cached_property
    def cost_gradient(self) -> Array:
        """dC/dtheta, (P,)."""
        return np.concatenate([(d.T @ a).ravel() for d, a in zip(self.deltas, self.inputs, strict=True)])

    @property
    def penalty_gradient(self) -> Array:
        """2 lambda theta, (P,)."""
        return 2 * self.problem.ridge * join(self.layers)

    @property
    def gradient(self) -> Array:
        """d(C + lambda ||theta||^2)/dtheta, (P,)."""
        return self.cost_gradient + self.penalty_gradient

    @property
    def relative_gradient(self) -> float:
        """||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||); 0 if both vanish."""
        penalty = self.penalty_gradient
        total = float(np.linalg.norm(self.cost_gradient) + np.linalg.norm(penalty))
        return float(np.linalg.norm(self.cost_gradient + penalty)) / total if total > 0 else 0.0

    def curvatures(self, bends: Literal["all", "convex", "none"] = "all") -> list[Array]:
        """Return the Hessians of C with respect to z_l of every sample, l = 1..L, each (N, n_l, n_l).

        ``bends`` says which terms with the second derivative of the activation are taken: all, those that make C
        convex, or none (Gauss-Newton).
        """
        found = [self.problem.curvature(self.z[-1])]
        for number in range(len(self.layers) - 1, 0, -1):
            width = len(self.layers[number - 1])
            w, d = self.layers[number][:, :width], self.first[number - 1]
            inner = np.matmul(w.T, np.matmul(found[-1], w)) * d[:, :, None] * d[:, None, :]
            if len(self.smooth) and bends != "none":
                diagonal, bent = np.arange(width), self.second[number - 1] * self.below[number - 1]
                inner[:, diagonal, diagonal] += bent if bends == "all" else np.maximum(bent, 0)
            found.append(inner)
        return found[::-1]

    def hessian(self, bends: Literal["all", "convex", "none"] = "all") -> Array:
        """Return the Hessian of C + lambda ||theta||^2, (P, P), with second derivatives as in :meth:`curvatures`.

        With H_l the Hessian of C with respect to z_l and G_ml = dz_m/dz_l, the entry of W_m[k, p] and W_l[j, q] for
        m >= l is the sum over samples of
        (H_m G_ml)[k, j] a_{m-1}[p] a_{l-1}[q] + delta_m[k] (da_{m-1}/dz_l)[p, j] a_{l-1}[q], the second term for m > l.
        """
        layers, n, curvatures = self.layers, len(self.problem.x), self.curvatures(bends)
        starts = np.concatenate([[0], np.cumsum([layer.size for layer in layers])])
        result = np.empty((starts[-1], starts[-1]))
        for low in range(len(layers)):
            j, q = layers[low].shape
            through: Array | None = None  # da_{high-1}/dz_low, (N, n_{high-1}, j)
            for high in range(low, len(layers)):
                k, p = layers[high].shape
                width = len(layers[high - 1]) if high else 0
                left = curvatures[high]
                if high > low:
                    w = layers[high][:, :width]
                    reach = w * self.first[low][:, None, :] if through is None else np.matmul(w, through)
                    left = np.matmul(left, reach)
                outer = (self.inputs[high][:, :, None] * self.inputs[low][:, None, :]).reshape(n, p * q)
                block = (left.reshape(n, k * j).T @ outer).reshape(k, j, p, q).transpose(0, 2, 1, 3)
                if high > low:
                    pairs = self.deltas[high][:, :, None] * self.inputs[low][:, None, :]
                    block = np.ascontiguousarray(block)
                    if through is None:  # da_low/dz_low is diagonal
                        each = np.einsum("ikq,ij->kjq", pairs, self.first[low], optimize=True)
                        block[:, np.arange(j), np.arange(j)] += each
                    else:
                        each = pairs.reshape(n, k * q).T @ through.reshape(n, width * j)
                        block[:, :width] += each.reshape(k, q, width, j).transpose(0, 2, 3, 1)
                    if high < len(self.first):
                        through = reach * self.first[high][:, :, None]
                rows, columns = slice(starts[high], starts[high + 1]), slice(starts[low], starts[low + 1])
                result[rows, columns] = block.reshape(k * p, j * q)
                if high > low:
                    result[columns, rows] = result[rows, columns].T
        result[np.diag_indices(len(result))] += 2 * self.problem.ridge
        return result

    def preactivation_factors(self, layers: Array, neurons: Array, samples: Array) -> list[tuple[Array, Array]]:
        """Return dz/dW_l of pairs (hidden layer from 0, neuron, sample) as outer products u a^T.

        One pair of arrays u (K, n_l) and a (K, n_{l-1} + 1) per layer up to the highest; u is 0 for l above the pair's.
        """
        top = int(layers.max(initial=0))
        u, found = np.zeros((len(layers), len(self.layers[top]))), []
        for number in range(top, -1, -1):
            if number < top:
                width = len(self.layers[number])
                u = (u @ self.layers[number + 1][:, :width]) * self.first[number][samples]
            rows = np.flatnonzero(layers == number)
            u[rows, neurons[rows]] = 1
            found.append((u.copy(), self.inputs[number][samples]))
        return found[::-1]

    def preactivation_gradients(self, layers: Array, neurons: Array, samples: Array) -> Array:
        """Return dz/dtheta of pairs (hidden layer from 0, neuron, sample), one row each, (K, P)."""
        result = [np.zeros((len(layers), layer.size)) for layer in self.layers]
        for part, (u, a) in zip(result, self.preactivation_factors(layers, neurons, samples), strict=False):
            part[:] = (u[:, :, None] * a[:, None, :]).reshape(part.shape)
        return np.concatenate(result, axis=1)
